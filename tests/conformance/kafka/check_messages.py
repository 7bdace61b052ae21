"""Messages: byte for byte both ways, and value for value."""

from __future__ import annotations

from typing import Any

from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.headers import header_version

from .apis import APIS
from .case import Record, SkippedError, difference
from .json_form import Tags, json_form, recorded_tags, unknown_tags

RENAMED = {
    "ListClientMetricsResources": {"configResources": "clientMetricsResources", "resourceName": "name"},
    "Vote": {f"replica{suffix}": f"candidate{suffix}" for suffix in ("Id", "Epoch", "DirectoryId")},
}
"""Fields that Kafka itself renamed after 3.9: the declarations have the new names."""


def check(record: Record) -> str | None:
    version, data = record["version"], bytes.fromhex(record["hex"])
    if record["unstable"] and record["api"] == "ReadShareGroupStateSummary" and record["side"] == "response":
        raise SkippedError("ReadShareGroupStateSummary response 0 as it never became final, without leaderEpoch")
    api = APIS[record["key"]]
    cls = api.request if record["side"] == "request" else api.response
    value = decode(cls, version, data)
    form, tags = json_form(value, version), unknown_tags(value, version)
    if record["source"] == "3.9.1" and record["api"] in RENAMED:
        form, tags = _with_old_names(form, tags, RENAMED[record["api"]])
    return (
        difference("header version", record["header_version"], header_version(cls, version))
        or difference("value", record["json"], form)
        or difference("unknown tags", recorded_tags(record), tags)
        or difference("bytes", data, encode(value, version))
    )


def _with_old_names(form: Any, tags: Tags, names: dict[str, str]) -> tuple[Any, Tags]:
    for new, old in names.items():
        tags = [(path.replace(new, old), number, content) for path, number, content in tags]
    return _renamed(form, names), tags


def _renamed(form: Any, names: dict[str, str]) -> Any:
    if isinstance(form, dict):
        return {names.get(name, name): _renamed(value, names) for name, value in form.items()}
    return [_renamed(value, names) for value in form] if isinstance(form, list) else form
