"""Real Kafka brokers for tests, of any release from 0.8.0 on."""

from odradek.testing.kafka.broker import KafkaBroker
from odradek.testing.kafka.cluster import KafkaCluster

__all__ = ["KafkaBroker", "KafkaCluster"]
