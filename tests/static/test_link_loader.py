"""Mini-batches of edges: the same on any number of ranks, whose negatives are nodes of the type, and no seed among the
edges that carry messages."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from link_graphs import friends, shop
from mpi4py import MPI
from static_runs import make_static_parts
from test_graph_edges import open_directed
from test_graph_links import BUYS, FRIENDS, SOLD, relation_rows, rows_to_hide
from test_graph_loader import FANOUTS, open_graph, union
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from hpcgnn.comm.world import DistributedError
from hpcgnn.static.config import DIRECTIONS, GraphModelConfig
from hpcgnn.static.link_loader import LinkNeighborLoader
from hpcgnn.static.model.models import GraphSizes, make_model

GRAPHS = {"friends": (friends, FRIENDS, FRIENDS), "shop": (shop, BUYS, SOLD)}
NEGATIVES = [{}, {"neg_sampling": "binary", "negatives": 2}, {"neg_sampling": "triplet", "negatives": 3}]


def chosen_edges(graph, relation: str) -> tuple[str, np.ndarray]:
    """Every third edge."""
    rows = graph.edges(relation)
    return relation, rows[rows % 3 == 0]


def ends_of(graph, batch) -> tuple[int, int]:
    """Node types of a batch's seeds."""
    src, _, dst = graph.relations[batch.relation].split(".")
    return graph.types.index(src), graph.types.index(dst)


def describe(graph, batches: list) -> set:
    """Every seed of a step, its ends, negatives, and what the last hop sampled for the ends."""
    found = set()
    for step, batch in enumerate(batches):
        ends, told = ends_of(graph, batch), [[] for _ in batch.row]
        for kind, places in zip(ends, (batch.src, batch.dst), strict=True):
            for relation in (r for r in batch.batch.blocks[-1].relations if r.dst_type == kind):
                source = batch.n_id[relation.src_type][relation.source].tolist()
                for seed, place in enumerate(places.tolist()):
                    begin, end = relation.indptr[place : place + 2].tolist()
                    told[seed].append((relation.relation, *source[begin:end]))
        columns = [batch.row, batch.input_id, batch.n_id[ends[0]][batch.src], batch.n_id[ends[1]][batch.dst]]
        for kind, places in zip(ends, (batch.negative_src, batch.negative_dst), strict=True):
            columns += [] if places is None else batch.n_id[kind][places].T
        rows = torch.stack(columns, dim=1).tolist()
        found |= {(step, batch.batch_size, *row, *sampled) for row, sampled in zip(rows, told, strict=True)}
    return found


@pytest.mark.parametrize("kind", ["mask", "list"])
def test_places_among_the_edges_that_were_given(comm, mpi_tmp_path, kind):
    """A list keeps its order, rank after rank."""
    graph = open_graph(comm, make_static_parts(comm, friends, mpi_tmp_path))
    own = graph.edges(FRIENDS)
    listed = np.random.default_rng(comm.rank).permutation(own[own % 3 == 0])
    given = np.arange(300) % 3 == 0 if kind == "mask" else listed
    everyone = np.arange(300) if kind == "mask" else np.concatenate(comm.allgather(listed))
    for number, batch in enumerate(LinkNeighborLoader(graph, (FRIENDS, given), FANOUTS, 16)):
        assert np.array_equal(everyone[batch.input_id.numpy()], batch.row.numpy())
        rows = np.concatenate(comm.allgather(batch.row.numpy()))
        expected = everyone[given] if kind == "mask" else everyone
        assert set(rows) == set(expected[16 * number : 16 * (number + 1)])


