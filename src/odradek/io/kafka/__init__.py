"""Kafka 0.8 and later behind the interfaces of `core.interfaces`."""
