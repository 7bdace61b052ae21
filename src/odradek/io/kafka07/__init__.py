"""Kafka 0.7 behind the interfaces of `core.interfaces`."""
