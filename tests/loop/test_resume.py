"""Nothing is lost: a run that is killed or asked to stop anywhere ends with the numbers of an undisturbed one."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from places import HELPERS
from training_runs import bipartite

from data_tools.partition.command import partition
from hpcgnn.loop.checkpoint import load_state

pytestmark = pytest.mark.launcher

CHILD = HELPERS / "interrupted_train.py"
TIMES = ("train_seconds", "samples_per_second")
EPOCHS = 2
OTHER_POINTS = (("rename", 5), ("prune", 3), ("evaluation", 5))  # of a checkpoint, where a process is killed
ARGUMENTS = [
    "--train.batch_size=50", "--train.precision=float64", "--train.checkpoint_every=3", "--train.log_every=1",
    "--train.seed=11", "--memory.dim=8", "--model.time_dim=8", "--model.hidden=8", "--sampling.fanouts=[5]",
    "--data.new_node_ratio=0.1", "--comm.threads=1", "--comm.device=cpu",
]  # fmt: skip


class Runs:
    """Trains on one graph, in jobs of its own where one is killed, else in those that wait for commands."""

    def __init__(self, mpirun, jobs, root: Path):
        self._mpirun, self._jobs, self.root = mpirun, jobs, root
        graph = bipartite(root / "graph.h5", edge_width=2)
        self.parts, self.other_parts = root / "parts", root / "other"
        partition(graph, self.parts, 16)
        partition(graph, self.other_parts, 9, method="random")

    def start(self, folder: Path, ranks: int, *more, at=("step", 0, 0, "SIGKILL"), check=False, epochs=EPOCHS):
        """Start a run, or continue the one that the folder holds; ``at``: what interrupts it."""
        if (folder / "config.yaml").exists():
            return self._run(ranks, at, ["--resume", folder, *more], check)
        first = [f"--data.path={self.parts}", f"--output.dir={folder}", f"--train.epochs={epochs}", *ARGUMENTS]
        return self._run(ranks, at, [*first, *more], check)

    @contextmanager
    def hanging(self, folder: Path, ranks: int, step: int) -> Iterator[subprocess.Popen]:
        """A job whose rank 0 hangs before a step, once it is there; killed at the end of the block."""
        first = [f"--data.path={self.parts}", f"--output.dir={folder}", f"--train.epochs={EPOCHS}", *ARGUMENTS]
        process = self._mpirun.popen(ranks, CHILD, "step", step + 1, 0, "hang", *first)
        deadline = time.monotonic() + 300
        try:
            while sum(record["kind"] == "step" for record in read(folder)) < step:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield process
        finally:
            self._mpirun.kill(process)
            process.communicate()

    def train(self, ranks: int, *arguments):
        """The plain command, with these arguments only."""
        return self._jobs(ranks, "train", *arguments, check=False)

    def evaluate(self, ranks: int, *arguments) -> dict:
        """The line that hpcgnn.evaluate prints."""
        return json.loads(self._jobs(ranks, "evaluate", *arguments).stdout.splitlines()[-1])

    def _run(self, ranks, at, arguments, check):
        if at[1] and at[-1] == "SIGKILL":
            return self._mpirun(ranks, CHILD, *at, *arguments, check=check)
        return self._jobs(ranks, "interrupted", *at, *arguments, check=check)


def read(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl, without how long things took; none where it is not there yet."""
    path = folder / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def assert_same(folder: Path, reference: list[dict]) -> None:
    """The same lines in the same order, numbers to 1e-9."""
    found = read(folder)
    place = [[record.get(key) for key in ("kind", "epoch", "step")] for record in found]
    assert place == [[record.get(key) for key in ("kind", "epoch", "step")] for record in reference]
    for one, other in zip(found, reference, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            number = isinstance(value, float)
            assert one[key] == (pytest.approx(value, rel=1e-9) if number else value), (key, one)


GROUPED = [
    "--train.accumulate_steps=4", "--train.clip_grad_norm=0.5", "--train.optimizer=adamw", "--train.weight_decay=0.01",
    '--train.part_weight_decay={"decoder": 0.1}',
    "--train.schedule=cosine", "--train.warmup_steps=3", "--train.min_lr=1e-4", "--train.eval_every=2",
    "--train.monitor=auc", "--train.train_metrics=true", "--train.drop_last=true",
]  # fmt: skip


def checkpoints(folder: Path) -> list[Path]:
    """Whole step checkpoints, oldest first."""
    return [p.parent for p in sorted((folder / "checkpoints").glob("step-*/manifest.json"))]


@pytest.fixture(scope="module")
def runs(mpirun, jobs, tmp_path_factory):
    return Runs(mpirun, jobs, tmp_path_factory.mktemp("resume"))


@pytest.fixture(scope="module")
def reference(runs):
    """The lines of one undisturbed run on one rank."""
    folder = runs.root / "reference"
    runs.start(folder, 1, check=True)
    lines = read(folder)
    steps = [record["step"] for record in lines if record["kind"] == "step"]
    assert 8 <= len(steps) / EPOCHS <= 12
    assert steps == 2 * list(range(len(steps) // 2))
    assert lines[-1]["kind"] == "test"
    assert lines[-1]["test_inductive_ap"] is not None
    return lines


@pytest.fixture
def finished(runs, reference, tmp_path):
    """A copy of the undisturbed run, to do something to."""
    return Path(shutil.copytree(runs.root / "reference", tmp_path / "run"))


def random_interruption(rng: np.random.Generator, ranks: int) -> tuple:
    """A kill at a random step for two of three; else while a checkpoint is written or the split evaluated."""
    rank = int(rng.integers(ranks))
    if rng.random() < 0.66:
        return "step", int(rng.integers(2, 10)), rank, "SIGKILL"
    points = {"evaluation": 5, "file": 6, "manifest": 4, "rename": 4, "prune": 4, "folder removal": 4, "metrics": 14}
    point = list(points)[rng.integers(len(points))]
    everywhere = point in ("evaluation", "file")
    return point, int(rng.integers(1, points[point])), rank if everywhere else 0, "SIGKILL"


@pytest.mark.nightly
def test_killed_at_random_moments(runs, reference, tmp_path):
    """Kill -9 of one rank; the run goes on, on as many ranks or on others, until it is done. tests/soak.sh kills a
    hundred times."""
    rng, kills, attempt, folder = np.random.default_rng(2), 0, 0, tmp_path / "run-0"
    finished_runs = 0
    while kills < 5:
        ranks = (2, 2, 3, 1, 1, 2, 4, 3)[attempt % 8]
        at, attempt = random_interruption(rng, ranks), attempt + 1
        result = runs.start(folder, ranks, at=at)
        if result.returncode == 0:  # done before it came to that
            assert_same(folder, reference)
            finished_runs, folder = finished_runs + 1, tmp_path / f"run-{attempt}"
            continue
        kills += 1
        assert attempt < 40
    runs.start(folder, 2, check=True)
    assert_same(folder, reference)


@pytest.mark.parametrize(
    "point",
    [("manifest", 3), ("file", 9), *(pytest.param(point, marks=pytest.mark.nightly) for point in OTHER_POINTS)],
)
def test_killed_in_a_checkpoint_or_in_validation(runs, reference, tmp_path, point):
    """When files, manifest or rename of a later checkpoint are due, or in the second validation."""
    result = runs.start(tmp_path / "run", 2, at=(*point, 0, "SIGKILL"))
    assert result.returncode not in (0, 75)
    assert "this rank meets SIGKILL" in result.stderr
    assert checkpoints(tmp_path / "run")
    runs.start(tmp_path / "run", 3, check=True)
    assert_same(tmp_path / "run", reference)


def test_signals_stop_the_run_and_resume_finishes_it(runs, reference, tmp_path):
    """USR1 and TERM on one rank, in training, validation and test: exit code 75, a checkpoint, and the same numbers,
    wherever node memory is kept."""
    folder, before = tmp_path / "run", -1
    interruptions = [
        (2, ("step", 5, 1, "SIGUSR1")),
        (3, ("step", 6, 0, "SIGTERM")),  # the last steps of the epoch, or validation
        (2, ("evaluation", 2, 1, "SIGTERM")),
        (1, ("evaluation", 4, 0, "SIGUSR1")),
        (2, ("evaluation", 5, 1, "SIGTERM")),  # in the test: validation has three steps
    ]
    for number, (ranks, at) in enumerate(interruptions):
        placement, hot = (("sharded", 0.3), ("replicated", 0))[number % 2]
        result = runs.start(folder, ranks, f"--memory.placement={placement}", f"--memory.hot_ratio={hot}", at=at)
        assert result.returncode == 75, (at, result.stdout, result.stderr)
        assert "Traceback" not in result.stderr
        newest = json.loads((checkpoints(folder)[-1] / "manifest.json").read_text())["progress"]["global_step"]
        assert newest >= before
        before = newest
    runs.start(folder, 2, check=True)
    assert_same(folder, reference)


def test_interrupted_within_a_group_of_steps(runs, tmp_path):
    """Killed and stopped between the steps of one optimizer step, in the validation of every second epoch and in the
    epoch without one: the gradient so far, the training scores and the place in the schedule are kept."""
    runs.start(tmp_path / "whole", 1, *GROUPED, epochs=3, check=True)
    whole, folder = read(tmp_path / "whole"), tmp_path / "run"
    assert [r["epoch"] for r in whole if "val_auc" in r and "train_auc" in r] == [1, 2]
    interruptions = [
        (2, ("step", 7, 1, "SIGKILL")),  # goes on from a checkpoint after 6 = 4 + 2 steps, if it was whole by then
        (3, ("step", 5, 2, "SIGUSR1")),
        (2, ("evaluation", 2, 1, "SIGTERM")),
    ]
    for ranks, at in interruptions:
        result = runs.start(folder, ranks, *GROUPED, at=at, epochs=3)
        assert result.returncode == 75 or (result.returncode and at[-1] == "SIGKILL"), (at, result.stderr)
    runs.start(folder, 3, check=True)
    assert_same(folder, whole)


def test_interrupted_with_stale_memory(runs, tmp_path):
    """Killed and stopped while writes wait, on other ranks each time, also after an epoch's last step and where memory
    is kept whole: nothing of them is lost, and validation sees them all."""
    stale = "--memory.staleness=3"
    runs.start(tmp_path / "whole", 1, stale, check=True)
    whole, folder = read(tmp_path / "whole"), tmp_path / "run"
    steps = sum(record["kind"] == "step" for record in whole) // EPOCHS
    interruptions = [
        (2, ("step", 5, 1, "SIGKILL")),  # goes on from a checkpoint after 3 steps
        (3, ("step", 2, 2, "SIGUSR1")),
        (1, ("step", steps - 5, 0, "SIGTERM")),  # asked to stop in the epoch's last step
        (2, ("evaluation", 2, 1, "SIGTERM")),
        (3, ("step", 4, 0, "SIGUSR1")),
    ]
    for number, (ranks, at) in enumerate(interruptions):
        placement = ("sharded", "replicated")[number % 2]
        result = runs.start(folder, ranks, stale, f"--memory.placement={placement}", at=at)
        assert result.returncode == 75 or (result.returncode and at[-1] == "SIGKILL"), (at, result.stderr)
    runs.start(folder, 3, check=True)
    assert_same(folder, whole)


def test_another_version_is_refused(finished):
    """A checkpoint whose progress has other keys."""
    newest = checkpoints(finished)[-1]
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest["progress"]["best_ap"] = manifest["progress"].pop("best_metric")
    (newest / "manifest.json").write_text(json.dumps(manifest))
    (newest / "manifest.sha256").unlink()
    with pytest.raises(ValueError, match=r"another version of hpcgnn \(best_ap, best_metric\)"):
        load_state(newest, manifest["graph"])


def test_more_epochs_on_other_parts(runs, reference, tmp_path):
    """A finished shorter run goes on, on another partition set of the graph, as if it had been the longer one."""
    runs.start(tmp_path / "run", 2, epochs=1, check=True)
    assert read(tmp_path / "run")[-1]["kind"] == "test"
    more = [f"--data.path={runs.other_parts}", f"--train.epochs={EPOCHS}"]
    runs.start(tmp_path / "run", 3, *more, check=True)
    assert_same(tmp_path / "run", reference)


def test_half_written_checkpoints_are_not_read(runs, reference, finished):
    """The newest folder without its manifest and with half its files: the older one is taken."""
    newest = checkpoints(finished)[-1]
    (newest / "manifest.json").unlink()
    state = newest / "state.safetensors"
    state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])
    result = runs.start(finished, 2, check=True)
    assert f"resumed from {checkpoints(runs.root / 'reference')[-2].name}" in result.stdout
    assert_same(finished, reference)


def flip_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over(runs, reference, finished):
    """A flipped byte in the newest one: said, and the run goes on from the one before, to the same end."""
    newest, before = checkpoints(finished)[-1], checkpoints(finished)[-2]
    flip_byte(newest / "state.safetensors")
    result = runs.start(finished, 2, check=True)
    assert f"{newest.name} is damaged and skipped: {newest / 'state.safetensors'}" in result.stdout
    assert f"resumed from {before.name}" in result.stdout
    assert_same(finished, reference)


def test_nothing_but_damaged_checkpoints(runs, finished):
    """Refused, and nothing is overwritten."""
    for folder in checkpoints(finished):
        flip_byte(sorted(folder.glob("*.safetensors"))[0])
    lines = read(finished)
    result = runs.start(finished, 2)
    assert result.returncode == 2
    assert "none of 2 checkpoints is whole" in result.stderr
    assert "Traceback" not in result.stderr
    assert read(finished) == lines


def test_resume_of_a_finished_run(runs, reference, finished):
    """Tests once more, and leaves the same lines."""
    runs.start(finished, 2, check=True)
    assert_same(finished, reference)


def test_a_folder_that_a_job_trains_in(runs, reference, tmp_path):
    """Refused to a second one, which leaves it as it is; a killed job's is not, and goes on from its checkpoint."""
    folder = tmp_path / "run"
    with runs.hanging(folder, 2, 9) as process:  # that of step 9 waited until those of steps 3 and 6 were whole
        lines = read(folder)
        result = runs.train(2, f"--resume={folder}")
        assert result.returncode == 2, result.stdout
        assert f"error: {folder} is in use by process" in result.stderr
        assert read(folder) == lines
        assert process.poll() is None
    assert (folder / "lock.json").exists()
    newest = checkpoints(folder)[-1]
    result = runs.start(folder, 3, check=True)
    assert f"{folder / 'lock.json'} was left behind by process" in result.stdout
    assert f"resumed from {newest.name}" in result.stdout
    assert_same(folder, reference)
    assert not (folder / "lock.json").exists()


def test_a_refused_resume_leaves_the_run_as_it_is(runs, finished):
    """It stays at its end."""

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in finished.rglob("*") if path.is_file() and path.suffix != ".log"}

    before = content()
    assert finished / "finished" in before
    for arguments in (["--train.lr=0.5"], [f"--data.path={finished}"]):
        assert runs.train(1, f"--resume={finished}", *arguments).returncode == 2
    assert content() == before


