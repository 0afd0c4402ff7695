"""Verification of static sets accepts every right one and finds every planted error, even when hashes fit it."""

import json
import re
import shutil

import h5py
import numpy as np
import pytest
from partition_sets import change_quality, changing_book, each_column, offsets_of, refresh, replace
from random_graphs import random_static
from selection import long_but

from data_tools.inspect import main as inspect
from data_tools.partition.command import partition
from data_tools.verify import edges as verify_edges
from data_tools.verify.command import main, verify
from hpcgnn.graph import files

pytestmark = pytest.mark.serial

NUM_PARTS = 4
CITES, OUT = "edges/a.cites.a", "out/a.cites.a"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A graph file and its partition set, not to be changed: (graph, folder)."""
    folder = tmp_path_factory.mktemp("verify")
    graph = random_static(folder / "g.h5", seed=1, sizes=(40, 25, 3), num_edges=200)
    partition(graph, folder / "p", NUM_PARTS, "random", out_edges=True, cache_ranking=0.5, batch_size=4)
    return graph, folder / "p"


@pytest.fixture
def planted(made, tmp_path):
    """A copy that may be spoilt: (graph, folder)."""
    shutil.copytree(made[1], tmp_path / "p")
    return made[0], tmp_path / "p"


@pytest.mark.parametrize("seed", long_but(range(10), lambda seed: seed < 4))
def test_random_sets_pass(tmp_path, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    sizes = tuple(int(size) for size in rng.integers(0, 30, 3))
    graph = random_static(tmp_path / "g.h5", seed, sizes, num_edges=int(rng.integers(0, 100)))
    num_parts, method = int(rng.choice([1, 2, 7, 15])), ["random", "metis", "hotness"][seed % 3]
    partition(graph, tmp_path / "p", num_parts, method, out_edges=bool(rng.integers(2)))
    monkeypatch.setattr(files, "SLAB_BYTES", int(rng.choice([400, 5000, 1 << 26])))
    monkeypatch.setattr(verify_edges, "MAX_WINDOWS", int(rng.choice([1, 5, 200])))
    assert verify(tmp_path / "p") == []
    assert verify(tmp_path / "p", graph) == []


def test_the_commands_tell_what_is_in_a_set(made, capsys):
    graph, folder = made
    assert main([str(folder), "--against", str(graph)]) == 0
    assert "fine; 4 parts, 68 nodes, 366 edges, equal to" in capsys.readouterr().out
    assert inspect([str(folder), str(files.part_path(folder, 1)), str(graph)]) == 0
    text = capsys.readouterr().out
    for line in (
        "hpcgnn-book, static",
        "relations.a.cites.a: ",
        "cache.local: ",
        "out:",
        "cache:",
        "hpcgnn-graph, static",
    ):
        assert line in text
    assert "history" not in text


def list_of(file, path, least=2):
    """First and last position of the first node with at least so many edges."""
    indptr = file[path]["indptr"][:]
    node = int(np.argmax(np.diff(indptr) >= least))
    return int(indptr[node]), int(indptr[node + 1])


def give_to_the_next(group):
    """An edge goes from the end of a node's list to the start of the next, where both stay in order."""
    indptr, rows = group["indptr"][:], group["row"][:]
    for node in range(1, len(indptr) - 1):
        last, following = indptr[node] - 1, indptr[node]
        fits = following == indptr[node + 1] or rows[last] < rows[following]
        if last >= indptr[node - 1] and fits:
            group["indptr"][node] -= 1
            return
    raise AssertionError("no list of this part can be changed so")


# Each of these changes part 1; the message must then be found without the graph file.


def swapped_in_a_node(file, offsets):
    start, _ = list_of(file, CITES)
    for name in ("src", "row", "feat", "weight"):
        values = file[CITES][name][:]
        values[[start, start + 1]] = values[[start + 1, start]]
        replace(file[CITES], name, values)


def lost_edge(file, offsets):
    start, _ = list_of(file, CITES)
    indptr = file[CITES]["indptr"][:]
    replace(file[CITES], "indptr", indptr - (indptr > start))
    for name in ("src", "row", "feat", "weight"):
        replace(file[CITES], name, np.delete(file[CITES][name][:], start, axis=0))


def lost_out_edge(file, offsets):
    start, _ = list_of(file, OUT)
    indptr = file[OUT]["indptr"][:]
    replace(file[OUT], "indptr", indptr - (indptr > start))
    for name in ("dst", "row"):
        replace(file[OUT], name, np.delete(file[OUT][name][:], start))


