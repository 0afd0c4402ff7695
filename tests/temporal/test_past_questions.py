"""Questions about times between the events: the scores and labels that evaluation has for the events themselves, and
nothing of the time itself or later."""

from __future__ import annotations

from functools import partial

import h5py
import numpy as np
import pytest
import torch
from run_commands import asked
from sklearn.metrics import average_precision_score
from training_runs import START, bipartite, make_config, make_parts, on_rank_0, open_session

from hpcgnn.loop.session import Session, split_metrics
from hpcgnn.temporal.predict import _walk, answer_nodes, read_nodes, read_pairs, score_pairs

EVENTS = 300
CASES = {
    "tgn": {},
    "equal times in one batch": {"sampling__batch_by": "time"},
    "hidden nodes": {"data__new_node_ratio": 0.2, "sampling__in_batch_neighbors": False},
    "mails to neighbors": {"memory__deliver_to": "neighbors"},
    "no memory": {"memory__updater": "none", "model__readout": "attention", "model__layers": 2},
    "pairs' neighbors": {"task__decoder": "pair"},
    "pairs' embeddings": {"model__readout": "dygformer", "model__layers": 2, "model__channel_dim": 4},
    "pairs' common neighbors": {"model__readout": "tncn", "model__common_hops": 2},
    "pairs' anonymous walks": {"model__readout": "cawn", "model__layers": 2, "sampling__fanouts": [3, 2]},
    "pairs' walks": {
        "memory__updater": "walks",
        "memory__walk_scales": [2000.0],
        "model__readout": "tpnet",
        "task__decoder": "walks",
    },
    "pairs' clocks": {"task__decoder": "clocks", "sampling__in_batch_neighbors": False},
}


@pytest.fixture
def parts(comm, mpi_tmp_path):
    """Makes the partition set of a graph file that ``change`` may alter."""

    def make(ticks: int = 10_000, change=lambda edges: None, name: str = "graph"):
        def write() -> None:
            bipartite(mpi_tmp_path / f"{name}.h5", num_events=EVENTS, ticks=ticks, edge_width=2)
            with h5py.File(mpi_tmp_path / f"{name}.h5", "r+") as file:
                edges = file["edges/user.takes.item"]
                edges["label"] = np.random.default_rng(2).integers(0, 3, EVENTS).astype(np.float64)
                change(edges)

        on_rank_0(comm, write)
        return make_parts(comm, mpi_tmp_path / f"{name}.h5", mpi_tmp_path / name, 8, "random")

    return make


def after_training(comm, parts, **changes) -> Session:
    """Collective. A session whose memory other weights have formed, as those of a run change while it trains."""
    session = open_session(comm, parts, make_config(train__batch_size=30, **{"sampling__prefetch": 0} | changes))
    session.scores("train")
    for parameter in session.model.parameters():
        parameter.data.mul_(1.1)
    return session


def names_of(session: Session, comm, kind: str) -> dict[int, int]:
    """Collective. Original ids by global id."""
    book = session.partition.book
    first = int(book.of_type(book.node_types.index(kind)).starts[session.world.rank])
    own = {first + place: int(name) for place, name in enumerate(session.partition.node_ids[kind])}
    return {node: name for names in comm.allgather(own) for node, name in names.items()}


