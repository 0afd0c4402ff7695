"""What training on events cannot use is refused: labels, splits, questions; and what a run tells of its data."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import pytest
from run_commands import asked_for
from test_negatives import HOSTILE
from training_runs import bipartite, make_config, make_parts, on_rank_0, open_session

from hpcgnn.comm.world import DistributedError
from hpcgnn.graph import negative_file
from hpcgnn.graph.negative_file import open_negatives
from hpcgnn.temporal.model.time_encoding import TimeEncoding
from hpcgnn.temporal.model.updater import TransformerUpdater, UpdaterSizes
from hpcgnn.temporal.predict import check

EVENTS = 60
LATER = np.arange(EVENTS) * 3 // EVENTS


def with_column(name: str, values: np.ndarray):
    """A writer of a small graph file whose events have one more column."""

    def make(path: Path) -> None:
        bipartite(path, num_events=EVENTS)
        with h5py.File(path, "r+") as file:
            file["edges/user.takes.item"][name] = values

    return make


def changed(row: int, value, dtype=np.float64) -> np.ndarray:
    """Numbers 0, but for one row."""
    values = np.zeros(EVENTS, dtype)
    values[row] = value
    return values


NODE = {"task__kind": "node"}


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (with_column("label", np.zeros((EVENTS, 2))), NODE, r"must be one number an event, got float64 \(2,\)"),
        (
            with_column("label", changed(7, np.inf)),
            {"task__kind": "edge_regression"},
            "event 7: label inf is not finite",
        ),
        (with_column("split", LATER + 1), {}, r"split column must hold 0 \(train\), 1 \(val\) and 2 \(test\) only"),
        (
            with_column("split", LATER[::-1].copy()),
            {},
            "split column must not decrease with time: training events first",
        ),
        (
            with_column("split", LATER),
            {"data__val_ratio": 0.2},
            "data.val_ratio is 0.2, but the events of this graph have a column split, which decides: leave",
        ),
        (with_column("split", LATER), {"data__test_ratio": 0.15}, "data.test_ratio is 0.15, but the events"),
        (with_column("split", np.full(EVENTS, 2)), {}, "no event is left for training: all carry the same time, or"),
    ],
)
def test_columns_of_events(comm, mpi_tmp_path, make, changes, message):
    on_rank_0(comm, lambda: make(mpi_tmp_path / "graph.h5"))
    parts = make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts", 4, "random")
    with pytest.raises(DistributedError, match=message):
        open_session(comm, parts, make_config(**changes))


def test_a_run_tells_of_its_data(comm, mpi_tmp_path):
    """Labeled events by split, which the graph's own column makes, and epochs that are trained at once."""
    labels = with_column("label", np.where(np.arange(EVENTS) % 2, -1, np.arange(EVENTS) // 2 % 3))

    def make() -> None:
        labels(mpi_tmp_path / "graph.h5")
        with h5py.File(mpi_tmp_path / "graph.h5", "r+") as file:
            file["edges/user.takes.item/split"] = LATER

    on_rank_0(comm, make)
    parts = make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts", 4, "random")
    config = make_config(train__parallel_epochs=2, train__epochs=4, **NODE)
    with closing(open_session(comm, parts, config)) as session:
        lines = session.describe()
        groups, size = session.world.num_groups, session.world.size
    assert "task node, 3 classes; labeled events: train 10, val 10, test 10" in lines
    assert f"2 epochs at once, {2 // groups} by each of {groups} groups of {size} ranks" in lines
    assert any(line.endswith("train 20, val 20, test 20") for line in lines)
    with closing(open_session(comm, parts, make_config(memory__hot_ratio=0.5))) as session:
        assert session.goal.describe() == "links"
        hot = [line for line in session.describe() if line.endswith("hot nodes copied to every rank")]
    assert len(hot) == (comm.size > 1)


@pytest.mark.serial
def test_pairs_of_a_run_on_nodes():
    asked = asked_for(pairs="pairs.csv")
    with pytest.raises(ValueError, match=r"learned labels of nodes \(task.kind node\), not of pairs: give --nodes"):
        check(asked, make_config(**NODE))
    sampling = check(asked, make_config()).sampling
    assert (sampling.plan_on, sampling.prefetch) == ("host", 0)


@pytest.mark.serial
def test_heads_divide_the_memory():
    with pytest.raises(ValueError, match=r"model\.heads \(3\) must divide memory\.dim \(8\)"):
        TransformerUpdater(UpdaterSizes(6, 8, TimeEncoding(4), heads=3))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (HOSTILE["lists in lists"], r"event \(1, 2, 3\): a list that holds a list, not ids alone"),
        ([5, [6]], r"event \(1, 2, 3\): a list that holds a list, not ids alone"),
        (
            HOSTILE["objects"],
            "not a pickled dict of negatives .*it holds an array of type 'O8', not of numbers or text",
        ),
        (np.array([True]), r"negatives must be integers or strings, got bool"),
    ],
)
def test_lines_that_are_no_ids(tmp_path, line, message):
    path = tmp_path / "negatives.pkl"
    path.write_bytes(pickle.dumps({(1, 2, 3): line}))
    with pytest.raises(ValueError, match=message) as caught:
        open_negatives(str(path)).read(0, 1)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.serial
def test_a_piece_larger_than_memory(tmp_path, monkeypatch):
    def fail(file):
        raise MemoryError

    monkeypatch.setattr(negative_file, "load_pickle", fail)
    (tmp_path / "negatives.pkl").write_bytes(b"x")
    with pytest.raises(ValueError, match="not a pickled dict of negatives: it holds a piece larger than memory"):
        open_negatives(str(tmp_path / "negatives.pkl"))


@pytest.mark.serial
def test_names_and_damage_in_hdf5(tmp_path):
    """Names of any length are read; a damaged piece is told with the row that it begins with."""
    path = tmp_path / "negatives.h5"
    with h5py.File(path, "w") as file:
        file["row"] = np.arange(2)
        file.create_dataset("negatives", data=[["a", "bcd"], ["é", "f"]], dtype=h5py.string_dtype())
    assert open_negatives(str(path)).read(0, 2).tolist() == [[b"a", b"bcd"], ["é".encode(), b"f"]]
    with h5py.File(path, "w") as file:
        file["row"] = np.arange(4)
        file.create_dataset("negatives", data=np.full((4, 2), 77), chunks=(2, 2), fletcher32=True)
        place = file["negatives"].id.get_chunk_info(1).byte_offset
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    read = open_negatives(str(path)).read
    assert read(0, 2).tolist() == [[77, 77]] * 2
    with pytest.raises(ValueError, match=rf"{path}: damaged from row 2 on: .*; copy or write it anew"):
        read(2, 4)
