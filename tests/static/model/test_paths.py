"""NBFNet: scores and steps against its equations in plain torch, edge by edge; one answer, resumption, predictions of
pairs and best answers, and what is refused."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from link_graphs import facts, shop
from static_runs import make_static_parts, open_graph_session
from test_graph_links import BUYS, FACTS, link_config, rank_of, relation_rows
from test_graph_training import resume_both, run_both

from hpcgnn.loop.links import best_answers
from hpcgnn.loop.session import split_metrics
from hpcgnn.predict import make_parser
from hpcgnn.static.model.blocks import Block
from hpcgnn.static.model.paths import PathLayer
from hpcgnn.static.predict import check, links_of, read_pairs, score_pairs
from hpcgnn.task.config import TaskConfig

NUM_TYPES = 4
PATHS = {
    "model__kind": "nbfnet", "model__layers": 2, "model__dropout": 0.0, "model__aggregator": "sum",
    "model__norm": "layer", "train__full_graph": True, "sampling__fanouts": [], "task__decoder": "paths",
    "task__loss": "k_vs_all", "task__negative_ends": "both", "eval__ranking": "filtered",
}  # fmt: skip
CASES = {
    "typed both ways": {"task__message_edges": "both"},
    "typed": {"task__message_edges": "typed", "model__aggregator": "mean", "task__answer_power": 1.0},
    "stored": {"task__loss": "one_vs_all", "model__norm": "none", "model__activation": "elu", "train__batch_size": 48},
}


def sparse_facts(path):
    """Facts of which few nodes have any, some of them twice."""
    return facts(path, num_nodes=23, num_edges=120, seed=3)


def config_of(case: str, **changes):
    return link_config(**(PATHS | CASES[case] | changes))


class Plain:
    """The model in plain torch: every query by itself, every message by itself."""

    def __init__(self, parts, session):
        edges = relation_rows(parts, FACTS)
        self.messages, self.config, self.model = session.config.task.message_edges, session.config, session.model
        self.rows = np.column_stack([edges[name] for name in ("src", "rel", "dst")])
        self.split, self.num_nodes = edges["split"], 1 + max(edges["src"].max(), edges["dst"].max())

    def edges(self, hidden=()) -> list[tuple[int, int, int]]:
        """Sources, relations and destinations of messages: training edges but the reverses of other edges of their
        type. hidden: facts that none tells of, where edges have no type whatever the type."""
        facts = list(zip(map(tuple, self.rows.tolist()), self.split, strict=True))
        held = {(v, kind, u) for (u, kind, v), split in facts if split != 0}
        kept = [fact for fact, split in facts if split == 0 and fact not in held]
        if self.messages == "stored":
            ends = {frozenset((u, v)) for u, _, v in hidden}
            return [(u, 0, v) for u, _, v in kept if frozenset((u, v)) not in ends]
        told = {fact for u, kind, v in hidden for fact in ((u, kind, v), (v, kind, u))}
        kept = [fact for fact in kept if fact not in told]
        return kept + [(v, kind + NUM_TYPES, u) for u, kind, v in kept] * (self.messages == "both")

    def scores(self, node: int, kind: int, reverse: bool, edges) -> torch.Tensor:
        """Scores [N] of a query with all nodes."""
        decoder, width = self.model.decoder, self.config.model.hidden
        asked = decoder.query.weight[kind + NUM_TYPES * reverse]
        first = torch.zeros(self.num_nodes, width, dtype=asked.dtype)
        first = torch.stack([asked if number == node else row for number, row in enumerate(first)])
        state = first
        for layer in self.model.layers:
            relation = layer.relation(asked).view(-1, width)
            total = list(first)
            for source, number, destination in edges:
                total[destination] = total[destination] + state[source] * relation[number]
            if self.config.model.aggregator == "mean":
                count = np.bincount([destination for *_, destination in edges], minlength=self.num_nodes)
                total = [row / (1 + int(degree)) for row, degree in zip(total, count, strict=True)]
            out = layer.product(torch.cat([state, torch.stack(total)], 1))
            state = state + layer.activation(layer.norm(out))
        hidden = torch.relu(decoder.hidden(torch.cat([state, asked.expand_as(state)], 1)))
        return decoder.out(hidden).squeeze(1)

    def queries(self) -> list[tuple[int, int, int, list[int]]]:
        """(node, type, whether the source is asked for, answers) of all queries of training."""
        found = {}
        for row in np.flatnonzero(self.split == 0):
            u, kind, v = self.rows[row].tolist()
            for reverse, node, answer in ((0, u, v), (1, v, u)):
                of_edge = row if self.config.task.loss == "one_vs_all" else -1
                found.setdefault((node, kind, reverse, of_edge), set()).add(answer)
        return [(*key[:3], sorted(answers)) for key, answers in found.items()]

    def loss(self, queries, edges) -> torch.Tensor:
        """Mean loss of queries."""
        total = torch.zeros((), dtype=torch.float64)
        for node, kind, reverse, answers in queries:
            share = -self.scores(node, kind, bool(reverse), edges).log_softmax(0)[answers].mean()
            total = total + share * len(answers) ** self.config.task.answer_power
        return total / len(queries)


def open_case(comm, folder, case, **changes):
    parts = make_static_parts(comm, sparse_facts, folder)
    session = open_graph_session(comm, parts, config_of(case, **changes))
    return parts, session, Plain(parts, session)


@pytest.mark.parametrize("case", CASES)
def test_ranks_are_those_of_its_equations(comm, mpi_tmp_path, case):
    _, session, plain = open_case(comm, mpi_tmp_path, case)
    ranks, edges, rows = [], plain.edges(), plain.rows
    for u, kind, v in rows[plain.split == 2]:
        same = rows[:, 1] == kind
        for reverse, node, answer, here, there in ((False, u, v, 0, 2), (True, v, u, 2, 0)):
            known = rows[same & (rows[:, here] == node), there]
            ranks.append(rank_of(plain.scores(node, kind, reverse, edges).detach(), answer, known))
    metrics = split_metrics(session, "test", session.scores("test"))
    assert metrics["mrr"] == pytest.approx(float(np.mean(1 / np.array(ranks))), rel=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_that_of_plain_torch(comm, mpi_tmp_path, case):
    """Loss and gradients of two steps: what tells of a step's facts carries no messages."""
    _, session, plain = open_case(comm, mpi_tmp_path, case, train__batch_size=60)
    of_training = {(*key, tuple(answers)) for *key, answers in plain.queries()}
    session.start_epoch(0)
    with session.plans("train", 0) as plans:
        for _, plan in zip(range(2), plans, strict=False):
            columns = [plan.columns[name].tolist() for name in ("nodes", "types", "ends")]
            flat = session.world.reduce_array(own_rows(session, np.array(columns[0])))
            asked = [(node, kind, 1 - end) for node, kind, end in zip(flat.tolist(), *columns[1:], strict=True)]
            number, place = plan.columns["answers"].numpy().T
            found = [[] for _ in asked]
            for query, answer in np.concatenate(
                session.world.allgather(np.column_stack([number, session.partition.flat_row[place]]))
            ):
                found[query].append(int(answer))
            queries = [(*key, sorted(answers)) for key, answers in zip(asked, found, strict=True)]
            assert {(*key, tuple(answers)) for *key, answers in queries} <= of_training
            hidden = [(answer, kind, node) if reverse else (node, kind, answer)
                      for node, kind, reverse, answers in queries for answer in answers]  # fmt: skip
            plain.model.zero_grad()
            expected = plain.loss(queries, plain.edges(hidden))
            expected.backward()
            gradients = [parameter.grad.clone() for parameter in plain.model.parameters()]
            plain.model.zero_grad()
            loss = session.task.train(plan)
            assert float(session.world.total(float(loss))) == pytest.approx(expected.item(), rel=1e-9)
            for parameter, gradient in zip(plain.model.parameters(), gradients, strict=True):
                found = torch.from_numpy(session.world.reduce_array(parameter.grad.numpy()))
                torch.testing.assert_close(found, gradient, rtol=1e-8, atol=1e-11)


