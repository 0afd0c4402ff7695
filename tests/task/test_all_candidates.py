"""Queries against all nodes, with reciprocal relations, dropout and penalties: the step of plain torch, one answer on
any number of ranks, exact resumption, rankings and answers through the second rows, what is refused."""

from __future__ import annotations

from functools import partial

import h5py
import numpy as np
import pytest
import torch
from link_graphs import facts, shop
from static_runs import APART, make_static_parts, open_graph_session
from test_graph_links import BUYS, FACTS, link_config, rank_of, relation_rows
from test_graph_training import resume_both, run_both

from hpcgnn.comm.shared import MachineColumns
from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.links import best_answers
from hpcgnn.loop.session import split_metrics
from hpcgnn.native import Random, Stream
from hpcgnn.native.random import dropout_mask
from hpcgnn.static.inference import infer
from hpcgnn.static.predict import links_of
from hpcgnn.task.all_candidates import BlockAnswers, binary_over_all, softmax_over_all

SEED = 5  # of the runs of static_runs
BARE = {"model__kind": "none", "model__layers": 0, "sampling__fanouts": [], "model__dropout": 0.0}
RANKED = BARE | {"eval__ranking": "filtered", "task__negative_ends": "both"}
RECIPROCAL = RANKED | {"task__reciprocal": True}
ADAGRAD = {"node_embedding__optimizer": "adagrad", "node_embedding__lr": 0.1}
DROPPED = {"model__input_dropout": 0.3, "task__relation_dropout": 0.4}
N3 = {"task__penalty": "n3", "task__node_penalty": 0.5, "task__relation_penalty": 0.25}
L2 = {"task__penalty": "l2", "task__node_penalty": 0.1, "task__relation_penalty": 0.2, "task__penalty_counts": False}
CASES = {
    "one_vs_all, complex": (facts, RECIPROCAL | ADAGRAD | DROPPED | N3 | {
        "task__loss": "one_vs_all", "task__decoder": "complex"}),
    "k_vs_all, distmult": (facts, RECIPROCAL | DROPPED | L2 | {
        "task__loss": "k_vs_all", "task__decoder": "distmult", "task__label_smoothing": 0.1,
        "task__answer_power": 0.5}),
    "binary, rotate": (facts, RANKED | APART | N3 | {
        "task__loss": "k_vs_all_binary", "task__decoder": "rotate", "task__offset": 3.0,
        "train__accumulate_steps": 2}),
    "conv_transe": (facts, RECIPROCAL | {"task__loss": "one_vs_all", "task__decoder": "conv_transe"}),
    "transe": (facts, RANKED | {"task__loss": "one_vs_all", "task__decoder": "transe", "task__label_smoothing": 0.1}),
    "two types": (shop, BARE | {
        "task__loss": "k_vs_all", "task__relation": BUYS, "eval__exact": True, "model__input_dropout": 0.2}),
    "whole graph": (facts, RECIPROCAL | DROPPED | N3 | {
        "task__loss": "k_vs_all", "task__answer_power": 0.5, "task__decoder": "complex", "train__full_graph": True,
        "model__kind": "rgcn", "model__layers": 2, "model__dropout": 0.2}),
    "shared negatives": (facts, RECIPROCAL | {
        "task__loss": "softmax", "task__decoder": "complex", "task__negative_sharing": "shared",
        "task__negatives": 10}),
}  # fmt: skip


def sparse_facts(path):
    """Facts of which few nodes have any, some of them twice."""
    return facts(path, num_nodes=23, num_edges=120, seed=3)


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_queries_give_one_answer(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    config = link_config(**changes, train__epochs=1)
    run_both(comm, make_static_parts(comm, make, mpi_tmp_path), mpi_tmp_path, config)


@pytest.mark.parametrize("case", ["one_vs_all, complex", "whole graph"])
def test_queries_resume_as_if_never_stopped(comm, mpi_tmp_path, case):
    """Stopped within an epoch, and begun again on all ranks, or on one."""
    make, changes = CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    config = link_config(**changes, train__checkpoint_every=2, train__epochs=1)
    resume_both(comm, parts, mpi_tmp_path, config)


def test_rows_without_layers_outlive_the_memory_of_inference(comm, mpi_tmp_path, monkeypatch):
    """No row that ``infer`` returns lies in memory that it has freed, which is overwritten here."""
    close = MachineColumns.close

    def overwrite(columns):
        for own in columns.own:
            own.zero_()
        close(columns)

    monkeypatch.setattr(MachineColumns, "close", overwrite)
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(**RANKED))
    assert session.graph.tables.is_shared == (comm.size > 1)
    assert torch.equal(infer(session), session.memory.tables[0].weight)
    session.close()


