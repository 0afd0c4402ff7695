"""Links of snapshots: one answer on any number of ranks, negatives as asked for, metrics as their definitions say."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from sklearn.metrics import average_precision_score, roc_auc_score
from snapshot_runs import assert_like_one_rank, make_config, open_session, random_graph, run_epochs, write_parts

from hpcgnn.comm.world import DistributedError, World
from hpcgnn.nn.decoders import DECODERS, DecoderSizes
from hpcgnn.snapshots.link_goal import measure_all_pairs
from hpcgnn.task.levels import ap_auc

LINK = {"task__kind": "link", "train__batch_size": 3, "inputs__degrees": "log"}
VARIANTS = {
    "drawn": {"task__negatives": 3, "eval__negatives": 4, "task__loss": "softmax"},
    "both ends": {"task__negative_ends": "pair", "task__strict": True, "task__decoder": "mlp", "task__negatives": 2},
    "both ends by degree": {"task__negative_ends": "pair", "task__negative_kind": "degree", "task__negatives": 3},
    "undirected": {"task__undirected": True, "task__new_links": True, "task__strict": True, "task__loss": "margin"},
    "windows": {
        "sampling__window_size": 2,
        "task__decoder": "cosine",
        "task__positive_weight": 3.0,
        "node_embedding__dim": 4,
    },
    "all pairs": {"eval__ranking": "all", "task__decoder": "mlp", "sampling__prefetch": 2},
    "answers": {"eval__ranking": "filtered", "task__decoder": "complex", "task__strict": True},
    "answers, both drawn": {"eval__ranking": "filtered", "task__decoder": "distmult", "task__negative_ends": "pair"},
    "answers of an mlp": {"eval__ranking": "filtered", "task__decoder": "mlp"},
}


def links(**changes):
    return make_config(**{**LINK, **changes})


def both_directions(graph):
    """The graph with every edge once in both directions."""
    ends = np.unique(np.sort(np.stack([graph.src, graph.dst]), axis=0) + 1000 * graph.first, axis=1)
    first, (low, high) = ends[0] // 1000, ends % 1000
    graph.src, graph.dst = np.concatenate([low, high]), np.concatenate([high, low])
    graph.first, graph.edges = np.tile(first, 2), {"rel": (graph.src * graph.dst % 3).astype(np.int16)}
    return graph


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_number_of_ranks_gives_one_answer(comm, mpi_tmp_path, variant):
    """With snapshots without edges, among them targets; few edges, so that ranks have none of some snapshots."""
    graph = both_directions(random_graph(4, 40, 12, 15, empty=(3, 10)))
    found, metrics = assert_like_one_rank(comm, write_parts(comm, mpi_tmp_path, graph), links(**VARIANTS[variant]))
    assert len(np.unique(found[:, 0])) > 1
    assert 0 < metrics["mrr"] < 1


@pytest.mark.parametrize("ends", ["destination", "pair"])
def test_the_kernel_learns_as_the_decoder_in_plain_torch(comm, mpi_tmp_path, monkeypatch, ends):
    parts = write_parts(comm, mpi_tmp_path, random_graph(4, 40, 12, 15))
    config = links(task__decoder="mlp", task__negatives=5, task__negative_ends=ends)
    native, _ = run_epochs(comm, parts, config)
    monkeypatch.setattr("hpcgnn.nn.decoders.has_kernel", lambda part, table: False)
    plain, _ = run_epochs(comm, parts, config)
    assert not np.array_equal(native, plain)  # else both are the same
    assert np.abs(native - plain)[:, 1:].max() < 1e-12 * np.abs(plain[:, 1:]).max()
    assert np.allclose(native[:, 0], plain[:, 0], rtol=1e-13, atol=0)


def test_updates_repeat_a_step_before_it_goes_on(comm, mpi_tmp_path):
    """Weights left alone: every step is there three times, from the same state, and tells its scores once."""
    parts = write_parts(comm, mpi_tmp_path, random_graph(4, 40, 10, 15))
    once, _ = run_epochs(comm, parts, links(train__batch_size=2))
    found, _ = run_epochs(comm, parts, links(train__batch_size=2, sampling__updates_per_batch=3))
    assert np.allclose(found, np.repeat(once, 3, axis=0), rtol=1e-12)
    session, told = open_session(comm, parts, links(train__batch_size=2, sampling__updates_per_batch=3)), []
    with session.plans("train", 0) as plans:
        for plan in plans:
            session.task.train(plan)
            told.append(session.world.total(len(session.task.last_scores.positive)))
    session.close()
    assert all(told[::3])
    assert not any(told[1::3] + told[2::3])


def pairs_of(session, split, epoch, number):
    """Row ids of sources, destinations [s], negative sources and negatives [k, s] of all ranks' pairs of a target."""
    pairs, flat = session.goal.want(split, epoch, number), torch.from_numpy(session.partition.flat_row)
    rows = flat if pairs.reach.route is None else pairs.reach.route.pull(flat)[0]
    source = pairs.source.expand_as(pairs.negative) if pairs.negative_source is None else pairs.negative_source
    columns = [pairs.source, pairs.destination, source.T, pairs.negative.T]
    everyone = [np.concatenate(session.world.allgather(rows[place].numpy())) for place in columns]
    order = np.lexsort(everyone[:2])
    return [column[order] for column in everyone]


