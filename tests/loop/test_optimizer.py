"""The ``train`` section: schedules, the optimizer step over ranks and groups of steps, what is validated when."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from sklearn.metrics import average_precision_score, roc_auc_score
from training_runs import assert_same, bipartite, make_config, make_parts, on_rank_0, open_session, record_epoch

from hpcgnn import config as configuration
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.optimizer import FlatOptimizer, clip, decays, learning_rate, squared_norm
from hpcgnn.loop.settings import TrainConfig
from hpcgnn.loop.trainer import Trainer
from hpcgnn.task.goal import TrainScores, measure_links
from hpcgnn.task.links import LinkScores
from hpcgnn.temporal.config import TemporalConfig

LR, PER_EPOCH, EPOCHS, WARMUP = 0.1, 5, 4, 6
TIMES = ("train_seconds", "samples", "samples_per_second")


@pytest.fixture(scope="module")
def world(comm):
    return World(CommConfig(device="cpu", threads=1), comm)


@pytest.fixture
def parts(comm, mpi_tmp_path):
    """A small partition set."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph) and None)
    return make_parts(comm, graph, mpi_tmp_path / "parts")


# ------------------------------------------------------------------------------------------------------------ schedules


def torch_rates(make, steps: int) -> list[float]:
    """Learning rates of a schedule of torch's."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    schedule, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


TORCH = torch.optim.lr_scheduler
SCHEDULES = {
    "constant": ({}, lambda optimizer, steps: TORCH.ConstantLR(optimizer, 1.0)),
    "cosine": ({"min_lr": 0.01}, lambda optimizer, steps: TORCH.CosineAnnealingLR(optimizer, steps, 0.01)),
    "linear": ({"min_lr": 0.02}, lambda optimizer, steps: TORCH.LinearLR(optimizer, 1.0, 0.2, steps)),
    "step": (
        {"step_every": 2, "step_decay": 0.3},
        lambda optimizer, steps: TORCH.StepLR(optimizer, 2 * PER_EPOCH, 0.3),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_equal_those_of_torch(name):
    """Without a warm-up over the whole run; after one over what is left of it."""
    settings, make = SCHEDULES[name]
    steps = EPOCHS * PER_EPOCH
    config = TrainConfig(lr=LR, epochs=EPOCHS, schedule=name, **settings)
    rates = [learning_rate(config, step, PER_EPOCH) for step in range(steps)]
    np.testing.assert_allclose(rates, torch_rates(lambda optimizer: make(optimizer, steps), steps))
    config.warmup_steps = WARMUP
    warm = [learning_rate(config, step, PER_EPOCH) for step in range(steps)]
    np.testing.assert_allclose(warm[:WARMUP], LR * np.arange(1, WARMUP + 1) / WARMUP)
    rest = torch_rates(lambda optimizer: make(optimizer, steps - WARMUP), steps - WARMUP)
    np.testing.assert_allclose(warm[WARMUP:], rates[WARMUP:] if name == "step" else rest)


def test_schedules_beyond_their_ends():
    """A warm-up longer than the run never gets there; steps past the last epoch stay at the lowest rate."""
    config = TrainConfig(lr=LR, epochs=1, schedule="linear", warmup_steps=50, min_lr=0.01)
    assert learning_rate(config, 4, PER_EPOCH) == pytest.approx(LR * 5 / 50)
    config.warmup_steps = 0
    assert learning_rate(config, 3 * PER_EPOCH, PER_EPOCH) == pytest.approx(0.01)


@pytest.mark.parametrize(
    "wrong",
    [{"schedule": "cosin"}, {"optimizer": "lion"}, {"precision": "float16"}, {"warmup_steps": -1}, {"min_lr": -0.1},
     {"min_lr": 0.1}, {"step_every": 0}, {"step_decay": 0.0}, {"step_decay": 1.5}, {"clip_grad_norm": -1.0},
     {"accumulate_steps": 0},
     {"weight_decay": -0.1}, {"eval_every": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"clip_grad_norm": float("inf")},
     {"seed": 1 << 56}, {"batch_size": 0}],
)  # fmt: skip
def test_wrong_settings_are_named(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=rf"train\.{name} must be .*got '?{value}"):
        TrainConfig(**wrong)


@pytest.mark.parametrize(
    ("settings", "bound"),
    [({}, False), ({"schedule": "step", "warmup_steps": 9}, False), ({"schedule": "cosine"}, True),
     ({"schedule": "linear"}, True), ({"eval_every": 5}, False), ({"eval_every": 4}, True)],
)  # fmt: skip
def test_more_epochs_are_refused_where_they_change_the_past(settings, bound):
    """A schedule toward the last epoch; a validation that was made because the epoch was the last."""
    old, new = (TemporalConfig(train=TrainConfig(epochs=epochs, **settings)) for epochs in (10, 20))
    if not bound:
        configuration.check_resumable(old, new)
        return
    with pytest.raises(ValueError, match=r"train.epochs \(10 -> 20\)"):
        configuration.check_resumable(old, new)


# --------------------------------------------------------------------------------------------------- the optimizer step


def test_clipping_equals_torch_on_any_number_of_threads():
    gradient = torch.randn(200_001, generator=torch.Generator().manual_seed(1))
    reference = torch.zeros_like(gradient, requires_grad=True)
    for longest in (1.0, 1e6):
        reference.grad, mine = gradient.clone(), gradient.clone()
        torch.nn.utils.clip_grad_norm_([reference], longest)
        clip(mine, longest)
        torch.testing.assert_close(mine, reference.grad)
    threads, found = torch.get_num_threads(), set()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.add(squared_norm(gradient).item())
    torch.set_num_threads(threads)
    assert len(found) == 1


NUM_STEPS, ACCUMULATE, PIECES = 7, 3, 12  # groups of 3, 3 and 1
OPTIMIZERS = {
    "adam": (torch.optim.Adam, {}), "adamw": (torch.optim.AdamW, {}), "sgd": (torch.optim.SGD, {"momentum": 0.9}),
}  # fmt: skip


def optimizer_config(name: str, parts: dict[str, float]) -> TrainConfig:
    return TrainConfig(
        optimizer=name, epochs=2, lr=0.05, weight_decay=0.1, part_weight_decay=parts, clip_grad_norm=0.8,
        accumulate_steps=ACCUMULATE, schedule="cosine", warmup_steps=2,
    )  # fmt: skip


def make_model() -> torch.nn.Module:
    model = torch.nn.Linear(4, 3).double()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-1, 1 + place, parameter.numel()).view_as(parameter))
    return model


def draw_gradients() -> torch.Tensor:
    """[epochs, steps, pieces, P]: a step's gradient is the sum of its pieces, which the ranks share."""
    return torch.randn(2, NUM_STEPS, PIECES, 15, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def drive(optimizer: FlatOptimizer, world: World, start: int, stop: int) -> None:
    """Collective. Steps ``start`` to ``stop`` of two epochs; the loss of a step is its number, from rank 0."""
    gradients = draw_gradients()
    for number in range(start, stop):
        epoch, step = divmod(number, NUM_STEPS)
        optimizer.begin(step)
        optimizer.flat.gradient.add_(gradients[epoch, step, world.rank :: world.size].sum(dim=0))
        loss = torch.tensor(float(number if world.rank == 0 else 0))
        last = world.rank == world.size - 1
        found = optimizer.sum(step, loss, number == 4 and last, number == 5 and last, number == 6 and last)
        assert found == (number, number == 4, number == 5, number == 6)
        optimizer.step(epoch, step)


def expected_weights(name: str, parts: dict[str, float]) -> torch.Tensor:
    """By torch's own optimizer, group by group."""
    kind, options = OPTIMIZERS[name]
    weights, config = dict(make_model().named_parameters()), optimizer_config(name, parts)
    groups = [{"params": [weight], "weight_decay": parts.get(part, 0.1)} for part, weight in weights.items()]
    optimizer = kind(groups, lr=1.0, **options)
    for number, group in enumerate(g for epoch in draw_gradients() for g in epoch.split(ACCUMULATE)):
        gradient = group.sum(dim=1).mean(dim=0)
        gradient *= min(1.0, 0.8 / gradient.norm().item())
        for weight, piece in zip(weights.values(), gradient.split([12, 3]), strict=True):
            weight.grad = piece.view_as(weight).clone()
        for settings in optimizer.param_groups:
            settings["lr"] = learning_rate(config, number, 3)
        optimizer.step()
    return torch.cat([weight.detach().reshape(-1) for weight in weights.values()])


def restored(tensors: dict, weights: torch.Tensor, config: TrainConfig, world: World) -> FlatOptimizer:
    optimizer = FlatOptimizer(config, make_model(), world, NUM_STEPS)
    optimizer.flat.parameter.data.copy_(weights)
    optimizer.restore(tensors)
    return optimizer


@pytest.mark.parametrize("parts", [{}, {"bias": 0.7}], ids=["one decay", "decay of a part"])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_over_ranks_equal_torch(world, name, native, parts, monkeypatch):
    """Undisturbed; and saved anywhere, also within a group, to go on on these ranks and on one alone. Not native: as on
    a device."""
    if not native:
        monkeypatch.setattr("hpcgnn.loop.optimizer.is_supported", lambda *_: False)
    expected, config = expected_weights(name, parts), optimizer_config(name, parts)
    undisturbed = FlatOptimizer(config, make_model(), world, NUM_STEPS)
    drive(undisturbed, world, 0, 2 * NUM_STEPS)
    torch.testing.assert_close(undisturbed.flat.parameter.detach(), expected, rtol=1e-12, atol=1e-14)
    undisturbed.close()
    alone = World(CommConfig(device="cpu", threads=1), MPI.COMM_SELF)
    for stop in (1, 2, 3, 5, 8):
        first = FlatOptimizer(config, make_model(), world, NUM_STEPS)
        drive(first, world, 0, stop)
        tensors, weights = first.tensors(stop % NUM_STEPS), first.flat.parameter.detach()
        tensors, weights = world.broadcast(({k: v.clone() for k, v in tensors.items()}, weights.clone()))
        assert ("gradient" in tensors) == (stop in (1, 2, 5, 8))
        for ranks in (world, alone):
            second = restored(tensors, weights, config, ranks)
            drive(second, ranks, stop, 2 * NUM_STEPS)
            torch.testing.assert_close(second.flat.parameter.detach(), expected, rtol=1e-12, atol=1e-14)
            second.close()
        drive(first, world, stop, 2 * NUM_STEPS)  # a checkpoint leaves the run as it was
        torch.testing.assert_close(first.flat.parameter.detach(), expected, rtol=1e-12, atol=1e-14)
        first.close()


def test_the_longest_name_of_a_part_counts():
    """Parts end where names have a dot: 1 is no part of 10."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(11)))
    found = decays(TrainConfig(weight_decay=0.1, part_weight_decay={"1": 0.2, "1.bias": 0.3, "9.weight": 0.1}), model)
    assert found == [(slice(0, 6), 0.1), (slice(6, 10), 0.2), (slice(10, 12), 0.3), (slice(12, 66), 0.1)]


def test_decays_of_parts_that_a_model_has_not_are_refused(comm, parts, mpi_tmp_path):
    session = open_session(comm, parts, make_config(train__part_weight_decay={"layers": 0.1}))
    reason = r"train.part_weight_decay.layers: the model has no part of this name; it has .*updater.*decoder"
    with pytest.raises(DistributedError, match=reason) as caught:
        open_trainer(session, mpi_tmp_path)
    assert caught.value.user_error
    with pytest.raises(ValueError, match=r"train\.part_weight_decay\.decoder must be at least 0, got -1"):
        TrainConfig(part_weight_decay={"decoder": -1.0})


def test_a_run_of_no_epochs_has_no_test(comm, parts, mpi_tmp_path):
    on_rank_0(comm, lambda: (mpi_tmp_path / "run").mkdir())
    session = open_session(comm, parts, make_config(train__epochs=0))
    trainer = Trainer(session, mpi_tmp_path / "run", lambda *_, **__: None, StopRequest())
    trainer.start()
    assert trainer.run() == 0
    trainer.close()
    comm.barrier()
    assert (mpi_tmp_path / "run" / "metrics.jsonl").read_text() == ""


def test_a_model_without_weights(world):
    """Of learnable embeddings alone, which have an optimizer of their own: losses are summed, nothing is updated."""
    model = torch.nn.Module()
    model.register_buffer("empty", torch.empty(0, dtype=torch.float64))
    optimizer = FlatOptimizer(TrainConfig(epochs=1), model, world, 1)
    optimizer.begin(0)
    assert optimizer.sum(0, torch.tensor(2.0), False) == (2.0 * world.size, False, False, False)
    optimizer.step(0, 0)
    assert optimizer.flat.parameter.numel() == 0
    optimizer.close()


def test_epochs_of_other_lengths(world):
    """The last group ends with the epoch's own last step, at the last learning rate of an epoch."""
    config = optimizer_config("adam", {})
    optimizer = FlatOptimizer(config, make_model(), world, NUM_STEPS)
    for num_steps, last_group in ((7, 2), (8, 2), (10, 2), (4, 1)):
        optimizer.start_epoch(num_steps)
        moved = []
        for step in range(num_steps):
            before = optimizer.flat.parameter.detach().clone()
            optimizer.begin(step)
            optimizer.flat.gradient.add_(1.0)
            optimizer.sum(step, torch.tensor(0.0), False)
            optimizer.step(0, step)
            if not torch.equal(optimizer.flat.parameter, before):
                moved.append(step)
        assert moved == sorted({*range(2, num_steps, 3), num_steps - 1})
        assert optimizer.lr == learning_rate(config, last_group, 3)
    optimizer.close()


CASES = {
    "groups, clipped, AdamW": {
        "train__accumulate_steps": 3, "train__clip_grad_norm": 0.3, "train__optimizer": "adamw",
        "train__weight_decay": 0.1, "train__part_weight_decay": {"updater": 0.0, "decoder": 0.3},
        "train__schedule": "cosine", "train__warmup_steps": 3,
    },
    "SGD, whole batches": {"train__optimizer": "sgd", "train__drop_last": True, "train__clip_grad_norm": 0.1},
}  # fmt: skip


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_ranks_do_not_change_the_answer(comm, parts, case):
    config = make_config(**CASES[case])
    together = record_epoch(comm, parts, config)
    if comm.rank == 0:
        assert_same(together, record_epoch(MPI.COMM_SELF, parts, config))


def test_a_rate_that_does_not_decay():
    assert learning_rate(TrainConfig(schedule="step", step_decay=1.0, lr=0.5), 70, 5) == 0.5


# ---------------------------------------------------------------------------------------------- batches, scores, epochs


@pytest.mark.parametrize("by", ["events", "time"])
def test_drop_last(comm, parts, by):
    """Only the last batch of training is shorter without it, and only that one goes."""
    settings = {"train__batch_size": 50, "sampling__batch_by": by}
    whole, cut = (open_session(comm, parts, make_config(**settings, train__drop_last=drop)) for drop in (False, True))
    assert whole.batches["train"].sizes[-1] < 50
    assert np.array_equal(cut.batches["train"].sizes, whole.batches["train"].sizes[:-1])
    assert cut.world.total(len(cut.batches["train"].events)) == cut.batches["train"].sizes.sum()
    assert np.array_equal(cut.batches["val"].sizes, whole.batches["val"].sizes)


def open_trainer(session, folder: Path) -> Trainer:
    return Trainer(session, folder, lambda *_, **__: None, StopRequest())


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"train__drop_last": True, "train__batch_size": 5000}, "train.drop_last leaves no batch of 5000"),
     ({"train__monitor": "accuracy"}, "train.monitor must be one of ap, auc, .*got 'accuracy'")],
)  # fmt: skip
def test_refused_with_the_data(comm, parts, mpi_tmp_path, changes, words):
    session = open_session(comm, parts, make_config(**changes))
    with pytest.raises(DistributedError, match=words) as caught:
        open_trainer(session, mpi_tmp_path)
    assert caught.value.user_error


