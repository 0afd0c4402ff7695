"""Original ids to global ids: integers, bytes and text, on any number of ranks."""

import numpy as np
import pytest
from evaluation_setup import Evaluation
from random_graphs import write_graph
from training_runs import make_parts, on_rank_0

NUMBERS, NAMES = 1000 + 3 * np.arange(7), np.array([f"n{i}é" for i in range(7)])


@pytest.mark.parametrize("stored", [NUMBERS, np.char.encode(NAMES, "utf-8")], ids=["numbers", "names"])
def test_every_spelling_finds_its_node(comm, mpi_tmp_path, stored):
    """``find`` answers all ranks alike, ``find_for_first`` rank 0."""
    graph = mpi_tmp_path / "graph.h5"
    columns = {"src": np.arange(60) % 7, "dst": np.arange(60) % 5, "time": np.arange(60)}
    on_rank_0(comm, lambda: write_graph(graph, {"word": {"id": stored}}, {("word", "next", "word"): columns}) and None)
    evaluation = Evaluation.open(comm, make_parts(comm, graph, mpi_tmp_path / "parts", 4, "random"))
    ids = evaluation.partition.original_ids("word", evaluation.world)
    asked = stored[[3, 0, 3, 6]]
    text = asked.astype(str) if asked.dtype.kind == "i" else NAMES[[3, 0, 3, 6]]
    for wanted in (asked, text, np.char.encode(text, "utf-8")):
        found = ids.find(wanted)
        assert evaluation.flat_of[found].tolist() == [3, 0, 3, 6]
        first = ids.find_for_first(wanted if comm.rank == 0 else None)
        assert (first is None) == (comm.rank > 0)
        assert comm.rank > 0 or np.array_equal(first, found)
    for unknown in (np.array([1001, 5]), np.array(["", "7x"]), np.empty(0, str)):
        assert (ids.find(unknown) == -1).all()
        assert len(ids.find(unknown)) == len(unknown)
