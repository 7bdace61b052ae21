"""Schema registries: values in Confluent's wire format, for producers, consumers and pipelines.

    async with SchemaRegistry("https://registry:8081", username="me", password="...") as registry:
        orders = registry.avro(SCHEMA)
        async with k.producer(value_serializer=orders) as out: ...
        async with k.consumer("orders", group="billing", value_deserializer=orders) as c: ...

Needs `odradek[registry]`.
"""

from __future__ import annotations

from odradek.registry.client import SchemaRegistry
from odradek.registry.schemas import PayloadError, RegistryError
from odradek.registry.serdes import RegistrySerde, SerdeOptions

__all__ = ["PayloadError", "RegistryError", "RegistrySerde", "SchemaRegistry", "SerdeOptions"]
