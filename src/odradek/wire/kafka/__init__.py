"""The messages of Kafka 0.8 to 4.3: declared once for all versions, encoded and decoded for each."""
