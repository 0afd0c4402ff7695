"""The command hpcgnn, recipes by name, and the job scripts that it writes where no clone is."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
from conftest import REPOSITORY, clean_environment
from docs_sources import SOURCES

import data_tools
import hpcgnn
from hpcgnn import __main__ as cli
from hpcgnn import config as configuration
from hpcgnn import evaluate, predict, recipes, train
from hpcgnn import jobs as job_scripts
from hpcgnn.bench import epoch
from hpcgnn.comm.world import CommConfig, World

SCRIPT = Path(sys.executable).parent / "hpcgnn"
SMALL = ["--train.epochs=1", "--data.synthetic_events=600", "--comm.threads=1"]


def start(*command, **options) -> subprocess.CompletedProcess:
    """Run a command to its end, outside any job that this test may be part of."""
    options = {"env": clean_environment(), "capture_output": True, "text": True, "timeout": 900, **options}
    return subprocess.run([*map(str, command)], **options)


@pytest.mark.serial
@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_commands_are_listed(arguments):
    ended = start(sys.executable, "-m", "hpcgnn", *arguments)
    assert ended.returncode == 0, ended.stderr
    assert re.findall(r"^  (\w+) +\w", ended.stdout, re.MULTILINE) == list(cli.COMMANDS)
    assert ended.stderr == ""


@pytest.mark.serial
@pytest.mark.parametrize("command", [evaluate, predict])
def test_help_of_a_run_is_short_and_all_of_it_is_there(command, capsys):
    parser = command.make_parser()
    with pytest.raises(SystemExit):
        parser.parse_args(["--help_all"])
    short, everything = parser.format_help(), capsys.readouterr().out
    assert "--comm.device" in short
    assert "--comm.overlap" not in short
    keys = [f"--comm.{field.name} " for field in fields(CommConfig)]
    assert [key for key in keys if key not in everything] == []
    assert "Path to a configuration file" not in everything
    hidden = set(re.findall(r"^  (--\S+)", everything, re.M)) - set(re.findall(r"^  (--\S+)", short, re.M))
    assert f"\n{len(hidden)} further options: {parser.prog} --help_all\n" in short


@pytest.mark.serial
@pytest.mark.parametrize("words", ["--help", "--version", "trian", "train --help", "train --kind static --help_all"])
def test_answers_without_work_load_nothing_heavy(words):
    code = (
        "import sys; from hpcgnn.__main__ import main; main(); print({'torch', 'numpy', 'mpi4py'} & set(sys.modules))"
    )
    ended = start(sys.executable, "-c", code, *words.split())
    assert ended.stdout.splitlines()[-1] == "set()", ended


@pytest.mark.serial
@pytest.mark.parametrize("words", ["train --help_all", "bench --help", "partition --help"])
def test_a_reader_that_leaves_is_no_error(words):
    """As `head` does, which has what it wants."""
    with subprocess.Popen(
        [sys.executable, "-m", "hpcgnn", *words.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=clean_environment() | {"PYTHONUNBUFFERED": "1"},
    ) as started:  # fmt: skip
        started.stdout.close()
        assert started.stderr.read() == b""
        started.wait()


@pytest.mark.serial
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cuda", "--cpu"], "exclude each other"), (["--nope"], "unknown argument --nope"),
        (["--cuda"], "--cuda needs nvcc to compile the CUDA kernels"),
    ],
)  # fmt: skip
def test_set_up_refuses_before_it_installs(words, message):
    """In place of a build for another device than the one that was named."""
    variables = clean_environment() | {"CUDACXX": "/nowhere/nvcc"}
    ended = start("bash", REPOSITORY / "jobs" / "setup.sh", *words, env=variables)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "installing" not in ended.stderr


COMPLETED = {
    "hpcgnn tra": "train", "hpcgnn train --train.early": "--train.early_stopping_patience",
    "hpcgnn train --model.readout mi": "mixer", "hpcgnn train --model.kind evolve": "evolvegcn_h evolvegcn_o",
    "hpcgnn partition --met": "--method", "hpcgnn bench sna": "snapshots",
    "hpcgnn evaluate --baseline": "--baseline.kind",
}  # fmt: skip


@pytest.mark.serial
def test_completion(tmp_path):
    """Of commands, options, keys of all kinds and their choices, by bash itself."""
    with (tmp_path / "hpcgnn.sh").open("w") as file:
        command = [sys.executable, "-m", "hpcgnn", "completion", "bash"]
        subprocess.run(command, stdout=file, check=True, timeout=100)
    for typed, found in COMPLETED.items():
        script = f"source {tmp_path}/hpcgnn.sh; COMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        script += 'COMPREPLY=(); _shtab_hpcgnn; echo "${COMPREPLY[*]}"'
        shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=30).stdout
        assert sorted(shown.split()) == sorted(found.split()), typed


@pytest.mark.serial
def test_version():
    ended = start(sys.executable, "-m", "hpcgnn", "--version")
    assert (ended.returncode, ended.stdout) == (0, f"hpcgnn {hpcgnn.__version__}\n")


@pytest.mark.serial
def test_tools_of_the_data_are_named():
    """The list of them is that of the modules with a main program."""
    folder = Path(data_tools.__file__).parent
    programs = {path.parent.name for path in folder.glob("*/__main__.py")}
    programs |= {path.stem for path in folder.glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert programs == set(cli.TOOLS)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("word", "hint"),
    [("trian", "did you mean train?"), ("Reports", "did you mean report?"), ("xyzzy", "there are fetch, synthesize,"),
     ("--config", "there are fetch, synthesize,")],
)  # fmt: skip
def test_unknown_command(word, hint):
    ended = start(sys.executable, "-m", "hpcgnn", word)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"error: no command '{word}'; {hint}")
    assert ended.stderr.count("\n") == 1


@pytest.mark.serial
def test_installation_offers_the_command():
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="hpcgnn")
    assert entry.load() is cli.main
    assert SCRIPT.exists()


# One process for all commands, as each would load torch: the help of each by its name and by its module.
HELPS = """
import contextlib, io, json, runpy, signal, sys, warnings
import data_tools
from hpcgnn import __main__ as cli

