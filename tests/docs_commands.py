"""The commands of README.md and docs/: collected, made small, and run one after the other as a page has them.

Commands run in a folder of their page, `mpirun` as a job that is running already (waiting_jobs.py), the others in this
process. Files that a page takes as given are stand-ins (docs_stand_ins.py). What cannot be run is in NOT_RUN.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conftest import REPOSITORY
from docs_stand_ins import FACTS, LEARNT_SHOP, SNAPSHOTS, STATIC, TEMPORAL, TYPED, StandIns
from run_commands import run_caught

from hpcgnn.__main__ import COMMANDS

PROGRAMS = ("python", "hpcgnn", "mpirun", "bash", "sbatch", "pip", "mkdocs", "gpmetis", "apptainer", "spack", "tar")
INLINE = rf"`((?:python -m|hpcgnn (?:{'|'.join(COMMANDS)})\b|mpirun -np|bash (?:jobs|tests)/|sbatch|pip install|mkdocs)[^`]*)`"
NOT_RUN = {
    r"^(bash (jobs/quickstart|tests/)|mkdocs )": "checks themselves: .ci/run, tests/run.sh and test_docs_site.py",
    r"^bash (my-)?jobs/(train_|clean_start)": "tests/test_jobs.py runs the job scripts, which start by clean_start.sh",
    r"^(HPCGNN_\w+=\S+ )*sbatch": "needs Slurm: tests/test_slurm.py submits the job scripts",
    r"^hpcgnn jobs": "tests/test_cli.py runs the scripts that it writes",
    r"^pip install": "installs into the environment that the tests run in; tests/setup.sh does it",
    r"data_tools\.fetch": "downloads from elsewhere; tests/test_fetch.py serves the files itself",
    r"^(apptainer|spack) ": "not installed here; tests compare what they build with pyproject.toml",
    r"^tar ": "takes a file out of an archive that somebody else publishes",
    r"^gpmetis": "a program of METIS that is not installed from PyPI",
    r"python (loop|sage)\.py": "tests/test_docs.py runs the programs of docs/library.md",
    r"--peer (pyg|pygt)": "needs PyTorch Geometric",
    r"--comm\.device cuda|bench gpu": "needs a GPU: tests marked gpu, and test_bench_gpu.py",
    r"--method (parmetis|kaminpar)": "needs a library beside: test_ranks_partition.py and test_partition_methods.py",
    r"(\b|_)(FILE|NAME|FORMAT|FOLDER|RECIPE|SIZE)\b|<|data_tools\.X": "a form, with examples beside it",
}
# Numbers of stand-ins: options of commands by module, whatever they are in the text.
SMALL = {
    "train": {"--comm.threads": "1"},
    "bench": {"--comm.threads": "1", "--repeat": "1"},
    "bench sage": {"--comm.threads": "1", "--steps": "2", "--sampling.fanouts": "[3,2]", "--model.layers": "2"},
    "bench sample": {"--batches": "2", "--nodes": "2000", "--edges": "8000", "--batch_size": "50"},
    "bench snapshots": {"--comm.threads": "1", "--epochs": "1"},
    "bench scale": {"--comm.threads": "1", "--max_ranks": "4", "--train.batch_size": "40"},
}
JOBS = {4: 2, 6: 3}  # fewer and smaller jobs; what is said of numbers of ranks has tests of its own
BUILT_IN = {
    TEMPORAL: ("--data.synthetic_events", "600"), SNAPSHOTS: ("--data.synthetic_nodes", "60"),
} | dict.fromkeys((STATIC, TYPED, FACTS, LEARNT_SHOP), ("--data.synthetic_nodes", "120"))  # fmt: skip
# Numbers in the text that ask for much data: (module, option) and what a small graph has.
FEWER = {
    ("train", "--data.val_snapshots"): "2", ("train", "--data.test_snapshots"): "3",
    ("train", "--train.batch_size"): "64", ("train", "--train.eval_every"): "1",
    ("train", "--task.negatives"): "3", ("train", "--inputs.degree_classes"): "4",
    ("synthesize", "--events"): "2000", ("synthesize", "--users"): "50", ("synthesize", "--items"): "20",
    ("synthesize", "--nodes"): "1024", ("synthesize", "--edges"): "8000", ("synthesize", "--snapshots"): "12",
    ("snapshots", "--events"): "50", ("snapshots", "--stride"): "20", ("snapshots", "--windows"): "10",
    ("inspect", "--batch-size"): "50", ("convert", "--memory"): "8GiB",
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A command as a page has it, on one line, without a comment."""

    page: str
    line: int
    text: str

    @property
    def reason(self) -> str:
        """Why it is not run, or nothing."""
        return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, self.text)), "")

    def __str__(self):
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> list[Path]:
    """README.md and the pages of docs/."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def commands(page: Path) -> list[Command]:
    """Commands in indented blocks and between backticks, in order."""
    lines, found, fenced = page.read_text().splitlines(), [], False
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        if fenced or (number and lines[number - 1].endswith("\\")):
            continue
        texts = [_joined(lines, number)] if line.startswith("    ") else re.findall(INLINE, line)
        found += [Command(page.name, number + 1, text) for text in texts if _program(text) in PROGRAMS]
    return found


def _joined(lines: list[str], number: int) -> str:
    """A line and those that it goes on in, without comments."""
    text = lines[number].strip()
    while text.endswith("\\"):
        number += 1
        text = f"{text[:-1].strip()} {lines[number].strip()}"
    return re.sub(r"\s+#.*", "", text)


def _program(text: str) -> str:
    return next((word for word in text.split() if "=" not in word), "")


class Runner:
    """Runs a page's commands in a folder."""

    def __init__(self, folder: Path, page: str, jobs):
        self._folder, self._page, self._jobs = folder, page, jobs
        self._stand_ins = StandIns(folder, page)
        (folder / "jobs").symlink_to(REPOSITORY / "jobs")

    def run(self, command: Command) -> str:
        """What is wrong with how it ended, or nothing."""
        text = re.sub(r" \[([^\]]* [^\]]*)\]", r" \1", command.text).replace(" ...", "")
        ranks, module, words = _parsed(text)
        words = self._small(module, words, text)
        with working_in(self._folder):
            self._stand_ins.prepare(module, words, text)
            ended = self._start(ranks, module, words)
        return "" if ended is None or ended.returncode == 0 else f"{module} {words}: {ended}"

    def _start(self, ranks: int, module: str, words: list[str]):
        name = module.split()[0]
        if ranks:
            self._jobs(ranks, "chdir", self._folder)
            return self._jobs(ranks, *module.split(), *words, check=False)
        if (REPOSITORY / "data_tools" / f"{name}.py").exists() or name == "report":
            main = importlib.import_module(f"{'hpcgnn' if name == 'report' else 'data_tools'}.{_file(name)}").main
            assert main(words) == 0, words
            return None
        return run_caught(*module.split(), *words)

    def _small(self, module: str, words: list[str], text: str) -> list[str]:
        """The words with numbers for small graphs, and results in this folder."""
        name = module.split()[0]
        for (tool, option), value in FEWER.items():
            if tool == name and option in words:
                words = with_option(words, option, value)
        if name not in ("train", "bench") or {"--help", "--print_config"} & set(words):
            return words
        for option, value in SMALL[module].items():
            words = with_option(words, option, value)
        if module != "bench sample" and not {"--data.path", "--resume"} & set(words):
            option, value = BUILT_IN[self._stand_ins.kind(text)]
            words = with_option(words, option, value)
        return _few_epochs(words) if module == "train" else words


