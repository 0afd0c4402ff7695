"""Several epochs at once: what a round is, one answer on any number of ranks, killed and resumed, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from places import HELPERS
from training_runs import bipartite, by_flat_row, make_config, make_parts, on_rank_0, open_session, open_trainer

from data_tools.partition.command import partition
from hpcgnn import config as configuration
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop.optimizer import learning_rate
from hpcgnn.loop.settings import TrainConfig
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal import batches

TIMES = ("train_seconds", "samples_per_second")
STILL = 1e-30  # a learning rate that leaves the weights where they are


@pytest.fixture
def parts(comm, mpi_tmp_path):
    """A partition set of a graph with features."""
    on_rank_0(comm, lambda: bipartite(mpi_tmp_path / "graph.h5", num_events=400, edge_width=3, node_width=2) and None)
    return make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts")


def read(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl, without how long things took."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def assert_same(found: list[dict], reference: list[dict]) -> None:
    """The same lines, numbers to 1e-9."""
    for one, other in zip(found, reference, strict=True):
        assert (one["kind"], one.keys()) == (other["kind"], other.keys())
        for key, value in other.items():
            assert one[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), (key, one)


# ------------------------------------------------------------------------------------------------------ what a round is


def train_round(trainer: Trainer, epoch: int) -> tuple[list[float], list[np.ndarray]]:
    """Collective. Losses and gradients of the steps of one epoch, or round of epochs, from empty memory."""
    losses, gradients = [], []
    trainer.session.memory.reset()
    with trainer.session.plans("train", epoch) as plans:
        for plan in plans:
            summed = trainer.train_step(plan)
            assert (summed is None) == (not plan.final)
            if summed is not None:
                losses.append(summed[0])
                gradients.append(trainer.flat.gradient.numpy().copy())
    return losses, gradients


@pytest.mark.parametrize("count", [2, 3])
def test_a_round_is_the_mean_of_its_epochs(comm, parts, count):
    """With weights that stay, step by step: loss and gradient of the round are the means of its epochs' own, which
    differ; and it leaves the memory that each of them leaves."""
    config = make_config(train__epochs=6, train__parallel_epochs=count, train__lr=STILL, sampling__strategy="uniform")
    trainer = open_trainer(comm, parts, config)
    single = open_trainer(comm, parts, make_config(train__lr=STILL, sampling__strategy="uniform"))
    for first in (0, count):
        losses, gradients = train_round(trainer, first)
        epochs = [train_round(single, first + place) for place in range(count)]
        np.testing.assert_allclose(losses, np.mean([own for own, _ in epochs], axis=0), rtol=1e-12)
        np.testing.assert_allclose(gradients, np.mean([own for _, own in epochs], axis=0), rtol=1e-9, atol=1e-12)
        assert not np.allclose(epochs[0][0], epochs[1][0], rtol=1e-6)
        for name in ("state", "mail", "mailed", "delivered"):
            mine, own = (
                by_flat_row(t.session, getattr(t.session.memory.table, name).numpy()) for t in (trainer, single)
            )
            if mine is not None and own is not None:
                np.testing.assert_allclose(mine, own, rtol=1e-9, atol=1e-12, err_msg=name)


def test_the_rate_of_a_round_counts_its_epochs(comm, parts, monkeypatch):
    config, lines = make_config(train__epochs=6, train__parallel_epochs=2), []
    trainer = open_trainer(comm, parts, config)
    monkeypatch.setattr(trainer, "_write", lambda *_, **line: lines.append(line))
    trainer.progress.train_seconds = 4.0
    trainer._report_epoch({}, {})
    assert lines[0]["samples_per_second"] == trainer.session.batches["train"].sizes.sum() * 2 / 4


def test_schedules_count_rounds():
    """A round is one epoch's optimizer steps; "step" reduces after as many epochs as it says, at the next round."""
    at_once = TrainConfig(epochs=12, parallel_epochs=2, schedule="cosine")
    alone = TrainConfig(epochs=6, schedule="cosine")
    for step in range(30):
        assert learning_rate(at_once, step, 5) == learning_rate(alone, step, 5)
    falling = TrainConfig(epochs=12, parallel_epochs=2, schedule="step", step_every=3, step_decay=0.5, lr=1.0)
    assert [learning_rate(falling, 5 * number, 5) for number in range(6)] == [1, 1, 0.5, 0.25, 0.25, 0.125]


@pytest.mark.parametrize(("every", "validated"), [(1, [0, 2, 4, 6]), (2, [0, 2, 4, 6]), (3, [2, 4, 6]), (4, [2, 6])])
def test_validations_follow_rounds(every, validated):
    """The round that reaches a multiple of eval_every, and the last one."""
    config = TrainConfig(epochs=8, parallel_epochs=2, eval_every=every)
    assert [epoch for epoch in range(0, 8, 2) if config.validates(epoch)] == validated
    assert config.bound_to_epochs == (every == 3)


# --------------------------------------------------------------------------------------------------------------- groups


