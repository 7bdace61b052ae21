"""The Kafka 0.7 dialect: requests, responses, message sets. Source: specification.md 1 and 2."""