def own_rows(session, nodes: np.ndarray) -> np.ndarray:
    """Rows in the graph file of nodes, global ids, that are this rank's; 0 for others."""
    first = int(session.partition.book.of_type(0).starts[session.partition.rank])
    place, flat = nodes - first, session.partition.flat_row
    here = (place >= 0) & (place < len(flat))
    return np.where(here, flat[np.where(here, place, 0)], 0) if len(flat) else np.zeros_like(nodes)


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_paths_give_one_answer(comm, mpi_tmp_path, case):
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, config_of(case, train__epochs=1))


def test_a_run_resumes_as_if_never_stopped(comm, mpi_tmp_path):
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    config = config_of("typed both ways", train__epochs=1, train__checkpoint_every=2)
    resume_both(comm, parts, mpi_tmp_path, config)


def test_answers_are_those_of_all_scores(comm, mpi_tmp_path):
    """The best destinations and sources, and scores of pairs of which ranks have different numbers."""
    _, session, plain = open_case(comm, mpi_tmp_path, "typed both ways")
    edges, queries, pairs = plain.edges(), mpi_tmp_path / "queries.csv", mpi_tmp_path / "pairs.csv"
    for given, other, reverse in (("src", "dst", False), ("dst", "src", True)):
        if comm.rank == 0:
            queries.write_text(f"{given},rel\n7,2\n3,0\n")
        comm.Barrier()
        answers = best_answers(links_of(session, given), 2, str(queries))
        found = {name: answers.slab(name, 0, session.world) for name in (other, "score")}
        scores = [plain.scores(*query, reverse, edges).detach() for query in ((7, 2), (3, 0))]
        for score, node in zip(scores, (7, 3), strict=True):
            score[node] = -torch.inf
        if comm.rank == 0:
            best = [score.topk(2) for score in scores]
            assert found["score"] == pytest.approx(torch.cat([of.values for of in best]).numpy(), rel=1e-5)
            assert [int(node) for node in found[other]] == torch.cat([of.indices for of in best]).tolist()
        comm.Barrier()
    rows = plain.rows[:11]
    if comm.rank == 0:
        pairs.write_text("src,rel,dst\n" + "".join(f"{u},{kind},{v}\n" for u, kind, v in rows))
    comm.Barrier()
    answers = score_pairs(session, read_pairs(session, str(pairs)))
    score = answers.slab("score", 0, session.world)
    if comm.rank == 0:
        expected = [plain.scores(u, kind, False, edges)[v].item() for u, kind, v in rows]
        assert score == pytest.approx(np.array(expected), rel=1e-5)


