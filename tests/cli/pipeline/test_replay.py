"""`odradek pipeline replay`."""

from __future__ import annotations

import json
from pathlib import Path

from odradek.testing import Kafka07Broker

from ...pipeline.made import Made
from .conftest import Command


def test_nothing_is_sent_without_apply(made: Made, pipeline: Command) -> None:
    with Kafka07Broker(config={"log.flush.interval": "1"}) as broker:
        target = ["--cluster", f"kafka07://1@{broker.address}", "--topic", "back"]
        out = pipeline("replay", *target)
        assert out.startswith("orders: 300 rows of 3 batches to back\n0 confirmed") and "nothing was sent" in out
        assert not list(broker.log_dir.glob("back-*"))
        result = json.loads(pipeline("replay", *target, "--batch", "1", "--apply", "--json", "--rate", "10m"))
        assert (result["rows"], result["sent"], result["confirmed"], result["ended"]) == (100, 100, 100, True)
        assert Path(result["state"]).is_file()
        assert "0 of them now" in pipeline("replay", *target, "--batch", "1", "--apply")
        state = str(made.root / "state.json")
        assert json.loads(pipeline("replay", *target, "--state", state, "--apply", "--json"))["sent"] == 300


def test_rows_are_not_sent_back_to_the_topics_the_pipeline_reads(made: Made, pipeline: Command) -> None:
    pipeline("replay", "--topic", "back", code=2)  # log directories: send where?
    text = made.file.read_text()
    made.file.write_text(text.replace(text.splitlines()[2], 'brokers = "1@127.0.0.1:1"'))
    pipeline("replay", code=2)
    assert "nothing was sent" in pipeline("replay", "--topic", "back")
    assert "nothing was sent" in pipeline("replay", "--cluster", "kafka07://other:9092")


def test_one_flow_must_be_chosen(made: Made, pipeline: Command) -> None:
    more = f'[flows.other]\ntopics = ["x"]\n[flows.other.sink]\npath = "{made.root}/other"\n'
    made.file.write_text(made.file.read_text() + more)
    pipeline("replay", "--cluster", "kafka07://a", code=2)
    assert pipeline("replay", "--cluster", "kafka07://a", "--flow", "orders")
