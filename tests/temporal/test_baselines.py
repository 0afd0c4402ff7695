"""EdgeBank against a dictionary of all pairs, on any number of ranks."""

from __future__ import annotations

import gzip
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from evaluation_setup import Evaluation, graph_and_parts, module_folder
from places import SHARED
from random_graphs import write_graph
from training_runs import bipartite, homogeneous, make_config, on_rank_0, open_session, read_plain

from hpcgnn.loop.baselines import run_baseline
from hpcgnn.loop.launch import EXIT_DONE, EXIT_REQUEUE
from hpcgnn.loop.logs import RunLog
from hpcgnn.temporal.baselines import BASELINES, Baseline, baseline_metrics
from hpcgnn.temporal.eval_config import BaselineConfig

BATCH = 40


def scores(evaluation: Evaluation, bank: Baseline, kind: str):
    """Collective. Scores [events, 1 + k] in order of event row and the flat negative pairs, on rank 0."""
    negatives = evaluation.make_negatives(kind, 5)
    steps = [bank.score(evaluation.batches, step, negatives) for step in range(evaluation.batches.num_steps)]
    lines = [np.concatenate([positive[:, None], negative], axis=1) for positive, negative in steps]
    empty = np.empty((0, 1 + negatives.per_event), np.float32)
    return evaluation.by_row(np.concatenate([empty, *lines])), evaluation.negatives(kind, 5)


def oldest(kind: str, plain, first: int, train_end: int, share: float) -> float:
    """The oldest time that memory keeps before the batch that begins with row ``first``."""
    if kind == "unlimited" or first == 0:
        return -np.inf
    if kind == "time_window":
        return np.quantile(plain.time[:first], 1 - share)
    training = plain.time[:train_end]
    return plain.time[first - 1] - Fraction(str(share)) * int(training.max() - training.min())


def expected(plain, before: int, pairs: np.ndarray, since: float) -> np.ndarray:
    """1 for the pairs [..., 2] whose last event with a row below ``before`` is in memory."""
    last = dict(zip(zip(plain.src[:before], plain.dst[:before], strict=True), plain.time[:before], strict=True))
    known = [pair in last and last[pair] >= since for pair in map(tuple, pairs.reshape(-1, 2).tolist())]
    return np.array(known, float).reshape(pairs.shape[:-1])


BANKS = ("unlimited", "time_window", "fixed_window")


@pytest.fixture(scope="module")
def folder(comm, tmp_path_factory):
    return module_folder(comm, tmp_path_factory)


@pytest.mark.parametrize("make", [bipartite, homogeneous])
@pytest.mark.parametrize("kind", BANKS)
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_against_a_dictionary(comm, folder, make, kind, split):
    """Event by event, for random negatives, pairs that met and all others; many events share a time."""
    graph, parts = _ties(comm, folder, make)
    evaluation = Evaluation.open(comm, parts, split, BATCH)
    bank = BASELINES[kind].make(evaluation, 0.15)
    results = [scores(evaluation, bank, negatives) for negatives in ("random", "historical", "all")]
    if comm.rank > 0:
        return
    plain, bounds = read_plain(graph), evaluation.splits.bounds
    begin, end = bounds[["train", "val", "test"].index(split) :][:2]
    rows = np.arange(begin, end)
    positive = np.stack([plain.src[rows], plain.dst[rows]], axis=1)[:, None]
    found = np.concatenate([line for line, _ in results], axis=1)
    pairs = np.concatenate([part for _, negative in results for part in (positive, negative)], axis=1)
    for first in range(0, len(rows), BATCH):
        at, since = slice(first, first + BATCH), oldest(kind, plain, begin + first, bounds[1], 0.15)
        assert np.array_equal(found[at], expected(plain, begin + first, pairs[at], since))
    assert split != "test" or 0.05 < found[:, 0].mean() < 1


FORUM = SHARED / "fb-forum" / "fb-forum.edges.gz"


@pytest.mark.skipif(not FORUM.exists(), reason=f"{FORUM} is missing")
def test_the_window_of_tgb_on_a_forum(comm, folder):
    """Where half of the messages are of the first fifth of the time: TGB's window gives an AP of 0.7237, and one as
    long as the newest share of the training events 0.7751 (a dictionary of pairs, in a script apart)."""

    def forum(path):
        with gzip.open(FORUM) as file:
            src, dst, time = np.loadtxt(file, delimiter=",", dtype=np.int64, usecols=(0, 1, 2)).T
        nodes = {"person": {"id": np.arange(max(src.max(), dst.max()) + 1)}}
        return write_graph(path, nodes, {("person", "writes", "person"): {"src": src, "dst": dst, "time": time}})

    config = make_config(baseline__kind="fixed_window", train__batch_size=200)
    session = open_session(comm, graph_and_parts(comm, folder, forum)[1], config)
    assert baseline_metrics(session, BaselineConfig("fixed_window"))["test_ap"] == pytest.approx(0.7237, abs=0.01)


def _ties(comm, folder, make):
    """Collective. A graph with many events at a time and its parts, made once."""
    if not on_rank_0(comm, lambda: (folder / f"{make.__name__}.h5").exists()):
        return graph_and_parts(comm, folder, make, ticks=60)
    return folder / f"{make.__name__}.h5", folder / make.__name__


def test_empty_split(comm, folder):
    """No step; memory can still be made."""
    evaluation = Evaluation.open(comm, _ties(comm, folder, bipartite)[1], "val", val_ratio=0.0)
    bank = BASELINES["fixed_window"].make(evaluation, 0.0)
    found, _ = scores(evaluation, bank, "historical")
    assert comm.rank > 0 or len(found) == 0


def test_a_run_that_is_asked_to_leave_says_so(comm, folder, mpi_tmp_path):
    """Whichever rank heard it."""
    session = open_session(comm, _ties(comm, folder, bipartite)[1], make_config(baseline__kind="unlimited"))
    log = RunLog(mpi_tmp_path, session.world)
    stop = SimpleNamespace(requested=comm.rank == comm.size - 1)
    assert run_baseline(session, mpi_tmp_path, log, stop, baseline_metrics) == EXIT_REQUEUE
    assert not (mpi_tmp_path / "metrics.jsonl").exists()
    stop.requested = False
    assert run_baseline(session, mpi_tmp_path, log, stop, baseline_metrics) == EXIT_DONE


def test_bad_options(comm, folder):
    evaluation = Evaluation.open(comm, _ties(comm, folder, bipartite)[1], test_ratio=0.0)
    with pytest.raises(ValueError, match="unlimited, time_window, fixed_window or empty, got 'newest'"):
        BaselineConfig("newest")
    with pytest.raises(ValueError, match=r"in \(0, 1\], got 0.0; is the test empty"):
        BASELINES["time_window"].make(evaluation, 0.0)
    with pytest.raises(ValueError, match="got 2"):
        BASELINES["fixed_window"].make(evaluation, 2)
    BASELINES["unlimited"].make(evaluation, 0.0)
