"""Record formats of Kafka 0.8 to 4.x: message sets of magic 0 and 1, batches of magic 2 (kafka-specification.md 3)."""
