"""A set that later events were appended to trains as a set that is cut from all events with the same parts: the same
samples bit by bit, the same losses, and the same splits; also where an append was stopped before."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from training_runs import assert_same, make_config, on_rank_0, record_epoch

from data_tools import append as command
from data_tools.convert import main as convert
from data_tools.graph.book import open_book
from data_tools.partition.command import partition
from data_tools.verify.command import verify

PARTS, EVENTS = 6, 600
SPEC = """
files: {events: {}}
nodes: [{type: user, ids: string}, {type: item}]
edges:
  - {relation: user.takes.item, file: events, src: user, dst: item, time: time, columns: {feat: [x, y]}}
"""


TYPED = """
files: {buys: {}, asks: {}, recalls: {}}
nodes: [{type: user, ids: string}, {type: item}]
edges:
  - {relation: user.buys.item, file: buys, src: src, dst: dst, time: time, columns: {feat: [x, y]}}
  - {relation: user.asks.user, file: asks, src: src, dst: dst, time: time}
  - {relation: item.recalls.user, file: recalls, src: src, dst: dst, time: time, columns: {feat: [x]}}
"""
ENDS = {"buys": "ui", "asks": "uu", "recalls": "iu"}  # node types of the relations, and a feature of each but asks


def write_relations(folder: Path, bounds: list[int]) -> list[dict[str, Path]]:
    """Csv files by relation of all events, and of each stretch between bounds, with new nodes as in ``write_rows``.
    The last stretch has no event of recalls: events of the relations come in one order of time."""
    rng, rows = np.random.default_rng(6), []
    for row in range(EVENTS):
        name = list(ENDS)[row % 2 if row >= bounds[-2] else row % 3]
        is_new = row >= bounds[1] and row % 5 == 0
        ends = [
            f"u{(100 + row if is_new else int(24 * rng.random() ** 2)):03}" if kind == "u"
            else str(100 + row if is_new and row % 2 else int(rng.integers(9)))
            for kind in ENDS[name]
        ]  # fmt: skip
        rows.append((name, ",".join([*ends, str(1000 + row // 3), f"{rng.random():.3f}", f"{rng.random():.3f}"])))
    pieces = []
    for number, (first, last) in enumerate([(0, EVENTS), *pairwise(bounds)]):
        pieces.append({name: folder / f"{name}-{number}.csv" for name in ENDS})
        for name, path in pieces[-1].items():
            lines = [line for of, line in rows[first:last] if of == name]
            path.write_text("\n".join(["src,dst,time,x,y", *lines, ""]))
    return pieces


def write_rows(folder: Path, bounds: list[int]) -> list[Path]:
    """A csv file of all events, and one of each stretch between bounds. Later stretches have new users and items,
    whose ids come behind the ones before, and begin at the last time of the stretch before."""
    rng, rows, names = np.random.default_rng(5), [], ["user,item,time,x,y"]
    for row in range(EVENTS):
        user, item = int(24 * rng.random() ** 2), int(rng.integers(9))
        is_new = row >= bounds[1] and row % 4 == 0
        user, item = (100 + row if is_new else user), (100 + row if is_new and row % 3 == 0 else item)
        rows.append(f"u{user:03},{item},{1000 + row // 3},{rng.random():.3f},{rng.random():.3f}")
    paths = []
    for number, (first, last) in enumerate([(0, EVENTS), *pairwise(bounds)]):
        paths.append(folder / f"events-{number}.csv")
        paths[-1].write_text("\n".join([*names, *rows[first:last], ""]))
    return paths


def write_set(
    folder: Path, source: Path | dict[str, Path], name: str, method: str = "metis", assignment: Path | None = None
) -> Path:  # fmt: skip
    """Convert a csv file, or those of several relations, and cut the graph."""
    sources = source if isinstance(source, dict) else {"events": source}
    (folder / "spec.yaml").write_text(TYPED if isinstance(source, dict) else SPEC)
    options = [word for name, path in sources.items() for word in ("--set", f"{name}={path}")]
    assert convert(["--spec", f"{folder}/spec.yaml", *options, f"{folder}/{name}.h5"]) == 0
    passes = 2 if method == "ldg" else None
    partition(folder / f"{name}.h5", folder / name, PARTS, method, passes=passes, assignment=assignment)
    return folder / name


def write_whole(folder: Path, source: Path | dict[str, Path], parts: Path) -> Path:
    """Cut all events into the parts that the nodes of a set have."""
    book, pieces = open_book(parts), []
    for node_type in book.types:
        part = np.empty(node_type.num_nodes, np.int64)
        part[book.node_column(node_type, "row")] = np.repeat(np.arange(PARTS), np.diff(node_type.offsets))
        pieces.append(part)
    np.save(folder / "same.npy", np.concatenate(pieces))
    return write_set(folder, source, "whole", assignment=folder / "same.npy")


def assert_alike(comm, one: Path, other: Path, **changes) -> None:
    """Collective. An epoch on one set, on the ranks, and on the other one, alone: the same."""
    config = make_config(data__new_node_ratio=0.1, **changes)
    found = record_epoch(comm, one, config)
    if comm.rank == 0:
        assert_same(found, record_epoch(MPI.COMM_SELF, other, config))


@pytest.mark.parametrize(
    ("method", "bounds", "changes"),
    [
        ("random", [0, 400, EVENTS], {}),
        ("metis", [0, 300, 301, 450, EVENTS], {"sampling__strategy": "uniform"}),
        ("ldg", [0, 500, EVENTS], {"model__layers": 2, "model__readout": "attention"}),
    ],
)
def test_trains_as_a_set_of_all_events(comm, mpi_tmp_path, method, bounds, changes):
    """In one step and in several, whatever method cut the first events."""

    def make() -> tuple[Path, Path]:
        every, first, *later = write_rows(mpi_tmp_path, bounds)
        parts = write_set(mpi_tmp_path, first, "parts", method)
        for path in later:
            command.append(parts, {"": str(path)})
        assert verify(parts) == []
        return parts, write_whole(mpi_tmp_path, every, parts)

    parts, whole = on_rank_0(comm, make)
    assert_alike(comm, parts, whole, **changes)


CHANGES = {
    "links": {"sampling__strategy": "uniform", "eval__negative_kind": "historical"},
    "fanouts": {"sampling__relation_fanouts": {"buys": [3], "recalls": [2]}, "model__layers": 2},
}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize(("method", "bounds"), [("metis", [0, 350, 500, EVENTS]), ("random", [0, 450, EVENTS])])
def test_several_relations_train_as_a_set_of_all_events(comm, mpi_tmp_path, method, bounds, case):
    """Also where later events are of some of the relations only."""

    def make() -> tuple[Path, Path]:
        every, first, *later = write_relations(mpi_tmp_path, bounds)
        parts = write_set(mpi_tmp_path, first, "parts", method)
        for pieces in later:
            command.append(parts, {name: str(path) for name, path in pieces.items()})
        assert verify(parts) == []
        return parts, write_whole(mpi_tmp_path, every, parts)

    parts, whole = on_rank_0(comm, make)
    assert_alike(comm, parts, whole, **CHANGES[case])


class Stopped(BaseException):
    """Stands for a kill."""


def stop(*_, **__):
    raise Stopped


@pytest.mark.parametrize("stage", ["grow", "partition", "replace_set"])
def test_a_stopped_append_leaves_the_set(comm, mpi_tmp_path, monkeypatch, stage):
    """The old one, on which training is what it was; the next append ends in the set of all events."""
    every = mpi_tmp_path / "events-0.csv"

    def make() -> tuple[Path, Path, Path]:
        _, first, later = write_rows(mpi_tmp_path, [0, 450, EVENTS])
        old, parts = (write_set(mpi_tmp_path, first, name) for name in ("old", "parts"))
        with monkeypatch.context() as patch:
            patch.setattr(command, stage, stop)
            patch.setattr(command.shutil, "rmtree", lambda *_, **__: None)
            with pytest.raises(Stopped):
                command.append(parts, {"": str(later)})
        assert len(list(parts.iterdir())) == PARTS + 2
        return old, parts, later

    def append_again() -> Path:
        assert verify(parts) == []
        command.append(parts, {"": str(later)})
        assert len(list(parts.iterdir())) == PARTS + 1
        return write_whole(mpi_tmp_path, every, parts)

    old, parts, later = on_rank_0(comm, make)
    assert_alike(comm, parts, old)
    assert_alike(comm, parts, on_rank_0(comm, append_again))
