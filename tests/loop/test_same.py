"""What ranks must have alike, planted otherwise on one of them: refused on all, by name, before it is in any number."""

from __future__ import annotations

import random
import re
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from snapshot_runs import make_config as snapshot_config
from snapshot_runs import open_session as open_snapshot_session
from static_runs import open_graph_session, plain, static_config
from torch import nn
from torch.nn import functional
from training_runs import homogeneous, make_config, on_rank_0, open_session

from data_tools.partition.command import partition
from data_tools.synthetic.snapshots import synthesize_snapshots
from hpcgnn import info
from hpcgnn.comm import same
from hpcgnn.comm import world as worlds
from hpcgnn.comm.same import check_shared, same_everywhere
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop import checkpoint_writer
from hpcgnn.loop.checkpoint_writer import load
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.logs import RunLog
from hpcgnn.loop.trainer import Trainer
from hpcgnn.nn.own_class import named_errors, own_class
from hpcgnn.snapshots.model.recurrent import TGCN
from hpcgnn.static.model.models import ResidualModel
from hpcgnn.temporal.model.model import TemporalModel

several = pytest.mark.several_ranks
WINGS = ("temporal", "static", "snapshots")
CPU = CommConfig(device="cpu", threads=1, watchdog_seconds=0)


def is_last(comm) -> bool:
    return comm.rank == comm.size - 1


def place(comm, rank: int | None = None) -> str:
    """The words that name a rank, by default the last one, and its machine."""
    rank = comm.size - 1 if rank is None else rank
    return re.escape(f"rank {rank} of {comm.size} on {MPI.Get_processor_name()}")


def make_sets(comm, wing: str, folder: Path, seeds=(0,)) -> list[Path]:
    """Collective. Random partition sets of one graph, a seed each."""

    def write() -> None:
        graph = folder / "graph.h5"
        if wing == "snapshots":
            synthesize_snapshots(graph, 60, 14, 3)
        else:
            {"static": plain, "temporal": homogeneous}[wing](graph)
        for seed in seeds:
            partition(graph, folder / f"parts-{seed}", 8, "random", seed=seed)

    on_rank_0(comm, write)
    return [folder / f"parts-{seed}" for seed in seeds]


def open_wing(comm, wing: str, parts: Path, **changes):
    """Collective. A session of two epochs."""
    if wing == "static":
        return open_graph_session(comm, parts, static_config(**changes))
    if wing == "temporal":
        return open_session(comm, parts, make_config(train__epochs=2, train__log_every=1, **changes))
    config = partial(snapshot_config, train__batch_size=2, train__log_every=1, inputs__lags=1)
    return open_snapshot_session(comm, parts, config(**changes))


def trainer_of(comm, session, folder: Path) -> Trainer:
    folder.mkdir(exist_ok=True)
    return Trainer(session, folder, RunLog(folder / "log", comm.rank), StopRequest())


# ------------------------------------------------------------------------------------------------------- one exchange


@several
def test_the_first_rank_that_differs_is_named(comm):
    world = World(CPU, comm)
    same_everywhere(world, {"color": "red", "size": np.int64(3)}, "paint it")
    what = {"size": 3} if is_last(comm) else {"color": "red", "size": 3}
    words = f"the same color: {place(comm)} has nothing, rank 0 on .* has red; paint it"
    with pytest.raises(DistributedError, match=words) as error:
        same_everywhere(world, what, "paint it")
    assert error.value.user_error


@several
@pytest.mark.parametrize(("part", "words"), [
    ("__version__", "version of hpcgnn: {} has other, rank 0 on .* has "),
    ("SOURCE", "source of the compiled kernels: {} has other, rank 0 on .* has [0-9a-f]{{64}}; install one build on"),
])  # fmt: skip
def test_another_hpcgnn_is_refused(comm, monkeypatch, part, words):
    if is_last(comm):
        monkeypatch.setattr(worlds if part == "__version__" else worlds.hpcgnn_native, part, "other")
    with pytest.raises(DistributedError, match=words.format(place(comm))):
        World(CPU, comm)


@several
def test_info_says_which_rank_differs(comm, monkeypatch, capsys):
    """It is what such a refusal points to, so that it must not be refused itself."""
    if is_last(comm):
        monkeypatch.setattr(worlds, "__version__", "other")
    assert info.main(World(CPU, comm, compares=False), []) == 1
    words = f"self-check: all ranks must have the same version .*{place(comm)} has other"
    assert comm.rank or re.search(words, capsys.readouterr().out)