def wrong_out_edge(file, offsets):
    values = file[OUT]["dst"]
    values[3] = values[3] + 1 if values[3] < 39 else 0


def doubled_edge(file, offsets):
    rows = file["edges/b.of.c/row" if len(file["edges/b.of.c/row"]) > 1 else "edges/a.likes.b/row"]
    rows[1] = rows[0] if rows[0] < rows[1] else rows[1]


def source_out_of_range(file, offsets):
    file["edges/a.likes.b/src"][0] = 40


def row_out_of_range(file, offsets):
    _, stop = list_of(file, CITES)
    file[CITES]["row"][stop - 1] = 10_000


def wrong_indptr_end(file, offsets):
    indptr = file[CITES]["indptr"]
    indptr[len(indptr) - 1] += 1


def short_indptr(file, offsets):
    replace(file[CITES], "indptr", file[CITES]["indptr"][1:])


def indptr_decreasing(file, offsets):
    file[CITES]["indptr"][2] = 10_000


def missing_column(file, offsets):
    del file[CITES]["weight"]


def additional_column(file, offsets):
    file[CITES]["dst"] = file[CITES]["src"][:]


def other_dtype(file, offsets):
    replace(file[CITES], "weight", file[CITES]["weight"][:].astype(np.int64))


def short_column(file, offsets):
    replace(file[CITES], "feat", file[CITES]["feat"][:-1])


def missing_relation(file, offsets):
    del file["edges/a.shuns.b"]


def missing_out_edges(file, offsets):
    del file["out"]


def lost_node(file, offsets):
    each_column(file["nodes/a"], lambda values: values[:-1])


def node_row_out_of_order(file, offsets):
    rows = file["nodes/a/row"]
    rows[0], rows[1] = rows[1], rows[0]


def own_node_in_the_cache(file, offsets):
    file["cache/a/id"][1] = offsets[1]


def ranked_twice(file, offsets):
    ids = file["cache/a/id"]
    ids[2] = ids[0]


def ranking_out_of_order(file, offsets):
    file["cache/a/probability"][2] = 0.999


def nothing_ranked(file, offsets):
    del file["cache/b"]


def ranked_id_of_another_type(file, offsets):
    file["cache/a/id"][0] = 41


def another_set(file, offsets):
    file.attrs["set_id"] = "0" * 64


PLANTED = {
    swapped_in_a_node: "/edges/a.cites.a/row: row ",
    lost_edge: "/edges/a.cites.a: row ",
    lost_out_edge: "/out/a.cites.a: row ",
    wrong_out_edge: "/out/a.cites.a/dst: row 3: dst ",
    doubled_edge: "/row: row ",
    source_out_of_range: "/edges/a.likes.b/src: row 0: 40 is outside 0..39 of type 'a'",
    row_out_of_range: "10000 is outside 0..199",
    wrong_indptr_end: "/edges/a.cites.a/indptr: covers",
    short_indptr: "/edges/a.cites.a/indptr: ",
    indptr_decreasing: "/edges/a.cites.a/indptr: row 3: ",
    missing_column: "/edges/a.cites.a/weight: found nothing",
    additional_column: "/edges/a.cites.a/dst: found",
    other_dtype: "/edges/a.cites.a/weight: found ('<i8', ())",
    short_column: "/edges/a.cites.a/feat: ",
    missing_relation: "/edges/a.shuns.b: is missing",
    missing_out_edges: "/out/a.cites.a: is missing",
    lost_node: "/nodes/a/row: ",
    node_row_out_of_order: "/nodes/a/row: row 1: ",
    own_node_in_the_cache: "/cache/a/id: row 1: ",
    ranked_twice: "/cache/a/id: row 2: ",
    ranking_out_of_order: "/cache/a/probability: row 2: 0.999",
    nothing_ranked: "/cache/b: is missing",
    ranked_id_of_another_type: "/cache/a/id: row 0: 41 is outside 0..39",
    another_set: "attribute set_id",
}


@pytest.mark.parametrize("change", PLANTED, ids=lambda change: change.__name__)
def test_planted_errors_are_found_by_content_alone(planted, change):
    graph, folder = planted
    with h5py.File(files.part_path(folder, 1), "r+") as file:
        change(file, offsets_of(folder))
    assert any("sha256" in line or "bytes, expected" in line for line in verify(folder))
    refresh(folder)
    for against in (None, graph):
        lines = verify(folder, against)
        assert any(PLANTED[change] in line for line in lines), lines


