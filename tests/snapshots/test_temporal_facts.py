"""Temporal knowledge graphs: rules of recurrency, and RE-GCN against plain torch, on any number of ranks."""

import json

import numpy as np
import pytest
import torch
from mpi4py import MPI
from snapshot_runs import assert_like_one_rank, make_config, one_step, open_session, random_graph, write_parts
from torch.nn import functional

from hpcgnn.loop.links import best_answers
from hpcgnn.loop.session import split_metrics
from hpcgnn.snapshots.baselines import BASELINES, baseline_metrics
from hpcgnn.snapshots.predict import links_of, read_pairs, score_pairs

NODES, SNAPSHOTS, TYPES = 18, 12, 3
FACTS = {"task__kind": "link", "task__decoder": "distmult", "eval__ranking": "filtered"}
REGCN = {
    **FACTS, "model__kind": "regcn", "model__hidden": 8, "model__layers": 2, "sampling__window_size": 3,
    "train__batch_size": 2, "task__decoder": "conv_transe", "task__loss": "one_vs_all",
}  # fmt: skip


def make_graph(empty=(4,)):
    """Facts of few types, that recur; some are there twice, one snapshot is empty."""
    graph = random_graph(6, NODES, SNAPSHOTS, 20, weighted=False, empty=empty)
    graph.series.clear()
    graph.edges["rel"] = (graph.src * graph.dst % TYPES).astype(np.int16)
    graph.src[5:8], graph.dst[5:8] = graph.src[0], graph.dst[0]
    graph.edges["rel"][5:8] = graph.edges["rel"][0]
    return graph


def edges_of(graph):
    """Snapshot, source, type, destination."""
    return np.column_stack([graph.first, graph.src, graph.edges["rel"], graph.dst])


def facts_of(graph):
    """The different edges."""
    return np.unique(edges_of(graph), axis=0)


def ranks_by_hand(facts, snapshots, raw, score_of):
    """Ranks of the ends of the facts one snapshot after each of ``snapshots``, by a function of the known facts, the
    time and a fact; facts that are asked for backwards have the type TYPES more."""
    back = np.column_stack([facts[:, 0], facts[:, 3], facts[:, 2] + TYPES, facts[:, 1]])
    both, ranks = np.concatenate([facts, back]), []
    for time in [number + 1 for number in snapshots]:
        known, now = both[both[:, 0] < time], both[both[:, 0] == time]
        for _, source, kind, answer in now:
            scores = np.array([score_of(known, time, source, kind, node) for node in range(NODES)])
            others = np.arange(NODES) != answer
            if not raw:
                others[now[(now[:, 1] == source) & (now[:, 2] == kind), 3]] = False
            above, level = (np.sum(test(scores[others], scores[answer])) for test in (np.greater, np.equal))
            ranks.append(1 + above + level / 2)
    return np.array(ranks)


def strict(known, time, source, kind, node, decay=0.5):
    """2 to the power of -decay times the snapshots since the same fact."""
    same = known[(known[:, 1] == source) & (known[:, 2] == kind) & (known[:, 3] == node), 0]
    return 2.0 ** (-decay * (time - same.max())) if len(same) else 0.0


def relaxed(known, time, source, kind, node):
    """The share of the facts of a type that have the answer."""
    of_type = known[known[:, 2] == kind]
    return np.mean(of_type[:, 3] == node) if len(of_type) else 0.0


def both_rules(known, time, source, kind, node):
    return 0.75 * strict(known, time, source, kind, node) + 0.25 * relaxed(known, time, source, kind, node)


