"""Keys and values of control records.

A version precedes a transaction marker and a key; the others have theirs as a field.
"""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.schema import (
    I16,
    I32,
    I64,
    U16,
    ZERO_UUID,
    Message,
    Str,
    Struct,
    Uuid,
    message,
    since,
    struct,
)

from .common import KRaftVersionFeature


@struct
class LeaderChangeMessageVoter(Struct):
    voter_id: I32 = 0
    voter_directory_id: Annotated[Uuid, since(1)] = ZERO_UUID


@message(versions=(0, 1), flexible=0)
class LeaderChangeMessage(Message):
    """Value of a control record of type 2: a new leader of a KRaft log."""

    version: I16 = 0
    leader_id: I32 = 0
    voters: tuple[LeaderChangeMessageVoter, ...] = ()
    granting_voters: tuple[LeaderChangeMessageVoter, ...] = ()


@message(versions=(0, 0), flexible=0)
class SnapshotHeaderRecord(Message):
    """Value of a control record of type 3."""

    version: I16 = 0
    last_contained_log_timestamp: I64 = 0


@message(versions=(0, 0), flexible=0)
class SnapshotFooterRecord(Message):
    """Value of a control record of type 4."""

    version: I16 = 0


@message(versions=(0, 0), flexible=0)
class KRaftVersionRecord(Message):
    """Value of a control record of type 5."""

    version: I16 = 0
    k_raft_version: I16 = 0


@struct
class VotersRecordEndpoint(Struct):
    name: Str = ""
    host: Str = ""
    port: U16 = 0


@struct
class VotersRecordVoter(Struct):
    voter_id: I32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    endpoints: tuple[VotersRecordEndpoint, ...] = ()
    k_raft_version_feature: KRaftVersionFeature = KRaftVersionFeature()


@message(versions=(0, 0), flexible=0)
class VotersRecord(Message):
    """Value of a control record of type 6: the voters of a KRaft log."""

    version: I16 = 0
    voters: tuple[VotersRecordVoter, ...] = ()


@message(versions=(0, 0), flexible=None)
class EndTxnMarker(Message):
    """Value of a control record of type 0 (abort) or 1 (commit)."""

    coordinator_epoch: I32 = 0


@message(versions=(0, 0), flexible=None)
class ControlRecordTypeSchema(Message):
    """Key of a control record."""

    type: I16 = 0
