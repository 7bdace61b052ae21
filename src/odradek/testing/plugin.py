"""The pytest plugin: fixtures for code that talks to Kafka 0.7. Loaded by pytest through its entry point."""
