"""Decisions of a client of Kafka 0.8 to 4.x: snapshot in, effects out.

No module here reads a socket, a clock or a source of randomness: time, jitter, ids and random numbers are arguments.
"""