REFUSED = {
    "drawn negatives": ({"task__loss": "softmax"}, "scores queries with all nodes: use task.loss"),
    "mini-batches": ({"train__full_graph": False, "sampling__fanouts": [2, 2]}, "set train.full_graph true|full_graph"),
    "another decoder": ({"task__decoder": "dot"}, "model.kind nbfnet is for paths .* task.decoder paths"),
    "another model": ({"model__kind": "rgcn"}, "task.decoder paths is for paths .* model.kind nbfnet"),
    "labels": ({"task__kind": "node", "task__loss": "", "eval__ranking": "", "task__negative_ends": "destination"},
               "model.kind nbfnet is for paths"),
    "dropout": ({"model__dropout": 0.1}, "leave out model.dropout"),
    "second rows": ({"task__reciprocal": True}, "leave out task.reciprocal"),
    "maximum": ({"model__aggregator": "max"}, "nbfnet adds up its messages"),
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_paths_is_refused(case):
    changes, said = REFUSED[case]
    with pytest.raises(ValueError, match=said):
        config_of("typed both ways", **changes)


@pytest.mark.serial
def test_a_rank_without_nodes_has_no_states():
    layer = PathLayer(4, 3, "mean", torch.nn.LayerNorm(4), torch.nn.ReLU())
    none = torch.empty(0, 2 * 4)
    assert layer(Block((), (0,), (0,)), none, none, torch.randn(2, 4)).shape == (0, 8)


@pytest.mark.serial
def test_nodes_have_no_embeddings():
    arguments = make_parser().parse_args(["run", "--embeddings", "--out", "out.csv"])
    with pytest.raises(ValueError, match=r"--embeddings: nodes have none with model.kind nbfnet, but states"):
        check(arguments, config_of("typed"))


@pytest.mark.parametrize("has_features", [False, True])
def test_features_that_no_state_has_are_named(comm, mpi_tmp_path, has_features):
    def make(path):
        sparse_facts(path)
        if has_features:
            with h5py.File(path, "r+") as file:
                file["nodes/entity/feat"] = np.ones((23, 2), np.float32)

    lines = open_graph_session(comm, make_static_parts(comm, make, mpi_tmp_path), config_of("typed")).describe()
    expected = "features of entity: not used: model.kind nbfnet has states of queries"
    assert [line for line in lines if "not used" in line] == [expected] * has_features


@pytest.mark.serial
def test_graphs_of_events_have_no_paths():
    with pytest.raises(ValueError, match=r"task.decoder paths is for static graphs"):
        TaskConfig(decoder="paths")


@pytest.mark.serial
def test_a_graph_of_two_types_is_refused(comm, mpi_tmp_path):
    def make(path):
        shop(path)
        with h5py.File(path, "r+") as file:
            group = file["edges"][BUYS]
            group["rel"] = np.zeros(len(group["src"]), np.int64)

    parts = make_static_parts(comm, make, mpi_tmp_path)
    config = link_config(**PATHS | {"task__relation": BUYS, "task__negative_ends": "destination"})
    with pytest.raises(Exception, match=r"model.kind nbfnet is for graphs of one node type, this one has 2"):
        open_graph_session(comm, parts, config)
