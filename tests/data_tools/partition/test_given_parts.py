"""Assignments from elsewhere: files, the user's own partitioner, KaMinPar; and the graph that METIS's programs read."""

import sys

import numpy as np
import pytest
from partition_sets import assert_same_content, content
from random_graphs import random_graph, random_static

from data_tools.export_metis import export
from data_tools.export_metis import main as export_main
from data_tools.graph.source import open_source
from data_tools.partition.command import main, partition
from data_tools.partition.pair_graph import PairGraph, build_pair_graph
from data_tools.partition.weights import node_weights
from data_tools.synthetic.static import synthesize_static
from data_tools.verify.command import main as verify

pytestmark = pytest.mark.serial
SIZES = (30, 12, 3)


def random_parts(num_parts: int) -> np.ndarray:
    """A part for every node of a graph of SIZES."""
    return np.random.default_rng(1).integers(0, num_parts, sum(SIZES))


def node_parts(folder, num_parts: int) -> np.ndarray:
    """Part per node, read from the part files."""
    part, base = np.full(sum(SIZES), -1), 0
    parts = content(folder, num_parts)
    for name, size in zip("abc", SIZES, strict=True):
        for number, data in enumerate(parts):
            part[base + data[f"nodes/{name}/row"]] = number
        base += size
    return part


@pytest.mark.parametrize("kind", ["txt", "npy", "npz"])
@pytest.mark.parametrize("make", [random_graph, random_static])
def test_an_assignment_is_taken_as_it_is(tmp_path, make, kind):
    graph, part = make(tmp_path / "g.h5", 1, sizes=SIZES), random_parts(5)
    path = tmp_path / f"parts.{kind}"
    if kind == "txt":
        path.write_text("".join(f"{number}\n" for number in part))
    elif kind == "npy":
        np.save(path, part)
    else:
        np.savez(path, **dict(zip("abc", np.split(part, np.cumsum(SIZES)[:-1]), strict=True)))
    arguments = [str(graph), str(tmp_path / "p"), "--parts", "5", "--assignment", str(path)]
    assert main(arguments) == 0
    np.testing.assert_array_equal(node_parts(tmp_path / "p", 5), part)
    assert verify([str(tmp_path / "p"), "--against", str(graph)]) == 0
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(ValueError, match="holds a partition set already"):
        main(arguments)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0\n" * 44, "expected one integer a node, 45 in all"),
        ("0\n" * 44 + "5\n", r"node 44 is in part 5, expected 0 to 4"),
        ("-1\n" * 45, "node 0 is in part -1"),
        ("0.5\n" * 45, "not a list of part numbers"),
        ("one\n", "not a list of part numbers"),
    ],
)
def test_other_files_are_refused(tmp_path, text, problem):
    graph = random_static(tmp_path / "g.h5", 1, sizes=SIZES)
    (tmp_path / "parts").write_text(text)
    with pytest.raises(ValueError, match=problem):
        partition(graph, tmp_path / "p", 5, assignment=tmp_path / "parts")


def test_arrays_of_other_types_are_refused(tmp_path):
    graph = random_static(tmp_path / "g.h5", 1, sizes=SIZES)
    np.savez(tmp_path / "parts.npz", a=np.zeros(30, int), b=np.zeros(12, int))
    with pytest.raises(ValueError, match="expected one of every node type"):
        partition(graph, tmp_path / "p", 5, assignment=tmp_path / "parts.npz")


class Rounds:
    """A partitioner: nodes by number of neighbors, in turn."""

    def __call__(self, graph: PairGraph, weights: dict, num_parts: int, seed: int) -> np.ndarray:
        assert set(weights) == {"nodes", "edges"}
        assert all(len(weight) == graph.num_nodes for weight in weights.values())
        part = np.empty(graph.num_nodes, np.int64)
        part[np.argsort(-graph.degrees(), kind="stable")] = (np.arange(graph.num_nodes) + seed) % num_parts
        return part


def too_many(graph, weights, num_parts, seed):
    """Returns a part that is not there."""
    return np.full(graph.num_nodes, num_parts)


