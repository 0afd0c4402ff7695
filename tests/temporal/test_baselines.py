"""The rules without training against plain loops over all events, on any number of ranks."""

from __future__ import annotations

import gzip
import math
from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import test_edge_types as typed
from evaluation_setup import Evaluation, graph_and_parts, module_folder
from places import SHARED
from random_graphs import write_graph
from training_runs import bipartite, homogeneous, make_config, make_parts, on_rank_0, open_session, read_plain

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
    if kind == "repeat_interval":
        return plain.time[first - 1] - mean_interval(plain, first)
    training = plain.time[:train_end]
    return plain.time[first - 1] - Fraction(str(share)) * int(training.max() - training.min())


def times_of_pairs(plain, before: int) -> dict[tuple[int, int], list[int]]:
    """Times of the events of every pair with a row below ``before``."""
    times = defaultdict(list)
    for src, dst, time in zip(plain.src[:before].tolist(), plain.dst[:before].tolist(), plain.time, strict=False):
        times[src, dst].append(int(time))
    return times


def mean_interval(plain, before: int) -> Fraction:
    """The mean over pairs of their mean time between events, 0 for one event."""
    times = times_of_pairs(plain, before).values()
    return sum(Fraction(every[-1] - every[0], max(1, len(every) - 1)) for every in times) / max(1, len(times))


def expected(plain, before: int, pairs: np.ndarray, since: float) -> np.ndarray:
    """1 for the pairs [..., 2] whose last event with a row below ``before`` is in memory."""
    last = dict(zip(zip(plain.src[:before], plain.dst[:before], strict=True), plain.time[:before], strict=True))
    known = [pair in last and last[pair] >= since for pair in map(tuple, pairs.reshape(-1, 2).tolist())]
    return np.array(known, float).reshape(pairs.shape[:-1])


BANKS = ("unlimited", "time_window", "fixed_window", "repeat_interval")
BAD = {
    ("poptrack", 0.0, 0.0, 0.0): r"batch_decay must be in \(0, 1\], got 0.0",
    ("poptrack", 0.0, 0.0, 1.5): r"batch_decay must be in \(0, 1\], got 1.5",
    ("pair_decay", 0.0, -1.0): "decay_time must be at least 0, got -1.0",
    ("pair_decay", 0.0, math.inf): "decay_time must be at least 0, got inf",
    ("fixed_window", 2.0): r"window_ratio must be in \[0, 1\], got 2.0",
    ("unlimited", 0.2): "window_ratio: baseline.kind unlimited does not read it",
    ("poptrack", 0.0, 10.0): "decay_time: baseline.kind poptrack does not read it",
    ("", 0.0, 0.0, 0.5): "batch_decay: baseline.kind empty does not read it",
    ("", 0.0, 0.0, 0.95, 7, True): "by_relation: baseline.kind empty counts no events of pairs",
    ("most_frequent", 0.0, 0.0, 0.95, 7, True): "by_relation: baseline.kind most_frequent counts no events of pairs",
}
DECAY_TIME, BATCH_DECAY = 7.0, 0.9


class Plain:
    """The rules in plain loops over the events so far, which come in whole batches. Nodes by flat row id."""

    def __init__(self, plain, decay_time: float = DECAY_TIME):
        self.plain, self.decay_time, self.rows = plain, decay_time, 0
        self.times, self.at, self.count, self.popularity = defaultdict(list), {}, Counter(), Counter()

    def take(self, stop: int) -> None:
        """Take in the events up to a row, as a batch."""
        for row in range(self.rows, stop):
            src, dst, time = int(self.plain.src[row]), int(self.plain.dst[row]), int(self.plain.time[row])
            self.times[src, dst].append(time)
            self.at[dst] = time
            self.count[dst] += 1
            self.popularity[dst] += 1.0
        self.rows = stop
        for dst in self.popularity:
            self.popularity[dst] *= BATCH_DECAY

    def unlimited(self, src, dst, time):
        return float((src, dst) in self.times)

    def repeat_threshold(self, src, dst, time):
        count = len(self.times.get((src, dst), ()))
        return float(count > 0 and count >= Fraction(self.rows, len(self.times)))

    def pair_recency(self, src, dst, time):
        return (1, self.times[src, dst][-1] - time) if (src, dst) in self.times else (0,)

    def local_global(self, src, dst, time):
        other = (0, self.at[dst] - time) if dst in self.at else (-1,)
        return self.pair_recency(src, dst, time) if (src, dst) in self.times else other

    def local_popular(self, src, dst, time):
        return self.pair_recency(src, dst, time) if (src, dst) in self.times else (0, self.count[dst])

    def pair_decay(self, src, dst, time):
        weights = [math.exp((then - time) / self.decay_time) for then in self.times.get((src, dst), ())]
        return math.log(math.fsum(weights)) if weights else -math.inf

    def poptrack(self, src, dst, time):
        return math.log(self.popularity[dst]) if dst in self.popularity else -math.inf


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
    bank = BASELINES[kind].make(evaluation, BaselineConfig(kind, 0.15 * bool(BASELINES[kind].options)))
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


