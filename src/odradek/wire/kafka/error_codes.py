"""Error codes of brokers, and what they mean for clients (kafka-specification.md 1.5 and 5.3).

Names and the first two properties are those of Kafka's own table at 4.3; older brokers had other names for -1, 6, 14,
15 and 16.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Self

__all__ = ["ErrorCode"]


class _Property(Enum):
    RETRIABLE = 1
    REFRESH = 2
    FATAL = 3
    FENCE = 4


RETRIABLE, REFRESH, FATAL, FENCE = _Property


class ErrorCode(IntEnum):
    """An error code. A number that is not in the table is a code, too: `UNKNOWN_<number>`, without any property.

    Attributes:
        since: The first release that has it; empty if the number is unknown.
        retriable: The same request may succeed later.
        refresh_metadata: The client's knowledge of leaders, coordinators or topics is probably stale.
        fatal: The same request will fail again until a person changes something: rights, options, configuration.
        fence: The client's id, epoch or generation is no longer valid.
    """

    since: str
    retriable: bool
    refresh_metadata: bool
    fatal: bool
    fence: bool

    def __new__(cls, code: int, since: str = "", *properties: _Property) -> Self:
        return cls._make(code, since, properties)

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int):
            return None
        unknown = cls._make(value, "", ())
        unknown._name_ = f"UNKNOWN_{value}"
        return unknown

    def __reduce_ex__(self, protocol: object) -> tuple[type[Self], tuple[int]]:
        """Pickle by number: Python 3.11.2 pickles by name, and unknown numbers have none of their own."""
        return type(self), (self._value_,)

    @classmethod
    def _make(cls, code: int, since: str, properties: tuple[_Property, ...]) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.since = since
        member.retriable = RETRIABLE in properties
        member.refresh_metadata = REFRESH in properties
        member.fatal = FATAL in properties
        member.fence = FENCE in properties
        return member

    UNKNOWN_SERVER_ERROR = -1, "0.8.0"
    NONE = 0, "0.8.0"
    OFFSET_OUT_OF_RANGE = 1, "0.8.0"
    CORRUPT_MESSAGE = 2, "0.8.0", RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, "0.8.0", RETRIABLE, REFRESH
    INVALID_FETCH_SIZE = 4, "0.8.0"
    LEADER_NOT_AVAILABLE = 5, "0.8.0", RETRIABLE, REFRESH
    NOT_LEADER_OR_FOLLOWER = 6, "0.8.0", RETRIABLE, REFRESH
    REQUEST_TIMED_OUT = 7, "0.8.0", RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "0.8.0"
    REPLICA_NOT_AVAILABLE = 9, "0.8.0", RETRIABLE, REFRESH
    MESSAGE_TOO_LARGE = 10, "0.8.0"
    STALE_CONTROLLER_EPOCH = 11, "0.8.0"
    OFFSET_METADATA_TOO_LARGE = 12, "0.8.1"
    NETWORK_EXCEPTION = 13, "0.8.2", RETRIABLE, REFRESH
    COORDINATOR_LOAD_IN_PROGRESS = 14, "0.8.2", RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "0.8.2", RETRIABLE
    NOT_COORDINATOR = 16, "0.8.2", RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "0.8.2", FATAL
    RECORD_LIST_TOO_LARGE = 18, "0.8.2"
    NOT_ENOUGH_REPLICAS = 19, "0.8.2", RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "0.8.2", RETRIABLE
    INVALID_REQUIRED_ACKS = 21, "0.9.0", FATAL
    ILLEGAL_GENERATION = 22, "0.9.0", FENCE
    INCONSISTENT_GROUP_PROTOCOL = 23, "0.9.0", FATAL
    INVALID_GROUP_ID = 24, "0.9.0", FATAL
    UNKNOWN_MEMBER_ID = 25, "0.9.0", FENCE
    INVALID_SESSION_TIMEOUT = 26, "0.9.0", FATAL
    REBALANCE_IN_PROGRESS = 27, "0.9.0"
    INVALID_COMMIT_OFFSET_SIZE = 28, "0.9.0"
    TOPIC_AUTHORIZATION_FAILED = 29, "0.9.0", FATAL
    GROUP_AUTHORIZATION_FAILED = 30, "0.9.0", FATAL
    CLUSTER_AUTHORIZATION_FAILED = 31, "0.9.0", FATAL
    INVALID_TIMESTAMP = 32, "0.10.0"
    UNSUPPORTED_SASL_MECHANISM = 33, "0.10.0", FATAL
    ILLEGAL_SASL_STATE = 34, "0.10.0", FATAL
    UNSUPPORTED_VERSION = 35, "0.10.0", FATAL
    TOPIC_ALREADY_EXISTS = 36, "0.10.1", FATAL
    INVALID_PARTITIONS = 37, "0.10.1", FATAL
    INVALID_REPLICATION_FACTOR = 38, "0.10.1", FATAL
    INVALID_REPLICA_ASSIGNMENT = 39, "0.10.1", FATAL
    INVALID_CONFIG = 40, "0.10.1", FATAL
    NOT_CONTROLLER = 41, "0.10.1", RETRIABLE
    INVALID_REQUEST = 42, "0.10.1", FATAL
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "0.10.1", FATAL
    POLICY_VIOLATION = 44, "0.10.2", FATAL
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "0.11.0"
    DUPLICATE_SEQUENCE_NUMBER = 46, "0.11.0"
    INVALID_PRODUCER_EPOCH = 47, "0.11.0", FENCE
    INVALID_TXN_STATE = 48, "0.11.0"
    INVALID_PRODUCER_ID_MAPPING = 49, "0.11.0"
    INVALID_TRANSACTION_TIMEOUT = 50, "0.11.0", FATAL
    CONCURRENT_TRANSACTIONS = 51, "0.11.0", RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, "0.11.0", FATAL, FENCE
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "0.11.0", FATAL
    SECURITY_DISABLED = 54, "0.11.0", FATAL
    OPERATION_NOT_ATTEMPTED = 55, "0.11.0"
    KAFKA_STORAGE_ERROR = 56, "1.0", RETRIABLE, REFRESH
    LOG_DIR_NOT_FOUND = 57, "1.0"
    SASL_AUTHENTICATION_FAILED = 58, "1.0", FATAL
    UNKNOWN_PRODUCER_ID = 59, "1.0"
    REASSIGNMENT_IN_PROGRESS = 60, "1.0"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "1.1", FATAL
    DELEGATION_TOKEN_NOT_FOUND = 62, "1.1", FATAL
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "1.1", FATAL
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "1.1", FATAL
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "1.1", FATAL
    DELEGATION_TOKEN_EXPIRED = 66, "1.1", FATAL
    INVALID_PRINCIPAL_TYPE = 67, "1.1", FATAL
    NON_EMPTY_GROUP = 68, "1.1"
    GROUP_ID_NOT_FOUND = 69, "1.1"
    FETCH_SESSION_ID_NOT_FOUND = 70, "1.1", RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "1.1", RETRIABLE
    LISTENER_NOT_FOUND = 72, "2.0", RETRIABLE, REFRESH
    TOPIC_DELETION_DISABLED = 73, "2.1", FATAL
    FENCED_LEADER_EPOCH = 74, "2.1", RETRIABLE, REFRESH
    UNKNOWN_LEADER_EPOCH = 75, "2.1", RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "2.1", FATAL
    STALE_BROKER_EPOCH = 77, "2.2"
    OFFSET_NOT_AVAILABLE = 78, "2.2", RETRIABLE
    MEMBER_ID_REQUIRED = 79, "2.2"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "2.2", RETRIABLE, REFRESH
    GROUP_MAX_SIZE_REACHED = 81, "2.2", FATAL
    FENCED_INSTANCE_ID = 82, "2.3", FATAL, FENCE
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "2.4", RETRIABLE, REFRESH
    ELECTION_NOT_NEEDED = 84, "2.4", RETRIABLE, REFRESH
    NO_REASSIGNMENT_IN_PROGRESS = 85, "2.4"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "2.4"
    INVALID_RECORD = 87, "2.4"
    UNSTABLE_OFFSET_COMMIT = 88, "2.5", RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "2.7", RETRIABLE
    PRODUCER_FENCED = 90, "2.7", FATAL, FENCE
    RESOURCE_NOT_FOUND = 91, "2.7"
    DUPLICATE_RESOURCE = 92, "2.7"
    UNACCEPTABLE_CREDENTIAL = 93, "2.7", FATAL
    INCONSISTENT_VOTER_SET = 94, "2.7"
    INVALID_UPDATE_VERSION = 95, "2.7"
    FEATURE_UPDATE_FAILED = 96, "2.7"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "2.8", FATAL
    SNAPSHOT_NOT_FOUND = 98, "2.8"
    POSITION_OUT_OF_RANGE = 99, "2.8"
    UNKNOWN_TOPIC_ID = 100, "2.8", RETRIABLE, REFRESH
    DUPLICATE_BROKER_REGISTRATION = 101, "2.8"
    BROKER_ID_NOT_REGISTERED = 102, "2.8"
    INCONSISTENT_TOPIC_ID = 103, "2.8", RETRIABLE, REFRESH
    INCONSISTENT_CLUSTER_ID = 104, "2.8", FATAL
    TRANSACTIONAL_ID_NOT_FOUND = 105, "3.0"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "3.1", RETRIABLE
    INELIGIBLE_REPLICA = 107, "3.3"
    NEW_LEADER_ELECTED = 108, "3.3"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "3.5"
    FENCED_MEMBER_EPOCH = 110, "3.5", FENCE
    UNRELEASED_INSTANCE_ID = 111, "3.5"
    UNSUPPORTED_ASSIGNOR = 112, "3.5", FATAL
    STALE_MEMBER_EPOCH = 113, "3.6", FENCE
    MISMATCHED_ENDPOINT_TYPE = 114, "3.7"
    UNSUPPORTED_ENDPOINT_TYPE = 115, "3.7"
    UNKNOWN_CONTROLLER_ID = 116, "3.7"
    UNKNOWN_SUBSCRIPTION_ID = 117, "3.7"
    TELEMETRY_TOO_LARGE = 118, "3.7"
    INVALID_REGISTRATION = 119, "3.7", FATAL
    TRANSACTION_ABORTABLE = 120, "3.8"
    INVALID_RECORD_STATE = 121, "3.9"
    SHARE_SESSION_NOT_FOUND = 122, "3.9", RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "3.9", RETRIABLE
    FENCED_STATE_EPOCH = 124, "3.9", FENCE
    INVALID_VOTER_KEY = 125, "3.9"
    DUPLICATE_VOTER = 126, "3.9"
    VOTER_NOT_FOUND = 127, "3.9"
    INVALID_REGULAR_EXPRESSION = 128, "4.0", FATAL
    REBOOTSTRAP_REQUIRED = 129, "4.0"
    STREAMS_INVALID_TOPOLOGY = 130, "4.0", FATAL
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "4.0"
    STREAMS_TOPOLOGY_FENCED = 132, "4.0", FENCE
    SHARE_SESSION_LIMIT_REACHED = 133, "4.2", RETRIABLE
