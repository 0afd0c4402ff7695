"""Memory of partitioning: what is predicted holds, limits are kept, and what does not fit is refused at once."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from partition_sets import content
from random_graphs import random_graph, random_static

from data_tools.cli import run_command
from data_tools.graph.source import open_source
from data_tools.memory import parse_bytes, status_bytes
from data_tools.partition import memory as partition_memory
from data_tools.partition import weights as node_weights
from data_tools.partition.blocks import distinct
from data_tools.partition.command import main, partition
from data_tools.partition.memory import Counts, count, estimate_pairs, make_plan, predict
from data_tools.partition.options import Options, StaticOptions
from data_tools.partition.pair_graph import build_pair_graph
from data_tools.synthesize import synthesize_events
from data_tools.synthetic.static import synthesize_static
from data_tools.team import Team

pytestmark = pytest.mark.serial

MEASURE = """
import json, sys
from data_tools.memory import status_bytes
from data_tools.partition.command import partition
graph, folder, method, more = sys.argv[1:]
started = status_bytes("VmRSS")
limit = started + (int(more) << 20) if int(more) else None
said = []
partition(graph, folder, 4, method, memory=limit, report=said.append)
print(json.dumps({"said": said, "started": started, "limit": limit, "peak": status_bytes("VmHWM")}))
"""


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """A static and a temporal graph, large enough for their tables to outweigh the program's own memory."""
    folder = tmp_path_factory.mktemp("graphs")
    synthesize_static(folder / "static.h5", 40_000, 1_000_000, seed=1, width=8)
    synthesize_events(folder / "temporal.h5", 400_000, 20_000, 4_000, seed=1)
    return folder