class Plain:
    """A step in plain torch, from the graph file: every query is scored with all entities by itself."""

    def __init__(self, parts, session):
        self.edges = {name: column for name, column in relation_rows(parts, FACTS).items()}
        self.training = np.flatnonzero(self.edges["split"] == 0)
        self.task, flat = session.config.task, session.partition.flat_row
        self.entity = torch.empty_like(session.memory.tables[0].weight)
        self.entity[torch.from_numpy(flat)] = session.memory.tables[0].weight
        self.entity.requires_grad_()
        self.relation = session.model.decoder.relation.weight.detach().clone().requires_grad_()

    def queries(self) -> list[tuple[int, int, int, list[int], int]]:
        """(node, type, whether the source is asked for, answers, number) of all queries of training."""
        found = {}
        for row in self.training:
            u, kind, v = (int(self.edges[name][row]) for name in ("src", "rel", "dst"))
            for back, node, answer in ((0, v, u), (1, u, v)):  # asked for: 0 the source, 1 the destination
                key = (node, kind, back, row if self.task.loss == "one_vs_all" else -1)
                found.setdefault(key, ([], 2 * int(row) + back))[0].append(answer)
        return [(node, kind, back, sorted(set(answers)), number)
                for (node, kind, back, _), (answers, number) in found.items()]  # fmt: skip

    def masks(self, session, queries, epoch: int = 0, step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Factors of dropout of entities [N, Z], and of the relations of queries [B, .]."""
        numbers = torch.tensor([query[4] for query in queries])
        key = partial(Random, SEED, Stream.DROPOUT, step, epoch)
        rates = session.config.model.input_dropout, self.task.relation_dropout
        of_nodes = dropout_mask(key(), torch.arange(len(self.entity)), self.entity.shape[1], rates[0], torch.float64)
        width = self.relation.shape[1]
        return of_nodes, dropout_mask(key(relation=4095), numbers, width, rates[1], torch.float64)

    def loss(self, session, queries) -> torch.Tensor:
        """Mean loss of queries, with penalties."""
        of_nodes, of_relations = self.masks(session, queries)
        entity, total, task = self.entity * of_nodes, torch.zeros((), dtype=torch.float64), self.task
        num_types = len(self.relation) // (1 + task.reciprocal)
        used, kinds = [], []
        for (node, kind, back, answers, _), factor in zip(queries, of_relations, strict=True):
            place = kind + num_types * (task.reciprocal and back == 0)
            weight = len(answers) ** task.answer_power
            used += [(node, weight), *((answer, 1) for answer in answers)]
            kinds.append((place, weight))
            row, turned = self.relation[place] * factor, back == 0 and not task.reciprocal
            score = SCORES[task.decoder](entity[node], row, entity, turned, task)
            target = torch.full_like(score, task.label_smoothing / len(entity))
            share = len(answers) if task.loss != "k_vs_all_binary" else 1
            target[answers] += (1 - task.label_smoothing) / share
            if task.loss == "k_vs_all_binary":
                total = total + torch.nn.functional.binary_cross_entropy_with_logits(score, target, reduction="sum")
            else:
                entropy = torch.nn.functional.cross_entropy(score[None], target[None], reduction="sum")
                total = total + weight * entropy
        for factor, table, counted in (
            (task.node_penalty, self.entity, used), (task.relation_penalty, self.relation, kinds),
        ):  # fmt: skip
            for place, weight in counted if task.penalty_counts else {place: 1 for place, _ in counted}.items():
                row = table[place]
                if factor and task.penalty == "l2":
                    total = total + weight * factor * (row**2).sum() / 2
                elif factor and task.decoder == "complex":
                    total = total + weight * factor * torch.complex(*row.chunk(2)).abs().pow(3).sum() / 3
                elif factor:
                    total = total + weight * factor * row.abs().pow(3).sum() / 3
        return total / len(queries)


def as_complex(rows: torch.Tensor) -> torch.Tensor:
    return torch.complex(*rows.chunk(2, -1))


def complex_scores(query, row, entity, turned, task):
    query, row, entity = as_complex(query), as_complex(row), as_complex(entity)
    return (entity * row * query.conj()).sum(1).real if turned else (query * row * entity.conj()).sum(1).real


def rotate_scores(query, row, entity, turned, task):
    query, entity, row = as_complex(query), as_complex(entity), torch.polar(torch.ones_like(row), row)
    return task.offset - (entity * row - query if turned else query * row - entity).abs().sum(1)


def transe_scores(query, row, entity, turned, task):
    difference = entity + row - query if turned else query + row - entity
    return task.offset - (difference.abs().sum(1) if task.distance == "l1" else difference.norm(dim=1))


SCORES = {
    "complex": complex_scores, "rotate": rotate_scores, "transe": transe_scores,
    "distmult": lambda query, row, entity, turned, task: (query * row * entity).sum(1),
}  # fmt: skip
STEPS = {
    "complex": {"task__loss": "one_vs_all", **RECIPROCAL, **DROPPED, **N3},
    "complex, one row": {"task__loss": "k_vs_all", **RANKED, **DROPPED, "task__decoder": "complex"},
    "complex, weighed": {"task__loss": "k_vs_all", **RECIPROCAL, **DROPPED, **N3, "task__answer_power": 0.5},
    "distmult": {"task__loss": "k_vs_all", **RECIPROCAL, **L2, "task__label_smoothing": 0.2, "task__answer_power": 0.5},
    "rotate": {"task__loss": "k_vs_all_binary", **RANKED, "task__offset": 2.0, "task__label_smoothing": 0.1},
    "transe": {"task__loss": "one_vs_all", **RANKED, "task__distance": "l2"},
}


@pytest.mark.serial
@pytest.mark.parametrize("case", STEPS)
def test_a_step_is_that_of_plain_torch(comm, mpi_tmp_path, monkeypatch, case):
    """Loss, gradients of relations, and rows after a step of Adagrad; with parallel edges, in blocks of few queries."""
    monkeypatch.setattr("hpcgnn.static.step.QUERY_SCORES", 23 * 7)
    changes = {"task__decoder": case.split(",")[0], "train__batch_size": 1000, **ADAGRAD, **STEPS[case]}
    parts = make_static_parts(comm, sparse_facts, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(**changes))
    plain = Plain(parts, session)
    queries = plain.queries()
    expected = plain.loss(session, queries)
    expected.backward()
    session.start_epoch(0)
    with session.plans("train", 0) as plans:
        (plan,) = plans
        assert plan.batch_size == len(queries)
        loss = session.task.train(plan)
    assert float(loss) == pytest.approx(expected.item(), rel=1e-12)
    found = session.model.decoder.relation.weight.grad
    torch.testing.assert_close(found, plain.relation.grad, rtol=1e-10, atol=1e-14)
    moved = plain.entity.detach() - 0.1 * plain.entity.grad / (plain.entity.grad.abs() + 1e-10)
    after = torch.empty_like(moved)
    after[torch.from_numpy(session.partition.flat_row)] = session.memory.tables[0].weight
    torch.testing.assert_close(after, moved, rtol=1e-7, atol=1e-9)


@pytest.mark.serial
def test_all_answers_at_once_are_one_answer_after_the_other(comm, mpi_tmp_path):
    """With answer_power 1 all loss and penalties of an epoch's facts, which both losses divide by their queries."""

    def make(path):
        """Queries with several answers, and no fact twice."""
        facts(path, num_nodes=20, num_edges=300)
        with h5py.File(path, "r+") as file:
            (group,) = file["edges"].values()
            ends = np.column_stack([group[name] for name in ("src", "rel", "dst")])
            _, first = np.unique(ends, axis=0, return_index=True)
            for name in list(group):
                values = group[name][np.sort(first)]
                del group[name]
                group[name] = values
            group.attrs["num_edges"] = len(first)

    parts, sums, rows = make_static_parts(comm, make, mpi_tmp_path), [], []
    for loss in ({"task__loss": "one_vs_all"}, {"task__loss": "k_vs_all", "task__answer_power": 1.0}):
        config = link_config(**RECIPROCAL, **N3, **loss, task__decoder="complex", train__batch_size=10**6)
        session = open_graph_session(comm, parts, config)
        with session.plans("train", 0) as plans:
            (plan,) = plans
            sums.append(plan.batch_size * float(session.task.train(plan)))
        rows.append(plan.batch_size * session.model.decoder.relation.weight.grad)
        session.close()
    assert sums[0] == pytest.approx(sums[1], rel=1e-12)
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-10, atol=1e-12)