def options_of(kind: str) -> BaselineConfig:
    """The section with other values than the default."""
    values = {"decay_time": DECAY_TIME, "batch_decay": BATCH_DECAY}
    return BaselineConfig(kind, **{name: values[name] for name in BASELINES[kind].options})


def many_people(path, ticks):
    """More nodes, some of which are new in validation and test."""
    return homogeneous(path, num_nodes=150, ticks=ticks)


RULES = ("repeat_threshold", "pair_recency", "pair_decay", "poptrack", "local_global", "local_popular")


@pytest.mark.parametrize("make", [bipartite, many_people])
@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_against_a_loop_over_events(comm, folder, make, kind, split):
    """The same order of all pairs, ties included; decayed sums are equal to rounding."""
    graph, parts = _ties(comm, folder, make)
    evaluation = Evaluation.open(comm, parts, split, BATCH)
    rule = BASELINES[kind].make(evaluation, options_of(kind))
    results = [scores(evaluation, rule, negatives) for negatives in ("random", "historical", "all")]
    if comm.rank > 0:
        return
    check_rule(kind, read_plain(graph), evaluation, split, results)


def check_rule(kind: str, plain, evaluation: Evaluation, split: str, results) -> None:
    """Compare the scores of events and negatives, and the flat pairs of these, with plain loops. plain: with src, dst
    and time."""
    bounds = evaluation.splits.bounds.tolist()
    index = ["train", "val", "test"].index(split)
    starts = [row for begin, end in pairwise(bounds[: index + 2]) for row in range(begin, end, BATCH)]
    rows = np.arange(bounds[index], bounds[index + 1])
    positive = np.stack([plain.src[rows], plain.dst[rows]], axis=1)[:, None]
    found = np.concatenate([line for line, _ in results], axis=1)
    pairs = np.concatenate([part for _, negative in results for part in (positive, negative)], axis=1)
    loop, keys = Plain(plain), []
    for first, stop in pairwise([*starts, bounds[index + 1]]):
        for row in range(max(first, int(rows[0])), stop if first >= rows[0] else 0):
            time = int(plain.time[row])
            keys += [getattr(loop, kind)(*pair, time) for pair in pairs[row - rows[0]].tolist()]
        loop.take(stop)
    if kind in ("pair_decay", "poptrack"):
        met = np.isfinite(keys)
        assert np.allclose(found.ravel()[met], np.array(keys)[met], rtol=0, atol=1e-9)
        never = found.ravel()[~met]
        assert (never == never.min(initial=0)).all()
        assert never.max(initial=-math.inf) < found.ravel()[met].min()
    else:
        order = {key: place for place, key in enumerate(sorted(set(keys)))}
        assert np.array_equal(np.unique(found, return_inverse=True)[1].ravel(), [order[key] for key in keys])
    assert len(set(keys)) > 1