@several
def test_a_rank_whose_gpu_is_broken_is_refused(comm, monkeypatch):
    device = torch.device("cpu") if is_last(comm) else torch.device("cuda", 0)
    monkeypatch.setattr(World, "_bind_device", lambda world: device)
    with pytest.raises(
        DistributedError, match=f"kind of device: {place(comm)} has cpu, rank 0 .*cuda; .*comm.device cpu"
    ):
        World(CommConfig(watchdog_seconds=0), comm)


@several
@pytest.mark.parametrize("broken", [0, -1])
def test_a_rank_that_sees_no_gpu_is_refused(comm, monkeypatch, broken):
    """Whichever it is, by the default comm.device auto and where GPUs are asked for; all ranks have the message."""
    broken %= comm.size
    pretend_gpus(monkeypatch, 0 if comm.rank == broken else comm.size)
    differing = place(comm, broken or 1)
    own, first = ("cuda", "cpu") if broken == 0 else ("cpu", "cuda")
    words = f"kind of device: {differing} has {own}, rank 0 on .* has {first}; see what nvidia-smi says there, or train"
    with pytest.raises(DistributedError, match=words):
        World(CommConfig(watchdog_seconds=0), comm)
    words = rf"sees no GPU on {MPI.Get_processor_name()}; .*\[choose the device, rank {broken} of {comm.size}\]"
    with pytest.raises(DistributedError, match=words):
        World(CommConfig(device="cuda", watchdog_seconds=0), comm)


def pretend_gpus(monkeypatch, count: int) -> None:
    """So many GPUs that torch sees, and little else of them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    properties = lambda device: SimpleNamespace(uuid=str(device), name="pretended")  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)


@several
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_samplers_need_no_gpu(comm, monkeypatch, device):
    """And take nothing from the trainers: these hand device memory to MPI where that is on."""
    pretend_gpus(monkeypatch, 0 if is_last(comm) else 2)
    world = World(CommConfig(device=device, gpu_direct="on", sampling_servers=1, watchdog_seconds=0), comm)
    side = world.split_off(1)
    assert (side.device.type, side.gpu_direct) == (("cpu", False) if is_last(comm) else ("cuda", True))


def test_gpus_without_a_rank_are_counted(comm, monkeypatch):
    pretend_gpus(monkeypatch, 8)
    assert World(CommConfig(watchdog_seconds=0), comm).unused_gpus == 8 - comm.size
    assert World(CPU, comm).unused_gpus == 0
    pretend_gpus(monkeypatch, 1)  # as where the batch system shows every rank its own
    assert World(CommConfig(watchdog_seconds=0), comm).unused_gpus == 0


# --------------------------------------------------------------------------------------------------- sets and folders


@several
@pytest.mark.parametrize("wing", WINGS)
def test_ranks_with_different_partition_sets_are_refused(comm, mpi_tmp_path, wing):
    one, other = make_sets(comm, wing, mpi_tmp_path, (0, 1))
    with pytest.raises(DistributedError, match=f"id of the partition set: {place(comm)} has .*name a folder that all"):
        open_wing(comm, wing, other if is_last(comm) else one)


@several
def test_a_run_folder_that_is_not_shared_is_refused(comm, mpi_tmp_path, monkeypatch):
    world, own = World(CPU, comm), mpi_tmp_path / ("other" if is_last(comm) else "run")
    own.mkdir(exist_ok=True)
    (own / f"{same.TOKEN}of-a-killed-start").touch()
    monkeypatch.setattr(same, "PATIENCE", 0.3)
    words = f"^{place(comm)} does not see what rank 0 wrote into the run folder .*other: name a folder"
    with pytest.raises(DistributedError, match=words):
        check_shared(own, world)
    check_shared(mpi_tmp_path / "run", world)
    comm.Barrier()
    assert not list((mpi_tmp_path / "run").iterdir())


def test_a_token_that_comes_late_is_waited_for(comm, mpi_tmp_path, monkeypatch):
    """As on a network file system."""
    looks = iter(range(5))
    monkeypatch.setattr(same, "await_files", partial(same.await_files, is_whole=lambda path: next(looks) > 3))
    check_shared(mpi_tmp_path, World(CPU, comm))


@several
def test_a_checkpoint_whose_files_rank_0_does_not_see_is_none(comm, mpi_tmp_path, monkeypatch):
    (parts,) = make_sets(comm, "temporal", mpi_tmp_path)
    monkeypatch.setattr(checkpoint_writer, "SEEN_SECONDS", 0.3)
    folder = mpi_tmp_path / ("other" if is_last(comm) else "run")
    trainer = trainer_of(comm, open_wing(comm, "temporal", parts), folder)
    with pytest.raises(DistributedError, match=f"memory-.*: rank {comm.size - 1} on .* wrote it, .*all machines share"):
        trainer.run()
    comm.Barrier()
    assert not list(folder.glob("checkpoints/*/manifest.json"))


@pytest.mark.launcher
def test_a_relative_folder_on_two_machines(mpirun, tmp_path):
    """Ranks whose current folders differ, as where each machine has its own; the job ends at once."""
    code = "import os, sys, runpy; os.chdir(sys.argv[1 + int(os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get("
    code += "'PMI_RANK', 0)))]); sys.argv[1:3] = []; runpy.run_module('hpcgnn.train', run_name='__main__')"
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()
    options = "--output.dir=run", "--data.synthetic_events=500", "--comm.device=cpu", "--train.epochs=1"
    result = mpirun(2, "-c", code, *homes, *options, check=False, timeout=120)
    assert result.returncode == 2, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert re.search(rf"rank 1 of 2 on .* does not see .* run folder {homes[1]}/run", line)
    assert not list(homes[0].rglob("checkpoints"))


# ------------------------------------------------------------------------------------------------- weights and buffers


BASES = {"temporal": TemporalModel, "static": ResidualModel, "snapshots": TGCN}


class Added:
    """Adds a weight to the outputs of any base."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.prepare()

    def prepare(self) -> None:
        """What the constructor adds."""
        self.shift = nn.Parameter(torch.zeros(1))

    def change(self, rows):
        """Rows as they leave the model."""
        return rows + self.shift

    def embed(self, *arguments):
        return self.change(super().embed(*arguments))

    def last(self, rows):
        return self.change(super().last(rows))