@pytest.mark.serial
def test_shared_negatives_of_sources_compete_with_the_second_rows(comm, mpi_tmp_path):
    """The softmax of each end, pair by pair."""
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(**CASES["shared negatives"][1]))
    entity, weight = session.memory.tables[0].weight.clone(), session.model.decoder.relation.weight.detach()
    columns, losses = session.goal.complete(session.batches["train"], 0, 0), []
    ends = list(zip(columns["src"], columns["rel"], columns["dst"], strict=True))
    for answer, name, further in ((2, "negative", 0), (0, "negative_source", 4)):
        hidden = set(map(tuple, columns[f"{name}.hidden"].tolist()))
        for number, fact in enumerate(ends):
            negatives = [node for at, node in enumerate(columns[name]) if (number, at) not in hidden]
            candidates = entity[[fact[answer], *negatives]]
            score = complex_scores(entity[fact[2 - answer]], weight[fact[1] + further], candidates, False, None)
            losses.append(-score.log_softmax(0)[0])
    with session.plans("train", 0) as plans:
        loss = session.task.train(next(iter(plans)))
    assert float(loss) == pytest.approx(float(torch.stack(losses).mean()), rel=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("loss", [softmax_over_all, binary_over_all])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("spread", [20, 2000])
def test_losses_over_shares_of_candidates_add_up(loss, smoothing, spread):
    """Loss and slope of two shares, one of them empty of answers, against torch; also of scores that lie so far apart
    that exp is 0."""
    torch.manual_seed(0)
    score = (torch.randn(3, 7).double() * spread).requires_grad_()
    labels = torch.tensor([[1, 0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0.0]]).double()
    size, is_softmax = labels.sum(1).long(), loss is softmax_over_all
    target = (1 - smoothing) * (labels / size[:, None] if is_softmax else labels) + smoothing / 7
    expected = (
        torch.nn.functional.cross_entropy(score, target, reduction="sum") if is_softmax
        else torch.nn.functional.binary_cross_entropy_with_logits(score, target, reduction="sum")
    )  # fmt: skip
    expected.backward()
    whole = score.detach()
    sums = iter([whole.amax(1), (whole - whole.amax(1, keepdim=True)).exp().sum(1)] * 3)
    total, slopes = 0.0, []
    for columns in (slice(0, 4), slice(4, 7), slice(7, 7)):
        query, place = labels[:, columns].nonzero().T
        answers = BlockAnswers(query, place, size, 7, lambda values, operation: next(sums))
        share, slope = loss(whole[:, columns].clone(), answers, smoothing)
        total += float(share)
        slopes.append(slope)
    assert total == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(torch.cat(slopes, 1), score.grad, rtol=1e-12, atol=1e-14)


def test_sources_are_ranked_and_found_through_the_second_rows(comm, mpi_tmp_path):
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    changes = RECIPROCAL | {"task__loss": "one_vs_all", "task__decoder": "complex"}
    session = open_graph_session(comm, parts, link_config(**changes))
    weight = session.model.decoder.relation.weight.detach()
    entity = torch.empty(50, 8, dtype=torch.float64)
    for rows, piece in session.world.allgather((session.partition.flat_row, session.memory.tables[0].weight)):
        entity[torch.from_numpy(rows)] = piece
    edges, ranks = relation_rows(parts, FACTS), []
    columns = [edges[name] for name in ("src", "rel", "dst")]
    for u, kind, v in np.column_stack(columns)[edges["split"] == 2]:
        tails = complex_scores(entity[u], weight[kind], entity, False, None)
        heads = complex_scores(entity[v], weight[kind + 4], entity, False, None)
        same = edges["rel"] == kind
        ranks.append(rank_of(tails, v, edges["dst"][same & (edges["src"] == u)]))
        ranks.append(rank_of(heads, u, edges["src"][same & (edges["dst"] == v)]))
    metrics = split_metrics(session, "test", session.scores("test"))
    assert metrics["mrr"] == pytest.approx(float(np.mean(1 / np.array(ranks))), rel=1e-9)
    questions = mpi_tmp_path / "heads.csv"
    if comm.rank == 0:
        questions.write_text("dst,rel\n7,2\n")
    comm.Barrier()
    answers = best_answers(links_of(session, "dst"), 1, str(questions))
    found = {name: answers.slab(name, 0, session.world) for name in ("src", "score")}
    heads = complex_scores(entity[7], weight[2 + 4], entity, False, None)
    heads[7] = -torch.inf
    if comm.rank == 0:
        assert [int(node) for node in found["src"]] == [int(heads.argmax())]
        assert found["score"] == pytest.approx(float(heads.max()), rel=1e-6)


REFUSED = {
    "conv_transe has rows for queries of both ends: set task.reciprocal true": {"task__decoder": "conv_transe"},
    "needs weights by edge type": {"task__reciprocal": True, "task__decoder": "dot"},
    "use task.negative_ends both": {"task__reciprocal": True, "task__negative_ends": "destination"},
    "and task.loss one_vs_all": {"task__reciprocal": True, "task__loss": "softmax"},
    "use eval.ranking filtered or destinations": {
        "task__reciprocal": True, "eval__ranking": "", "eval__exact": True},
    "task.negatives, strict: task.loss one_vs_all draws no": {"task__negatives": 3, "task__strict": True},
    "use eval.ranking filtered, or eval.exact": {"eval__ranking": ""},
    "use model.kind none, train.full_graph true": {"model__kind": "rgcn", "model__layers": 1, "sampling__fanouts": [2]},
    "must be in \\[0, 1\\), got 1": {"task__relation_dropout": 1.0},
    "label_smoothing must be in": {"task__label_smoothing": 1.0},
    "task.relation_dropout needs task.loss one_vs_all or k_vs_all": {
        "task__relation_dropout": 0.5, "task__loss": "softmax"},
    "task.penalty needs task.node_penalty": {"task__penalty": "n3"},
    "task.decoder complex does not read it; use transe or rotate": {"task__offset": 1.0},
    "does not read it; use task.loss one_vs_all": {"task__label_smoothing": 0.1, "task__loss": "softmax"},
    "needs a task.decoder other than mlp": {"task__decoder": "mlp"},
    "leave out train.train_metrics": {"train__train_metrics": True},
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_do_not_go_together(message):
    usual = RANKED | {"task__decoder": "complex", "task__loss": "one_vs_all"}
    with pytest.raises(ValueError, match=message):
        link_config(**usual | REFUSED[message])


def test_ends_of_two_types_are_asked_for_one_at_a_time(comm, mpi_tmp_path):
    parts = make_static_parts(comm, shop, mpi_tmp_path)
    usual = BARE | {"task__loss": "one_vs_all", "task__relation": BUYS, "eval__exact": True}
    for changes in ({"task__negative_ends": "both"}, {"task__penalty": "l2", "task__node_penalty": 0.1}):
        with pytest.raises(DistributedError, match="joins nodes of two types: use "):
            open_graph_session(comm, parts, link_config(**usual | changes))
