"""CONTRIBUTING.md's guide is followed step by step in a copy of the tree: its code goes where it says, and the tests
that it names pass there.

A step names a file, and where in it each block of code goes: "above `NAME`:", "in `NAME`:" (a table, a list of cases),
"at the end:", "with the imports:", or "`FILE` holds:", a new one. What is not code, such as rows of the docs, is left
out.
"""

from __future__ import annotations

import json
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
# Commands one after the other in one process, as each would load torch: whose package they test, and of each the exit
# code and the tests that passed.
SESSIONS = """
import json, sys
import hpcgnn, pytest

class Passed:
    def __init__(self):
        self.names = []

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.names.append(report.nodeid)

def run(words):
    passed = Passed()
    return int(pytest.main([*words, "-p", "no:cacheprovider"], plugins=[passed])), passed.names

print(json.dumps([hpcgnn.__file__, [run(words) for words in json.loads(sys.argv[1])]]))
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


def follow(text: str, root: Path) -> None:
    """Make the changes of a section, which touch few files beside the tests."""
    changes = edits(text)
    for change in changes:
        apply(change, root)
    touched = {change.file for change in changes if not change.file.startswith("tests/")}
    assert len(touched) <= (8 if BUILDS in text else 3), touched


def check(texts: list[str], root: Path) -> None:
    """Run the commands of sections in the copy of the tree; each finds tests by every word of its -k, and they pass."""
    path = os.pathsep.join([str(root.parent / "first"), str(root)])
    environment = clean_environment() | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    commands = [command for text in texts for command in COMMAND.findall(text) if command != BUILDS]
    words = [shlex.split(command)[3:] for command in commands]  # without python -m pytest
    program = [sys.executable, "-c", SESSIONS, json.dumps(words)]
    ended = subprocess.run(program, cwd=root, env=environment, capture_output=True, text=True, timeout=1000)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    tested, results = json.loads(ended.stdout.splitlines()[-1])
    assert tested.startswith(str(root)), "not the copy is tested"
    for command, options, (code, passed) in zip(commands, words, results, strict=True):
        sought = options[options.index("-k") + 1].split(" or ") if "-k" in options else []
        unmet = [word for word in sought if not any(word in name for name in passed)]
        told = f"{command}\n{ended.stdout[-20_000:]}{ended.stderr[-2000:]}"
        assert code == 0, told
        assert unmet == [], told


def build(root: Path) -> None:
    """As tests/setup.sh does, for this processor alone, into the folder that comes first."""
    options = [f"--config-settings=cmake.define.{name}" for name in ("HPCGNN_CUDA=OFF", "HPCGNN_NATIVE_ARCH=ON")]
    target = ["--no-deps", "--no-build-isolation", "--target", str(root.parent / "first")]
    words = [sys.executable, "-m", "pip", "install", "--quiet", *target, *options, "."]
    ended = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=1000)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-5000:]
    for package in ("hpcgnn", "data_tools"):
        shutil.rmtree(root.parent / "first" / package)


@pytest.mark.serial
@pytest.mark.long
def test_the_guide_leads_to_parts_that_work(tree):
    """All parts of Python in one tree."""
    texts = [text for text in sections().values() if BUILDS not in text]
    for text in texts:
        follow(text, tree)
    check(texts, tree)


@pytest.mark.launcher  # a build takes minutes: with the jobs, alone
def test_the_guide_leads_to_a_kernel_that_works(tree):
    (text,) = (text for text in sections().values() if BUILDS in text)
    follow(text, tree)
    build(tree)
    check([text], tree)


@pytest.mark.serial
def test_the_guide_has_all_parts():
    assert len(sections()) >= 9
    assert all(COMMAND.findall(text) for text in sections().values())