class Snapshots:
    """The place for snapshots where ``Added`` changes rows."""

    def forward(self, frames, state):
        outputs, state = super().forward(frames, state)
        return [self.change(rows) for rows in outputs], state


class Drawn(Added):
    """Draws its weight, and a buffer that no checkpoint holds, from generators that are not seeded alike."""

    def prepare(self):
        self.shift = nn.Parameter(torch.from_numpy(np.random.standard_normal(1)))  # noqa: NPY002
        self.register_buffer("scale", torch.tensor([random.random()]), persistent=False)

    def change(self, rows):
        return rows * self.scale + self.shift


class Unequal(Added):
    """Has another weight on every rank."""

    def prepare(self):
        setattr(self, f"shift{MPI.COMM_WORLD.rank}", nn.Parameter(torch.zeros(1)))
        self.shift = 0


class Turned(Added):
    """Has its weights in another order on the last rank, as of a set of words."""

    def prepare(self):
        names = ["ahead", "behind"]
        self.shift = 0
        for name in names[::-1] if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1 else names:
            setattr(self, name, nn.Parameter(torch.zeros(1)))


class Averages(Added):
    """Keeps an average of the rank's own rows, after so many passes."""

    after, passes = 0, 0

    def prepare(self):
        super().prepare()
        self.register_buffer("average", torch.zeros(1))

    def change(self, rows):
        Averages.passes += self.training
        if self.training and Averages.passes > Averages.after:
            self.average = 0.9 * self.average + len(rows) + MPI.COMM_WORLD.rank
        return super().change(rows)


class Wrong(Added):
    """Its constructor has a slip."""

    def prepare(self):
        self.config["width"]


class Random(Added):
    """Draws in every pass from ``generator``, in the mode, epoch and place that tests choose."""

    generator, training_only, passes, after = "torch", True, 0, 0

    def change(self, rows):
        Random.passes += self.training
        if self.training == Random.training_only and Random.passes > Random.after:
            DRAWS[Random.generator](rows)
        return super().change(rows)