RULES = {
    "recurrency_strict": (strict, {"decay": 0.5}), "recurrency_relaxed": (relaxed, {}),
    "recurrency": (both_rules, {"decay": 0.5, "strict_weight": 0.75}),
}  # fmt: skip


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("ranking", ["filtered", "raw"])
def test_rules_rank_as_one_loop_over_facts(comm, mpi_tmp_path, kind, ranking):
    graph, (score_of, settings) = make_graph(), RULES[kind]
    changes = {f"baseline__{name}": value for name, value in settings.items()}
    config = make_config(**FACTS | {"eval__ranking": ranking, "baseline__kind": kind} | changes)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    found = baseline_metrics(session, config.baseline)
    splits = {name: session.loaders[name].snapshots for name in ("val", "test")}
    session.close()
    for split, snapshots in splits.items():
        ranks = ranks_by_hand(facts_of(graph), snapshots, ranking == "raw", score_of)
        assert found[f"{split}_mrr"] == pytest.approx(np.mean(1 / ranks), rel=1e-12)
        for most in (1, 3, 10):
            assert found[f"{split}_hits@{most}"] == pytest.approx(np.mean(ranks <= most), rel=1e-12)


def by_hand(graph, time, source, answer):
    """Score of a pair of a graph without types, at weights 0.75 and 0.25."""
    facts = facts_of(graph)
    return both_rules(facts[facts[:, 0] < time], time, source, 0, answer)


@pytest.mark.parametrize("ends", ["destination", "pair"])
def test_rules_score_drawn_pairs(comm, mpi_tmp_path, ends):
    """Edges by hand, and the metrics with negatives as on one rank."""
    rule = {"baseline__kind": "recurrency", "baseline__decay": 0.5, "baseline__strict_weight": 0.75}
    graph = make_graph()
    graph.edges["rel"][:] = 0
    config = make_config(task__kind="link", task__negative_ends=ends, eval__negatives=3, **rule)
    parts = write_parts(comm, mpi_tmp_path, graph)
    session = open_session(comm, parts, config)
    found, number = baseline_metrics(session, config.baseline), session.loaders["val"].snapshots.start
    pairs = session.goal.want("val", 0, number)
    scores = session.goal.compare(BASELINES["recurrency"].make(session)(number), pairs).positive
    scores = np.concatenate(comm.allgather(scores.numpy()))
    session.close()
    facts = facts_of(graph)
    expected = [by_hand(graph, number + 1, s, o) for _, s, _, o in facts[facts[:, 0] == number + 1]]
    np.testing.assert_allclose(np.sort(scores), np.sort(expected), rtol=1e-12)
    alone = open_session(MPI.COMM_SELF, parts, config)
    assert found == baseline_metrics(alone, config.baseline)
    alone.close()


def test_rules_rank_edges_among_all_pairs(comm, mpi_tmp_path):
    graph, rule = make_graph(empty=()), {"baseline__decay": 0.5, "baseline__strict_weight": 0.75}
    graph.edges["rel"][:] = 0
    config = make_config(task__kind="link", eval__ranking="all", baseline__kind="recurrency", **rule)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    found, snapshots = baseline_metrics(session, config.baseline), session.loaders["val"].snapshots
    session.close()
    facts, values = facts_of(graph), []
    for number in snapshots:
        scores = np.array([[by_hand(graph, number + 1, s, o) for o in range(NODES)] for s in range(NODES)])
        is_edge = np.zeros((NODES, NODES), bool)
        is_edge[tuple(facts[facts[:, 0] == number + 1][:, [1, 3]].T)] = True
        positive, negative = scores[is_edge][:, None], scores[~is_edge]
        values.append(np.mean((positive > negative) + (positive == negative) / 2))
    assert found["val_auc"] == pytest.approx(np.mean(values), rel=1e-12)


def test_small_differences_of_scores_decide(comm, mpi_tmp_path):
    """Of two facts that were there in the same snapshot, the share decides, though it is 1e-9 of the score."""
    graph = make_graph(empty=())
    graph.src, graph.dst = np.array([0, 0, 1, 2, 0]), np.array([5, 6, 6, 6, 6])
    graph.first, graph.edges = np.array([9, 9, 8, 7, 10]), {"rel": np.zeros(5, np.int8)}
    rule = {"baseline__kind": "recurrency", "baseline__decay": 1e-3, "baseline__strict_weight": 1 - 1e-9}
    config = make_config(**FACTS, **rule, data__val_snapshots=1)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    pairs = session.goal.want("val", 0, 9)
    ranks = session.goal.compare(BASELINES["recurrency"].make(session)(9), pairs).columns["rank"]
    found = np.concatenate(comm.allgather(ranks))
    session.close()
    assert sorted(found) == [1, 1]


