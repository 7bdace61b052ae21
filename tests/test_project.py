"""The project as a whole: what its front page prints runs, what it promises is there, and it speaks of itself alone."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import odradek
from odradek.cli.app import cli
from odradek.pipeline.config import load

from .mutations import MUTATIONS

ROOT = Path(__file__).parent.parent
SCRIPTS = ["setup", "test", "demo", "docs", "bench", "fuzz", "crates"]
FOLDERS = [".ci", "benchmarks", "docs", "rust", "scripts", "src", "tests"]
README = (ROOT / "README.md").read_text("utf-8")
SVG = "{http://www.w3.org/2000/svg}"
WIDEST = 0.6
"""The mean width of a letter, in font sizes, in the widest of the usual sans-serif fonts (DejaVu Sans)."""


def texts() -> Iterator[tuple[Path, str]]:
    """Every text file of the project."""
    files = [file for file in ROOT.iterdir() if file.suffix in (".in", ".md", ".py", ".toml", ".yaml")]
    for folder in FOLDERS:
        for parent, folders, names in os.walk(ROOT / folder):
            folders[:] = set(folders) - {"_build", "__pycache__", "target"}  # in which builds are at work
            files += (Path(parent, name) for name in names)
    for file in files:
        if file.suffix not in (".gz", ".pyc", ".kafka", ".so", ".pyd"):
            yield file.relative_to(ROOT), file.read_text("utf-8")


# ---- the front page -----------------------------------------------------------------------------------------


def example() -> str:
    block = re.search(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1]


def test_the_example_of_the_readme_runs_as_printed() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", example()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "greetings" in done.stdout
    for value in ("hello", "how", "are", "you"):
        assert f"b'{value}'" in done.stdout


def test_the_example_of_the_readme_is_short() -> None:
    assert sum(1 for line in example().splitlines() if line.strip()) <= 15


def test_the_first_screen_says_what_to_run() -> None:
    screen = "\n".join(README.splitlines()[:40])
    for needed in ("Kafka 0.7", "Kafka 0.8 to 4.x", "scripts/demo", "scripts/test", "```python"):
        assert needed in screen


def test_the_pipeline_of_the_readme_is_one_in_12_lines(tmp_path: Path) -> None:
    block = re.search(r"^```toml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert block is not None and len(block[1].splitlines()) == 12
    file = tmp_path / "pipeline.toml"
    file.write_text(block[1], "utf-8")
    assert list(load(file).flows) == ["orders"]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_code_on_a_front_page_is_not_cut_on_a_narrow_screen(page: str) -> None:
    blocks = re.findall(r"^```\w+\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    assert [line for block in blocks for line in block.splitlines() if len(line) > 78] == []


def test_labels_of_the_drawing_stay_in_their_boxes() -> None:
    drawing = ET.parse(ROOT / "docs/architecture.svg").getroot()
    boxes = [
        [float(box.get(name, "nan")) for name in ("x", "y", "width", "height")] for box in drawing.iter(f"{SVG}rect")
    ]
    labels = list(drawing.iter(f"{SVG}text"))
    assert len(labels) > 15
    for label in labels:
        at, line, text = float(label.get("x", "nan")), float(label.get("y", "nan")), label.text or ""
        widths = [width for x, y, width, height in boxes if x < at < x + width and y < line < y + height]
        size = 11 if label.get("class") == "small" else 13
        assert widths and len(text) * size * WIDEST <= widths[0], text


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    assert links
    for link in links:
        assert (ROOT / link).is_file(), link


# ---- names --------------------------------------------------------------------------------------------------


def test_at_most_75_names_are_public_and_all_are_there() -> None:
    assert len(odradek.__all__) <= 75
    assert len(set(odradek.__all__)) == len(odradek.__all__)
    for name in odradek.__all__:
        assert hasattr(odradek, name)


def test_nothing_is_defined_where_the_names_are_listed() -> None:
    source = (ROOT / "src/odradek/__init__.py").read_text("utf-8")
    assert re.findall(r"^(?:def|class|async def) (\w+)", source, re.MULTILINE) == ["__getattr__"]


# ---- scripts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [*(f"scripts/{name}" for name in SCRIPTS), ".ci/run"])
def test_a_script_is_there_and_can_be_run(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", path], check=True)
    assert "set -euo pipefail" in path.read_text("utf-8")


def test_scripts_refuse_a_missing_interpreter() -> None:
    result = subprocess.run(
        [ROOT / "scripts/setup", "dev"],
        env={**os.environ, "PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "Python 3.11 or newer" in result.stderr


def test_continuous_integration_runs_what_everybody_runs() -> None:
    assert "exec scripts/test" in (ROOT / ".ci/run").read_text("utf-8")


# ---- compose ------------------------------------------------------------------------------------------------


def test_compose_starts_three_zookeepers_that_know_each_other() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]
    servers = [name for name, service in services.items() if service["image"].startswith("zookeeper:")]
    assert len(servers) == 3
    assert {services[name]["environment"]["ZOO_MY_ID"] for name in servers} == {1, 2, 3}
    for name in servers:
        assert all(f"={other}:2888:3888" in services[name]["environment"]["ZOO_SERVERS"] for other in servers)


def test_compose_starts_three_brokers_of_today_that_know_each_other() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]
    brokers = {name: service for name, service in services.items() if service["image"].startswith("apache/kafka:")}
    assert sorted(brokers) == ["kafka1", "kafka2", "kafka3"]
    voters = ",".join(f"{service['environment']['KAFKA_NODE_ID']}@{name}:9093" for name, service in brokers.items())
    for name, service in brokers.items():
        environment = service["environment"]
        assert environment["KAFKA_CONTROLLER_QUORUM_VOTERS"] == voters
        outside = dict(each.split("://") for each in environment["KAFKA_ADVERTISED_LISTENERS"].split(","))
        assert outside["INTERNAL"] == f"{name}:9092"
        port = outside["OUTSIDE"].removeprefix("localhost:")
        assert service["ports"] == [f"127.0.0.1:{port}:{port}"]  # loopback only, where clients are told to connect
        assert f"OUTSIDE://:{port}" in environment["KAFKA_LISTENERS"]
        assert not any(key.startswith("KAFKA_ZOOKEEPER") for key in environment)


@pytest.mark.parametrize("service", ["broker", "demo"])
def test_compose_uses_flags_that_the_command_has(service: str) -> None:
    command = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"][service]["command"]
    script = shlex.split(command[-1])
    name, *arguments = script[script.index("odradek") + 1 :]
    assert name == service
    cli.commands[name].make_context(name, arguments)


# ---- what the files say -------------------------------------------------------------------------------------


def test_the_change_log_begins_with_this_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert odradek.__version__.startswith(newest[1])


def test_every_text_is_ascii() -> None:
    assert [str(path) for path, text in texts() if not text.isascii()] == []


def test_the_project_speaks_of_itself_alone() -> None:
    # Put together here, so that this file does not contain them.
    elsewhere = ["/" + "work/", "/" + "root/", ".." + "/shared", "/tmp/" + "brief"]
    assert [(str(path), word) for path, text in texts() for word in elsewhere if word in text] == []


def test_the_supported_pythons_are_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == ">=3.11"
    for text in (README, (ROOT / "scripts/setup").read_text("utf-8"), (ROOT / "docs/tutorial.md").read_text("utf-8")):
        assert "Python 3.11 or newer" in text


# ---- results of benchmarks ----------------------------------------------------------------------------------


def test_results_are_of_benchmarks_and_have_figures_that_exist() -> None:
    topics = ROOT / "docs/topics"
    results = (topics / "performance-results.md").read_text("utf-8")
    measured = re.findall(r"^### `(\w+\.py)`$", results, re.MULTILINE)
    assert measured
    assert [file for file in measured if not (ROOT / "benchmarks" / file).is_file()] == []
    linked = set(re.findall(r"\(figures/([\w-]+\.svg)\)", results))
    assert linked == {file.name for file in (topics / "figures").glob("*.svg")}


def test_every_benchmark_that_the_page_about_performance_names_exists() -> None:
    page = (ROOT / "docs/topics/performance.md").read_text("utf-8")
    named = set(re.findall(r"(?:benchmarks/|`)(\w+\.py)\b", page))
    assert len(named) > 5
    assert sorted(file for file in named if not (ROOT / "benchmarks" / file).is_file()) == []


def test_what_is_told_of_other_clients_is_made_of_the_kept_results() -> None:
    made = (
        "import json; from _peers_page import RESULTS, figures, front_pages, page;"
        "kept = json.loads(RESULTS.read_text());"
        "print(json.dumps({'page': '\\n'.join(page(kept)), 'figures': figures(kept), 'front': front_pages(kept)}))"
    )
    done = subprocess.run([sys.executable, "-c", made], cwd=ROOT / "benchmarks", capture_output=True, check=True)
    shown, topics = json.loads(done.stdout), ROOT / "docs/topics"
    assert shown["page"] == (topics / "peers-benchmarks.md").read_text("utf-8")
    drawn = {file.name: file.read_text("utf-8") for file in (topics / "peers-figures").glob("*.svg")}
    assert shown["figures"] == drawn
    assert set(re.findall(r"\(peers-figures/([\w-]+\.svg)\)", shown["page"])) == set(drawn)
    assert shown["front"] == {name: (ROOT / name).read_text("utf-8") for name in ("README.md", "docs/index.md")}


# ---- maps of the code ---------------------------------------------------------------------------------------

SOURCE = ROOT / "src/odradek"


def test_every_module_that_the_map_names_exists_and_every_package_is_in_it() -> None:
    design = (ROOT / "docs/DESIGN.md").read_text("utf-8")
    file_map = design[design.index("## File map") : design.index("## Paths")]
    modules = {file.name for file in (ROOT / "src").rglob("*.py")}
    assert sorted(set(re.findall(r"\w+\.py\b", file_map)) - modules) == []
    packages = {file.parent.name for file in SOURCE.rglob("__init__.py")} - {"odradek"}
    assert sorted(package for package in packages if f"{package}/" not in file_map) == []


@pytest.mark.parametrize(
    "package", ["client", "client/consumer", "client/producer", "core", "core/fetch", "core/produce"]
)
def test_every_module_that_all_protocols_share_is_in_the_map(package: str) -> None:
    design = (ROOT / "docs/DESIGN.md").read_text("utf-8")
    modules = {file.name for file in (SOURCE / package).glob("*.py")} - {"__init__.py"}
    assert sorted(module for module in modules if module not in design) == []


def test_every_file_that_a_newcomer_is_sent_to_exists() -> None:
    page = (ROOT / "docs/topics/first-change.md").read_text("utf-8")
    table = page[page.index("| change |") : page.index("## Make it")]
    named = [path for path in re.findall(r"`(\w+(?:/\w+)+(?:\.py|/))`", table) if "VERB" not in path]
    assert len(named) >= 15
    assert [path for path in named if not (SOURCE / path).exists()] == []


def test_every_section_of_a_specification_that_the_source_names_exists() -> None:
    sections = {page: _sections(page) for page in ("specification", "kafka-specification")}
    missing, count = [], 0
    for file in SOURCE.rglob("*.py"):
        text = re.sub(r"\s+", " ", file.read_text("utf-8"))
        for page, named in re.findall(r"(?<!Avro )\b((?:kafka-)?specification)(?:\.md)? ((?:\d|App\. )[^;:)(]*)", text):
            later = "kafka" in file.relative_to(SOURCE).parts
            count += 1
            if later and page != "kafka-specification":  # that one is about 0.7
                missing.append(f"{file.name}: {page} {named}")
            for section in re.findall(r"(?<!note )(?<![\d.])(?:App\. [A-H]|(?<![A-H] )\d(?:\.\d+)?)", _list_of(named)):
                if section not in sections[page]:
                    missing.append(f"{file.name}: {page} {section}")
    assert missing == []
    assert count > 100


def _sections(page: str) -> set[str]:
    text = (ROOT / f"docs/topics/{page}.md").read_text("utf-8")
    return set(re.findall(r"^##+ (App\. [A-H]|\d+(?:\.\d+)?)\b", text, re.MULTILINE))


def _list_of(text: str) -> str:
    """The numbers at the beginning of `text`, up to the first word that is not part of the list."""
    match = re.match(r"(?:(?:App\. [A-H](?: \d)?|note \d+|\d+(?:\.\d+)?)(?:, | and | to |-)?)+", text)
    return match[0] if match else ""


def test_each_of_the_108_features_says_whether_it_is_there_and_what_shows_it() -> None:
    page = (ROOT / "docs/topics/peers.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| \d", line)]
    assert [int(row[0]) for row in rows] == list(range(1, 109))
    for number, feature, state, *shown in rows:
        assert feature and state, number
        if state.startswith("yes"):
            assert any(re.search(r"`[\w/]+\.py::\w+`|\{doc\}`/[\w/-]+`", text) for text in shown), number
    pages = re.findall(r"\{doc\}`/([\w/-]+)`", page)
    assert [each for each in pages if not (ROOT / f"docs/{each}.md").is_file()] == []


# ---- the tests' own index -----------------------------------------------------------------------------------


@pytest.mark.parametrize("index", ["tests/README.md", "docs/topics/peers.md"])
def test_every_test_named_in_an_index_exists(index: str) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / index).read_text("utf-8"))
    assert len(named) > 50
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not re.search(rf"^(async )?def {test}\(", (ROOT / "tests" / file).read_text("utf-8"), re.MULTILINE)
    ]
    assert missing == []


def test_every_mutation_has_its_text_and_its_tests() -> None:
    lost = [each for each in MUTATIONS if (ROOT / "src/odradek" / each.file).read_text("utf-8").count(each.before) != 1]
    assert not lost
    assert not {test for each in MUTATIONS for test in each.tests if not (ROOT / test.split("::")[0]).exists()}
