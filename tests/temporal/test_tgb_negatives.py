"""Negatives of converted folders of the Temporal Graph Benchmark: events get what TGB's samplers return for them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from evaluation_setup import Evaluation
from training_runs import make_parts, on_rank_0

from data_tools.convert import main as convert

NUM_EVENTS, NUM_NODES = 200, 20


def write_folder(folder, name: str) -> dict[int, list[int]]:
    """A folder of thgl-myket or tgbl-wiki with lists of negatives of several lengths; returns the list of each event
    of validation and test. Nodes of thgl-myket first appear in the order of their ids."""
    rng = np.random.default_rng(0)
    typed = name == "thgl-myket"
    src, dst = rng.integers(0, 8, NUM_EVENTS), rng.integers(0, NUM_NODES - 8, NUM_EVENTS)
    src[:8], dst[: NUM_NODES - 8] = np.arange(8), np.arange(NUM_NODES - 8)
    time, kind = np.arange(NUM_EVENTS) // 3, rng.integers(0, 2, NUM_EVENTS)
    keys = list(zip(time, src, kind, strict=True)) if typed else list(zip(src, dst + 8, time, strict=True))
    numbers: dict[int, int] = {}
    for ends in zip(src.tolist(), (dst + 8).tolist(), strict=True):
        for end in ends if typed else ():
            numbers.setdefault(end, len(numbers))
    number = np.array([numbers.get(node, node) for node in range(NUM_NODES)])
    if typed:
        keys = [(one, number[two], three) for one, two, three in keys]
    lists = {key: rng.choice(NUM_NODES, 1 + int(rng.integers(6)), replace=False) for key in keys}
    limits = np.quantile(time, [0.7, 0.85])
    split = np.searchsorted(limits, time)
    folder.mkdir()
    columns = (time, src, dst + 8, kind) if typed else (src, dst, time, kind)
    header = "a,b,c,d\n"
    edges = folder / (f"{name}_edgelist.csv" if typed else f"{name}_edgelist_v2.csv")
    edges.write_text(header + "".join(f"{','.join(map(str, row))}\n" for row in zip(*columns, strict=True)))
    if typed:
        rows = "".join(f"{node},{node % 3}\n" for node in range(NUM_NODES))
        (folder / f"{name}_nodetype.csv").write_text("node,type\n" + rows)
    for place, part in ((1, "val"), (2, "test")):
        content = {key: lists[key] for key, of in zip(keys, split, strict=True) if of == place}
        file = folder / f"{name}_{part}_ns{'' if typed else '_v2'}.pkl"
        file.write_bytes(pickle.dumps(content))
    return {row: lists[keys[row]].tolist() for row in np.flatnonzero(split > 0).tolist()}


@pytest.mark.parametrize("name", ["thgl-myket", "tgbl-wiki"])
def test_events_get_the_lists_of_their_files(comm, mpi_tmp_path, name):
    folder = mpi_tmp_path / "folder"
    expected = on_rank_0(comm, lambda: write_folder(folder, name))
    graph = mpi_tmp_path / "graph.h5"
    assert on_rank_0(comm, lambda: convert(["--preset", "tgb", "--set", f"folder={folder}", str(graph)])) == 0
    parts = make_parts(comm, graph, mpi_tmp_path / "parts", 8)
    path = mpi_tmp_path / "graph.negatives.h5" if name == "thgl-myket" else folder / f"{name}_{{split}}_ns_v2.pkl"
    found = {}
    for split in ("val", "test"):
        evaluation = Evaluation.open(comm, parts, split)
        negatives = evaluation.make_negatives("file", path=path)
        counts = negatives.count if negatives.count is not None else np.full(len(negatives.dst), negatives.per_event)
        rows = zip(evaluation.batches.events.row, evaluation.flat_of[negatives.dst], counts, strict=True)
        found |= {int(row): line[:count].tolist() for row, line, count in rows}
    everywhere = {row: line for piece in comm.allgather(found) for row, line in piece.items()}
    assert everywhere == expected
