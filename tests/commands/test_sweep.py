"""Several runs of one command: each is the run that would have been started alone, on any number of groups of ranks."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
import yaml
from places import HELPERS
from run_commands import run, run_caught
from training_runs import bipartite, make_parts, on_rank_0

from hpcgnn import train
from hpcgnn.each import choices, run_name, with_each
from hpcgnn.loop import launch

SMALL = [
    "--train.epochs=1", "--train.batch_size=40", "--train.precision=float64", "--train.log_every=1", "--memory.dim=8",
    "--model.time_dim=8", "--model.hidden=8", "--sampling.fanouts=[5]", "--comm.threads=1", "--comm.device=cpu",
]  # fmt: skip
RATES, SEEDS = ("0.01", "0.001"), ("0", "1")
NAMES = [f"lr={rate},seed={seed}" for rate in RATES for seed in SEEDS]
EACH = ["--each", f"train.lr={','.join(RATES)}", f"--each=train.seed={','.join(SEEDS)}"]
GROUPS = {1: 1, 2: 2, 3: 3, 4: 2}  # by the number of ranks
TIMES = ("train_seconds", "samples_per_second")


def lines(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl, without how long things took."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def assert_same(folder: Path, reference: Path) -> None:
    """The same lines, numbers to 1e-9."""
    found, expected = lines(folder), lines(reference)
    assert len(found) == len(expected) > 6
    for one, other in zip(found, expected, strict=True):
        assert one == {key: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
                       for key, value in other.items()}  # fmt: skip


@pytest.fixture(scope="module")
def root(comm, tmp_path_factory):
    """A folder with a partition set, and the four runs, each started alone; the same on all ranks."""
    folder = Path(on_rank_0(comm, lambda: str(tmp_path_factory.mktemp("sweep"))))
    graph = on_rank_0(comm, lambda: bipartite(folder / "graph.h5", num_events=400, edge_width=2))
    make_parts(comm, graph, folder / "parts", parts=8)
    for name in NAMES:
        rate, seed = re.findall(r"=([\d.]+)", name)
        alone = [f"--train.lr={rate}", f"--train.seed={seed}", f"--output.dir={folder / 'alone' / name}"]
        assert run([["train", f"--data.path={folder / 'parts'}", *SMALL, *alone]]) == 0
    return folder


def sweep(root: Path, folder: Path, *more: str) -> list[str]:
    return [f"--data.path={root / 'parts'}", *SMALL, *EACH, f"--output.dir={folder}", *more]


def test_each_run_is_the_run_started_alone(comm, root, mpi_tmp_path):
    """All ranks after each other, or groups side by side; means and deviations are those of the runs alone."""
    groups = GROUPS.get(comm.size, 1)
    folder = mpi_tmp_path / "runs"
    ended = run_caught("train", *sweep(root, folder, f"--groups={groups}"))
    if comm.rank > 0:
        return
    assert ended.returncode == 0
    for name in NAMES:
        assert_same(folder / name, root / "alone" / name)
        assert (folder / name / "finished").exists()
        config = yaml.safe_load((folder / name / "config.yaml").read_text())
        alone = yaml.safe_load((root / "alone" / name / "config.yaml").read_text())
        config["output"]["dir"] = alone["output"]["dir"]
        assert config == alone
        assert f"# ranks: {comm.size // groups}" in (folder / name / "config.yaml").read_text()
    assert (folder / "finished").exists()
    assert "4 of 4 runs are at their end" in ended.stdout
    means = {}
    for rate in RATES:
        found = [lines(root / "alone" / f"lr={rate},seed={seed}")[-1] for seed in SEEDS]
        cells = [
            f"{statistics.mean(values):.4f} ± {abs(values[0] - values[1]) / 2**0.5:.4f}"  # of two, by hand
            for name in ("val_ap", "test_ap") if (values := [line[name] for line in found])
        ]  # fmt: skip
        (row,) = [line for line in ended.stdout.splitlines() if line.startswith(f"{rate} ")]
        assert all(cell in row for cell in cells)
        means[rate] = statistics.mean(line["val_ap"] for line in found)
    assert f"best by validation, highest ap: train.lr {max(means, key=means.get)}" in ended.stdout


def test_a_sweep_that_is_asked_to_stop_resumes_where_it_was(comm, root, mpi_tmp_path):
    """In the second run of a group: with another number of groups, the end is that of the runs alone."""
    folder, groups = mpi_tmp_path / "runs", GROUPS.get(comm.size, 1)
    # Of rank 0, in the second run of its group: 7 steps are those of a run.
    stop = ["interrupted", "step", 10, 0, "SIGUSR1"]
    more = [f"--groups={groups}", "--train.checkpoint_every=2"]
    assert launch.run(_main(stop), sweep(root, folder, *more)) == launch.EXIT_REQUEUE
    finished = on_rank_0(comm, lambda: {name: (folder / name / "metrics.jsonl").stat().st_mtime_ns
                                        for name in NAMES if (folder / name / "finished").exists()})  # fmt: skip
    assert len(finished) < 4
    assert not (folder / "finished").exists()
    assert run([["train", "--resume", str(folder), "--groups=1"]]) == 0
    if comm.rank > 0:
        return
    for name in NAMES:
        assert_same(folder / name, root / "alone" / name)
    assert {name: (folder / name / "metrics.jsonl").stat().st_mtime_ns for name in finished} == finished


def test_a_signal_before_the_first_run_asks_to_be_started_again(comm, root, mpi_tmp_path):
    """While settings are opened."""
    folder = mpi_tmp_path / "runs"
    stop = ["interrupted", "open", 1, 0, "SIGUSR1"]
    assert launch.run(_main(stop), sweep(root, folder)) == launch.EXIT_REQUEUE
    assert not list(folder.glob("*/metrics.jsonl"))


def _main(words):
    import interrupted_train

    return lambda world, argv: interrupted_train.main(world, [*map(str, words[1:]), *argv])


def test_a_run_that_fails_leaves_the_others_alone(comm, root, mpi_tmp_path):
    """The job ends with the exit code of a failure, and names the run; the next start begins with it."""
    folder = mpi_tmp_path / "runs"
    rates = ["--each=train.lr=1e30,0.01", "--each=train.seed=0", f"--output.dir={folder}"]
    parts = [f"--data.path={root / 'parts'}"]
    ended = run_caught("train", *parts, *SMALL, *rates, f"--groups={2 if comm.size % 2 == 0 else 1}")
    if comm.rank > 0:
        return
    assert ended.returncode == launch.EXIT_FAILURE
    assert "error: run lr=1e30,seed=0: " in ended.stderr
    assert "left out of means: lr=1e30,seed=0: not at its end" in ended.stdout
    assert_same(folder / "lr=0.01,seed=0", root / "alone" / "lr=0.01,seed=0")
    assert not (folder / "finished").exists()


def test_a_setting_that_the_graph_refuses_keeps_all_runs_from_starting(comm, root, mpi_tmp_path):
    """The last of them; after the mistake is corrected the folder can be used."""
    folder = mpi_tmp_path / "runs"
    words = [f"--data.path={root / 'parts'}", *SMALL, "--each", "train.monitor=ap,auc,mrr", f"--output.dir={folder}"]
    ended = run_caught("train", *words, f"--groups={comm.size}")
    if comm.rank == 0:
        assert ended.returncode == launch.EXIT_USER
        assert "error: run monitor=mrr: train.monitor must be one of ap, auc" in ended.stderr
        assert "no run was started" in ended.stderr
        assert not list(folder.glob("*/metrics.jsonl"))
        assert not (folder / "sweep.yaml").exists()
    comm.barrier()


@pytest.mark.launcher
def test_a_sweep_that_is_killed_resumes_on_other_ranks(mpirun, root, tmp_path):
    """Two groups of a rank each, of which one is killed within its second run; then one rank without groups."""
    words = sweep(root, tmp_path / "runs", "--groups=2", "--train.checkpoint_every=2")
    ended = mpirun(2, HELPERS / "interrupted_train.py", "step", 10, 1, "SIGKILL", *words, check=False)
    assert ended.returncode not in (0, launch.EXIT_REQUEUE)
    assert not (tmp_path / "runs" / "finished").exists()
    assert run([["train", "--resume", str(tmp_path / "runs"), "--groups", "1"]]) == 0
    for name in NAMES:
        assert_same(tmp_path / "runs" / name, root / "alone" / name)
    assert run([["train", "--resume", str(tmp_path / "runs"), "--groups", "1"]]) == 0  # there is nothing to do


# The command line


@pytest.mark.serial
def test_values_are_split_at_commas_outside_of_brackets():
    options = ["--each", "sampling.fanouts=[10, 5],[3,2]", "--a=1", "--each=model.kind=gat,'a,b'", "--b"]
    points, others = choices(options)
    assert others == ["--a=1", "--b"]
    assert points == [
        {"sampling.fanouts": fanouts, "model.kind": kind} for fanouts in ("[10, 5]", "[3,2]") for kind in ("gat", "a,b")
    ]
    assert [run_name(point) for point in points[::2]] == ["fanouts=10-5,kind=gat", "fanouts=3-2,kind=gat"]
    assert run_name({"train.lr": "1e-3", "model.dropout": "-1"}) == "lr=1e-3,dropout=-1"
    assert run_name({"model.kind": "gat", "baseline.kind": "x"}) == "model.kind=gat,baseline.kind=x"
    assert choices(["--train.lr=1,2"]) == ([], ["--train.lr=1,2"])


@pytest.mark.serial
def test_a_list_of_seeds_is_a_run_for_each():
    for words in (["--train.seed=0,1", "--a=1"], ["--train.seed", "0,1", "--a=1"]):
        assert choices(with_each(words)) == ([{"train.seed": "0"}, {"train.seed": "1"}], ["--a=1"])
    alone = ["--train.seed", "3", "--train.lr=1,2"]
    assert with_each(alone) == alone


@pytest.mark.serial
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--each", "train.lr=0.01,-1"], "run lr=-1: train.lr must be above 0"),
        (["--each", "train.lr=0.01,1e-2"], "run lr=1e-2 is the same as run lr=0.01"),
        (["--each", "data.path=a.b,a/b", "--data.path=x"], "the key has values of another option, too"),
        (["--each", "train.sed=0,1"], "run sed=0: no option --train.sed; did you mean --train.seed?"),
        (["--each", "train.seed=0,0"], "expected values that differ"),
        (["--train.seed", "0,0"], "expected values that differ"),
        (["--train.seed=3", "--train.seed=0,1"], "the key has values of another option, too"),
        (["--each", "train.seed="], "expected values that differ"),
        (["--each", "train.seed"], "expected SECTION.KEY=VALUE,VALUE"),
        (["--each", "seed=0,1"], "expected SECTION.KEY=VALUE,VALUE"),
        (["--each"], "expected SECTION.KEY=VALUE,VALUE"),
        (["--each", "comm.threads=1,2"], "all runs of a sweep share this key"),
        (["--each", "sampling.fanouts=[5],[3"], "brackets or quotes do not match"),
        (["--each", "train.seed=0,1", "--groups=0"], "--groups must be a number of groups of ranks from 1 on, got '0'"),
        (["--groups", "2"], "--groups is for several runs, which --each KEY=VALUE,VALUE starts"),
        (["--each", "train.seed=0,1", "--groups=2"], "1 ranks do not make 2 equal groups"),
        (["--each", "train.seed=0,1", "--resume", "run"], "--each starts new runs, and --resume run continues one"),
    ],
)
def test_sweeps_that_are_refused(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    assert run([["train", *words, "--output.dir=runs"]]) == launch.EXIT_USER
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.serial
def test_folders_with_runs_are_kept(root, tmp_path, capsys):
    """A sweep takes no folder of a run, and a run no folder of a sweep, which resumes without other runs."""
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "sweep.yaml").write_text("groups: 1\nruns: {seed=0: {train.seed: '0'}}\n")
    for words in (["--train.seed=0"], ["--each=train.seed=0,1"]):
        assert run([["train", *words, f"--output.dir={folder}"]]) == launch.EXIT_USER
        assert f"{folder} holds runs already: continue it with --resume {folder}" in capsys.readouterr().err
    assert run([["train", f"--resume={folder}", "--each=train.seed=0,1"]]) == launch.EXIT_USER
    assert "leave out --each" in capsys.readouterr().err
    assert run([["evaluate", str(folder)]]) == launch.EXIT_USER
    assert f"{folder} has several runs: name one, such as {folder}/seed=0" in capsys.readouterr().err
    old = tmp_path / "other" / "seed=1"
    old.mkdir(parents=True)
    for name in ("metrics.jsonl", "config.yaml", "finished"):
        (old / name).write_text("old")
    words = ["train", f"--data.path={root / 'parts'}", *SMALL, "--each=train.seed=0,1", f"--output.dir={old.parent}"]
    assert run([words]) == launch.EXIT_USER
    assert f"{old} holds a run already: continue it with --resume {old}" in capsys.readouterr().err
    assert [path.name for path in old.parent.iterdir()] == ["seed=1"]
    assert {path.name: path.read_text() for path in old.iterdir()} == dict.fromkeys(
        ("metrics.jsonl", "config.yaml", "finished"), "old"
    )
    (folder / "sweep.yaml").write_text("groups: 1\nruns: {../other: {}}\n")
    assert run([["train", f"--resume={folder}"]]) == launch.EXIT_USER
    assert "sweep.yaml: damaged, or not written by hpcgnn" in capsys.readouterr().err
    (tmp_path / "own.yaml").write_text("each: [train.seed=0]\n")
    with pytest.raises(ValueError, match="each is an option of the command line, not a key of a file"):
        train._parse([f"--config={tmp_path}/own.yaml"])
