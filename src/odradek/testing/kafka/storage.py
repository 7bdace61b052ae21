"""Log directories of KRaft mode: formatted by the tool of Kafka once, then copied, which saves a second a broker."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable, Hashable
from pathlib import Path
from threading import Lock

__all__ = ["format_directory", "random_id"]

META = "meta.properties"

_templates: dict[Hashable, dict[str, bytes]] = {}
_lock = Lock()


def random_id() -> str:
    """Return an id as clusters and directories have one: 16 bytes in base64, never with "-" in front, which the tool
    that formats directories would take for an option."""
    return "k" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def format_directory(directory: Path, kind: Hashable, ids: dict[str, str], run_tool: Callable[[], None]) -> None:
    """Write the files that a broker wants in an empty directory.

    Args:
        kind: Everything that the files depend on, but the ids.
        ids: `cluster.id` and `node.id`, as they go into the file `meta.properties`.
        run_tool: Formats the directory by the tool, when none of this kind was formatted before.
    """
    with _lock:
        if kind not in _templates:
            run_tool()
            if directory.is_dir():  # unless the test chose other directories
                _templates[kind] = {path.name: path.read_bytes() for path in directory.iterdir()}
            return
    directory.mkdir()
    for name, content in _templates[kind].items():
        (directory / name).write_bytes(_with_ids(content, ids) if name == META else content)


def _with_ids(content: bytes, ids: dict[str, str]) -> bytes:
    text = content.decode("ascii")
    for name, value in {**ids, "directory.id": random_id()}.items():
        text = re.sub(rf"(?m)^{re.escape(name)}=.*$", f"{name}={value}", text)
    return text.encode("ascii")