modules = {name: f"{'data_tools' if name in cli.TOOLS else 'hpcgnn'}.{name}" for name in cli.COMMANDS}
loaded = sorted({*modules.values()} & {*sys.modules})  # Python warns when it is to run a module that is loaded
warnings.simplefilter("ignore")

def answer(run, *words):
    sys.argv = list(words)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = run()
        except SystemExit as ended:
            code = ended.code
    signal.alarm(0)  # which leave() sets
    return [code or 0, out.getvalue(), err.getvalue()]

def run_module(module):
    return lambda: runpy.run_module(module, run_name="__main__", alter_sys=True)

helps = {
    name: [answer(cli.main, "hpcgnn", name, "--help"), answer(run_module(module), module, "--help")]
    for name, module in modules.items()
}
print(json.dumps([loaded, helps]))
"""


@pytest.mark.serial
def test_every_command_is_its_module():
    """Options, too, are those of the module."""
    ended = start(sys.executable, "-c", HELPS)
    assert ended.returncode == 0, ended.stderr
    loaded, helps = json.loads(ended.stdout)
    assert loaded == []
    assert list(helps) == list(cli.COMMANDS)
    for name, (by_name, by_module) in helps.items():
        assert by_name == by_module, name
        code, printed, errors = by_name
        assert (code, errors) == (0, ""), name
        assert f"usage: hpcgnn {name}" in printed


def job_end(seconds: float) -> dict[str, str]:
    return {"HPCGNN_JOB_END": str(int(time.time() + seconds))}


MODULE = ["-m", "hpcgnn.train"]
PROGRAMS = pytest.mark.parametrize(
    "program",
    [MODULE, *(pytest.param(name, marks=pytest.mark.nightly) for name in (["-m", "hpcgnn"], [SCRIPT]))],
    ids=["module", "-m", "script"],
)


@pytest.fixture
def train_on_two(mpirun, tmp_path):
    """A callable that trains by a program on two ranks."""

    def run(program, *arguments, **options) -> subprocess.CompletedProcess:
        words = program if program == MODULE else [*program, "train"]
        return mpirun(2, *words, *SMALL, *arguments, cwd=tmp_path, check=False, **options)

    return run


@pytest.mark.launcher
@PROGRAMS
def test_exit_codes_of_errors_under_mpirun(train_on_two, program):
    """Of wrong input and of a failure: the module's own, with one message."""
    ended = train_on_two(program, "--train.epoch=1")
    assert ended.returncode == 2
    assert ended.stderr.count("error:") == 1
    assert "train.epoch" in ended.stderr
    ended = train_on_two(program, "--output.dir=/proc/nowhere")
    assert ended.returncode == 1
    assert ended.stderr.count("error:") == 1