def test_refusals(runs, reference, finished):
    """Another learning rate, a folder that holds a run, a folder that holds none, another graph."""
    before = (finished / "config.yaml").read_text()
    for arguments, words in (
        ([f"--resume={finished}", "--train.lr=0.5"], ["train.lr (0.001 -> 0.5)", "Start a new run"]),
        ([f"--output.dir={finished}", f"--data.path={runs.parts}"], [f"{finished} holds a run already", "--resume"]),
        ([f"--resume={finished.parent}"], [f"{finished.parent / 'config.yaml'}: no such file"]),
    ):
        result = runs.train(2, *arguments)
        assert result.returncode == 2, result.stderr
        (message,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert all(word in message for word in words)
    assert (finished / "config.yaml").read_text() == before
    assert read(finished) == reference


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda text: text.replace("seed: 11", "seed: 12"), "train.seed (11 -> 12)"),
        (lambda text: text.replace("dropout: 0.1", "dropout: 0.4"), "model.dropout (0.1 -> 0.4)"),
        (lambda text: text[: text.index("train:")], "train.precision (float64 -> float32)"),
    ],
)
def test_an_edited_configuration_is_refused(runs, finished, edit, named):
    """It would be another run; the keys are named. Those that a resumed run may change are taken."""
    path = finished / "config.yaml"
    text, lines = path.read_text(), read(finished)
    assert edit(text) != text
    path.write_text(edit(text))
    result = runs.train(1, f"--resume={finished}")
    assert result.returncode == 2, result.stdout
    assert f"error: {path} is not the configuration that step-" in result.stderr
    assert named in result.stderr
    assert "Traceback" not in result.stderr
    assert read(finished) == lines
    path.write_text(text.replace("log_seconds: 60.0", "log_seconds: 61.0").replace("keep: 2", "keep: 3"))
    runs.start(finished, 1, check=True)


def test_another_graph_is_refused(runs, finished, tmp_path):
    """A checkpoint's node memory means nothing on another graph."""
    partition(bipartite(tmp_path / "graph.h5", edge_width=2, seed=99), tmp_path / "parts", 4)
    result = runs.train(2, f"--resume={finished}", f"--data.path={tmp_path / 'parts'}")
    assert result.returncode == 2
    assert "written for another graph" in result.stderr
    assert "Traceback" not in result.stderr
    runs.start(finished, 1, f"--data.path={runs.parts}", check=True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_evaluate_equals_the_test_line(runs, reference, ranks):
    """On any number of ranks, also from another partition set."""
    path = [f"--data.path={runs.other_parts}"] if ranks == 3 else []
    result = runs.evaluate(ranks, runs.root / "reference", *path)
    for key, value in reference[-1].items():
        if key not in ("kind", "monitor", "best"):  # which epoch is best is told by the run alone
            assert result[key] == pytest.approx(value, rel=1e-9), key