@pytest.mark.serial
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"baseline__kind": "recurrency", "task__kind": "regression", "task__decoder": "dot", "eval__ranking": ""},
         "recurrency ranks the ends of links: use task.kind link"),
        ({"baseline__kind": "recurrency_relaxed", "baseline__decay": 0.5}, "recurrency_relaxed does not read it"),
        ({"baseline__decay": 0.5}, "baseline.decay: baseline.kind empty does not read it"),
        ({"baseline__kind": "recurrency", "baseline__strict_weight": 1.5}, "baseline.strict_weight 0 to 1"),
        ({"task__decoder": "conv_transe"}, "task.decoder conv_transe has other rows of edge .* use task.loss one"),
        ({"model__kind": "regcn", "sampling__window_size": 2}, "model.kind regcn has other rows .* use task.loss one"),
        ({"task__loss": "k_vs_all"}, "task.loss k_vs_all is for static graphs: use one_vs_all"),
        ({"task__loss": "one_vs_all", "task__strict": True}, "task.strict: task.loss one_vs_all draws no negatives"),
        ({"task__kind": "regression", "task__decoder": "dot", "eval__ranking": "", "task__recurrency": True},
         "task.recurrency is for task.kind link, not regression"),
        ({"task__loss": "one_vs_all", "task__decoder": "mlp"}, "one_vs_all needs a task.decoder other than mlp"),
        ({"task__loss": "one_vs_all", "train__train_metrics": True}, "train.train_metrics are of drawn negatives"),
    ],
)  # fmt: skip
def test_settings_of_facts_that_do_not_go_together_are_refused(changes, reason):
    with pytest.raises(ValueError, match=reason):
        make_config(**FACTS | changes)


