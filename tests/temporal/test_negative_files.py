"""Files of negatives, which list more for some events than for others: each event is ranked among its own. Those of
converted folders of the Temporal Graph Benchmark are what its samplers return."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
from evaluation_setup import Evaluation, graph_and_parts, module_folder
from test_negatives import ITEMS, listed, write_file
from training_runs import bipartite, make_config, make_parts, on_rank_0, open_session, read_plain

from data_tools.convert import main as convert
from hpcgnn import config as configuration
from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.session import split_metrics
from hpcgnn.loop.trainer import Trainer
from hpcgnn.task.goal import Collected
from hpcgnn.temporal.baselines import baseline_metrics
from hpcgnn.temporal.eval_config import BaselineConfig


@pytest.fixture(scope="module")
def graph_parts(comm, tmp_path_factory):
    """The bipartite graph and a partition set of it. Collective."""
    return graph_and_parts(comm, module_folder(comm, tmp_path_factory), bipartite)


@pytest.fixture
def graph(graph_parts):
    return graph_parts[0]


@pytest.fixture
def parts(graph_parts):
    return graph_parts[1]


RAGGED = {"pickle": ".pkl", "npz": ".npz", "npz of strings": ".npz", "h5": ".h5"}


@pytest.mark.parametrize("chunk", [3, 100])
@pytest.mark.parametrize("case", RAGGED)
def test_events_have_as_many_negatives_as_the_file_lists(comm, graph, parts, mpi_tmp_path, case, chunk):
    """Ranks and mean are those of TGB's evaluator, an event at a time, of the scores of all lists with an equal number;
    the baseline's, too."""
    path, full = mpi_tmp_path / f"ragged{RAGGED[case]}", mpi_tmp_path / "full.npz"
    plain, rows = read_plain(graph), np.arange(700)
    counts, lines = 1 + rows % 5, 1000 + 3 * listed(rows, 5)

    def write():
        np.savez(full, row=rows, negatives=lines)
        if path.suffix == ".pkl":
            src, dst = 1000 + 3 * plain.src, 1000 + 3 * (plain.dst - plain.num_nodes + ITEMS)
            keys = list(zip(src, dst, plain.time, strict=True))
            counts_of = {key: count for key, count in zip(keys, counts, strict=True)}
            content = {key: line[: counts_of[key]] for key, line in zip(keys, lines, strict=True)}
            path.write_bytes(pickle.dumps(content))
            return [counts_of[key] for key in keys]
        none = "" if "strings" in case else -1
        ragged = lines.astype("U8") if "strings" in case else lines.copy()
        ragged[np.arange(5) >= counts[:, None]] = none
        write_file(path, plain, rows, ragged)
        return counts.tolist()

    counts = np.array(on_rank_0(comm, write))
    found = {}
    for file in (path, full):
        config = make_config(eval__protocol="tgb", eval__negatives_file=str(file), eval__negatives_per_pass=chunk)
        session = open_session(comm, parts, config)
        collected = session.scores("test") if file == path else every_score(session, "test")
        order = session.world.gather_rows(session.batches["test"].events.row)
        columns = {name: session.world.gather_rows(values) for name, values in collected.columns().items()}
        metrics = split_metrics(session, "test", collected) if file == path else {}
        found[file] = (order, columns, metrics)
    order, columns, metrics = found[path]
    scores = found[full][1]
    if comm.rank:
        return
    ranks = []
    for row, positive, negative in zip(order, scores["positive"], scores["negative"].astype(np.float32), strict=True):
        own, positive = negative[: counts[row]], np.float32(positive)
        ranks.append(0.5 * ((own > positive).sum() + (own >= positive).sum()) + 1)
    assert columns["rank"].tolist() == ranks
    assert metrics["mrr"] == pytest.approx(np.mean(1 / np.array(ranks)), rel=1e-9)


def every_score(session, split):
    """Collective. The scores themselves, where evaluation keeps ranks alone."""
    collected = Collected(lambda scores, batches, world: {})
    with session.plans(split, 0) as plans:
        for plan in plans:
            collected.add(plan, session.task.evaluate(plan))
    return collected


def test_a_file_that_is_missing_is_told_before_the_first_step(comm, parts, mpi_tmp_path, monkeypatch):
    """That of the test as well; a path is one from where the run began."""
    on_rank_0(comm, lambda: (mpi_tmp_path / "val.npz").touch())
    comm.barrier()
    monkeypatch.chdir(mpi_tmp_path)
    config = make_config(eval__protocol="tgb", eval__negatives_file="{split}.npz")
    with pytest.raises(ValueError, match=f"eval.negatives_file: {mpi_tmp_path}/test.npz: no such file"):
        config.resolve_inputs()
    monkeypatch.chdir("/")
    session = open_session(comm, parts, config)
    with pytest.raises(DistributedError, match=f"eval.negatives_file: {mpi_tmp_path}/test.npz: no such file"):
        Trainer(session, mpi_tmp_path / "run", lambda *_, **__: None, StopRequest())


@pytest.mark.serial
@pytest.mark.parametrize("name", ["negatives.npz", "negatives_{split}.npz"])
def test_another_file_under_the_same_name_is_another_run(tmp_path, name):
    """Refused by its name on --resume, and where a run is evaluated by its own protocol."""
    paths = [tmp_path / name.replace("{split}", split) for split in ("val", "test")]
    for path in paths:
        np.savez(path, row=np.arange(3), negatives=np.arange(6).reshape(3, 2))
    began = make_config(eval__protocol="tgb", eval__negatives_file=str(tmp_path / name))
    began.resolve_inputs()
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in dict.fromkeys(paths)]
    assert began.eval.negatives_sha256 == ",".join(hashes)
    configuration.save(began, {}, tmp_path / "config.yaml")
    resumed = configuration.load(tmp_path / "config.yaml")
    resumed.resolve_inputs()
    configuration.check_resumable(began, resumed)
    assert resumed.evaluated_by("", "", "") == began
    np.savez(paths[1], row=np.arange(3), negatives=np.arange(6).reshape(3, 2) + 1)
    resumed.resolve_inputs()
    with pytest.raises(ValueError, match=r"when a run is resumed: eval.negatives_sha256"):
        configuration.check_resumable(began, resumed)
    with pytest.raises(ValueError, match=r"not what it was when the run began .* --eval tgb --eval.negatives_file"):
        began.evaluated_by("", "", "")
    assert began.evaluated_by("file", str(tmp_path / name), "").eval.negatives_sha256 == ""


@pytest.mark.parametrize("kind", ["unlimited", "time_window"])
def test_the_baseline_looks_at_no_more_negatives_than_there_are(comm, parts, mpi_tmp_path, kind):
    rows, metrics = np.arange(700), []
    lines = 1000 + 3 * listed(rows, 5)
    lines[:, 2:] = -1
    for width in (2, 5):
        path = mpi_tmp_path / f"{width}.npz"
        on_rank_0(comm, lambda path=path, width=width: np.savez(path, row=rows, negatives=lines[:, :width]))
        config = make_config(eval__protocol="tgb", eval__negatives_file=str(path))
        metrics.append(baseline_metrics(open_session(comm, parts, config), BaselineConfig(kind=kind)))
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-12, nan_ok=True)


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
