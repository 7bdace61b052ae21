"""Real Kafka brokers for tests, of any release from 0.8.0 on."""

from odradek.testing.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]