@pytest.mark.several_ranks
@pytest.mark.parametrize("most", [1, 2, 3, 4, 6])
def test_groups_of_ranks(comm, most):
    """Equal, consecutive, as many as divide both numbers; they exchange apart and fail together."""
    world = World(CommConfig(device="cpu", threads=1), comm)
    part = world.split(most)
    groups = math.gcd(most, comm.size)
    assert (part.num_groups, part.size) == (groups, comm.size // groups)
    assert comm.allgather(part.group) == [rank // part.size for rank in range(comm.size)]
    assert part.allgather(comm.rank) == list(range(part.group * part.size, (part.group + 1) * part.size))
    assert part.job is world
    assert part.any(comm.rank == comm.size - 1)
    error = ValueError("bad news") if comm.rank == comm.size - 1 else None
    with pytest.raises(DistributedError, match=rf"bad news \[somewhere, rank {comm.size - 1} of {comm.size}\]"):
        part.agree(error, "somewhere")


@pytest.mark.several_ranks
def test_groups_share_gradients_alone(comm, parts):
    """A group of one rank exchanges nothing."""
    count = comm.size
    config = make_config(train__epochs=count, train__parallel_epochs=count)
    trainer = open_trainer(comm, parts, config)
    before = trainer.session.sent_bytes()
    losses, _ = train_round(trainer, 0)
    assert trainer.session.sent_bytes() == before
    assert len(set(comm.allgather(tuple(losses)))) == 1
    assert len(set(comm.allgather(trainer.flat.parameter.detach().numpy().tobytes()))) == 1


@pytest.mark.several_ranks
def test_one_group_that_cannot_read_its_parts(comm, parts, monkeypatch):
    """All groups leave with its error."""

    def broken(*_, **__):
        raise OSError("part-0.h5: truncated")

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(batches, "open_partition", broken)
    with pytest.raises(DistributedError, match=f"truncated .*rank {comm.size - 1} of {comm.size}"):
        open_session(comm, parts, make_config(train__epochs=comm.size, train__parallel_epochs=comm.size))


# ----------------------------------------------------------------------------------------------------------- one answer

GROUPED = {
    "train__accumulate_steps": 3, "train__clip_grad_norm": 0.5, "train__schedule": "cosine",
    "train__train_metrics": True,
    "train__eval_every": 2, "train__epochs": 8, "train__parallel_epochs": 4,
}  # fmt: skip
CASES = {
    "two": {"train__parallel_epochs": 2},
    "three": {"train__parallel_epochs": 3},
    "two, at user, uniform, hidden nodes": {
        "train__parallel_epochs": 2, "memory__update_at": "user", "sampling__strategy": "uniform",
        "data__new_node_ratio": 0.1, "task__negatives": 3,
    },
    "three, replicated, ranked": {
        "train__parallel_epochs": 3, "memory__placement": "replicated", "eval__negative_kind": "all",
        "eval__negatives_per_pass": 5,
    },
    "two, mails to neighbors": {
        "train__parallel_epochs": 2, "memory__updater": "transformer", "memory__mailbox_slots": 3,
        "memory__deliver_to": "neighbors", "model__readout": "identity",
    },
    "two, mails of embeddings": {
        "train__parallel_epochs": 2, "model__message_from": "embedding", "model__readout": "identity",
        "model__dropout": 0.0,
    },
    "two, no memory, cut batches": {
        "train__parallel_epochs": 2, "memory__updater": "none", "sampling__strategy": "uniform",
        "sampling__random_chunks": 4,
    },
    "two, stale memory": {"train__parallel_epochs": 2, "memory__staleness": 2},
    "four, groups of steps": GROUPED,
}  # fmt: skip


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_ranks_do_not_change_the_answer(comm, parts, mpi_tmp_path, case):
    """All lines of a whole run: losses of steps and rounds, validations, the test."""
    config = make_config(**{"train__epochs": 6, "train__log_every": 1} | CASES[case])
    on_rank_0(comm, lambda: [(mpi_tmp_path / name).mkdir() for name in ("run", "alone")] and None)
    trainer = open_trainer(comm, parts, config, mpi_tmp_path / "run")
    assert trainer.run() == 0
    trainer.close()
    if comm.rank > 0:
        return
    alone = open_trainer(MPI.COMM_SELF, parts, config, mpi_tmp_path / "alone")
    assert alone.run() == 0
    found, count = read(mpi_tmp_path / "run"), config.train.parallel_epochs
    assert_same(found, read(mpi_tmp_path / "alone"))
    assert [line["epoch"] for line in found if line["kind"] == "epoch"] == list(range(0, config.train.epochs, count))
    losses = [line["loss"] for line in found if line["kind"] == "step"]
    assert len(set(losses)) == len(losses) >= 2 * (280 // 40)


def test_epochs_at_once_change_the_answer(comm, parts):
    """Another number of them, another run."""
    losses = []
    for count in (1, 2, 3):
        config = make_config(train__epochs=6, train__parallel_epochs=count)
        losses.append(train_round(open_trainer(comm, parts, config), 0)[0])
    assert len({own[0] for own in losses}) == len({own[-1] for own in losses}) == 3


# ------------------------------------------------------------------------------------------------ killed, stopped, lost

ARGUMENTS = [
    "--train.batch_size=50", "--train.precision=float64", "--train.checkpoint_every=3", "--train.log_every=1",
    "--memory.dim=8", "--model.time_dim=8", "--model.hidden=8", "--sampling.fanouts=[5]", "--comm.threads=1",
    "--comm.device=cpu", "--train.epochs=6", "--train.train_metrics=true",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a partition set."""
    root = tmp_path_factory.mktemp("parallel_epochs")
    partition(bipartite(root / "graph.h5", edge_width=2), root / "parts", 8)
    return root


def first_start(folder: Path, run: Path, count: int) -> list[str]:
    return [f"--data.path={folder / 'parts'}", f"--output.dir={run}", f"--train.parallel_epochs={count}", *ARGUMENTS]


# Numbers of ranks, and what happens to one of them.
INTERRUPTIONS = (
    (2, ("step", 8, 1, "SIGKILL")), (4, ("step", 5, 3, "SIGUSR1")),
    (3, ("evaluation", 2, 2, "SIGTERM")), (1, ("step", 5, 0, "SIGKILL")),
)  # fmt: skip


@pytest.mark.launcher
@pytest.mark.parametrize(
    ("count", "accumulate", "interruptions"),
    [
        pytest.param(2, 1, INTERRUPTIONS, marks=pytest.mark.nightly, id="2-1-all"),
        pytest.param(3, 2, INTERRUPTIONS, marks=pytest.mark.nightly, id="3-2-all"),
        pytest.param(3, 2, INTERRUPTIONS[::2], id="3-2"),
    ],
)
def test_killed_and_stopped(mpirun, jobs, folder, tmp_path, count, accumulate, interruptions):
    """In any group, in training and in validation; the run goes on on other numbers of ranks, hence of groups."""
    run, whole, more = tmp_path / "run", tmp_path / "whole", f"--train.accumulate_steps={accumulate}"
    jobs(1, "train", *first_start(folder, whole, count), more)
    for ranks, at in interruptions:
        arguments = ["--resume", run] if (run / "config.yaml").exists() else [*first_start(folder, run, count), more]
        if at[-1] == "SIGKILL":
            assert mpirun(ranks, HELPERS / "interrupted_train.py", *at, *arguments, check=False).returncode
        else:
            assert jobs(ranks, "interrupted", *at, *arguments, check=False).returncode == 75
    jobs(2, "train", "--resume", run)
    assert_same(read(run), read(whole))


@pytest.mark.launcher
def test_one_group_that_fails_ends_the_job(mpirun, folder, tmp_path):
    """A defect on a rank of the last group."""
    arguments = first_start(folder, tmp_path / "run", 2)
    result = mpirun(4, HELPERS / "broken_train.py", "raise", 3, 3, *arguments, check=False)
    assert result.returncode not in (0, 75)
    assert "rank 3 of 4" in result.stderr


@pytest.mark.launcher
def test_the_number_of_epochs_at_once_is_kept(jobs, folder, tmp_path):
    """A finished run: evaluated by all ranks as one group, and not resumed with another number."""
    run = tmp_path / "run"
    jobs(2, "train", *first_start(folder, run, 2))
    (test,) = [line for line in read(run) if line["kind"] == "test"]
    found = json.loads(jobs(3, "evaluate", run).stdout.splitlines()[-1])
    del test["monitor"], test["best"]  # which epoch is best is told by the run alone
    assert_same([{key: found[key] for key in test} | {"kind": "test"}], [test])
    result = jobs(2, "train", "--resume", run, "--train.parallel_epochs=3", check=False)
    assert result.returncode == 2
    assert "train.parallel_epochs (2 -> 3)" in result.stderr


# -------------------------------------------------------------------------------------------------------------- refused

NEIGHBORS = ["--memory.updater=transformer", "--memory.deliver_to=neighbors", "--train.parallel_epochs=2"]
EMBEDDINGS = ["--model.message_from=embedding", "--train.parallel_epochs=2"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--train.parallel_epochs=0"], ["train.parallel_epochs must be at least 1, got 0"]),
        (["--train.parallel_epochs=4"], ["train.epochs must be a multiple of train.parallel_epochs = 4, got 6"]),
        (EMBEDDINGS, ["model.message_from embedding", "use message_from memory, or dropout 0"]),
        ([*EMBEDDINGS, "--model.dropout=0", "--sampling.strategy=uniform"], ["model.message_from", "strategy recent"]),
        ([*NEIGHBORS, "--sampling.strategy=uniform"], ["memory.deliver_to neighbors", "use deliver_to self"]),
        ([*NEIGHBORS, "--sampling.remote_half_life=9"], ["memory.deliver_to", "without remote_half_life"]),
    ],
)
def test_refused(arguments, words):
    """With the key, the reason and the remedy."""
    with pytest.raises(ValueError) as caught:
        configuration.parse(configuration.parser("test", "a test"), ["--train.epochs=6", *arguments])
    assert all(word in str(caught.value) for word in words)
