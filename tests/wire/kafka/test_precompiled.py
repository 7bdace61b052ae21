"""Functions that are compiled with the package: they are those that would be generated, and fail like them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

from odradek.errors import LocalProtocolError
from odradek.wire.kafka import precompiled
from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.encoder_source import EncoderSource
from odradek.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.wire.kafka.source import Source

SCRIPT = run_path(str(Path(__file__).parents[3] / "scripts" / "precompile"))

READ = """
import builtins
texts, real = [], compile
def note(text, title, mode):
    texts.append(title)
    return real(text, title, mode)
from odradek.wire.kafka import fetch_response, source
source.compile = note
fetch_response.FetchResponseDecoder({version}, 1, lambda partition: None, 1000)
print(len(texts))
"""


def test_the_module_is_what_the_script_writes() -> None:
    assert SCRIPT["TARGET"].read_text("utf-8") == SCRIPT["module"](), "run scripts/precompile"


@pytest.mark.parametrize(("version", "compiled"), [(18, 0), (4, 8)])
def test_only_what_is_not_in_the_module_is_compiled(version: int, compiled: int) -> None:
    program = [sys.executable, "-c", READ.format(version=version)]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == f"{compiled}\n"


def test_a_function_of_the_module_is_the_same_as_one_compiled_now(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[Source] = SCRIPT["sources"]()
    functions = [source.compile() for source in sources]
    for source in sources:
        monkeypatch.delattr(precompiled, source.checksum)
    for source, function in zip(sources, functions, strict=True):
        now = source.compile()
        for attribute in ("filename", "name", "qualname", "code", "consts", "names", "varnames", "exceptiontable"):
            assert getattr(function.__code__, f"co_{attribute}") == getattr(now.__code__, f"co_{attribute}")
        assert list(function.__code__.co_lines()) == list(now.__code__.co_lines())  # by which failures name fields
        assert function.__globals__ is now.__globals__


def test_a_value_that_cannot_be_encoded_is_named() -> None:
    assert EncoderSource(MetadataRequest, 13).source.checksum in vars(precompiled)
    topics = (MetadataRequestTopic(name="fine"), MetadataRequestTopic(name="t", topic_id=b"short"))
    with pytest.raises(LocalProtocolError, match=r"MetadataRequest version 13: topics\[1\]\.topic_id: "):
        encode(MetadataRequest(topics=topics), 13)
    fine = MetadataRequest(topics=topics[:1])
    assert decode(MetadataRequest, 13, encode(fine, 13)) == fine