@pytest.mark.parametrize("kind", ["unlimited", *RULES])
def test_rules_by_relation(comm, folder, kind):
    """A destination is another one in every relation, for events and for the pairs that they are compared with."""
    path = folder / "typed.h5"
    on_rank_0(comm, lambda: path.exists() or typed.write_typed(path))
    if not comm.bcast((folder / "typed").exists()):
        make_parts(comm, path, folder / "typed")
    evaluation = Evaluation.open(comm, folder / "typed", "test", BATCH)
    rule = BASELINES[kind].make(evaluation, replace(options_of(kind), by_relation=True))
    results = [scores(evaluation, rule, negatives) for negatives in ("random", "historical", "all")]
    if comm.rank:
        return
    merged = typed.merge(typed.draw_events())
    first = evaluation.splits.bounds[2]
    of_event = merged["type"][first:, None]
    for _, pairs in results:
        pairs[..., 1] = pairs[..., 1] * 3 + of_event
    plain = SimpleNamespace(src=merged["src"], dst=merged["dst"] * 3 + merged["type"], time=merged["time"])
    check_rule(kind, plain, evaluation, "test", results)


def test_the_default_decay_is_the_mean_interval_of_training(comm, folder):
    """Of successive events of a pair; a rule without it says which key to set."""
    graph, parts = _ties(comm, folder, homogeneous)
    evaluation = Evaluation.open(comm, parts, "val", BATCH)
    rule = BASELINES["pair_decay"].make(evaluation, BaselineConfig("pair_decay"))
    rule.start(evaluation.batches)
    times = times_of_pairs(read_plain(graph), int(evaluation.splits.bounds[1])).values()
    gaps = [after - before for every in times for before, after in pairwise(every)]
    assert rule.rate == pytest.approx(len(gaps) / sum(gaps), rel=1e-12)


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


WIKIPEDIA = SHARED / "wikipedia" / "wikipedia.csv.gz"
KNOWN = {
    "unlimited": 0.495,  # as fixed_window, of TGB's leaderboard
    "fixed_window": 0.571,
    "pair_decay": 0.729,  # with one hour: a plain script of another project
}


@pytest.mark.nightly
@pytest.mark.skipif(not WIKIPEDIA.exists(), reason=f"{WIKIPEDIA} is missing")
@pytest.mark.parametrize("kind", KNOWN)
def test_known_figures_of_wikipedia(comm, mpi_tmp_path, kind):
    """The mean reciprocal rank of the test's events among all pages, in batches of 200."""

    def wikipedia(path):
        with gzip.open(WIKIPEDIA) as file:
            table = np.loadtxt(file, delimiter=",", skiprows=1, usecols=(0, 1, 2))
        src, dst, time = table.astype(np.int64).T
        nodes = {name: {"id": np.arange(ids.max() + 1)} for name, ids in (("user", src), ("page", dst))}
        return write_graph(path, nodes, {("user", "edits", "page"): {"src": src, "dst": dst, "time": time}})

    values = {"window_ratio": 0.15, "decay_time": 3600.0}
    section = BaselineConfig(kind, **{name: values[name] for name in BASELINES[kind].options})
    config = make_config(baseline__kind=kind, eval__protocol="tgb", eval__negatives_per_pass=1000)
    session = open_session(comm, graph_and_parts(comm, mpi_tmp_path, wikipedia)[1], config)
    assert baseline_metrics(session, section)["test_mrr"] == pytest.approx(KNOWN[kind], abs=5e-4)


def _ties(comm, folder, make):
    """Collective. A graph with many events at a time and its parts, made once."""
    if not on_rank_0(comm, lambda: (folder / f"{make.__name__}.h5").exists()):
        return graph_and_parts(comm, folder, make, ticks=60)
    return folder / f"{make.__name__}.h5", folder / make.__name__


def test_empty_split(comm, folder):
    """No step; memory can still be made."""
    evaluation = Evaluation.open(comm, _ties(comm, folder, bipartite)[1], "val", val_ratio=0.0)
    bank = BASELINES["fixed_window"].make(evaluation, BaselineConfig("fixed_window"))
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
    with pytest.raises(ValueError, match=r"unlimited, time_window, .* or empty, got 'newest'"):
        BaselineConfig("newest")
    with pytest.raises(ValueError, match=r"in \(0, 1\], got 0.0; is the test empty"):
        BASELINES["time_window"].make(evaluation, BaselineConfig("time_window"))
    for options, message in BAD.items():
        with pytest.raises(ValueError, match=message):
            BaselineConfig(*options)
    BASELINES["unlimited"].make(evaluation, BaselineConfig("unlimited"))