@pytest.mark.parametrize("both", [False, True])
def test_negatives_are_strict_and_keyed(comm, mpi_tmp_path, both):
    graph = random_graph(7, 12, 6, 50, weighted=False)
    parts = write_parts(comm, mpi_tmp_path, graph)
    config = links(task__strict=True, task__negatives=5, task__negative_ends="pair" if both else "destination")
    session = open_session(comm, parts, config)
    drawn = {key: pairs_of(session, *key) for key in [("train", 0, 2), ("train", 1, 2), ("val", 0, 2), ("val", 1, 2)]}
    session.close()
    there = set(zip(graph.src[graph.first == 3], graph.dst[graph.first == 3], strict=True))
    source, destination, negative_source, negative = drawn["train", 0, 2]
    assert sorted(zip(source, destination, strict=True)) == sorted(there)
    assert not there & set(zip(negative_source.ravel(), negative.ravel(), strict=True))
    assert (negative_source != negative).all()
    assert both or (negative_source == source[:, None]).all()
    assert not np.array_equal(negative, drawn["train", 1, 2][3])
    assert np.array_equal(drawn["val", 0, 2][3], drawn["val", 1, 2][3])
    alone = open_session(World.alone().mpi, parts, config) if comm.rank == 0 else None
    for key, columns in drawn.items() if alone else ():
        assert all(np.array_equal(a, b) for a, b in zip(columns, pairs_of(alone, *key), strict=True))


@pytest.mark.parametrize("both", [False, True])
def test_no_drawn_pair_is_the_edge_that_it_is_drawn_for(comm, mpi_tmp_path, both):
    """Of four nodes; the other pairs are equally likely, and a draw that was another node is the same as ever."""
    graph = random_graph(7, 4, 6, 6, weighted=False)
    parts = write_parts(comm, mpi_tmp_path, graph, 4)
    ends = "pair" if both else "destination"
    session = open_session(comm, parts, links(task__negatives=400, task__negative_ends=ends))
    source, destination, negative_source, negative = pairs_of(session, "train", 0, 2)
    session.close()
    own = (negative == destination[:, None]) & (negative_source == source[:, None])
    assert not own.any()
    counts = np.array([np.bincount(4 * u + v, minlength=16) for u, v in zip(negative_source, negative, strict=True)])
    likely = np.zeros_like(counts, dtype=float)
    for row, (u, v) in enumerate(zip(source, destination, strict=True)):
        sources = range(4) if both else [u]
        likely[row, [4 * s + d for s in sources for d in range(4)]] = 1
        likely[row, 4 * u : 4 * u + 4] *= 4 / 3  # of one source, three destinations share what four had
        likely[row, 4 * u + v] = 0
    likely *= 400 / likely.sum(axis=1, keepdims=True)
    assert (counts[likely == 0] == 0).all()
    assert chisquare(counts[likely > 0], likely[likely > 0]).pvalue > 1e-4


def test_undirected_and_new_links(comm, mpi_tmp_path):
    """Of every pair of nodes the edge of either direction, as a coin falls for each snapshot; none that the snapshot
    before has."""
    graph = both_directions(random_graph(8, 15, 6, 40))
    parts = write_parts(comm, mpi_tmp_path, graph)
    sets = [set(zip(graph.src[graph.first == n], graph.dst[graph.first == n], strict=True)) for n in range(6)]
    for new in (False, True):
        session = open_session(comm, parts, links(task__undirected=True, task__new_links=new))
        source, destination, *_ = pairs_of(session, "train", 0, 1)
        expected = {(u, v) for u, v in sets[2] - (sets[1] if new else set()) if u <= v}
        assert sorted((min(pair), max(pair)) for pair in zip(source, destination, strict=True)) == sorted(expected)
        asked = [set(zip(*pairs_of(session, "train", 0, number)[:2], strict=True)) for number in (0, 1)]
        assert 0.25 < np.mean([u > v for pairs in asked for u, v in pairs if u != v]) < 0.75
        assert new or any((v, u) in asked[1] for u, v in asked[0] if u != v)
        assert session.goal.roots[1] == len(expected)
        session.close()


