"""Training on static graphs: one answer on any number of ranks, killed and resumed, what caches and exact inference
change (nothing), what is refused."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from selection import long_but
from static_runs import (
    APART,
    bare,
    make_static_parts,
    open_graph_session,
    open_graph_trainer,
    plain,
    reference_run,
    static_config,
    typed,
    whole_and_stopped,
)
from training_runs import train_steps

from hpcgnn.comm.world import DistributedError
from hpcgnn.graph.embeddings import EmbeddingConfig, SparseEmbedding
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.session import split_metrics
from hpcgnn.loop.trainer import Trainer
from hpcgnn.static.inference import infer

TIMES = ("train_seconds", "samples_per_second")


@pytest.fixture
def typed_parts(comm, mpi_tmp_path):
    """A typed graph in 8 parts."""
    return make_static_parts(comm, typed, mpi_tmp_path)


@pytest.fixture
def plain_parts(comm, mpi_tmp_path):
    """A graph of one type in 8 parts."""
    return make_static_parts(comm, plain, mpi_tmp_path)


def records(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl, without how long things took."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def assert_same_records(folder: Path, reference: Path) -> None:
    """The same lines, numbers to 1e-9."""
    for one, other in zip(records(folder), records(reference), strict=True):
        assert one == {key: pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for key, v in other.items()}


def run_both(comm, parts: Path, folder: Path, config, context=nullcontext) -> None:
    """Collective. The run on all ranks, within a context, writes what a rank alone writes."""
    if comm.rank == 0:
        (folder / "run").mkdir(exist_ok=True)
    alone = folder / f"alone-{comm.rank}"
    alone.mkdir(exist_ok=True)
    comm.Barrier()
    with context():
        trainer = open_graph_trainer(comm, parts, folder / "run", config)
        trainer.start()
        trainer.run()
    if comm.rank == 0:
        reference = reference_run(parts, folder, config)
        assert_same_records(folder / "run", alone)
        found = trainer.flat.parameter.detach().cpu()
        torch.testing.assert_close(found, reference.flat.parameter.detach(), rtol=1e-9, atol=1e-12)
    comm.Barrier()


def resume_both(comm, parts: Path, folder: Path, config) -> None:
    """Collective. A run that was stopped within an epoch, and begun again on all ranks, or on one, ends as if whole."""
    trainer, whole, broken = whole_and_stopped(comm, parts, folder, config, 2)
    if comm.rank == 0:
        shutil.copytree(broken, folder / "alone")
        alone = open_graph_trainer(MPI.COMM_SELF, parts, folder / "alone", config)
        alone.resume()
        alone.run()
        assert_same_records(folder / "alone", whole)
    comm.Barrier()
    second = open_graph_trainer(comm, parts, broken, config)
    second.resume()
    assert 0 < second.progress.step
    second.run()
    torch.testing.assert_close(second.flat.parameter, trainer.flat.parameter, rtol=0, atol=0)
    for kind, table in trainer.session.memory.tables.items():
        torch.testing.assert_close(second.session.memory.tables[kind].weight, table.weight, rtol=0, atol=0)
    if comm.rank == 0:
        assert_same_records(broken, whole)


TYPED = {
    "sage": {},
    "rgcn": {"model__kind": "rgcn", "model__bases": 2},
    "rgat": {"model__kind": "rgat"},
    "hgt": {"model__kind": "hgt"},
    "simple_hgn": {"model__kind": "simple_hgn"},
    "compgcn": {"model__kind": "compgcn", "model__composition": "sub"},
    "replace": {"sampling__strategy": "replace"},
    "full": {"sampling__fanouts": [-1, -1]},
    "fanout of a relation": {"sampling__relation_fanouts": {"paper.cites.paper": [5, 0]}},
    "adagrad": {
        "node_embedding__optimizer": "adagrad",
        "node_embedding__lr": 0.1,
        "node_embedding__weight_decay": 0.01,
        "node_embedding__scheduled": True,
        "train__schedule": "linear",
        "train__warmup_steps": 3,
    },
    "embeddings of all": {"node_embedding__types": ["paper", "author"]},
    "accumulate": {
        "train__accumulate_steps": 2,
        "train__clip_grad_norm": 0.1,
        "train__part_weight_decay": {"layers": 0.1},
    },
    "drop last": {"train__drop_last": True, "eval__batch_size": 7},
}


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", TYPED)
def test_a_typed_graph_gives_one_answer(comm, typed_parts, mpi_tmp_path, case):
    run_both(comm, typed_parts, mpi_tmp_path, static_config(**TYPED[case]))


BASIS_ROWS = {"model__kind": "rgcn", "model__bases": 3, "model__basis_rows": True}


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", [{}, {"model__self_loop": False}, {"model__low_memory": True, "eval__exact": True}])
def test_rows_of_bases_give_one_answer(comm, mpi_tmp_path, case):
    parts = make_static_parts(comm, bare, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(**BASIS_ROWS, **case))


def test_rows_of_bases_start_as_matrices_of_all_nodes(comm, mpi_tmp_path):
    parts = make_static_parts(comm, bare, mpi_tmp_path)
    for changes, bound in (({}, (6 / (190 + 8)) ** 0.5), ({"node_embedding__scale": 0.25}, 0.25)):
        tables = open_graph_session(comm, parts, static_config(**BASIS_ROWS, **changes)).memory.tables.values()
        assert {table.weight.shape[1] for table in tables} == {(3 + 1) * 8}
        largest = max(comm.allgather(max((table.weight.abs().max().item() for table in tables), default=0.0)))
        assert 0.99 * bound < largest <= bound


PLAIN = {
    "gcn": {"model__kind": "gcn", "model__input_dropout": 0.3, "features__normalize": True},
    "gat": {"model__kind": "gat"},
    "gatv2": {"model__kind": "gatv2"},
    "residual": {"model__residual": True, "model__norm": "layer", "model__feed_forward": 2},
    "labor": {"sampling__strategy": "labor"},
    "weighted": {"sampling__strategy": "weighted"},
    "three hops": {"sampling__fanouts": [4, 3, 2], "model__layers": 3},
    "narrow": {"features__wire": "float16"},
    "narrow copies": {"features__wire": "bfloat16", "features__cache_ratio": 0.2, **APART},
}


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", PLAIN)
def test_a_graph_of_one_type_gives_one_answer(comm, plain_parts, mpi_tmp_path, case):
    run_both(comm, plain_parts, mpi_tmp_path, static_config(**PLAIN[case]))


@pytest.mark.several_ranks
@pytest.mark.parametrize("kernels", ["host", pytest.param("emulated", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize(
    "case",
    long_but(
        ["gcn", "gat", "gatv2", "residual", "narrow copies", "sage", "rgcn", "rgat"], ("gat", "rgcn").__contains__
    ),
)
def test_ranks_without_seeds_take_part(comm, mpi_tmp_path, case, kernels):
    """Batches of one seed: other ranks than its own have no row to compute."""
    parts = make_static_parts(comm, plain if case in PLAIN else typed, mpi_tmp_path)
    changes = PLAIN.get(case) or TYPED[case]
    config = static_config(**changes | {"train__batch_size": 1, "train__epochs": 1})
    run_both(comm, parts, mpi_tmp_path, config, kernels)


@pytest.mark.several_ranks
@pytest.mark.parametrize("cache", ["presample", "stored"])
def test_copies_of_hot_rows_change_only_what_travels(comm, plain_parts, mpi_tmp_path, cache):
    plainly = open_graph_trainer(comm, plain_parts, mpi_tmp_path, static_config())
    cached = open_graph_trainer(
        comm, plain_parts, mpi_tmp_path, static_config(features__cache_policy=cache, features__cache_ratio=0.2, **APART)
    )  # fmt: skip
    losses = []
    for trainer in (plainly, cached):
        trainer.start_epoch(0)
        with trainer.session.plans("train", 0) as plans:
            losses.append([trainer.train_step(plan)[0] for plan in plans])
    assert losses[0] == losses[1]
    session = cached.session
    assert session.graph.rows[0].num_copies == 30  # a fifth of 150 nodes
    assert 0 < session.graph.tables.hit_rate() < 1
    if cache == "presample":
        assert session.graph.tables.hit_rate() == pytest.approx(session.graph.tables.predicted_hits, abs=1e-6)


@pytest.mark.parametrize("copies", [0, 0.2])
def test_rows_that_travel_narrow_are_rounded_on_any_ranks(comm, plain_parts, copies):
    """All of them to float16, and nothing else."""
    shared = {"train__precision": "float32", "features__cache_ratio": copies, **APART}
    wide, narrow = (
        open_graph_session(comm, plain_parts, static_config(**shared, features__wire=wire)) for wire in ("", "float16")
    )
    plans = [session.loaders["train"].samplers[0].plan(session.batches["train"], 0, 0) for session in (wide, narrow)]
    rows = [s.graph.rows[0].fetch(plan.fetches[0], "feature") for s, plan in zip((wide, narrow), plans, strict=True)]
    assert torch.equal(rows[1], rows[0].half().float())


@pytest.mark.parametrize(
    ("value", "changes", "message"),
    [
        (65519.0, {"features__wire": "float16"}, ""),
        (65520.0, {"features__wire": "float16"}, "features.wire float16: column feat of node, row 17, has 65520.0, "),
        (-7e4, {"features__wire": "float16", "features__storage": "file"}, "row 17, has -70000.0, which is infinite"),
        (7e4, {"features__wire": "float16", "features__normalize": True}, ""),
        (7e4, {"features__wire": "bfloat16"}, ""),
        (3.4e38, {"features__wire": "bfloat16"}, "features.wire bfloat16: .* leave features.wire empty, or scale"),
        (1e39, {"train__precision": "float64"}, ""),
        (1e39, {"train__precision": "float32"}, "train.precision float32: .*row 17, has 1e.39, .*: use float64, or"),
    ],
)
def test_features_that_a_dtype_has_no_number_for_are_refused(comm, mpi_tmp_path, value, changes, message):
    """At the start, naming column and row; half-way between the last number of float16 and the next power of two, all
    is rounded up to infinity."""

    def make(path):
        plain(path)
        with h5py.File(path, "r+") as file:
            feat = file["nodes/node/feat"][()].astype(np.float64)
            feat[17, 2] = value
            del file["nodes/node/feat"]
            file["nodes/node/feat"] = feat

    parts = make_static_parts(comm, make, mpi_tmp_path)
    with pytest.raises(DistributedError, match=message) if message else nullcontext():
        open_graph_session(comm, parts, static_config(**changes))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {},
            "column weight of node.meets.node: not used: messages are not multiplied by it (see model.edge_weights)",
        ),
        ({"train__full_graph": True}, "not used: messages are not multiplied by it"),
        ({"sampling__strategy": "weighted"}, "neighbors are drawn by it, but messages are not multiplied by it"),
    ],
)
def test_weights_that_no_message_has_are_named(comm, plain_parts, changes, line):
    lines = open_graph_session(comm, plain_parts, static_config(**changes)).describe()
    assert sum(line in one for one in lines) == 1


@pytest.mark.parametrize("make", [typed, plain, bare])
def test_a_run_resumes_as_if_it_had_never_stopped(comm, mpi_tmp_path, make):
    parts = make_static_parts(comm, make, mpi_tmp_path)
    changes = BASIS_ROWS if make is bare else {}
    scheduled = {"node_embedding__scheduled": True, "train__schedule": "cosine"}
    config = static_config(train__checkpoint_every=2, train__epochs=3, **scheduled, **changes)
    trainer, whole, broken = whole_and_stopped(comm, parts, mpi_tmp_path, config, 3)
    second = open_graph_trainer(comm, parts, broken, config)
    second.resume()
    assert second.progress.global_step in (3, 4)
    second.run()
    torch.testing.assert_close(second.flat.parameter, trainer.flat.parameter, rtol=0, atol=0)
    if comm.rank == 0:
        assert_same_records(broken, whole)


NOT_FOLLOWED = {
    "not the citations": {"sampling__relation_fanouts": {"paper.cites.paper": [0, 0]}},
    "not those of the first layer": {"sampling__relation_fanouts": {"author.writes.paper": [-1, 0]}},
}


@pytest.mark.parametrize(
    "case", ["sage", "rgcn", "rgat", "hgt", "simple_hgn", "compgcn", "rows of bases", *NOT_FOLLOWED]
)
def test_exact_inference_is_sampling_with_all_neighbors(comm, mpi_tmp_path, case):
    parts = make_static_parts(comm, bare if case == "rows of bases" else typed, mpi_tmp_path)
    changes = TYPED.get(case, TYPED["rgcn"] | NOT_FOLLOWED[case] if case in NOT_FOLLOWED else BASIS_ROWS)
    config = static_config(**{**changes, "sampling__fanouts": [-1, -1]}, eval__nodes_per_pass=17)
    session = open_graph_session(comm, parts, config)
    outputs = infer(session)[session.partition.of_type(session.goal.node_type)]
    collected = session.scores("test")
    exact = open_graph_session(comm, parts, static_config(**changes, eval__exact=True, eval__nodes_per_pass=17))
    exact.model.load_state_dict(session.model.state_dict())
    found = split_metrics(exact, "test", exact.scores("test"))
    assert found == pytest.approx(split_metrics(session, "test", collected), rel=1e-9)
    pool = session.goal.pools["test"]
    mine = pool.columns["id"] - session.partition.book.of_type(session.goal.node_type).starts[comm.rank]
    gathered = comm.allgather(outputs[torch.from_numpy(mine)].sum().item())
    total = comm.allgather(sum(float(np.sum(values)) for values in [collected.columns()["output"]]))
    assert sum(gathered) == pytest.approx(sum(total), rel=1e-9)


@pytest.mark.parametrize(("name", "reference"), [("adam", torch.optim.Adam), ("adagrad", torch.optim.Adagrad)])
def test_sparse_optimizers_are_torchs_where_every_row_is_looked_at(name, reference):
    """All rows in every step; rows that are not looked at stay."""
    from hpcgnn.comm.exchange import Channel
    from hpcgnn.comm.route import Route
    from hpcgnn.graph.book import BlockOwnership

    rows = np.arange(6, dtype=np.int64)
    shared = (rows, 4, EmbeddingConfig(optimizer=name), 0.1, 7, torch.float64, torch.device("cpu"))
    table, channel = SparseEmbedding(*shared), Channel(MPI.COMM_SELF)
    parameter = torch.nn.Parameter(table.weight.clone())
    optimizer = reference([parameter], lr=0.1)
    route = Route.plan(BlockOwnership(np.array([0, 6])), rows, channel)
    for step in range(4):
        gradient = torch.sin(torch.arange(24, dtype=torch.float64).view(6, 4) + step)
        parameter.grad = gradient.clone()
        optimizer.step()
        table.apply(route, gradient)
    torch.testing.assert_close(table.weight, parameter.detach())
    before = table.weight.clone()
    table.apply(Route.plan(BlockOwnership(np.array([0, 6])), rows[2:3], channel), torch.ones(1, 4, dtype=torch.float64))
    changed = (table.weight != before).any(dim=1)
    assert changed.tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("is_scheduled", [True, False])
def test_embeddings_learn_at_the_scheduled_rate(comm, typed_parts, is_scheduled):
    """A first step of Adagrad changes each number of a row that it uses by the learning rate, whatever the gradient; in
    a warm-up of four steps, by a quarter of it."""
    adagrad = {"node_embedding__optimizer": "adagrad", "node_embedding__lr": 0.1}
    config = static_config(**adagrad, node_embedding__scheduled=is_scheduled, train__warmup_steps=4)
    session = open_graph_session(comm, typed_parts, config)
    before = {kind: table.weight.clone() for kind, table in session.memory.tables.items()}
    trainer = Trainer(session, Path("unused"), lambda *_, **__: None, StopRequest())
    train_steps(trainer, 0, 1)
    moved = [(table.weight - before[kind]).abs() for kind, table in session.memory.tables.items()]
    trainer.close()
    steps = torch.cat([rows[rows > 0.01 * 0.1] for rows in moved])
    assert session.world.total(len(steps)) > 100
    torch.testing.assert_close(steps, torch.full_like(steps, 0.025 if is_scheduled else 0.1), rtol=1e-3, atol=0)


def test_embeddings_start_with_unit_length():
    """On average, uniform: the largest number of many is nearly sqrt(3 / width)."""
    table = SparseEmbedding(np.arange(5000), 16, EmbeddingConfig(), 0.1, 7, torch.float64, torch.device("cpu"))
    assert (table.weight**2).sum(dim=1).mean().item() == pytest.approx(1, rel=0.02)
    assert 0.999 < table.weight.abs().max().item() / (3 / 16) ** 0.5 <= 1
    assert abs(table.weight.mean().item()) < 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__node_type": "author"}, "author has no column label"),
        ({"task__node_type": "reader"}, "no node type 'reader'"),
        ({"task__classes": 2}, "label 2, but task.classes = 2"),
        ({"node_embedding__types": ["editor"]}, "no node type 'editor'"),
        ({"sampling__relation_fanouts": {"paper.quotes.paper": [1, 1]}}, "paper.quotes.paper"),
        ({"model__kind": "gcn"}, "one node type"),
        (BASIS_ROWS, "graphs without features, but paper, venue"),
        ({"train__batch_size": 1000, "train__drop_last": True}, "drop_last leaves no batch of 1000 training seeds"),
    ],
)
def test_what_does_not_fit_the_graph_is_refused(comm, typed_parts, mpi_tmp_path, changes, message):
    with pytest.raises(DistributedError, match=message):
        open_graph_trainer(comm, typed_parts, mpi_tmp_path, static_config(**changes))


@pytest.mark.several_ranks
def test_a_rank_whose_parts_rank_nothing_copies_nothing(comm, mpi_tmp_path):
    """Others' parts do."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    session = open_graph_session(
        comm, parts, static_config(features__cache_policy="stored", features__cache_ratio=0.1, **APART)
    )
    tables = session.graph.tables
    if comm.rank == comm.size - 1:
        tables._ranking = tuple(ranking.of(ranking.id < 0) for ranking in tables._ranking)
    tables.keep_copies(lambda step: [], 0)
    copies = comm.allgather(tables.rows[0].num_copies)
    assert [count > 0 for count in copies] == [True] * (comm.size - 1) + [False]
    session.close()


def test_a_cache_that_the_parts_do_not_rank_is_refused(comm, mpi_tmp_path):
    parts = make_static_parts(comm, plain, mpi_tmp_path, cache_ranking=0)
    session = open_graph_session(comm, parts, static_config(features__cache_policy="stored"))
    with pytest.raises(DistributedError, match="the parts hold no ranking; partition again with --cache_ranking or"):
        session.graph.tables.keep_copies(lambda step: [], 0)
    session.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling__fanouts": [5]}, "one number a layer"),
        ({"sampling__fanouts": [5, -2]}, "-1"),
        ({"train__parallel_epochs": 2, "train__epochs": 4}, "parallel_epochs"),
        ({"features__cache_ratio": -1.0}, "cache_ratio"),
        ({"features__wire": "int8"}, "features.wire"),
        ({"node_embedding__weight_decay": -1.0}, "node_embedding.weight_decay"),
        ({"sampling__strategy": "best"}, "sampling.strategy"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        static_config(**changes)
