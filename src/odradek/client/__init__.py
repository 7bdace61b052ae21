"""The facade a user touches: cluster, producer, consumer, reader."""