DRAWS = {
    "torch": lambda rows: functional.dropout(rows.new_zeros(3), 0.5),
    "numpy": lambda rows: np.random.random(),  # noqa: NPY002
    "python": lambda rows: random.random(),
}


def own(base: type, wing: str) -> str:
    """The class path of ``base`` over the wing's model."""
    name = f"{base.__name__}{wing.title()}"
    bases = (base, Snapshots, BASES[wing]) if wing == "snapshots" else (base, BASES[wing])
    globals()[name] = type(name, bases, {"__module__": __name__})
    return f"{__name__}.{name}"


@pytest.fixture(params=WINGS)
def opened(request, comm, mpi_tmp_path):
    """A function that opens a session of a wing with a model over its own one. Collective."""
    (parts,) = make_sets(comm, request.param, mpi_tmp_path)
    return lambda base: open_wing(comm, request.param, parts, model__class_path=own(base, request.param))


def test_a_model_that_draws_by_numpy_begins_as_on_rank_0(comm, opened):
    np.random.seed(comm.rank)  # noqa: NPY002
    random.seed(comm.rank)
    model, first = opened(Drawn).model, comm.bcast((np.random.RandomState(0).randn(), random.Random(0).random()))
    found = model.shift.item(), model.scale.item()
    assert comm.allgather(found) == [found] * comm.size
    np.testing.assert_allclose(found, first, rtol=1e-6)


@several
def test_a_model_of_other_weights_on_a_rank_is_refused(opened):
    with pytest.raises(
        DistributedError, match=r"same weight or buffer shift\d: rank 1 .*make it of what the constructor"
    ):
        opened(Unequal)


@several
def test_a_model_of_another_order_on_a_rank_is_refused(comm, opened):
    with pytest.raises(DistributedError, match=rf"same order of weights and buffers: {place(comm)} .*order of a set"):
        opened(Turned)


@several
@pytest.mark.parametrize("after", [0, 2])
def test_a_buffer_of_the_ranks_own_rows_is_refused(comm, mpi_tmp_path, monkeypatch, opened, after):
    """In the first step, or where it moves later at the epoch's end."""
    monkeypatch.setattr(Averages, "after", after)
    monkeypatch.setattr(Averages, "passes", 0)
    trainer = trainer_of(comm, opened(Averages), mpi_tmp_path / "run")
    with pytest.raises(
        DistributedError, match=r"the same buffer average: rank 1 .*no buffer and no weight may be made of"
    ):
        trainer.run()
    assert trainer.progress.epoch == 0
    assert (trainer.progress.step > 0) == (after > 0)


@several
@pytest.mark.parametrize("wing", WINGS)
def test_a_weight_that_differs_is_refused(comm, mpi_tmp_path, monkeypatch, wing):
    """In the first step, and after every load."""
    (parts,) = make_sets(comm, wing, mpi_tmp_path)
    session = open_wing(comm, wing, parts)
    trainer = trainer_of(comm, session, mpi_tmp_path / "run")
    assert trainer.run() == 0
    comm.Barrier()
    set_weights = checkpoint_writer._set_weights

    def damage(model, *arguments) -> None:
        set_weights(model, *arguments)
        if is_last(comm):
            next(model.parameters()).data.view(-1)[0] += 1e-3

    monkeypatch.setattr(checkpoint_writer, "_set_weights", damage)
    best = sorted((mpi_tmp_path / "run" / "checkpoints").glob("best-*"))[-1]
    with pytest.raises(DistributedError, match=f"the same weight .*: {place(comm)} has float64") as error:
        load(session, best)
    assert not error.value.user_error
    monkeypatch.undo()
    again = open_wing(comm, wing, parts)
    trainer = trainer_of(comm, again, mpi_tmp_path / "again")
    if is_last(comm):
        trainer.flat.parameter.data[0] += 1e-3
    with pytest.raises(DistributedError, match=f"the same weight .*: {place(comm)} has float64"):
        trainer.run()
    assert trainer.progress.step == 0


# ------------------------------------------------------------------------------------------------ draws, and own slips