def test_train_scores(world):
    """Metrics of all steps on all ranks, with copies for checkpoints and a resume in between."""
    random = np.random.default_rng(5)
    positive, negative = random.standard_normal((6, 40)).round(1) + 0.5, random.standard_normal((6, 3, 40)).round(1)
    scores = TrainScores(world, ("ap", "auc"), measure_links)
    for step in range(6):
        mine = slice(world.rank, None, world.size)
        logits = torch.tensor(positive[step, mine], requires_grad=True)
        scores.add(LinkScores(logits, torch.tensor(negative[step][:, mine])))
        if step in (1, 4):
            scores.columns()
        if step == 2:
            saved = world.allgather(scores.columns())[-1 - world.rank]  # of another rank
            scores = TrainScores(world, ("ap", "auc"), measure_links)
            scores.restore({name: torch.from_numpy(values) for name, values in saved.items()})
    labels, values = np.repeat([1, 0], [positive.size, negative.size]), np.append(positive, negative).astype(np.float32)
    expected = {
        "train_ap": average_precision_score(labels, values), "train_auc": roc_auc_score(labels, values)
    }  # fmt: skip
    assert scores.metrics() == pytest.approx(expected, rel=1e-12)
    scores.clear()
    assert all(np.isnan(list(scores.metrics().values())))