@pytest.mark.launcher
@pytest.mark.nightly  # of the module, test_bare_start.py and test_sites.py have both in every suite
@PROGRAMS
def test_exit_codes_of_runs_under_mpirun(train_on_two, tmp_path, program):
    """Of a finished run, and of one that asks to be started again."""
    ended = train_on_two(program)
    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.glob("runs/tgn-*/finished"))) == 1
    further = ["--train.epochs=20000", "--train.early_stopping_patience=0", "--output.dir=left"]
    ended = train_on_two(program, *further, env=job_end(20))
    assert ended.returncode == 75, ended.stderr
    assert list(tmp_path.glob("left/checkpoints/step-*/manifest.json"))


@pytest.mark.launcher
def test_answers_under_mpirun_are_given_once(mpirun):
    for arguments, text in (([], "usage: hpcgnn"), (["--version"], "hpcgnn 0."), (["info", "--help"], "usage: ")):
        ended = mpirun(2, "-m", "hpcgnn", *arguments)
        assert ended.stdout.count(text) == 1, ended
    ended = mpirun(3, "-m", "hpcgnn", "trian", check=False)
    assert ended.returncode == 2
    assert ended.stderr.count("error: no command 'trian'; did you mean train?") == 1
    assert "Traceback" not in ended.stderr


@pytest.mark.launcher
def test_models_of_the_current_folder_are_found(tmp_path):
    """As by `python -m`, although Python starts a script with the script's folder on its path."""
    SOURCES["own_model.BilinearTGN"](tmp_path / "own_model.BilinearTGN")
    command = [SCRIPT, "train", *SMALL, "--model.class_path=own_model.BilinearTGN", "--output.dir=run"]
    ended = start(sys.executable, *command, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "run" / "finished").exists()


# Recipes


def parsed(argv: list[str]) -> dict:
    """The configuration of a command line of train."""
    return train._parse([*argv, "--output.dir=unused"])[0].to_dict()


@pytest.mark.serial
@pytest.mark.parametrize("name", recipes.recipe_names())
def test_recipe_is_its_file(name):
    assert parsed(["--recipe", name]) == parsed([f"--config={recipes.recipe_file(name)}"])


@pytest.mark.serial
def test_other_options_override_a_recipe_wherever_they_stand(tmp_path):
    (tmp_path / "own.yaml").write_text("train: {epochs: 3, seed: 9}\n")
    config = [f"--config={tmp_path}/own.yaml"]
    for argv in (["--train.epochs=7", "--recipe=tgn", *config], ["--recipe", "tgn", *config, "--train.epochs", "7"]):
        found = parsed(argv)["train"]
        assert found["batch_size"] == 600, "of the recipe"
        assert found["seed"] == 9, "of the file"
        assert found["epochs"] == (3 if argv[-1] == config[0] else 7)
    assert parsed(["--train.epochs=7", "--recipe=tgn"])["train"]["epochs"] == 7