def test_the_users_own_partitioner(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_module", sys.modules[__name__])
    path = random_static(tmp_path / "g.h5", 1, sizes=SIZES)
    partition(path, tmp_path / "p", 5, "own_module.Rounds", balance=("nodes", "edges"), seed=2)
    source = open_source(path)
    with source.file:
        graph = build_pair_graph(source)
        expected = Rounds()(graph, node_weights(source, ("nodes", "edges")), 5, 2)
    np.testing.assert_array_equal(node_parts(tmp_path / "p", 5), expected)


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("own_module.too_many", "node 0 is in part 5, expected 0 to 4"),
        ("own_module.missing", "no such class or function"),
        ("not.there", "no such class or function"),
        ("own_module.SIZES", "cannot be called"),
        ("magic", "method must be one of metis"),
        ("given", "needs --assignment FILE"),
    ],
)
def test_what_is_no_partitioner_is_refused(tmp_path, monkeypatch, method, problem):
    monkeypatch.setitem(sys.modules, "own_module", sys.modules[__name__])
    graph = random_static(tmp_path / "g.h5", 1, sizes=SIZES)
    with pytest.raises(ValueError, match=problem):
        partition(graph, tmp_path / "p", 5, method)


def read_metis(path) -> tuple[dict, np.ndarray]:
    """(node, neighbor) -> tie and weights [N, C] of a METIS file, as its manual describes it."""
    lines = path.read_text().splitlines()
    num_nodes, num_pairs, form, *rest = lines[0].split()
    assert form == "11"
    assert len(lines) == 1 + int(num_nodes)
    count, ties, weights = int(rest[0]) if rest else 1, {}, []
    for node, line in enumerate(lines[1:]):
        values = [int(value) for value in line.split()]
        weights.append(values[:count])
        for other, tie in zip(values[count::2], values[count + 1 :: 2], strict=True):
            ties[node, other - 1] = tie
    assert len(ties) == 2 * int(num_pairs)
    return ties, np.array(weights)


@pytest.mark.parametrize("balance", [None, ("nodes",)])
@pytest.mark.parametrize("make", [random_graph, random_static])
def test_the_graph_for_metis(tmp_path, capsys, make, balance):
    path = make(tmp_path / "g.h5", 1, sizes=SIZES)
    options = ["--balance", ",".join(balance)] if balance else []
    assert export_main([str(path), str(tmp_path / "g.metis"), *options]) == 0
    assert "45 nodes" in capsys.readouterr().out
    ties, weights = read_metis(tmp_path / "g.metis")
    source = open_source(path)
    with source.file:
        graph = build_pair_graph(source)
        default = ("events", "time") if source.kind == "temporal" else ("nodes", "edges", "train")
        expected = np.stack(list(node_weights(source, balance or default, graph.degrees()).values()), axis=1)
    own = np.repeat(np.arange(graph.num_nodes), graph.degrees())
    pairs = zip(own.tolist(), graph.neighbor.tolist(), strict=True)
    assert ties == dict(zip(pairs, graph.weight.tolist(), strict=True))
    np.testing.assert_array_equal(weights, expected)


def test_a_bad_constraint_is_refused_by_the_export(tmp_path):
    with pytest.raises(ValueError, match=r"balance must be one of .*, got 'color'"):
        export(random_static(tmp_path / "g.h5", 1), tmp_path / "g.metis", ("color",))
    assert not (tmp_path / "g.metis").exists()


def test_kaminpar_cuts_less_than_random(tmp_path):
    pytest.importorskip("kaminpar", reason="needs kaminpar")
    synthesize_static(tmp_path / "g.h5", 4000, 40_000, seed=1, width=0, num_classes=8)
    found = {name: partition(tmp_path / "g.h5", tmp_path / name, 8, name) for name in ("kaminpar", "random", "metis")}
    assert found["kaminpar"]["cut"] < 0.8 * found["random"]["cut"]
    assert found["kaminpar"]["cut"] < 1.15 * found["metis"]["cut"]
    assert max(found["kaminpar"]["balance"].values()) < 1.15
    assert verify([str(tmp_path / "kaminpar"), "--against", str(tmp_path / "g.h5")]) == 0


def test_without_kaminpar_the_remedy_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaminpar", None)
    with pytest.raises(ValueError, match="needs KaMinPar: pip install kaminpar"):
        partition(random_static(tmp_path / "g.h5", 1), tmp_path / "p", 3, "kaminpar")


def test_the_same_assignment_gives_the_same_parts_from_any_method(tmp_path):
    graph = random_static(tmp_path / "g.h5", 1, sizes=SIZES)
    partition(graph, tmp_path / "metis", 5, "metis")
    np.save(tmp_path / "parts.npy", node_parts(tmp_path / "metis", 5))
    partition(graph, tmp_path / "given", 5, assignment=tmp_path / "parts.npy")
    assert_same_content(content(tmp_path / "metis", 5), content(tmp_path / "given", 5))
