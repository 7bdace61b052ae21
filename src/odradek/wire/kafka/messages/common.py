"""Structs that messages of several families have in common."""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.schema import I32, U16, ZERO_UUID, Str, Struct, Uuid, nullable, struct


@struct
class NodeEndpoint(Struct):
    node_id: I32 = 0
    host: Str = ""
    port: I32 = 0
    rack: Annotated[Str | None, nullable()] = None


@struct
class TopicPartitions(Struct):
    topic: Str = ""
    partitions: tuple[I32, ...] = ()


@struct
class TopicIdPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[I32, ...] = ()


@struct
class DescribedTopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: Str = ""
    partitions: tuple[I32, ...] = ()


@struct
class Listener(Struct):
    name: Str = ""
    host: Str = ""
    port: U16 = 0