@pytest.mark.serial
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--recipe", "tng"], "no recipe 'tng'; recipes are apan, bipartite,"),
        (["--recipe"], "no recipe ''; recipes are apan"),
        (["--recipe=../jobs/train_tgn"], "no recipe"),
        (["--recipe=tgn", "--recipe", "gat"], "give one --recipe, not tgn and gat"),
        (["--config", "jobs/train_tgn.yaml", "--recipe", "tgn"], "give --recipe first"),
    ],
)
def test_recipes_that_are_refused(argv, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        train._parse(argv)


@pytest.mark.serial
def test_recipe_is_no_key_of_a_file(tmp_path):
    """Where it would be read without effect."""
    (tmp_path / "own.yaml").write_text("recipe: jodie\n")
    with pytest.raises(ValueError, match="give --recipe"):
        train._parse([f"--config={tmp_path}/own.yaml"])


@pytest.mark.serial
def test_help_lists_the_recipes(capsys):
    with pytest.raises(SystemExit):
        train._parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"override: {', '.join(recipes.recipe_names())}" in text


@pytest.mark.serial
def test_resumed_run_takes_a_recipe_as_it_takes_a_file(tmp_path):
    config, _ = configuration.parse(configuration.parser("test", ""), ["--recipe=tgn", f"--output.dir={tmp_path}"])
    configuration.save(config, {}, tmp_path / "config.yaml")
    for given in (["--recipe=tgn"], [f"--config={REPOSITORY}/jobs/train_tgn.yaml"]):
        assert train._parse(["--resume", str(tmp_path), *given]) == (config, tmp_path, True)
    for given in (["--recipe=jodie"], [f"--config={REPOSITORY}/jobs/recipes/jodie.yaml"]):
        with pytest.raises(ValueError, match="these keys cannot change when a run is resumed"):
            train._parse(["--resume", str(tmp_path), *given])


@pytest.mark.serial
def test_bench_takes_recipes():
    config, _ = epoch._parse(["--recipe", "jodie"], World.alone())
    assert config.to_dict() | {"output": None} == parsed(["--recipe", "jodie"]) | {"output": None}


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Path:
    """Folder of the recipes of an installed package."""
    monkeypatch.setattr(recipes, "PACKAGE", tmp_path / "site-packages" / "hpcgnn")
    folder = recipes.PACKAGE / "data-files" / "jobs"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.serial
def test_installed_package_has_recipes_of_its_own(installed):
    (installed / "recipes").mkdir()
    (installed / "recipes" / "mine.yaml").write_text("train: {epochs: 3}\n")
    assert recipes.recipe_names() == ["mine"]
    assert parsed(["--recipe=mine"])["train"]["epochs"] == 3
    with pytest.raises(ValueError, match=r"recipes are mine$"):
        train._parse(["--recipe=tgn"])


@pytest.mark.serial
def test_installation_without_recipes_says_so(installed):
    with pytest.raises(ValueError, match=f"recipes are missing from {installed}"):
        train._parse(["--recipe=tgn"])
    with pytest.raises(ValueError, match=f"{installed} holds no job scripts"):
        job_scripts.write_jobs(installed / "new")
    assert parsed([])["kind"] == "temporal"


# Job scripts


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.serial
def test_all_that_jobs_need_is_written(tmp_path, capsys):
    folder = tmp_path / "some" / "where"
    assert job_scripts.main([str(folder)]) == 0
    told = capsys.readouterr().out
    assert f"cd {tmp_path}/some; sbatch where/train_tgn.slurm" in told
    assert f"results go into {tmp_path}/some/runs" in told
    source = REPOSITORY / "jobs"
    wanted = [path for pattern in ("train*", "recipes/*", "accuracy/*", "sites/*") for path in source.glob(pattern)]
    wanted += [source / "lib.sh", source / "clean_start.sh"]
    found = contents(folder)
    assert found.pop("environment.sh") == job_scripts.environment()
    assert found == {str(path.relative_to(source)): path.read_text() for path in wanted}


@pytest.mark.serial
def test_changed_files_are_not_written_over(tmp_path, capsys):
    """Nor is anything else written then; what is as it was, and files of one's own, are no obstacle."""
    assert job_scripts.main([str(tmp_path)]) == 0
    (tmp_path / "sites" / "mine.sh").write_text("activate_venv\n")
    assert job_scripts.main([str(tmp_path)]) == 0
    (tmp_path / "train_tgn.slurm").write_text("#SBATCH --account=mine\n")
    (tmp_path / "lib.sh").unlink()
    before = contents(tmp_path)
    capsys.readouterr()
    assert job_scripts.main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: these files were changed: {tmp_path}/train_tgn.slurm; pass --overwrite")
    assert error.count("\n") == 1
    assert contents(tmp_path) == before
    assert job_scripts.main([str(tmp_path), "--overwrite"]) == 0
    assert contents(tmp_path)["train_tgn.slurm"] == (REPOSITORY / "jobs" / "train_tgn.slurm").read_text()
    assert (tmp_path / "sites" / "mine.sh").exists()


@pytest.mark.serial
def test_places_that_are_refused(tmp_path, capsys):
    (tmp_path / "file").touch()
    for place, message in ((REPOSITORY / "jobs", "use them there"), (tmp_path / "file", "File exists")):
        assert job_scripts.main([str(place), "--overwrite"]) == 2
        assert message in capsys.readouterr().err
    assert not (REPOSITORY / "jobs" / "environment.sh").exists()


STUB = """#!/usr/bin/env bash
echo "cwd $PWD"
echo "python $(command -v "$1")"
echo "path ${PYTHONPATH:-}"
printf '<%s>' "$@"
while [[ $1 != --output.dir ]]; do shift; done
mkdir -p "$2" && touch "$2/finished"
"""
ODD = "my jobs é"


@pytest.fixture
def written(tmp_path) -> Path:
    """A folder of job scripts, with a profile whose launcher says what it is asked to start."""
    folder = tmp_path / "elsewhere" / ODD
    job_scripts.write_jobs(folder)
    (tmp_path / "stub").write_text(STUB)
    (tmp_path / "stub").chmod(0o755)
    (folder / "sites" / "stub.sh").write_text(f"activate_venv\nLAUNCH=('{tmp_path}/stub')\n")
    return folder


def stubbed(script: Path, cwd: Path, *arguments: str, **variables: str) -> str:
    """What the job script of recipes prints whose launcher is the stub, for jodie."""
    batch = ("SLURM_", "PBS_", "FLUX_", "HPCGNN_", "PYTHONPATH")
    kept = {name: value for name, value in clean_environment().items() if not name.startswith(batch)}
    environment = kept | {"HPCGNN_SITE": "stub", "HPCGNN_RUN": "mine"} | variables
    ended = start("bash", script, "jodie", *arguments, cwd=cwd, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def lines(folder: Path, python: Path, arguments: str) -> str:
    return (
        f"cwd {folder.parent}\npython {python}\npath \n"
        f"<python><-m><hpcgnn.train><--output.dir><runs/jodie-mine><--config><{folder.name}/recipes/jodie.yaml>{arguments}"
    )


PYTHON = Path(sys.executable).parent / "python"


def same_python(path: Path):
    """Make a program that is this Python, with its packages, which a link to it in another folder would not find."""
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)


@pytest.mark.serial
@pytest.mark.parametrize("place", ["beside", "above", "elsewhere"])
def test_script_runs_from_anywhere(tmp_path, written, place):
    """In the folder above its own, with the environment that it was written in."""
    cwd, script = {
        "beside": (written, Path("train.slurm")),
        "above": (written.parent, Path(ODD, "train.slurm")),
        "elsewhere": (tmp_path, written / "train.slurm"),
    }[place]
    told = stubbed(script, cwd, "--train.epochs", "a b")
    assert lines(written, PYTHON, "<--train.epochs><a b>") in told
    assert (written.parent / "runs" / "jodie-mine" / "finished").exists()


@pytest.mark.serial
def test_copy_of_a_script_finds_its_folder(tmp_path, written):
    """Slurm runs a copy and knows what was submitted; of others a variable tells, or the folder's name."""
    spool, other = tmp_path / "spool", tmp_path / "other"
    for folder in (spool, other):
        folder.mkdir()
    job_scripts.write_jobs(other / "jobs")
    copy = shutil.copy(written / "train.slurm", spool / "slurm_script")
    assert f"cwd {written.parent}\n" in stubbed(copy, other, HPCGNN_JOBS=str(written))
    plain = written.rename(written.parent / "d")  # Slurm ends the path at a blank
    of_each = f"echo '   Command={plain}/train.slurm'\n"  # of an array, or of several components
    (spool / "scontrol").write_text(f"#!/bin/sh\n{2 * of_each}")
    (spool / "scontrol").chmod(0o755)
    found = stubbed(copy, other, PATH=f"{spool}:{os.environ['PATH']}", SLURM_SUBMIT_DIR=str(other))
    assert f"cwd {plain.parent}\n" in found
    shutil.copy(plain / "sites" / "stub.sh", other / "jobs" / "sites")
    assert f"cwd {other}\n" in stubbed(copy, spool, PBS_O_WORKDIR=str(other))


@pytest.mark.serial
def test_environment_of_the_jobs(written, tmp_path):
    """The one that was written down, changed at will; without it .venv, or what is at hand."""
    script = written / "train.slurm"
    other = tmp_path / "other python"
    other.mkdir()
    same_python(other / "python3")
    (written / "environment.sh").write_text(f"PYTHON='{other}/python3'\nexport PYTHONPATH=/somewhere\n")
    told = stubbed(script, tmp_path)
    assert f"path /somewhere\n<{other}/python3><-m><hpcgnn.train>" in told
    (written / "environment.sh").unlink()
    same_python(other / "python")
    found = f"{other}:{os.environ['PATH']}"
    assert f"python {other}/python\n" in stubbed(script, tmp_path, PATH=found)
    beside = written.parent / ".venv" / "bin"
    beside.mkdir(parents=True)
    same_python(beside / "python")
    (beside / "activate").write_text(f'PATH="{beside}:$PATH"\n')
    assert f"python {beside}/python\n" in stubbed(script, tmp_path, PATH=found)


@pytest.mark.serial
@pytest.mark.parametrize("virtual", [True, False])
def test_environment_leads_to_this_python(tmp_path, monkeypatch, virtual):
    """Also where it belongs to no virtual environment, has no program `python`, and finds packages by PYTHONPATH."""
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "own:/else where:")
    if virtual:
        (folder / "activate").write_text("export ACTIVATED=yes\n")
        (folder / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(folder / "python3"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path) if virtual else sys.base_prefix)
    (tmp_path / "environment.sh").write_text(job_scripts.environment())
    shown = 'PYTHON=python; source environment.sh; printf "%s\\n" "$PYTHON" "$PYTHONPATH" "${ACTIVATED:-$PATH}"'
    told = start("bash", "-euc", shown).stdout.splitlines()
    assert told[:2] == ["python" if virtual else f"{folder}/python3", f"{tmp_path}/own:/else where"]
    assert told[2] == "yes" if virtual else told[2].startswith(f"{folder}:")


