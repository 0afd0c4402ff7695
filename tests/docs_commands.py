"""The commands of README.md and docs/ as they stand, what the pages show of their output, and a bash to run them in.

Where a page is about more than a test can wait for, the page itself says what is smaller in tests, in a comment above:
`<!-- in tests: OLD -> NEW; OLD -> NEW -->` changes the commands of the block or paragraph that follows. All others run
unchanged, but for those of NOT_RUN. stranger.py starts where nothing is installed: this file needs Python alone.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAMS = ("python", "hpcgnn", "mpirun", "bash", "sbatch", "pip", "mkdocs", "gpmetis", "apptainer", "spack", "tar")
SETTINGS = ("source", "export")  # change the shell that the commands after them run in
INLINE = (
    r"`((?:python -m (?:hpcgnn|data_tools)|hpcgnn [a-z_]+ |mpirun -np|"
    r"bash (?:jobs|tests)/|sbatch|pip install|mkdocs )[^`]*)`"
)
NEEDS_SLURM = "needs Slurm: README.md's are submitted by .ci/run, others by test_slurm.py"
HINT = re.compile(r"<!-- in tests: (.*?) -->", re.DOTALL)
NOT_RUN = {
    r"(\b|_)(FILE|NAME|FORMAT|FOLDER|RECIPE|SIZE|STAGE)\b|<|data_tools\.X": "a form, with examples beside it",
    r"^(bash tests/|mkdocs )": "checks themselves, which .ci/run, tests/nightly.sh and test_docs_site.py run",
    r"^(HPCGNN_\w+=\S+ )*sbatch ": NEEDS_SLURM,
    r"^pip install": "changes the environment that the tests run in: tests/installed.sh has others",
    r"bench accuracy .*--downloads": "reads what others publish: tests/bench/test_bench_accuracy.py repeats rows",
    r"(data_tools\.|hpcgnn )fetch": "downloads from elsewhere: tests/data_tools/test_fetch.py serves the files itself",
    r"^(apptainer|spack) ": "not installed here: tests compare what they build with pyproject.toml",
    r"^gpmetis": "a program of METIS that PyPI has not",
    r"--peer pygt": "needs PyTorch Geometric Temporal",
    r"--comm\.device cuda|bench gpu": "needs a GPU: tests marked gpu, and test_bench_gpu.py",
    r"--method (parmetis|kaminpar)": "needs a library beside: test_ranks_partition.py and test_partition_methods.py",
    r"^bash jobs/clean_start\.sh mpirun …": "a form: all job scripts start so",
    r"^(sbatch|mpirun -np|hpcgnn jobs)$": "the name of a program",
}


@dataclass(frozen=True)
class Command:
    """A command, word for word as it stands on a page: with comments, and over several lines where it is so. inline:
    within a sentence, not in a block of its own."""

    page: str
    line: int
    section: str
    text: str
    inline: bool = False
    hints: tuple[tuple[str, str], ...] = ()

    @property
    def small(self) -> str:
        """The command as tests run it."""
        text = self.text
        for old, new in self.hints:
            text = text.replace(old, new)
        return text

    @property
    def words(self) -> str:
        """The command on one line, without comments."""
        return re.sub(r"\s+#.*", "", re.sub(r"\s*\\\n\s*", " ", self.small))

    @property
    def reason(self) -> str:
        """Why it is not run, or nothing."""
        return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, self.words)), "")

    def __str__(self):
        return f"{self.page}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Shown:
    """Lines that a page shows as the output of the commands above."""

    section: str
    lines: tuple[str, ...]


def pages() -> list[Path]:
    """README.md and the pages of docs/, with its folders."""
    found = sorted((REPOSITORY / "docs").rglob("*.md"))
    return [REPOSITORY / "README.md", *(page for page in found if "_tools" not in page.parts)]


def name_of(page: Path) -> str:
    """Name a page as the others link to it: with its folder below docs/."""
    folder = REPOSITORY / "docs"
    return page.relative_to(folder).as_posix() if page.is_relative_to(folder) else page.name


def commands(page: Path) -> list[Command]:
    """The commands of a page, in order, those that only set up the shell among them."""
    return [part for part in parts(page) if isinstance(part, Command)]


def parts(page: Path) -> list[Command | Shown]:
    """The commands of a page and the output it shows, in order. Raises ValueError for a hint that changes nothing."""
    found: list[Command | Shown] = []
    section, hints = "", ()
    for line, paragraph in _paragraphs(page.read_text()):
        if paragraph.startswith("#"):
            section = paragraph.splitlines()[0].lstrip("# ")
        here = [replace(part, section=section) for part in _of_paragraph(name_of(page), line, paragraph)]
        made = [part for part in here if isinstance(part, Command)]
        if hints and made:
            here = [_with_hints(part, hints) for part in here]
            unused = [old for old, _ in hints if not any(old in part.text for part in made)]
            if unused:
                raise ValueError(f"{name_of(page)}:{line}: no command here has {unused}")
            hints = ()
        hint = HINT.search(paragraph)
        if hint:
            hints = tuple(_pair(pair) for pair in hint[1].split(";"))
        found += here
    return found


def _pair(text: str) -> tuple[str, str]:
    old, new = " ".join(text.split()).split(" -> ")
    return old, new


def _with_hints(part: Command | Shown, hints) -> Command | Shown:
    if isinstance(part, Shown):
        return part
    return replace(part, hints=tuple((old, new) for old, new in hints if old in part.text))


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Blocks of lines between empty ones, with the number of the first; those of code in fences left out."""
    text = re.sub(r"^```.*?^```", lambda fenced: "\n" * fenced[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    for block in re.finditer(r"(?:^.*\S.*\n?)+", text, re.MULTILINE):
        yield text.count("\n", 0, block.start()) + 1, block[0].rstrip("\n")


def _of_paragraph(page: str, line: int, text: str) -> list[Command | Shown]:
    if not text.startswith("    "):
        spans = re.sub(r"`[^`]+`", lambda span: span[0].replace("\n", " "), text)
        return [Command(page, line, "", found, inline=True) for found in re.findall(INLINE, spans)]
    lines = [part[4:] for part in text.splitlines()]
    if _program(lines[0]) not in PROGRAMS + SETTINGS:
        return [Shown("", tuple(lines))]
    found, start = [], 0
    for number, content in enumerate(lines):
        if not content.endswith("\\"):
            found.append(Command(page, line + start, "", "\n".join(lines[start : number + 1])))
            start = number + 1
    return found


def _program(text: str) -> str:
    """The first word that sets no variable."""
    return next((word for word in text.split() if not re.match(r"\w+=", word)), "")


class Shell:
    """One bash, without input, that runs commands one after the other as they are written."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None, echo: bool = False):
        """``echo``: what commands print is printed here as well, as it comes."""
        self._mark = f"ended-{uuid.uuid4().hex}".encode()
        self._echo = echo
        read, self._to = os.pipe()
        loop = (
            f'while IFS= read -r -d "" -u {read} command; do eval "$command" </dev/null {read}<&-; '
            f'printf "\\n{self._mark.decode()} %d\\n" $?; done'
        )
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-c", loop], cwd=folder, env=environment, pass_fds=(read,),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        os.close(read)

    def run(self, text: str, idle_minutes: float = 15) -> tuple[int, str]:
        """A command's exit code, and what it printed. Raises TimeoutError when nothing comes for so long."""
        os.write(self._to, text.encode() + b"\0")
        printed = b""
        while not (end := re.search(rb"\n" + self._mark + rb" (\d+)\n$", printed[-100:])):
            ready, _, _ = select.select([self._bash.stdout], [], [], 60 * idle_minutes)
            if not ready:
                self.close()
                raise TimeoutError(f"nothing came for {idle_minutes} minutes from: {text}\n{printed.decode()}")
            new = os.read(self._bash.stdout.fileno(), 1 << 16)
            if not new:
                raise RuntimeError(f"bash ended with: {text}\n{printed.decode()}")
            printed += new
            if self._echo:
                print(new.replace(self._mark, b"exit code").decode(errors="replace"), end="", flush=True)
        return int(end[1]), printed[: -len(end[0])].decode(errors="replace")

    def close(self) -> None:
        """Ends bash and what it started."""
        os.close(self._to)
        try:
            os.killpg(self._bash.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        self._bash.stdout.close()
        self._bash.wait()