def changed_weight(group):
    group["weight"][3] += 1


def changed_feature(group):
    group["feat"][5, 2] = 7


def changed_source(group):
    group["src"][0] = (group["src"][0] + 1) % 40


@pytest.mark.parametrize(
    ("change", "dataset"),
    [
        (changed_weight, "weight: row 3"),
        (changed_feature, "feat: row 5"),
        (changed_source, "src: row 0"),
        (give_to_the_next, "indptr: row "),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_graph_file_gives_away_a_changed_value(tmp_path, change, dataset):
    graph = random_static(tmp_path / "g.h5", seed=3, sizes=(40, 25, 3), num_edges=300)
    partition(graph, tmp_path / "p", 3)
    with h5py.File(files.part_path(tmp_path / "p", 2), "r+") as file:
        change(file[CITES])
    refresh(tmp_path / "p")
    lines = verify(tmp_path / "p", graph)
    assert any(line.startswith(f"{files.part_path(tmp_path / 'p', 2)}: /{CITES}/{dataset}") for line in lines), lines


def test_an_out_edge_of_another_node_is_found(tmp_path):
    graph = random_static(tmp_path / "g.h5", seed=3, sizes=(40, 25, 3), num_edges=40)
    partition(graph, tmp_path / "p", 3, out_edges=True)
    with h5py.File(files.part_path(tmp_path / "p", 2), "r+") as file:
        give_to_the_next(file[OUT])
    refresh(tmp_path / "p")
    (line,) = verify(tmp_path / "p")
    assert f"part-2.h5: /{OUT}/indptr: row " in line
    assert "as in the in-edges" in line


def test_an_edge_in_two_parts_is_found(planted):
    _, folder = planted
    with h5py.File(files.part_path(folder, 0)) as one, h5py.File(files.part_path(folder, 1), "r+") as other:
        taken, degree = one[CITES]["row"][0], np.diff(other[CITES]["indptr"][:])
        alone = int(other[CITES]["indptr"][int(np.flatnonzero(degree == 1)[0])])
        other[CITES]["row"][alone] = taken
    refresh(folder)
    lines = verify(folder)
    assert any(f"edge {taken} is in part-0.h5 too" in line for line in lines), lines
    assert any("the edge is in no part" in line for line in lines)


@pytest.mark.parametrize("name", ["cut", "halo", "relations", "cut_fraction", "replication", "nodes", "edges", "ranks"])
def test_wrong_measures_in_the_book_are_found(planted, name):
    _, folder = planted
    with changing_book(folder) as book:
        book.attrs["quality"] = json.dumps({**json.loads(book.attrs["quality"]), name: -1})
    (line,) = verify(folder)
    assert f"quality: {name} is -1" in line


def test_a_set_that_claims_another_kind_is_found(planted):
    _, folder = planted
    with changing_book(folder) as book:
        book.attrs["kind"] = "temporal"
    assert verify(folder) != []


def test_missing_parts_are_not_taken_for_lost_edges(planted):
    graph, folder = planted
    files.part_path(folder, 1).unlink()
    lines = verify(folder, graph)
    assert len(lines) == 1
    assert "part-1.h5: no such file" in lines[0]


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        (("balance", "nodes"), 7.5, "balance.nodes is 7.5"),
        (("runs", 1, "halo"), 3, r"runs\[1\].halo is 3"),
        (("runs", 1, "replication"), 3, r"runs\[1\].replication is 3"),
        (("cache", "local"), 0.5, r"cache.local is 0.5"),
    ],
)
def test_all_measures_are_compared_with_the_graph_file(planted, path, value, name):
    graph, folder = planted
    assert verify(folder, graph) == []
    change_quality(folder, path, value)
    (line,) = verify(folder, graph)
    assert re.search(f"quality: {name}, the parts have", line)


def test_probabilities_of_a_cache_are_compared_with_the_graph_file(planted):
    graph, folder = planted
    with h5py.File(files.part_path(folder, 1), "r+") as file:
        file["cache/a/probability"][0] *= np.float32(1.01)
    refresh(folder)
    lines = verify(folder, graph)
    assert any(
        "part-1.h5: /cache/a/probability: row 0: " in line and "follows from the graph" in line for line in lines
    )


def test_room_for_scratch_files_is_looked_for_first(planted, monkeypatch):
    usage = shutil.disk_usage(planted[1])
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    with pytest.raises(ValueError, match=r"scratch files need about .* there, and 0 MiB are free; set TMPDIR"):
        verify(planted[1])