def test_all_pairs_are_ranked_as_defined(comm, mpi_tmp_path):
    """Against matrices of scores and edges, row by row, as EvolveGCN's evaluation."""
    graph = random_graph(9, 20, 8, 25, weighted=False)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), links(eval__ranking="all"))
    outputs = torch.randn(20, session.goal.num_outputs, generator=torch.Generator().manual_seed(1)).double()
    wanted = session.goal.want("val", 0, 4)
    found = session.goal.score(outputs[session.partition.flat_row], wanted, None).columns
    mean_ap, mrr, auc = (found[name][0] for name in ("map", "mrr", "auc"))
    session.close()
    score, edge = (outputs @ outputs.T).float().numpy(), np.zeros((20, 20), bool)
    edge[graph.src[graph.first == 5], graph.dst[graph.first == 5]] = True
    assert mean_ap == pytest.approx(average_precision_score(edge.ravel(), score.ravel()), rel=1e-6)
    assert auc == pytest.approx(roc_auc_score(edge.ravel(), score.ravel()), rel=1e-6)
    rows = [np.mean(1 / (1 + (score[u] > score[u, edge[u], None]).sum(1))) for u in np.flatnonzero(edge.any(1))]
    assert mrr == pytest.approx(np.mean(rows), rel=1e-6)


@pytest.mark.parametrize("decoder", ["distmult", "mlp"])
def test_answers_are_ranked_among_all_nodes(comm, mpi_tmp_path, decoder):
    """By type, if the decoder knows any, other edges of the snapshot left out, at both ends; against one loop over
    edges and nodes."""
    graph = random_graph(9, 20, 8, 60, weighted=False)
    graph.edges["rel"] = (np.arange(len(graph.src)) % 2).astype(np.int8)
    types = graph.edges["rel"] * (decoder == "distmult")
    config = links(eval__ranking="filtered", task__decoder=decoder)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    outputs = torch.randn(20, session.goal.num_outputs, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        wanted = session.goal.want("val", 0, 4)
        ranks = session.goal.score(outputs[session.partition.flat_row], wanted, None).columns["rank"]
        score = score_by_hand(session.model.decoder, decoder, outputs).float().numpy()
    found = np.sort(np.concatenate(comm.allgather(ranks)))
    session.close()
    here, edge = graph.first == 5, np.zeros((1 + types.max(), 20, 20), bool)
    edge[types[here], graph.src[here], graph.dst[here]] = True
    wrong, expected = np.where(edge, -np.inf, score), []
    for r, u, v in zip(*np.nonzero(edge), strict=True):
        expected += [1 + np.sum(others > score[r, u, v]) for others in (wrong[r, u], wrong[r, :, v])]
    assert np.array_equal(found, np.sort(expected))


def score_by_hand(decoder, name: str, outputs: torch.Tensor) -> torch.Tensor:
    """Scores [types, sources, destinations]."""
    if name == "distmult":
        return torch.einsum("uz,rz,vz->ruv", outputs, decoder.relation.weight, outputs)
    source, destination = decoder.source(outputs)[:, None], outputs @ decoder.destination.weight.T
    return decoder.out(torch.relu(source + destination))[None, ..., 0]


def test_counted_metrics_are_those_of_sklearn(comm):
    """With ties; every rank has another share, one of them perhaps none."""
    rng = np.random.default_rng(0)
    positive, negative = rng.integers(3, 12, 40) / 4, rng.integers(0, 10, (40, 6)) / 4
    mine = np.arange(40) % (comm.size + 1) == comm.rank if comm.size > 1 else np.ones(40, bool)
    everyone = np.concatenate(comm.allgather(np.flatnonzero(mine)))
    ap, auc = ap_auc(positive[mine], negative[mine], World(comm=comm))
    scores = np.concatenate([positive[everyone], negative[everyone].ravel()])
    labels = np.arange(len(scores)) < len(everyone)
    assert ap == pytest.approx(average_precision_score(labels, scores), rel=1e-12)
    assert auc == pytest.approx(roc_auc_score(labels, scores), rel=1e-12)
    assert np.isnan(ap_auc(positive[:0], negative[mine], World(comm=comm))).all()


@pytest.mark.parametrize(
    ("changes", "described", "names"),
    [
        ({}, "links 1 snapshots later, 1 negatives each, in evaluation 1 negatives each", ("ap", "auc", "mrr")),
        ({"task__strict": True, "task__undirected": True, "task__new_links": True, "eval__negatives": 4},
         "new undirected links 1 snapshots later, strict, 1 negatives each, in evaluation 4 negatives each",
         ("ap", "auc", "mrr")),
        ({"eval__ranking": "all"}, "in evaluation all pairs", ("map", "mrr", "auc")),
        ({"eval__ranking": "filtered"}, "in evaluation all nodes at both ends", ("mrr", "hits@1", "hits@3")),
    ],
)  # fmt: skip
def test_what_is_learned_is_described(comm, mpi_tmp_path, changes, described, names):
    """With the metrics by name; those of training are the same in all cases."""
    graph = both_directions(random_graph(8, 15, 6, 40))
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), links(**changes))
    goal, world = session.goal, session.world
    assert goal.describe().endswith(described)
    assert goal.metric_names()[:3] == names
    names, measure = goal.train_measure()
    scores = {
        "positive": np.array([2.0, 0.0]), "negative": np.array([[1.0, 3.0], [1.0, -1.0]]),
        "number": np.array([1, 1]), "source": np.array([4, 4]),
    }  # fmt: skip
    share = {name: values[world.rank :: world.size] for name, values in scores.items()}
    metrics = measure(share, world)
    assert set(names) <= set(metrics)
    assert metrics["mrr"] == metrics["mrr_best_edge"] == pytest.approx(0.5)
    session.close()