def _file(name: str) -> str:
    return f"{name}.__main__" if name == "report" else name


def _parsed(text: str) -> tuple[int, str, list[str]]:
    """Ranks (0: without mpirun), module, such as "train" or "bench sage", and its arguments."""
    words = shlex.split(text)
    ranks = int(words[words.index("-np") + 1]) if "mpirun" in words else 0
    ranks = JOBS.get(ranks, ranks)
    place = 1 + words.index("hpcgnn" if "hpcgnn" in words else "-m")
    name, arguments = words[place].rpartition(".")[2], words[place + 1 :]
    if name == "bench" and arguments and not arguments[0].startswith("-"):
        return ranks, f"bench {arguments[0]}", arguments[1:]
    return ranks, name, arguments


def _few_epochs(words: list[str]) -> list[str]:
    if "--resume" in words:
        return with_option(words, "--train.epochs", "2") if "--train.epochs" in words else words
    epochs = words[words.index("--train.epoch_parallel") + 1] if "--train.epoch_parallel" in words else "1"
    words = with_option(words, "--train.epochs", epochs)
    return words if "--output.dir" in words else [*words, "--output.dir", "unnamed/"]


def with_option(words: list[str], option: str, value: str) -> list[str]:
    """The words with an option set."""
    if option in words:
        place = words.index(option) + 1
        return [*words[:place], value, *words[place + 1 :]]
    return [*words, option, value]


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Paths of commands are relative to a folder."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