VARIANTS = {
    "conv_transe": {}, "dropout": {"model__dropout": 0.3, "sampling__prefetch": 2}, "raw": {"eval__ranking": "raw"},
    "distmult": {"task__decoder": "distmult", "task__label_smoothing": 0.1, "eval__ranking": ""},
    "untyped": {"task__decoder": "dot"}, "distances": {"task__decoder": "transe", "task__offset": 2.0},
    "gcn": {"model__kind": "gcn", "sampling__window_size": 0, "task__decoder": "complex"},
    "sampled neighbors": {"sampling__halo_ratio": 0.5}, "recurrency": {"task__recurrency": True},
    "recurrency, untyped": {"task__recurrency": True, "task__decoder": "dot", "task__horizon": 2},
    "recurrency, drawn": {
        "task__recurrency": True, "task__decoder": "mlp", "task__loss": "binary", "eval__ranking": "",
    },
    "recurrency, pairs": {
        "task__recurrency": True, "task__decoder": "mlp", "task__loss": "binary", "task__negative_ends": "pair",
        "task__negatives": 3, "eval__ranking": "all",
    },
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_number_of_ranks_learns_and_ranks_alike(comm, mpi_tmp_path, variant):
    parts = write_parts(comm, mpi_tmp_path, make_graph())
    found, metrics = assert_like_one_rank(comm, parts, make_config(**REGCN | VARIANTS[variant]))
    assert len(np.unique(found[:, 0])) > 1
    assert np.abs(found[:, 1:]).max(axis=1).all()
    assert 0 < metrics["mrr"] < 1


@pytest.mark.parametrize("ranking", ["", "all"])
def test_recurrency_adds_to_scores_of_drawn_pairs_and_of_all(comm, mpi_tmp_path, ranking):
    """What the weights change is what a loop over the facts computes."""
    graph = make_graph()
    graph.edges["rel"][:] = 0
    config = make_config(task__kind="link", task__decoder="dot", task__recurrency=True, eval__ranking=ranking)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    number, goal = session.loaders["val"].snapshots.start, session.goal
    pairs, add = goal.want("val", 0, number), goal.adder(number)
    draw_recurrency(session)
    p = {f"recurrency.{name}": value for name, value in session.model.recurrency.named_parameters()}
    facts, nodes = facts_of(graph), torch.arange(NODES)
    expected = known_before(p, facts, number + 1, nodes, torch.zeros_like(nodes)).detach()
    if ranking:
        everyone = np.arange(NODES)
        row = np.empty(NODES, np.int64)
        for ids, rows in comm.allgather((session.partition.global_ids, session.partition.flat_row)):
            row[ids] = rows
        score = torch.zeros((NODES, session.partition.num_nodes), dtype=torch.float64)
        add(score, everyone, np.zeros_like(everyone), False)
        assert torch.allclose(score, expected[row][:, session.partition.flat_row], rtol=1e-12)
    else:
        found = np.concatenate(comm.allgather(add.to_facts(pairs.seen)[0].detach().numpy()))
        now = facts[facts[:, 0] == number + 1]
        assert np.allclose(np.sort(found), np.sort(expected[now[:, 1], now[:, 3]]), rtol=1e-12)
    session.close()


def evolve(p, table, edges, window, layers):
    """Rows of nodes and edge types after the snapshots of a window, as the equations of the paper have them. A fact
    that is there twice is two messages."""
    h, start = functional.normalize(table), p["relation"]
    cell = torch.nn.GRUCell(2 * table.shape[1], table.shape[1], dtype=table.dtype)
    r = start
    for time in window:
        _, s, k, o = torch.from_numpy(edges[edges[:, 0] == time]).T
        mean = torch.zeros(TYPES, table.shape[1], dtype=table.dtype)
        for kind in k.unique():
            mean[kind] = h[torch.cat([s[k == kind], o[k == kind]]).unique()].mean(0)
        inputs = torch.cat([start, mean.repeat(2, 1)], 1)
        weights = {name: p[f"cell.{name}"] for name, _ in cell.named_parameters()}
        r = functional.normalize(torch.func.functional_call(cell, weights, (inputs, r)))
        source, kind, target = torch.cat([s, o]), torch.cat([k, k + TYPES]), torch.cat([o, s])
        degree, now = torch.bincount(target, minlength=NODES)[:, None], h
        for layer in range(layers):
            message = (now[source] + r[kind]) @ p[f"layers.{layer}.around"] / degree[target]
            own = torch.where(degree > 0, now @ p[f"layers.{layer}.loop"], now @ p[f"layers.{layer}.alone"])
            total = own + torch.zeros_like(now).index_add(0, target, message)
            now = torch.where(total > 0, total, 11 / 48 * total)
        u = torch.sigmoid(h @ p["gate.weight"].T + p["gate.bias"])
        h = u * functional.normalize(now) + (1 - u) * h
    return h, r


def conv_transe(p, query, kind):
    """A row [Q, Z] of each query, by sums over the three places of the kernel."""

    def standard(name, rows):
        rows = rows - rows.mean(-1, keepdim=True)
        rows = rows / (rows.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return rows * p[f"decoder.{name}.weight"] + p[f"decoder.{name}.bias"]

    channels = functional.pad(standard("enter", torch.stack([query, kind], 1)), (1, 1))
    weight, width = p["decoder.convolution.weight"], query.shape[1]
    maps = sum(torch.einsum("cs,qsz->qcz", weight[:, :, t], channels[:, :, t : t + width]) for t in range(3))
    maps = torch.relu(maps + p["decoder.convolution.bias"][:, None]).flatten(1)
    return torch.relu(standard("leave", maps @ p["decoder.product.weight"].T + p["decoder.product.bias"]))


def known_before(p, facts, time, queries, kinds):
    """What the facts before a snapshot add to the scores of queries [Q] with all nodes: ten times the weights of the
    kind, for the whole part of log2 of the age (7 at most), and for log2 of how many snapshots had the fact."""
    rows = [torch.empty((0, NODES), dtype=torch.float64)]
    for query, kind in zip(queries.tolist(), kinds.tolist(), strict=True):
        ends = (1, 3) if kind < TYPES else (3, 1)
        same = facts[(facts[:, 0] < time) & (facts[:, ends[0]] == query) & (facts[:, 2] == kind % TYPES)]
        of_nodes = [same[same[:, ends[1]] == node, 0] for node in range(NODES)]
        ages = [min(7, int(np.log2(time - of_node.max()))) if len(of_node) else -1 for of_node in of_nodes]
        scores = [
            10 * (p["recurrency.age"][kind, age] + p["recurrency.times"][kind] * np.log2(len(of_node)))
            if len(of_node) else torch.zeros((), dtype=torch.float64)
            for age, of_node in zip(ages, of_nodes, strict=True)
        ]  # fmt: skip
        rows.append(torch.stack(scores)[None])
    return torch.cat(rows)


def scores_of(p, facts, time, ends, kinds, state):
    """Scores of queries [Q] with all nodes, from the rows of nodes and types."""
    h, r = state
    scores = conv_transe(p, h[ends], r[kinds]) @ h.T
    return scores + known_before(p, facts, time, ends, kinds) if "recurrency.age" in p else scores


def expected_loss(p, table, graph, targets, history, layers):
    """The mean over facts and ends of the cross entropies."""
    facts, edges = facts_of(graph), edges_of(graph)
    total, count = torch.zeros((), dtype=table.dtype), 0
    for number in targets:
        state = evolve(p, table, edges, range(number - history + 1, number + 1), layers)
        _, s, k, o = torch.from_numpy(facts[facts[:, 0] == number + 1]).T
        for query, kind, answer in ((s, k, o), (o, k + TYPES, s)):
            scores = scores_of(p, facts, number + 1, query, kind, state)
            total = total + functional.cross_entropy(scores, answer, reduction="sum")
            count += len(answer)
    return total / count


def draw_recurrency(session):
    """Draw the weights that begin at 0, alike on all ranks."""
    generator = torch.Generator().manual_seed(3)
    for weight in session.model.recurrency.parameters():
        weight.data = 0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)


def weights_of(comm, session):
    """Copies of the model's weights by name, and the learnable embeddings of all nodes."""
    p = {name: value.detach().clone().requires_grad_() for name, value in session.model.named_parameters()}
    table = torch.zeros(NODES, 8, dtype=torch.float64)
    for place, values in comm.allgather((session.partition.flat_row, session.memory.learned.weight.detach().numpy())):
        table[place] = torch.from_numpy(values)
    return p, table


@pytest.mark.parametrize("recurrency", [False, True])
def test_regcn_is_that_of_plain_torch(comm, mpi_tmp_path, recurrency):
    """Loss and gradients of the first step, and the ranks of validation."""
    graph = make_graph()
    config = make_config(**REGCN, task__recurrency=recurrency)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    if recurrency:
        draw_recurrency(session)
    named = dict(session.model.named_parameters())
    p, table = weights_of(comm, session)
    with torch.no_grad():
        metrics = split_metrics(session, "val", session.scores("val"))
    plan = session.loaders["train"].planner.plan(session.batches["train"], 0, 0)
    found = one_step(session, plan, list(named.values()))
    snapshots = session.loaders["val"].snapshots
    session.close()
    loss = expected_loss(p, table, graph, plan.targets, 3, 2)
    loss.backward()
    expected = torch.cat([loss.detach().reshape(1), *[value.grad.reshape(-1) for value in p.values()]]).numpy()
    assert np.allclose(found, expected, rtol=1e-9, atol=1e-12)
    tables = {}

    def score_of(known, time, source, kind, node):
        if time not in tables:
            state = evolve(p, table, edges_of(graph), range(time - 3, time), 2)
            queries = torch.cartesian_prod(torch.arange(NODES), torch.arange(2 * TYPES)).T
            scores = scores_of(p, facts_of(graph), time, *queries, state)
            tables[time] = scores.float().view(NODES, 2 * TYPES, NODES)
        return tables[time][source, kind, node].item()

    ranks = ranks_by_hand(facts_of(graph), snapshots, False, score_of)
    assert metrics["mrr"] == pytest.approx(np.mean(1 / ranks), rel=1e-9)


@pytest.mark.parametrize("recurrency", [False, True])
@pytest.mark.parametrize("given", ["src", "dst"])
def test_best_answers_after_the_last_snapshot_have_names(comm, mpi_tmp_path, given, recurrency):
    """Of all nodes, for a type by its name, against plain torch."""
    graph, names = make_graph(), [f"Town {7 * row % NODES} (old)" for row in range(NODES)]
    graph.id = np.array([name.encode() for name in names])
    graph.edge_attributes["rel"] = {"names": json.dumps(["visits", "trades, often", "leaves"])}
    config = make_config(**REGCN, task__recurrency=recurrency)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    if recurrency:
        draw_recurrency(session)
    p, table = weights_of(comm, session)
    queries = mpi_tmp_path / "queries.csv"
    if comm.rank == 0:
        queries.write_text("\n".join([f"{given},rel", *(f'{name},"trades, often"' for name in names)]) + "\n")
    comm.barrier()
    found = best_answers(links_of(session, given), 3, str(queries))
    answers = {name: found.slab(name, 0, session.world) for name in found.columns}
    session.close()
    if comm.rank == 0:
        with torch.no_grad():
            state = evolve(p, table, edges_of(graph), range(SNAPSHOTS - 3, SNAPSHOTS), 2)
            kinds = torch.full((NODES,), 1 + TYPES * (given == "dst"))
            score = scores_of(p, facts_of(graph), SNAPSHOTS, torch.arange(NODES), kinds, state)
            score.fill_diagonal_(-torch.inf)
        best = torch.topk(score, 3)
        np.testing.assert_allclose(answers["score"], best.values.ravel(), rtol=1e-6)
        assert answers["dst" if given == "src" else "src"].tolist() == [names[node] for node in best.indices.ravel()]


@pytest.mark.parametrize("every_type", [False, True])
def test_scores_of_pairs_have_their_recurrency(comm, mpi_tmp_path, every_type):
    """Of pairs in a file, one type or all types, against plain torch."""
    graph = make_graph()
    config = make_config(**REGCN, task__recurrency=True)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    draw_recurrency(session)
    p, table = weights_of(comm, session)
    path, pairs = mpi_tmp_path / "pairs.csv", [(s, o, 2) for s in range(NODES) for o in range(NODES)]
    if comm.rank == 0:
        path.write_text("\n".join(["src,dst,rel", *(f"{s},{o},{k}" for s, o, k in pairs)]) + "\n")
    comm.barrier()
    given = (1, []) if every_type else None
    found = score_pairs(session, read_pairs(session, str(path), given), every_type=every_type)
    scores = found.slab("score", 0, session.world)
    session.close()
    if comm.rank == 0:
        types = range(TYPES) if every_type else [2]
        with torch.no_grad():
            state = evolve(p, table, edges_of(graph), range(SNAPSHOTS - 3, SNAPSHOTS), 2)
            expected = [
                scores_of(p, facts_of(graph), SNAPSHOTS, torch.arange(NODES), torch.full((NODES,), kind), state)
                for kind in types
            ]
        np.testing.assert_allclose(scores.reshape(NODES * NODES, -1), torch.stack(expected, 2).flatten(0, 1), rtol=1e-6)