@pytest.mark.parametrize(("generator", "words"), [
    ("torch", "torch's generator"), ("numpy", "NumPy's generator"), ("python", "Python's random"),
])  # fmt: skip
def test_draws_that_ranks_do_not_share_are_refused(comm, mpi_tmp_path, monkeypatch, opened, generator, words):
    """In the first training step."""
    monkeypatch.setattr(Random, "generator", generator)
    monkeypatch.setattr(Random, "after", 0)
    trainer = trainer_of(comm, opened(Random), mpi_tmp_path / "run")
    expected = rf"model.class_path \S*Random\w+ draws from {words} .*keyed by nodes.*first training step"
    with pytest.raises(DistributedError, match=expected) as error:
        trainer.run()
    assert error.value.user_error
    assert trainer.progress.step == 0


@pytest.mark.parametrize(("mode", "after", "stage"), [
    ("training", 2, "training, epoch 0"), ("evaluation", 0, "scores of val")
])  # fmt: skip
def test_draws_in_later_steps_and_in_evaluation_are_refused(
    comm, mpi_tmp_path, monkeypatch, opened, mode, after, stage
):
    monkeypatch.setattr(Random, "training_only", mode == "training")
    monkeypatch.setattr(Random, "after", after)
    monkeypatch.setattr(Random, "passes", 0)
    trainer = trainer_of(comm, opened(Random), mpi_tmp_path / "run")
    with pytest.raises(DistributedError, match=f"draws from torch's generator .*{stage}"):
        trainer.run()


def test_a_slip_in_a_constructor_is_one_line(opened):
    words = r"model\.class_path '\S*Wrong\w+': TypeError: .*not subscriptable \[test_same\.py:\d+\]"
    with pytest.raises(DistributedError, match=words) as error:
        opened(Wrong)
    assert isinstance(error.value.__cause__, ValueError)


class Flat(nn.Module):
    """A static model that has no layers to be taken one by one."""

    def __init__(self, config, sizes):
        super().__init__()
        self.product = nn.Linear(sizes.inputs[0], sizes.outputs)

    def forward(self, batch, inputs):
        rows = inputs[0].gather() if hasattr(inputs[0], "gather") and not torch.is_tensor(inputs[0]) else inputs[0]
        for block in batch.blocks:
            rows = block.own(rows)
        return [self.product(rows)]


def test_a_static_model_that_predicts_from_samples_is_said_at_the_start(comm, mpi_tmp_path):
    (parts,) = make_sets(comm, "static", mpi_tmp_path)
    lines = "\n".join(open_wing(comm, "static", parts, model__class_path=f"{__name__}.Flat").describe())
    assert re.search(
        r"hpcgnn predict samples neighbors for this model: .*Flat lacks num_hops, first, step, last", lines
    )
    assert "hpcgnn predict" not in "\n".join(open_wing(comm, "static", parts).describe())


@pytest.mark.serial
def test_a_slip_is_named_where_all_code_is_installed(monkeypatch):
    """As of a class that wants other arguments, called by a package that pip has installed."""
    frame = traceback.FrameSummary("/venv/site-packages/hpcgnn/static/session.py", 7, "build")
    monkeypatch.setattr(traceback, "extract_tb", lambda _: [frame])
    said = r"model\.class_path 'mine\.Net': TypeError: two arguments \[session\.py:7\]"
    with pytest.raises(ValueError, match=said), named_errors("mine.Net"):
        raise TypeError("two arguments")


@pytest.mark.serial
@pytest.mark.parametrize("kind", [ValueError, OSError])
def test_values_that_a_class_refuses_name_it(kind):
    """With its line, as other exceptions do; words of this package stay as they are."""
    said = rf"^model\.class_path 'mine\.Net': {kind.__name__}: no width \[test_same\.py:\d+\]$"
    with pytest.raises(ValueError, match=said), named_errors("mine.Net"):
        raise kind("no width")
    with pytest.raises(ValueError, match=r"^sampling\.fanouts"), named_errors("mine.Net"):
        make_config(sampling__fanouts=[0])
    with pytest.raises(kind, match=r"^no width$"), named_errors(""):
        raise kind("no width")


@pytest.mark.serial
def test_a_module_that_fails_when_it_is_loaded_names_its_line(tmp_path, monkeypatch):
    (tmp_path / "failing_module.py").write_text("import os\nint('wide')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"'failing_module\.Net': ValueError: .*'wide' \[failing_module\.py:2\]$"):
        own_class("failing_module.Net")
    with pytest.raises(ValueError, match=r"'Net': no module is named; it is package\.module\.Class"):
        own_class("Net")
