"""librdkafka's mock cluster: brokers in this process, by another author, that answer with the errors a test chooses."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import confluent_kafka

from odradek.wire.kafka.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from odradek.wire.kafka.messages.metadata import MetadataRequest
from odradek.wire.kafka.responses import KafkaResponseDecoder
from odradek.wire.kafka.schema import Request, Response

R = TypeVar("R", bound=Response)

CORRECT_VERSIONS: dict[type[Request[Any]], int] = {
    MetadataRequest: 8,  # from 9 on its response ends in the tags twice: one byte too many
    FindCoordinatorRequest: 2,
    JoinGroupRequest: 5,
    SyncGroupRequest: 3,
    HeartbeatRequest: 3,
    LeaveGroupRequest: 2,  # later ones list members
    OffsetCommitRequest: 7,
    OffsetFetchRequest: 5,
}
"""The highest version in which the mock speaks as Kafka's schemas say. It offers later ones: flexible ones, which it
decodes and encodes as if they were not, or not quite."""

NULLS = (FindCoordinatorResponse, JoinGroupResponse, SyncGroupResponse)
"""If these have an error, the mock sends nulls where the schema allows none; brokers send empty texts."""


class ErrorDecoder(KafkaResponseDecoder[R]):
    """Decodes no more than the error of a response that has nulls."""

    def _decode(self, frame: bytes) -> None:
        code = int.from_bytes(frame[8:10], "big", signed=True)  # behind correlation id and throttle time
        if issubclass(self._cls, NULLS) and code:
            self._response = self._cls(error_code=code)
        else:
            super()._decode(frame)


def load_library() -> ctypes.CDLL:
    """Load the librdkafka that confluent-kafka brings along."""
    package = Path(confluent_kafka.__file__).parent
    (path,) = package.with_name(f"{package.name}.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(path))
    handle, text, number, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
    handles = ctypes.POINTER(handle)
    functions: dict[str, tuple[Any, Sequence[Any]]] = {
        "rd_kafka_conf_new": (handle, []),
        "rd_kafka_conf_set": (number, [handle, text, text, text, size]),
        "rd_kafka_new": (handle, [number, handle, text, size]),
        "rd_kafka_destroy": (None, [handle]),
        "rd_kafka_mock_cluster_new": (handle, [handle, number]),
        "rd_kafka_mock_cluster_destroy": (None, [handle]),
        "rd_kafka_mock_cluster_bootstraps": (text, [handle]),
        "rd_kafka_mock_topic_create": (number, [handle, text, number, number]),
        "rd_kafka_mock_set_apiversion": (number, [handle, ctypes.c_int16, ctypes.c_int16, ctypes.c_int16]),
        "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [handle, ctypes.c_int32]),
        "rd_kafka_mock_push_request_errors_array": (None, [handle, ctypes.c_int16, size, ctypes.POINTER(number)]),
        "rd_kafka_mock_clear_request_errors": (None, [handle, ctypes.c_int16]),
        "rd_kafka_mock_start_request_tracking": (None, [handle]),
        "rd_kafka_mock_clear_requests": (None, [handle]),
        "rd_kafka_mock_get_requests": (handles, [handle, ctypes.POINTER(size)]),
        "rd_kafka_mock_request_api_key": (ctypes.c_int16, [handle]),
        "rd_kafka_mock_request_destroy_array": (None, [handles, size]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class MockCluster:
    """A mock cluster of one broker, for a `with` block."""

    def __enter__(self) -> Self:
        self._library = load_library()
        why = ctypes.create_string_buffer(512)
        options = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(options, b"log_level", b"0", why, len(why))
        self._client = self._library.rd_kafka_new(0, options, why, len(why))
        assert self._client, why.value
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 1)
        for api, version in CORRECT_VERSIONS.items():
            self.limit_version(api, version)
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        self._library.rd_kafka_mock_start_request_tracking(self._cluster)
        self.bootstrap: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        return self

    def __exit__(self, *error: object) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def create_topic(self, name: str) -> None:
        """Create a topic with one partition."""
        assert not self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), 1, 1)

    def limit_version(self, api: type[Request[Any]], version: int) -> None:
        """Offer a kind of request up to this version, on connections made from now on."""
        self._library.rd_kafka_mock_set_apiversion(self._cluster, api.SPEC.key, 0, version)

    def push_errors(self, api: type[Request[Any]], *codes: int) -> None:
        """Answer the next requests of a kind with these errors, 0 for none, and forget those pushed before."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, api.SPEC.key)
        errors = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, api.SPEC.key, len(codes), errors)

    def forget_requests(self) -> None:
        """Count from here on."""
        self._library.rd_kafka_mock_clear_requests(self._cluster)

    def requests(self) -> Counter[int]:
        """Return how many requests of each key it has received."""
        count = ctypes.c_size_t()
        listed = self._library.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(count))
        keys = Counter(self._library.rd_kafka_mock_request_api_key(listed[n]) for n in range(count.value))
        self._library.rd_kafka_mock_request_destroy_array(listed, count)
        return keys