def events_of(session: Session, comm, split: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Collective. Rows of a split's events on this rank, and src, dst, time of all, by row."""
    with_names = [names_of(session, comm, kind) for kind in ("user", "item")]
    events = session.batches[split].events if split != "train" else session.partition.events
    ends = ([names[node] for node in column.tolist()] for names, column in
            zip(with_names, (events.src, events.dst), strict=True))  # fmt: skip
    own = dict(zip(("src", "dst"), map(np.array, ends), strict=True)) | {"time": events.time}
    return events.row, own


def gathered(comm, **columns) -> dict[str, np.ndarray]:
    """Collective. Columns of all ranks, on every rank."""
    return {name: np.concatenate(comm.allgather(np.asarray(values))) for name, values in columns.items()}


@pytest.mark.parametrize("case", CASES)
def test_scores_of_events_are_those_of_evaluation(comm, parts, case):
    """Events of validation and test with the negatives that evaluation has, in any order, and, in the same file, with
    questions about the time of training."""
    path = parts(60 if "equal" in case else 10_000)
    session, expected, questions = after_training(comm, path, **CASES[case]), [], []
    items = names_of(session, comm, "item")
    for split in ("val", "test"):
        collected = session.scores(split)
        rows, own = events_of(session, comm, split)
        columns = collected.columns()
        metrics = split_metrics(session, split, collected)
        negatives = session.loaders[split].negatives(0).whole().dst[:, 0]
        other = np.array([items[node] for node in negatives.tolist()], np.int64)
        both = {"src": np.tile(own["src"], 2), "dst": np.append(own["dst"], other), "time": np.tile(own["time"], 2)}
        score = np.append(columns["positive"], columns["negative"].reshape(-1))
        questions.append(gathered(comm, is_event=np.arange(len(both["src"])) < len(rows), **both))
        expected.append((gathered(comm, score=score)["score"], metrics))
    session.close()
    session = after_training(comm, path, **CASES[case])
    early = {"src": questions[0]["src"][:9], "dst": questions[0]["dst"][:9], "time": START + 1000 * np.arange(9)}
    all_of = {name: np.concatenate([part[name] for part in (*questions, early)]) for name in ("src", "dst", "time")}
    order = np.random.default_rng(3).permutation(len(all_of["src"]))
    pairs = asked(partial(read_pairs, session), **{name: values[order] for name, values in all_of.items()})
    answers = score_pairs(session, pairs, compute=_walk)
    found = answers.slab("score", 0, session.world)
    session.close()
    if comm.rank:
        return
    scores, begin = np.empty(len(found)), 0
    scores[order] = found
    for part, (score, metrics) in zip(questions, expected, strict=True):
        mine = scores[begin : begin + len(part["src"])]
        begin += len(mine)
        np.testing.assert_allclose(mine, torch.from_numpy(score).sigmoid(), rtol=1e-9)
        assert average_precision_score(part["is_event"], mine) == pytest.approx(metrics["ap"], abs=1e-9)


def test_ranks_of_events_are_those_of_evaluation(comm, parts):
    """Among all items, each asked about at the time of the event, without those that are true then."""
    changes = {"eval__protocol": "tgb", "eval__batch_size": 11}
    session = after_training(comm, parts(), **changes)
    session.scores("val")
    ranks = split_metrics(session, "test", session.scores("test"))
    _, own = events_of(session, comm, "test")
    events, items = gathered(comm, **own), sorted(names_of(session, comm, "item").values())
    session.close()
    used = sorted(set(gathered(comm, dst=own_destinations(session, comm))["dst"].tolist()))
    session = after_training(comm, parts(name="again"), **changes)
    count = len(events["src"])
    columns = {name: np.repeat(events[name], len(used)) for name in ("src", "time")} | {"dst": used * count}
    score = score_pairs(session, asked(partial(read_pairs, session), **columns), compute=_walk)
    table = score.slab("score", 0, session.world)
    session.close()
    if comm.rank:
        return
    assert set(used) <= set(items)
    places = []
    for number, scores in enumerate(table.reshape(count, len(used))):
        same = (events["src"] == events["src"][number]) & (events["time"] == events["time"][number])
        others = scores[~np.isin(used, events["dst"][same])]
        own_score = scores[used.index(events["dst"][number])]
        places.append(1 + 0.5 * ((others > own_score).sum() + (others >= own_score).sum()))
    assert np.mean(1 / np.array(places)) == pytest.approx(ranks["mrr"], abs=1e-9)


def own_destinations(session: Session, comm) -> list[int]:
    """Collective. Original ids of the destinations of this rank's events."""
    names = names_of(session, comm, "item")
    return [names[node] for node in session.partition.events.dst.tolist()]


def test_training_is_replayed_with_the_weights_of_the_answer(comm, parts):
    session = after_training(comm, parts())
    session.memory.reset()
    loader = session.loaders["val"].of_split("train", 30)
    scores, rows = [], []
    with loader.plans(0) as plans:
        for plan in plans:
            scores.append(session.task.evaluate(plan).positive.numpy())
            rows.append(plan.event_row)
    expected = gathered(comm, row=np.concatenate(rows), score=np.concatenate(scores))
    row, own = events_of(session, comm, "train")
    events = gathered(comm, row=row, **own)
    session.close()
    by_row = {name: values[np.argsort(events["row"])][: len(expected["row"])] for name, values in events.items()}
    session = after_training(comm, parts(name="again"))
    pairs = asked(partial(read_pairs, session), **{name: by_row[name] for name in ("src", "dst", "time")})
    found = score_pairs(session, pairs, compute=_walk).slab("score", 0, session.world)
    session.close()
    if comm.rank == 0:
        logits = torch.from_numpy(expected["score"][np.argsort(expected["row"])])
        np.testing.assert_allclose(found, logits.sigmoid(), rtol=1e-9)


@pytest.mark.parametrize("kind", ["edge", "node"])
def test_labels_of_events_are_those_of_evaluation(comm, parts, kind):
    session = after_training(comm, parts(), task__kind=kind)
    session.scores("val")
    output = session.scores("test").columns()["output"]
    rows, own = events_of(session, comm, "test")
    events = gathered(comm, row=rows, output=output, feature=session.batches["test"].events.columns["feat"], **own)
    session.close()
    session = after_training(comm, parts(name="again"), task__kind=kind)
    time = {"time": events["time"]}
    if kind == "node":
        nodes = asked(partial(read_nodes, session), node=events["src"], type=["user"] * len(events["src"]), **time)
        answers = answer_nodes(session, nodes, False, compute=_walk)
    else:
        features = {f"feat_{place}": column.tolist() for place, column in enumerate(events["feature"].T)}
        pairs = asked(partial(read_pairs, session), src=events["src"], dst=events["dst"], **time, **features)
        answers = score_pairs(session, pairs, compute=_walk)
    found = answers.slab("output", 0, session.world)
    session.close()
    if comm.rank == 0:
        np.testing.assert_allclose(found, events["output"], rtol=1e-9)


@pytest.mark.parametrize("batch_by", ["events", "time"])
def test_nothing_of_the_time_itself_or_later_is_seen(comm, parts, batch_by):
    """Other events from that time on, of which many have one time, change no answer."""
    tables = []
    for name in ("one", "other"):

        def change(edges, name=name):
            later = np.flatnonzero(edges["time"][()] >= START + 52)
            if name == "other":
                edges["dst"][later] = (edges["dst"][later] + 1 + later) % 15
                edges["feat"][later] = 1.0

        path = parts(60, change, name)
        session = after_training(comm, path, sampling__batch_by=batch_by)
        src, dst = ([1000 + 3 * (n % count) for n in range(20)] for count in (40, 15))
        pairs = asked(partial(read_pairs, session), src=src, dst=dst, time=[START + 52] * 10 + [START + 48] * 10)
        tables.append(score_pairs(session, pairs, compute=_walk).slab("score", 0, session.world))
        session.close()
    if comm.rank == 0:
        assert len(set(tables[0].tolist())) > 15
        np.testing.assert_allclose(tables[0], tables[1], rtol=1e-12)