def lines(comm, parts: Path, folder: Path, config: TemporalConfig) -> list[dict] | None:
    """Collective. Run to the end; what metrics.jsonl says, on rank 0, without how long things took."""
    trainer = open_trainer(open_session(comm, parts, config), folder)
    assert trainer.run() == 0
    trainer.close()
    if comm.rank > 0:
        return None
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def test_validations_and_patience(comm, parts, mpi_tmp_path):
    """Every second epoch and the last; patience counts validations; the monitored metric chooses the epoch."""
    changes = {
        "train__epochs": 5, "train__eval_every": 2, "train__monitor": "inductive_auc", "train__batch_size": 60,
        "data__new_node_ratio": 0.1, "train__train_metrics": True,
    }  # fmt: skip
    on_rank_0(comm, lambda: [(mpi_tmp_path / name).mkdir() for name in ("run", "alone", "patience")] and None)
    found = lines(comm, parts, mpi_tmp_path / "run", make_config(**changes))
    stopped = lines(
        comm,
        parts,
        mpi_tmp_path / "patience",
        make_config(**changes, train__lr=1e-30, train__early_stopping_patience=1),
    )
    if comm.rank > 0:
        return
    alone = lines(MPI.COMM_SELF, parts, mpi_tmp_path / "alone", make_config(**changes))
    epochs, (test,) = ([dict(r) for r in found if r["kind"] == kind] for kind in ("epoch", "test"))
    for one, other in zip(found, alone, strict=True):
        words = [key for key, value in other.items() if isinstance(value, str)]
        assert [one.pop(key) for key in words] == [other.pop(key) for key in words]
        assert one == pytest.approx(other, rel=1e-9)
    assert [r["epoch"] for r in epochs if "val_ap" in r] == [1, 3, 4]
    assert all(0.4 < r["train_ap"] <= 1 for r in epochs)
    best = max((r for r in epochs if "val_ap" in r), key=lambda r: r["val_inductive_auc"])
    assert test["epoch"] == best["epoch"]
    assert test["val_inductive_auc"] == pytest.approx(best["val_inductive_auc"], rel=1e-9)
    assert len([r for r in stopped if r["kind"] == "epoch"]) == 4