@pytest.mark.parametrize("negatives", NEGATIVES)
@pytest.mark.parametrize("given", ["train", "val", "rows"])
@pytest.mark.parametrize(("case", "direction"), [("friends", "in"), ("shop", "in"), ("shop", "out")])
def test_batches_of_all_ranks_are_those_of_one(comm, mpi_tmp_path, case, direction, given, negatives):
    """In two epochs, with plans ahead and without, by the owners and in shared memory."""
    make, relation, _ = GRAPHS[case]
    parts, found = make_static_parts(comm, make, mpi_tmp_path, out_edges=True), []
    for who, prefetch, topology in ((comm, 0, "sharded"), (comm, 2, "replicated"), (MPI.COMM_SELF, 0, "auto")):
        graph = open_directed(who, parts, direction)
        edges = chosen_edges(graph, relation) if given == "rows" else given
        loader = LinkNeighborLoader(
            graph, edges, FANOUTS, 16, prefetch=prefetch, topology=topology, seed=3, **negatives
        )  # fmt: skip
        epochs = [union(who, describe(graph, list(loader))) for _ in range(2)]
        assert epochs[0] != epochs[1]
        assert loader.shuffle == (given == "train")
        found.append(epochs)
        graph.close()
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("exclude", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", GRAPHS)
def test_seeds_their_copies_and_their_reverses_carry_no_messages(
    comm, mpi_tmp_path, case, direction, shuffle, exclude
):  # fmt: skip
    """Of edges of one's choice; blocks of all neighbors hold all others."""
    make, relation, reverse = GRAPHS[case]
    parts = make_static_parts(comm, make, mpi_tmp_path, out_edges=True)
    there, back = relation_rows(parts, relation), relation_rows(parts, reverse)
    graph, end = open_directed(comm, parts, direction), "dst" if direction == "in" else "src"
    loader = LinkNeighborLoader(
        graph, chosen_edges(graph, relation), [-1, -1], 8, shuffle=shuffle, exclude_seeds=exclude, with_edge_ids=True
    )
    for batch in loader:
        seeds = np.concatenate(comm.allgather(batch.row.numpy()))
        copies, reverses = rows_to_hide(there, back, seeds if exclude else seeds[:0])
        gone = {relation: copies}
        gone[reverse] = np.union1d(gone.get(reverse, seeds[:0]), reverses)
        for column, kind, places in zip(("src", "dst"), ends_of(graph, batch), (batch.src, batch.dst), strict=True):
            assert np.array_equal(batch.n_id[kind][places], there[column][batch.row.numpy()])
        for block in batch.batch.blocks:
            for adjacency in block.relations:
                name = graph.relations[adjacency.relation]
                known = relation_rows(parts, name)
                nodes = batch.n_id[adjacency.dst_type][: len(adjacency.indptr) - 1].numpy()
                expected = np.setdiff1d(np.flatnonzero(np.isin(known[end], nodes)), gone.get(name, seeds[:0]))
                assert np.array_equal(np.sort(adjacency.edge.numpy()), expected)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_messages_follow_training_edges_alone(comm, mpi_tmp_path, direction):
    """For seeds of any split; degrees are those of the graph of these edges."""
    parts, end = make_static_parts(comm, friends, mpi_tmp_path, out_edges=True), "dst" if direction == "in" else "src"
    known, graph = relation_rows(parts, FRIENDS), open_directed(comm, parts, direction)
    train = np.flatnonzero(known["split"] == 0)
    degree = np.bincount(known[end][train], minlength=60)
    for split in ("val", "test"):
        for batch in LinkNeighborLoader(graph, (FRIENDS, split), [-1], 32, with_edge_ids=True):
            assert set(known["split"][batch.row.numpy()]) <= {("train", "val", "test").index(split)}
            (relation,) = batch.batch.blocks[0].relations
            nodes = batch.n_id[0][: len(relation.indptr) - 1].numpy()
            assert np.array_equal(np.sort(relation.edge), train[np.isin(known[end][train], nodes)])
            assert np.array_equal(batch.batch.degree[0], degree[batch.n_id[0]])


def test_steps_and_labels(comm, mpi_tmp_path):
    graph = open_graph(comm, make_static_parts(comm, shop, mpi_tmp_path))
    total = comm.allreduce(len(chosen_edges(graph, BUYS)[1]))
    for drop_last in (False, True):
        loader = LinkNeighborLoader(
            graph, chosen_edges(graph, BUYS), FANOUTS, 16, drop_last=drop_last, neg_sampling="binary", negatives=2
        )
        batches = list(loader)
        sizes = [comm.allreduce(len(batch.row)) for batch in batches]
        assert sizes == [16] * (total // 16) + [total % 16] * (not drop_last)
        assert len(loader) == len(sizes)
        for batch in batches:
            number = len(batch.row)
            assert batch.edge_label.tolist() == [1.0] * number + [0.0] * 2 * number
            assert torch.equal(batch.edge_label_index[:, :number], torch.stack([batch.src, batch.dst]))
            assert batch.edge_label_index.shape == (2, 3 * number)


def test_negatives_are_spread_over_both_types(comm, mpi_tmp_path):
    graph, drawn = open_graph(comm, make_static_parts(comm, shop, mpi_tmp_path)), [Counter(), Counter()]
    for batch in LinkNeighborLoader(graph, "train", [1], 16, neg_sampling="binary", negatives=9):
        for kind, places, count in zip(ends_of(graph, batch), (batch.negative_src, batch.negative_dst), drawn,
                                       strict=True):  # fmt: skip
            count.update(batch.n_id[kind][places.ravel()].tolist())
    pairs = [sum(comm.allgather(count), Counter()) for count in drawn]
    assert [max(count) for count in pairs] == [39, 29]
    assert [len(count) for count in pairs] == [40, 30]


@pytest.mark.parametrize("negatives", NEGATIVES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", GRAPHS)
def test_data(comm, mpi_tmp_path, case, direction, negatives):
    """As PyTorch Geometric has it; edges keep their direction, whichever way they are followed."""
    make, relation, _ = GRAPHS[case]
    parts = make_static_parts(comm, make, mpi_tmp_path, out_edges=True)
    graph, known, name = open_directed(comm, parts, direction), relation_rows(parts, relation), relation.split(".")
    plainly, data = (
        LinkNeighborLoader(graph, "train", FANOUTS, 16, as_data=kind, with_edge_ids=True, **negatives)
        for kind in ("", "pyg")
    )
    for batch, found in zip(plainly, data, strict=True):
        assert found.validate()
        followed = found if case == "friends" else found[tuple(name)]
        for kind, column, places in zip(ends_of(graph, batch), ("src", "dst"), followed.edge_index, strict=True):
            assert np.array_equal(batch.n_id[kind][places], known[column][followed.e_id.numpy()])
        edges, src, dst = [found] * 3 if case == "friends" else (followed, found[name[0]], found[name[2]])
        assert torch.equal(edges.input_id, batch.input_id)
        assert (edges.batch_size, found.num_seeds) == (len(batch.row), batch.batch_size)
        if negatives.get("neg_sampling") == "triplet":
            assert torch.equal(src.src_index, batch.src)
            assert torch.equal(dst.dst_pos_index, batch.dst)
            assert torch.equal(dst.dst_neg_index, batch.negative_dst)
        else:
            assert torch.equal(edges.edge_label_index, batch.edge_label_index)
            assert torch.equal(edges.edge_label, batch.edge_label)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_pairs_and_labels_of_ones_own(comm, mpi_tmp_path, direction):
    """Pairs that need not be edges, in their order, with their labels; on all ranks together once each."""
    graph = open_directed(comm, make_static_parts(comm, shop, mpi_tmp_path, out_edges=True), direction)
    rng = np.random.default_rng(3)
    pairs, label = np.stack([rng.integers(0, 40, 37), rng.integers(0, 30, 37)]), rng.standard_normal(37)
    (buyer, _, item), seen = (BUYS.split("."), [])
    kinds = [graph.types.index(name) for name in (buyer, item)]
    loaders = (
        LinkNeighborLoader(graph, (BUYS, pairs), FANOUTS, 8, edge_label=label, as_data=kind) for kind in ("", "pyg")
    )
    for batch, data in zip(*loaders, strict=True):
        places = batch.input_id.numpy()
        assert np.array_equal(batch.n_id[kinds[0]][batch.src].numpy(), pairs[0, places])
        assert np.array_equal(batch.n_id[kinds[1]][batch.dst].numpy(), pairs[1, places])
        assert np.array_equal(batch.edge_label.numpy(), label[places])
        edges = data[tuple(BUYS.split("."))]
        assert torch.equal(edges.edge_label, batch.edge_label)
        assert torch.equal(edges.edge_label_index, torch.stack([batch.src, batch.dst]))
        assert data.input_type == tuple(BUYS.split("."))
        seen += places.tolist()
    assert sorted(place for places in comm.allgather(seen) for place in places) == list(range(37))


def test_pairs_that_differ_between_ranks_are_refused(comm, mpi_tmp_path):
    graph = open_graph(comm, make_static_parts(comm, shop, mpi_tmp_path))
    pairs = np.zeros((2, 3 + (comm.rank > 0)), np.int64)
    if comm.size == 1:
        assert len(LinkNeighborLoader(graph, (BUYS, pairs), FANOUTS, 8)) == 1
        return
    with pytest.raises(DistributedError, match="all ranks must have the same given pairs: rank 1"):
        LinkNeighborLoader(graph, (BUYS, pairs), FANOUTS, 8)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("given", ["train", "mask"])
def test_strict_negatives_are_no_edges(comm, mpi_tmp_path, given, direction):
    """Without it some are; with a split, edges are those of training."""
    parts = make_static_parts(comm, shop, mpi_tmp_path, out_edges=True)
    graph = open_directed(comm, parts, direction)
    edges = relation_rows(parts, BUYS)
    training = edges["split"] == 0 if given == "train" else np.ones(len(edges["split"]), bool)
    known = set(zip(edges["src"][training].tolist(), edges["dst"][training].tolist(), strict=True))
    chosen = "train" if given == "train" else (BUYS, training)
    met = {}
    for strict in (False, True):
        loader = LinkNeighborLoader(graph, chosen, FANOUTS, 16, neg_sampling="triplet", negatives=4, strict=strict)
        met[strict] = 0
        for batch in loader:
            user, item = ends_of(graph, batch)
            source = batch.n_id[user][batch.src].unsqueeze(1).expand_as(batch.negative_dst)
            pairs = zip(source.flatten().tolist(), batch.n_id[item][batch.negative_dst].flatten().tolist(), strict=True)
            met[strict] += len([pair for pair in pairs if pair in known])
    assert [comm.allreduce(met[strict]) > 0 for strict in (False, True)] == [True, False]


@pytest.mark.parametrize(
    ("given", "changes", "message"),
    [
        ("all", {}, "train, val, test, got 'all'"),
        (("user.sells.item", "train"), {}, "no relation user.sells.item"),
        (("item.like.item", "train"), {}, "item.like.item has no column split"),
        ((BUYS, np.array([999])), {}, "user.buys.item 999 is not at this rank"),
        ((BUYS, np.ones(159, bool)), {}, "an entry for each of all 160 user.buys.item, by row, got 159"),
        ((BUYS, torch.tensor([[0, 1]])), {}, "pairs are integers of shape .2, k., got int64 of shape .1, 2."),
        ((BUYS, torch.tensor([[0, 99], [2, 3]])), {}, "source 99 is no row of user, of which there are 40"),
        ((BUYS, torch.tensor([[0], [2]])), {"edge_label": [1, 0]}, "edge_label has shape .2,. for 1 pairs"),
        ("train", {"edge_label": [1]}, "edge_label is for pairs"),
        ("train", {"strict": True, "neg_sampling": "binary"}, "strict is for neg_sampling 'triplet', got 'binary'"),
        ("train", {"neg_sampling": "mixed"}, "neg_sampling must be '', 'binary' or 'triplet', got 'mixed'"),
        ("train", {"negatives": 0}, "negatives must be at least 1, got 0"),
        ("train", {"reverse": "item.like.item"}, "item.like.item does not lead from"),
        ((BUYS, np.empty(0, np.int64)), {"reverse": "item.like.item"}, "item.like.item does not lead from"),
    ],
)
def test_what_cannot_be_loaded_is_refused(comm, mpi_tmp_path, given, changes, message):
    graph = open_graph(comm, make_static_parts(comm, shop, mpi_tmp_path))
    with pytest.raises(DistributedError, match=message):
        LinkNeighborLoader(graph, given, FANOUTS, 8, **changes)


@pytest.mark.several_ranks
def test_loaders_of_splits_follow_the_same_edges(comm, mpi_tmp_path):
    """Which are copied once on a machine, however many loaders are made; a relation's reverses are others."""
    graph = open_graph(comm, make_static_parts(comm, shop, mpi_tmp_path))
    for _ in range(3):
        for split in ("val", "test"):
            loader = LinkNeighborLoader(graph, (BUYS, split), FANOUTS, 8, reverse=SOLD, topology="replicated")
            next(iter(loader))
            loader.close()
    assert len(graph._replicas) == 1
    assert len(graph.tables._shared) == 2  # the nodes' rows, and the degrees of the edges to follow
    LinkNeighborLoader(graph, (BUYS, "val"), FANOUTS, 8, topology="replicated")
    assert len(graph._replicas) == 2
    graph.close()


@pytest.mark.several_ranks
def test_a_loop_of_ones_own_gives_one_answer(comm, mpi_tmp_path):
    """Losses and the gradient of the first epoch, as docs/library.md has them."""
    parts = make_static_parts(comm, friends, mpi_tmp_path)

    def train(who) -> np.ndarray:
        graph = open_graph(who, parts)
        loader = LinkNeighborLoader(graph, "train", FANOUTS, 32, neg_sampling="binary", negatives=2)
        torch.manual_seed(0)
        config = GraphModelConfig(kind="sage", layers=2, hidden=8, dropout=0.3)
        model = make_model(config, GraphSizes(graph.widths, ((0, 0),), 8)).to(torch.float64)
        losses = []
        for batch in loader:
            rows = model(batch.batch, batch.x)[0]
            source, target = rows[batch.edge_label_index]
            loss = bce((source * target).sum(1), batch.edge_label.to(rows.dtype), reduction="sum") / batch.batch_size
            loss.backward()
            losses.append(float(loss.detach()))
        gradients = [parameter.grad.numpy().ravel() for parameter in model.parameters() if parameter.grad is not None]
        graph.close()
        return graph.world.reduce_array(np.concatenate([losses, *gradients]))

    np.testing.assert_allclose(train(comm), train(MPI.COMM_SELF), rtol=1e-9, atol=1e-12)
