"""What job scripts decide about a run: its folder and arguments, whether it resumes, and when it is given up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

from hpcgnn import job_runs
from hpcgnn.each import choices, run_name
from hpcgnn.loop.sweep_file import write_sweep

pytestmark = pytest.mark.serial

CHECKPOINT = "checkpoints/step-1/manifest.json"


def make(run: Path, *names: str) -> str:
    """Make empty files in a run folder."""
    for name in names:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    return str(run)


@pytest.mark.parametrize(
    ("files", "option", "is_kept"),
    [
        ([], "--output.dir", False),
        (["log/rank-0.log"], "--output.dir", False),
        ([CHECKPOINT, "finished"], "--resume", True),
        (["config.yaml", "metrics.jsonl"], "--output.dir", False),
        (["config.yaml", "lock.json"], "--resume", True),
        (["log/rank-0.log", "lock.json"], "--output.dir", True),
    ],
)
@pytest.mark.parametrize("name", ["run", "a run [1] *", "-run"])
def test_a_folder_that_another_job_may_hold_stays_where_it_is(tmp_path, files, option, is_kept, name):
    """The program finds out whether the job of a lock still runs. A folder without checkpoint or lock makes room."""
    folder = make(tmp_path / name, *files)
    answer = job_runs.next_start("0", folder, "--a", "1")
    assert answer["ARGUMENTS"] == [option, folder, "--a", "1"]
    assert answer["NEWEST"] == (f"{folder}/{CHECKPOINT}" if CHECKPOINT in files else "")
    assert Path(folder).exists() == is_kept
    assert not Path(folder, "finished").exists()
    kept = [path for path in tmp_path.iterdir() if path.name.startswith(f"{name}.lost-")]
    assert bool(kept) == bool(answer.get("NOTE")) == bool(files and not is_kept)
    for path in kept:
        assert answer["NOTE"] == f"{folder} has no checkpoint: kept as {path}, starting anew"
        assert all((path / file).exists() for file in files)


FILES = ["--config", "a.yaml", "--recipe=b", "--config=c", "--a", "1", "--recipe"]


def test_files_of_values_hold_since_the_run_began(tmp_path):
    folder = str(tmp_path / "run")
    assert job_runs.next_start("0", folder, *FILES)["ARGUMENTS"] == ["--output.dir", folder, *FILES]
    make(tmp_path / "run", CHECKPOINT)
    assert job_runs.next_start("0", folder, *FILES)["ARGUMENTS"] == ["--resume", folder, "--a", "1"]


def test_a_start_of_the_same_job_adds_nothing_to_what_the_run_has(tmp_path):
    """It may be on a machine without the disk that data.stage_to named at first, and then does without."""
    folder = make(tmp_path / "run", CHECKPOINT)
    assert job_runs.next_start("1", folder, "--data.stage_to", "/local")["ARGUMENTS"] == ["--resume", folder]
    other = str(tmp_path / "other")  # a job that was requeued before its first checkpoint
    assert job_runs.next_start("1", other, "--a", "1")["ARGUMENTS"] == ["--output.dir", other, "--a", "1"]


def test_a_sweep_resumes_as_soon_as_its_file_is_there(tmp_path):
    """Without its values, which it has; a new checkpoint of any of its runs is progress."""
    words = ["--each", "train.seed=0,1", "--each=train.lr=1,2", "--groups", "2"]
    folder = str(tmp_path / "sweep")
    assert job_runs.next_start("0", folder, *words)["ARGUMENTS"] == ["--output.dir", folder, *words]
    make(tmp_path / "sweep", "finished")
    write_sweep(tmp_path / "sweep", 2, {run_name(choice): choice for choice in choices(words)[0]})
    first = job_runs.next_start("0", folder, *words)
    assert first == {"NEWEST": "", "ARGUMENTS": ["--resume", folder, "--groups", "2"], "NOTE": ""}
    assert job_runs.next_start("1", folder, *words)["ARGUMENTS"] == ["--resume", folder]
    assert not (tmp_path / "sweep" / "finished").exists()
    assert job_runs.judge("9", "", folder)["OUTCOME"] == "no new checkpoint"
    make(tmp_path / "sweep" / "seed=1", CHECKPOINT)
    before = job_runs.next_start("1", folder)["NEWEST"]
    assert before == f"{folder}/seed=1/{CHECKPOINT}"
    assert job_runs.judge("9", before, folder)["OUTCOME"] == "no new checkpoint"
    make(tmp_path / "sweep" / "seed=0", CHECKPOINT)  # of another group
    assert job_runs.judge("9", before, folder)["OUTCOME"] == "checkpointed"


OTHER = "choose another folder (--output.dir, HPCGNN_RUN)"


@pytest.mark.parametrize(("files", "words", "said"), [
    (["sweep.yaml"], ["--each", "train.seed=0,1,2"],
     f"holds 2 runs of another --each (seed=0, seed=1): {OTHER}, or leave --each out to resume"),
    (["sweep.yaml"], ["--each=train.lr=1,2"], "holds 2 runs of another --each"),
    (["sweep.yaml"], ["--train.seed", "0,1,2"], "holds 2 runs of another --each"),
    ([CHECKPOINT], ["--each", "train.seed=0,1"],
     f"holds one run, and --each starts several: {OTHER}, or leave out --each to resume it"),
    ([f"gat/{CHECKPOINT}"], [], f"holds other runs, such as gat: {OTHER}, such as "),
    (["seed=1/checkpoints/step-1/state"], [], "holds other runs, such as seed=1"),
    ([f"seed=0/{CHECKPOINT}"], ["--each", "train.seed=0,1"], "holds other runs, such as seed=0"),
])  # fmt: skip
@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_folder_of_other_runs_is_refused_as_it_is(tmp_path, capsys, files, words, said, restarts):
    folder = make(tmp_path / "run", "finished", *files)
    if "sweep.yaml" in files:
        write_sweep(tmp_path / "run", 1, {f"seed={n}": {"train.seed": str(n)} for n in (0, 1)})
    assert job_runs.main(["start", restarts, folder, *words]) == job_runs.EXIT_USAGE
    assert f"error: {folder} {said}" in capsys.readouterr().err
    assert Path(folder, "finished").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_sweep_that_resumes_without_its_values_is_said(tmp_path):
    folder = make(tmp_path / "run", "log/rank-0.log")
    write_sweep(Path(folder), 1, {f"seed={n}": {"train.seed": str(n)} for n in range(4)})
    answer = job_runs.next_start("0", folder, "--train.epochs", "9")
    assert answer["ARGUMENTS"] == ["--resume", folder, "--train.epochs", "9"]
    assert answer["NOTE"] == f"{folder} holds 4 runs of --each (seed=0, seed=1, seed=2, ..): all of them are resumed"
    assert job_runs.next_start("1", folder)["NOTE"] == ""


def test_an_element_of_an_array_has_one_seed(tmp_path):
    """Other keys may have several values in each element."""
    each = ["--each", "train.lr=1,2"]
    answer = job_runs.recipe_run(str(REPOSITORY / "jobs"), "14", "2", "scontrol", "gat", *each)
    assert answer["FOLDER"] == "runs/gat-14-seed-2"
    assert answer["ARGUMENTS"][2:] == ["--train.seed", "2", *each]


@pytest.mark.parametrize(
    ("element", "requeue", "folder", "seed"),
    [
        ("", "scontrol", "runs/gat-14", []),
        ("2", "scontrol", "runs/gat-14-seed-2", ["--train.seed", "2"]),
        ("2", "array", "runs/gat-14", []),
    ],
)
def test_elements_of_an_array_are_seeds_in_folders_of_their_own(element, requeue, folder, seed):
    """Unless they are there to resume one run."""
    answer = job_runs.recipe_run("jobs", "14", element, requeue, "gat", "--train.epochs", "1")
    recipe = str(job_runs.recipe_file("gat", Path("jobs")))
    assert answer == {"FOLDER": folder, "ARGUMENTS": ["--config", recipe, *seed, "--train.epochs", "1"]}


@pytest.fixture(autouse=True)
def in_repository(monkeypatch):
    """Job scripts change into the folder above theirs."""
    monkeypatch.chdir(REPOSITORY)


def test_recipes_are_those_beside_the_scripts(tmp_path):
    """Which their user may have changed, or added."""
    assert job_runs.recipe_run("jobs", "1", "", "none", "tgn")["ARGUMENTS"] == ["--config", "jobs/train_tgn.yaml"]
    make(tmp_path / "my jobs", "recipes/mine.yaml")
    answer = job_runs.recipe_run(str(tmp_path / "my jobs"), "1", "", "none", "mine")
    assert answer["ARGUMENTS"] == ["--config", f"{tmp_path}/my jobs/recipes/mine.yaml"]
    with pytest.raises(ValueError, match=r"no recipe 'gat'; recipes are mine$"):
        job_runs.recipe_run(str(tmp_path / "my jobs"), "1", "", "none", "gat")


@pytest.mark.parametrize("given", [["--output.dir", "out"], ["--output.dir=out"], ["--output.dir", "out/"]])
def test_the_folder_of_a_run_is_what_the_arguments_name(given):
    """Where the script looks for checkpoints and for the end of the run."""
    for element, folder in (("", "out"), ("2", "out-seed-2")):
        answer = job_runs.recipe_run("jobs", "14", element, "scontrol", "gat", *given, "--train.epochs", "1")
        assert answer["FOLDER"] == folder
        assert answer["ARGUMENTS"][-2:] == ["--train.epochs", "1"]
        assert not any("output.dir" in word for word in answer["ARGUMENTS"])


def test_a_folder_without_name_is_that_of_the_job():
    assert job_runs.recipe_run("jobs", "14", "", "scontrol", "gat", "--output.dir")["FOLDER"] == "runs/gat-14"


@pytest.mark.parametrize("given", [["--resume", "runs/old"], ["--resume=runs/old"], ["--resume"]])
def test_a_script_finds_by_itself_what_to_resume(capsys, given):
    assert job_runs.main(["recipe", "jobs", "14", "", "scontrol", "gat", *given]) == 2
    captured = capsys.readouterr()
    assert captured.err.endswith("leave out --resume\n")
    assert captured.out == ""


def test_a_job_without_a_recipe_is_refused(capsys):
    assert job_runs.main(["recipe", "jobs", "14", "", "scontrol"]) == 2
    assert "no recipe ''; recipes are apan, " in capsys.readouterr().err


def test_a_folder_that_cannot_be_put_aside_is_no_fault_of_the_arguments(tmp_path, monkeypatch, capsys):
    def refuse(*paths):
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "rename", refuse)
    assert job_runs.main(["start", "0", make(tmp_path / "run", "metrics.jsonl")]) == 1
    assert capsys.readouterr().err == "error: the disk is full\n"


def judged(run: Path, before: str, allowed: int = 3) -> tuple[str, str]:
    answer = job_runs.judge(str(allowed), before, str(run))
    return answer["OUTCOME"], answer["GIVES_UP"]


STALLED = ("no new checkpoint", "no")


def test_starts_in_a_row_without_a_new_checkpoint_are_limited(tmp_path):
    """Whether they left none at all, or the one from before. A job after that may try as often."""
    run = tmp_path / "runs" / "run"
    assert judged(run, "") == STALLED
    outcome, gives_up = judged(run, "", allowed=2)
    assert outcome == "no new checkpoint in 2 starts: giving up; ask for more time, or checkpoint more often"
    assert gives_up == "yes"
    make(run, CHECKPOINT)
    before = str(run / CHECKPOINT)
    assert [judged(run, before)[1] for _ in range(4)] == ["no", "no", "yes", "no"]


def test_a_new_checkpoint_ends_the_row(tmp_path):
    """The newest is the one of the most steps."""
    run = tmp_path / "run"
    make(run, "checkpoints/best-00001/manifest.json", "checkpoints/step-0000000009-00000-0000009/manifest.json")
    before = job_runs.newest_checkpoint(run)
    assert "step-0000000009" in before
    assert [judged(run, before), judged(run, before)] == 2 * [STALLED]
    make(run, "checkpoints/step-0000000010-00001-0000001/state.safetensors")  # half written
    assert judged(run, before, allowed=4) == STALLED
    make(run, "checkpoints/step-0000000010-00001-0000001/manifest.json")
    assert judged(run, before) == ("checkpointed", "no")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert judged(run, job_runs.newest_checkpoint(run)) == STALLED


def test_a_count_that_a_full_disk_emptied_begins_again(tmp_path):
    (tmp_path / "run.stalled").touch()
    assert judged(tmp_path / "run", "", allowed=2) == STALLED


WORDS = [
    "$(touch ran)",
    "`touch ran`",
    "a b",
    "*",
    "; touch ran",
    "'",
    '"',
    "$HOME",
    "a\nb\n",
    "",
    "é",
    os.fsdecode(b"\xff"),
]


def test_words_reach_the_shell_as_they_are(tmp_path):
    """Also those that are no text in the encoding of the system."""
    shown = 'eval "$("$@")"; printf "%s\\0" "${ARGUMENTS[@]}"'
    command = [sys.executable, "-m", "hpcgnn.job_runs", "start", "0", str(tmp_path / "a folder"), *WORDS]
    printed = subprocess.run(["bash", "-euc", shown, "bash", *command], capture_output=True, timeout=60, check=True)
    assert [os.fsdecode(word) for word in printed.stdout.split(b"\0")[2:-1]] == WORDS
    assert not Path("ran").exists()


def test_library_calls_what_there_is():
    """All commands, and it declares the variables of their answers."""
    library = (REPOSITORY / "jobs" / "lib.sh").read_text()
    assert set(re.findall(r"\bdecide (\w+) ", library)) == set(job_runs.COMMANDS)
    answers = [job_runs.recipe_run("jobs", "1", "", "none", "gat"), job_runs.next_start("0", "runs/none")]
    variables = {name for answer in answers for name in answer} | {"OUTCOME", "GIVES_UP"}
    assert all(re.search(rf"^{name}=", library, re.MULTILINE) for name in variables)


def test_answers_come_at_once():
    """Nothing is loaded that takes long or would start MPI."""
    slow = {"torch", "mpi4py", "numpy", "yaml", "jsonargparse"}
    code = f"import sys, hpcgnn.job_runs; print(sorted({slow} & {{*sys.modules}}))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert printed.stdout == "[]\n"