def start(graph, folder, method: str, more: int) -> subprocess.CompletedProcess:
    """Partition in a process of its own, with so many MiB more than it has (0: with what is free)."""
    command = [sys.executable, "-c", MEASURE, str(graph), str(folder), method, str(more)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


def measured(graph, folder, method: str, more: int = 0) -> tuple[int, int | None, int]:
    """Predicted bytes, limit and peak of a process that partitions with so many MiB more than it has."""
    result = start(graph, folder, method, more)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    return predicted(found["said"]), found["limit"], found["peak"]


def predicted(said: list[str]) -> int:
    """Bytes that the table of expected memory names for the step that takes most."""
    lines = said[0].splitlines()
    assert lines[0].startswith("memory: at most")
    return max(int(line.split()[-2].replace(",", "")) for line in lines[1:]) << 20


@pytest.mark.parametrize(("kind", "method"), [("static", "metis"), ("static", "ldg"), ("temporal", "metis")])
def test_the_prediction_holds_and_is_not_far_off(graphs, tmp_path, kind, method):
    expected, _, peak = measured(graphs / f"{kind}.h5", tmp_path / "p", method)
    assert peak <= expected + (1 << 20)
    assert expected <= 2.5 * peak


def test_a_limit_is_kept(graphs, tmp_path):
    expected, limit, peak = measured(graphs / "static.h5", tmp_path / "p", "ldg", more=175)
    assert peak <= limit
    assert expected <= limit + (1 << 20)


def test_what_does_not_fit_is_refused_before_anything_is_written(graphs, tmp_path, capsys):
    arguments = [str(graphs / "static.h5"), str(tmp_path / "p"), "--parts", "4"]
    unlimited = json.loads(start(graphs / "static.h5", tmp_path / "unlimited", "metis", more=0).stdout)
    needed = predicted(unlimited["said"]) - unlimited["started"] >> 20  # what a Python starts with varies
    refused = start(graphs / "static.h5", tmp_path / "p", "metis", more=needed - 10).stderr
    assert re.search(r"method metis takes about .* are allowed; choose --method ldg", refused)
    with pytest.raises(ValueError, match="raise --memory"):
        main([*arguments, "--memory", "1MiB", "--method", "ldg"])
    with pytest.raises(SystemExit):
        main([*arguments, "--memory", "much"])
    assert "'much' is not a size" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_the_memory_that_is_allowed_does_not_change_the_set(graphs, tmp_path):
    source = graphs / "static.h5"
    with (opened := open_source(source)).file:
        options = StaticOptions(4, "ldg", ("nodes", "edges", "train"))
        least = max(predict(count(Team(), opened, options), options, partition_memory.LEAST_WORK).values())
    books = []
    for name in ("large", "small"):
        allowed = None if name == "large" else status_bytes("VmRSS") + least + (20 << 20)
        partition(source, tmp_path / name, 4, "ldg", passes=2, memory=allowed)
        books.append((tmp_path / name / "book.h5").read_bytes())
    assert books[0] == books[1]


@pytest.mark.parametrize("make", [random_graph, random_static])
def test_neighbors_are_counted_on_disk(tmp_path, monkeypatch, make):
    graph = make(tmp_path / "g.h5", 1, num_edges=300)
    with (source := open_source(graph)).file:
        degrees = build_pair_graph(source).degrees()
    monkeypatch.setattr(node_weights, "build_pair_graph", None)
    for method in ("ldg", "random", "metis"):
        quality = partition(graph, tmp_path / method, 4, method, ("degree",))
        part = read_parts(source, tmp_path / method, 4)
        loads = np.bincount(part, weights=degrees, minlength=4)
        assert quality["balance"] == {"degree": round(float(loads.max() / loads.mean()), 4)}


def read_parts(source, folder, num_parts):
    """Part per node [N] of a set."""
    part = np.empty(source.num_nodes, np.int64)
    for number, data in enumerate(content(folder, num_parts)):
        for node_type in source.types:
            part[node_type.base + data[f"nodes/{node_type.name}/row"]] = number
    return part


def test_pairs_are_estimated_well(graphs):
    for name in ("static", "temporal"):
        source = open_source(graphs / f"{name}.h5")
        with source.file:
            found = estimate_pairs(Team(), source)
            assert found == pytest.approx(len(build_pair_graph(source).neighbor) // 2, rel=0.03)


def test_more_of_anything_takes_no_less():
    options, least = Options(16, "metis", ("nodes",)), Counts(1000, 10_000, 9_000, 1, "temporal")
    before = predict(least, options, 1 << 20)
    for name in ("nodes", "edges", "pairs", "weights"):
        values = {key: getattr(least, key) for key in least.__slots__}
        after = predict(Counts(**{**values, name: 10 * values[name]}), options, 1 << 20)
        assert all(after[stage] >= before[stage] for stage in before)
    plan = make_plan(Team(), least, options, None)
    assert partition_memory.LEAST_WORK <= plan.work <= partition_memory.MOST_WORK


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 << 30), ("500M", 500 << 20), ("1.5g", 3 << 29), ("2kb", 2048), ("77", 77)]
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "8 apples", "1e3"])
def test_no_sizes(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


def test_the_sample_of_the_pairs_is_bounded(tmp_path, monkeypatch):
    """A larger graph is sampled more thinly, and estimated nearly as well."""
    graph = random_graph(tmp_path / "g.h5", 1, sizes=(3000, 900, 3), num_edges=60_000)
    source, largest = open_source(graph), []
    with source.file:
        pairs = estimate_pairs(Team(), source)
        monkeypatch.setattr(partition_memory, "SAMPLE_KEYS", source.num_edges // 64)
        monkeypatch.setattr(partition_memory, "distinct", lambda keys: largest.append(len(keys)) or distinct(keys))
        assert estimate_pairs(Team(), source) == pytest.approx(pairs, rel=0.3)
    assert max(largest) < source.num_edges // 40


def test_too_little_memory_is_one_line(capsys):
    def fail() -> int:
        raise MemoryError("Unable to allocate 8 GiB")

    assert run_command(fail) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: out of memory (Unable to allocate 8 GiB); --memory")
