"""The file of a mirror, and its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.mirror.config import MirrorConfig, MirrorFileError, load

SMALL = """name = "leave07"
[source]
url = "kafka07+zk://zk1:2181,zk2:2181/kafka"
[target]
url = "kafka://new1:9092"
[topics]
include = ["orders"]
"""

FULL = """name = "all"
[source]
url = "kafka+ssl://old:9092"
security = {sasl_username = "me", sasl_password = "env:MIRROR_TEST_PASSWORD"}
[target]
url = "kafka://new1:9092"
replicas = 3
[topics]
pattern = "o.*"
exclude = ["other"]
rename = {orders = "purchases"}
target = "old.{topic}"
isolation = "read_uncommitted"
origin_headers = true
append = true
lost = "continue"
[run]
tasks = 2
transaction_bytes = "1m"
transaction_seconds = 2
compression = "zstd:9"
refresh_seconds = 5
source_bytes_per_second = "20m"
target_bytes_per_second = 1000
max_message_bytes = "2m"
"""


def written(folder: Path, text: str) -> MirrorConfig:
    (folder / "m.toml").write_text(text)
    return load(folder / "m.toml")


def mistakes(folder: Path, text: str) -> list[str]:
    with pytest.raises(MirrorFileError) as raised:
        written(folder, text)
    return [mistake.removeprefix(f"{folder}/m.toml:") for mistake in raised.value.mistakes]


def test_the_smallest(tmp_path: Path) -> None:
    config = written(tmp_path, SMALL)
    assert config.topic == "odradek.mirror.leave07"
    assert config.transactional_id() == "odradek-mirror-leave07"
    assert config.transactional_id(3) == "odradek-mirror-leave07-3"
    assert config.run.source_bytes_per_second is None and config.topics.isolation == "read_committed"


def test_all_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_TEST_PASSWORD", "secret")
    config = written(tmp_path, FULL)
    assert config.run.source_bytes_per_second == 20 << 20 and config.run.target_bytes_per_second == 1000
    assert "secret" not in repr(config) and "old:9092" not in repr(config)


def test_which_topics_and_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_TEST_PASSWORD", "secret")
    topics = written(tmp_path, FULL).topics
    assert [topics.takes(name) for name in ("orders", "other", "x", "o")] == [True, False, False, True]
    assert (topics.target_name("orders"), topics.target_name("o")) == ("purchases", "old.o")


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ('name = "leave07"', "", "1: name: it is missing"),
        ("leave07", "a b", "1: name: String should match pattern"),
        ("kafka07+zk://zk1:2181,zk2:2181/kafka", "nonsense://x", "2: source: "),
        ("kafka07+zk://zk1", "kafka+sasl://me@zk1", "3: source.url: no user here"),
        ("kafka://new1", "kafka07://1@new1", "4: target: a target is named by kafka://"),
        ('include = ["orders"]', "", "6: topics: give include, pattern, or both"),
        ('include = ["orders"]', 'pattern = "("', "7: topics.pattern: not a regular expression"),
        ('include = ["orders"]', 'include = [""]', "7: topics.include: String should have at least 1 character"),
        (
            'include = ["orders"]',
            'include = ["orders"]\nrename = {x = "y"}',
            "6: topics: rename.x: include and pattern do not name this topic",
        ),
        ('include = ["orders"]', 'include = ["orders"]\ntarget = "new"', "8: topics.target: it must have {topic} once"),
        ('include = ["orders"]', 'include = ["orders"]\nlost = "skip"', "8: topics.lost: Input should be"),
        ('include = ["orders"]', 'includes = ["orders"]', "7: topics.includes: unknown key; known here: append, "),
        (
            'include = ["orders"]',
            'include = ["orders"]\npartition_by = "value"',
            "8: topics.partition_by: neither source, key, nor a function",
        ),
        (
            'include = ["orders"]',
            'include = ["orders"]\npartition_by = "no_such_module:f"',
            "8: topics.partition_by: neither source, key, nor a function",
        ),
        (
            'include = ["orders"]',
            'include = ["orders"]\npartition_by = "os:no_such_name"',
            "8: topics.partition_by: neither source, key, nor a function",
        ),
        (
            'include = ["orders"]',
            'include = ["orders"]\npartition_by = "os:sep"',
            "8: topics.partition_by: neither source, key, nor a function",
        ),
        ('include = ["orders"]', 'include = ["orders"]\nkey_field = "id"', "6: topics: partitions and key_field are"),
        ('include = ["orders"]', 'include = ["orders"]\npartitions = 3', "6: topics: partitions and key_field are"),
        ('["orders"]\n', '["orders"]\n[run]\ntasks = 0\n', "9: run.tasks: Input should be greater than 0 (it is 0)"),
        ('["orders"]\n', '["orders"]\n[run]\ntransaction_bytes = "many"\n', "9: run.transaction_bytes: a size is"),
        ('["orders"]\n', '["orders"]\n[run]\nsource_bytes_per_second = 0\n', "9: run.source_bytes_per_second: "),
        ('["orders"]\n', '["orders"]\n[run]\nrefresh_seconds = 0\n', "9: run.refresh_seconds: "),
        ('["orders"]\n', '["orders"]\n[run]\ncompression = "brotli"\n', "9: run.compression: "),
        ('["orders"]', '["orders"', "8: not TOML: "),
    ],
)
def test_a_mistake_has_its_line(tmp_path: Path, old: str, new: str, mistake: str) -> None:
    assert old in SMALL
    texts = mistakes(tmp_path, SMALL.replace(old, new, 1))
    assert any(text.startswith(mistake) for text in texts), texts


@pytest.mark.parametrize(
    ("security", "mistake"),
    [
        ('{password = "x"}', "there is no option password; known here: "),
        (
            '{sasl_username = "me", sasl_password = "env:NO_SUCH_VARIABLE"}',
            "the environment has no variable NO_SUCH_VARIABLE",
        ),
    ],
)
def test_a_mistake_in_security(tmp_path: Path, security: str, mistake: str) -> None:
    file = SMALL.replace('url = "kafka://new1:9092"', f'url = "kafka+ssl://new1:9092"\nsecurity = {security}')
    assert any(mistake in text for text in mistakes(tmp_path, file))


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    text = SMALL.replace(
        'url = "kafka://new1:9092"', 'url = "kafka://new1:9092"\nsecurity = {sasl_password = "hush", x = 1}'
    )
    assert "hush" not in " ".join(mistakes(tmp_path, text))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(MirrorFileError, match="No such file"):
        load(tmp_path / "none.toml")