@pytest.mark.parametrize("types", [np.array([0.5, 1.5]), np.array([-1, 2], np.int8)], ids=["fractions", "negative"])
def test_types_of_edges_that_are_none_are_refused(comm, mpi_tmp_path, types):
    graph = random_graph(8, 15, 6, 40, weighted=False)
    graph.edges["rel"] = np.resize(types, len(graph.src))
    with pytest.raises(DistributedError, match="column rel of edges must hold types, integers from 0 on"):
        open_session(comm, write_parts(comm, mpi_tmp_path, graph), links(task__decoder="distmult"))


def test_a_typed_decoder_without_types_names_the_column(comm, mpi_tmp_path):
    graph = random_graph(8, 15, 6, 40)
    reason = (
        r"task.decoder complex needs .* no column rel.*\(columns: weight\): .* set task.decoder dot or cosine or mlp"
    )
    with pytest.raises(DistributedError, match=reason):
        open_session(comm, write_parts(comm, mpi_tmp_path, graph), links(task__decoder="complex"))


def test_scores_that_are_not_finite_are_told_of_all_pairs(comm, mpi_tmp_path):
    """A snapshot without edges has no rank; a score that is not finite ends the run, on all ranks alike."""
    graph = random_graph(9, 20, 8, 25, weighted=False, empty=(6,))
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), links(eval__ranking="all"))
    outputs = torch.ones(session.partition.num_nodes, session.goal.num_outputs, dtype=torch.float64)
    assert np.isnan(session.goal.score(outputs, session.goal.want("val", 0, 5), None).columns["mrr"])
    outputs[session.partition.flat_row == 3] = np.nan
    ranked = session.goal.score(outputs, session.goal.want("val", 0, 4), None)
    assert all(np.isinf(values).all() for values in ranked.columns.values())
    with pytest.raises(DistributedError, match="not finite"):
        measure_all_pairs(ranked.arrays(), None, session.world)
    session.close()


@pytest.mark.serial
@pytest.mark.parametrize("kind", ["dot", "cosine", "mlp"])
def test_decoders_score_all_pairs_alike(kind):
    torch.manual_seed(0)
    decoder, rows = DECODERS[kind].make(DecoderSizes(6)).double(), torch.randn(7, 6, dtype=torch.float64)
    source, destination = (index.ravel() for index in torch.meshgrid(torch.arange(7), torch.arange(7), indexing="ij"))
    single = decoder(rows[source], rows[destination]).view(7, 7)
    assert torch.allclose(decoder.all_pairs(rows, rows), single)
    assert torch.allclose(decoder.all_pairs(rows, rows, None, True), single.T)


@pytest.mark.serial
def test_wrong_settings_are_refused():
    for changes, reason in (
        ({"task__loss": "mse"}, "task.loss of kind link"),
        ({"eval__ranking": "all", "task__undirected": True}, "eval.ranking all"),
        ({"eval__ranking": "all", "task__decoder": "distmult"}, "task.decoder distmult ranks edges by their types"),
        ({"task__classes": 3}, "no classes"),
        ({"task__negatives": 0}, "task.negatives"),
        ({"task__decoder": "pair"}, "task.decoder pair is for temporal graphs"),
        ({"data__split_by": "nodes"}, "data.split_by nodes"),
    ):
        with pytest.raises(ValueError, match=reason):
            links(**changes)