@pytest.mark.serial
def test_environment_has_no_complaints_of_shellcheck(tmp_path):
    if not shutil.which("shellcheck"):
        pytest.skip("needs shellcheck")
    job_scripts.write_jobs(tmp_path)
    ended = start("shellcheck", tmp_path / "environment.sh")
    assert ended.returncode == 0, ended.stdout


@pytest.mark.launcher
@pytest.mark.nightly  # test_stories.py::test_jobs_without_a_batch_system has a job of such scripts in every suite
@pytest.mark.parametrize("ending", [0, 75])
def test_job_trains_where_no_clone_is(mpirun, tmp_path, ending):
    """The trainer itself on two ranks, by nothing but what was written; interrupted, it goes on, to be interrupted
    again."""
    ended = start(sys.executable, SCRIPT, "jobs", "d", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    batch = ("SLURM_", "PBS_", "FLUX_", "HPCGNN_", "PYTHONPATH")
    environment = {name: value for name, value in clean_environment().items() if not name.startswith(batch)}
    environment["PATH"] += f":{Path(mpirun.path).parent}"
    environment |= mpirun.environment | {"HPCGNN_RUN": "mine"}
    command = ["bash", "d/train_tgn.slurm", *SMALL]
    run, epochs = tmp_path / "runs" / "tgn-mine", 0
    if ending:  # more epochs than there are seconds for
        command += ["--data.synthetic_events=4000", "--train.epochs=10000", "--train.early_stopping_patience=0"]
        left = start(*command, cwd=tmp_path, env=environment | job_end(40))
        assert left.returncode == ending, left.stdout + left.stderr
        epochs = (run / "metrics.jsonl").read_text().count('"kind": "epoch"')
    ended = start(*command, cwd=tmp_path, env=environment | (job_end(40) if ending else {}))
    assert ended.returncode == ending, ended.stdout + ended.stderr
    assert ("--resume" in ended.stdout) == bool(ending)
    assert (run / "metrics.jsonl").read_text().count('"kind": "epoch"') > epochs
    assert (run / "finished").exists() == (not ending)
    assert re.search(r"^# ranks: 2$", (run / "config.yaml").read_text(), re.MULTILINE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "runs"]
