"""The declarations, one module per family of APIs. Names of structs are Kafka's, made unique where it has one twice."""
