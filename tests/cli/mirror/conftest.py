"""A mirror from the embedded broker of 0.7 to a real broker of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.testing import KafkaBroker


@pytest.fixture
def file(cluster: str, odradek_kafka: KafkaBroker, topic: str, tmp_path: Path) -> str:
    """The file of a mirror that copies `topic`, and has its name."""
    path = tmp_path / "mirror.toml"
    path.write_text(
        f"""
        name = "{topic}"
        [source]
        url = "{cluster}"
        [target]
        url = "kafka://{odradek_kafka.bootstrap}"
        [topics]
        include = ["{topic}"]
        """
    )
    return str(path)
