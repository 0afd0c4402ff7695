"""A number that is none, in features or weights of a graph file, is refused by file, column and row before anything
learns from it; finite ones are not, however large."""

from __future__ import annotations

import re
import shutil

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_sets import open_events
from static_runs import plain
from training_runs import bipartite

from data_tools.partition.command import partition
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError
from hpcgnn.graph.partition import open_graph_partition

pytestmark = pytest.mark.serial

WRONG = st.sampled_from([np.nan, np.inf, -np.inf])
LARGE = st.sampled_from([float(np.finfo(np.float32).max), 1e-45, -0.0])
PLACE = st.floats(0, 1, exclude_max=True)
COLUMNS = {
    "nodes/node/feat": plain, "edges/node.meets.node/weight": plain,
    "nodes/user/feat": bipartite, "nodes/item/feat": bipartite, "edges/user.takes.item/feat": bipartite,
}  # fmt: skip


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """Graph files by the function that makes them."""
    folder = tmp_path_factory.mktemp("graphs")
    plain(folder / "plain.h5", num_nodes=30, num_edges=60)
    bipartite(folder / "bipartite.h5", num_events=60, edge_width=2, node_width=2)
    return folder


@given(
    column=st.sampled_from(sorted(COLUMNS)), place=PLACE, wrong=st.none() | WRONG, large=LARGE,
)  # fmt: skip
def test_numbers_that_are_none_are_refused(graphs, tmp_path, column, place, wrong, large):
    shutil.rmtree(tmp_path / "parts", ignore_errors=True)
    path, is_static = tmp_path / "graph.h5", COLUMNS[column] is plain
    shutil.copy(graphs / f"{COLUMNS[column].__name__}.h5", path)
    with h5py.File(path, "r+") as file:
        values = file[column][()]
        at = int(place * values.size)
        values.ravel()[at] = large if wrong is None else wrong
        file[column][...] = values
    if wrong is not None:
        row = at // (values.size // len(values))
        with pytest.raises(FileFormatError, match=rf"{re.escape(str(path))}: /{column}, row {row}: NaN or infinite"):
            partition(path, tmp_path / "parts", 3, "random")
        assert not files.book_path(tmp_path / "parts").exists()
        return
    partition(path, tmp_path / "parts", 3, "random")
    if is_static:
        share = open_graph_partition(tmp_path / "parts", 0, 1)
        if "weight" in column:
            stored = share.edges[0].columns["weight"][np.argsort(share.edges[0].row)]
            assert stored.tobytes() == values.tobytes()
        return
    share = open_events(tmp_path / "parts")
    if column.startswith("edges"):
        assert np.asarray(share.events.columns["feat"]).tobytes() == values.tobytes()
    else:
        first = 0 if "user" in column else 40
        stored = share.node_feature[np.argsort(share.flat_row)][first : first + len(values)]
        assert stored.tobytes() == values.tobytes()
