"""CONTRIBUTING.md's guide is followed step by step in a copy of the tree: its code goes where it says, and the tests
that it names pass there.

A step names a file, and where in it each block of code goes: "above `NAME`:", "in `NAME`:" (a table, a list of cases),
"at the end:", "with the imports:", or "`FILE` holds:", a new one. What is not code, such as rows of the docs, is left
out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import clean_environment
from places import REPOSITORY

serial, launcher = pytest.mark.serial, pytest.mark.launcher  # a build takes minutes: with the jobs, alone

GUIDE = (REPOSITORY / "CONTRIBUTING.md").read_text()
BLOCK = re.compile(r"((?:(?!```).)*?)^ *```\w+\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PLACE = re.compile(
    r"(?:`(?P<file>[\w./]+\.\w+)`)?(?:,| and)?\s*"
    r"(?P<how>above|in|at the end|with the imports|holds)\s*(?:`(?P<name>\w+)`)?:\s*$"
)
COMMAND = re.compile(r"^ {4,}(python -m pytest .*|bash tests/setup\.sh)$", re.MULTILINE)
BUILDS = "bash tests/setup.sh"
COPIED = ("hpcgnn", "data_tools", "native", "tests", "jobs", "docs", "pyproject.toml", "CMakeLists.txt", "README.md",
          "CONTRIBUTING.md", "LICENSE")  # fmt: skip
# Python finds the copy before the package that is installed from this tree.
FIND_COPY = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
"""


@dataclass(frozen=True)
class Edit:
    """Code, and where it goes."""

    file: str
    how: str
    name: str | None
    code: str


def sections() -> dict[str, str]:
    """The parts of the guide that add something, by their titles."""
    titles = re.split(r"^#{2,3} (.*)$", GUIDE, flags=re.MULTILINE)
    found = dict(zip(titles[1::2], titles[2::2], strict=True))
    return {title: text for title, text in found.items() if "```" in text and title != "A recipe"}


def edits(text: str) -> list[Edit]:
    """The code of a section; a file stays the same until another is named."""
    found, file = [], None
    for before, code in BLOCK.findall(text):
        place = PLACE.search(before.rstrip())
        assert place, f"no place for this code: ...{before[-100:]}"
        file = place["file"] or file
        assert file, before
        found.append(Edit(file, place["how"], place["name"], textwrap.dedent(code)))
    return found


def apply(edit: Edit, root: Path) -> None:
    """Put the code where it belongs."""
    path = root / edit.file
    if edit.how == "holds":
        assert not path.exists()
        path.write_text(edit.code)
        return
    lines = path.read_text().splitlines(keepends=True)
    if edit.how == "at the end":
        path.write_text("".join([*lines, "\n\n", edit.code]))
        return
    if edit.how == "with the imports":
        last = max(at for at, line in enumerate(lines) if line.startswith("from "))
        path.write_text("".join([*lines[: last + 1], edit.code, *lines[last + 1 :]]))
        return
    begins = [at for at, line in enumerate(lines) if re.match(rf"(class |def )?{edit.name}\b", line)]
    assert begins, f"{edit.file} has no {edit.name}"
    at, code = begins[0], f"{edit.code}\n\n"
    if edit.how == "in":
        at = next(after for after in range(at + 1, len(lines)) if re.match(r"[})\]]", lines[after]))
        code = textwrap.indent(edit.code, "    ")
    path.write_text("".join([*lines[:at], code, *lines[at:]]))


@pytest.fixture
def tree(tmp_path):
    """A copy of what the guide changes, which Python finds in place of this tree."""
    root = tmp_path / "tree"
    root.mkdir()
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, root / name)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text(FIND_COPY)
    return root


def run(command: str, root: Path) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(root.parent / "first"), str(root)])
    environment = clean_environment() | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, *shlex.split(command)[1:]]
    return subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, timeout=1000)


def build(root: Path) -> None:
    """As tests/setup.sh does, for this processor alone, into the folder that comes first."""
    options = [f"--config-settings=cmake.define.{name}" for name in ("HPCGNN_CUDA=OFF", "HPCGNN_NATIVE_ARCH=ON")]
    target = ["--no-deps", "--no-build-isolation", "--target", str(root.parent / "first")]
    words = [sys.executable, "-m", "pip", "install", "--quiet", *target, *options, "."]
    ended = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=1000)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-5000:]
    for package in ("hpcgnn", "data_tools"):
        shutil.rmtree(root.parent / "first" / package)


@pytest.mark.parametrize(
    "title",
    [pytest.param(title, marks=launcher if BUILDS in text else serial) for title, text in sections().items()],
)
def test_the_guide_leads_to_a_part_that_works(tree, title):
    text = sections()[title]
    changes = edits(text)
    for change in changes:
        apply(change, tree)
    touched = {change.file for change in changes if not change.file.startswith("tests/")}
    assert len(touched) <= (8 if BUILDS in text else 3), touched
    if BUILDS in text:
        build(tree)
    found = run("python -c 'import hpcgnn; print(hpcgnn.__file__)'", tree)
    assert found.stdout.startswith(str(tree)), "not the copy is tested"
    for command in filter(lambda command: command != BUILDS, COMMAND.findall(text)):
        ended = run(f"{command} -p no:cacheprovider", tree)
        assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]


@serial
def test_the_guide_has_all_parts():
    assert len(sections()) >= 9
