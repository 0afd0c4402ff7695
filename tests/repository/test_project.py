"""License, metadata, citation, workflows and CONTRIBUTING.md agree with the repository and with each other."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from places import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (REPOSITORY / ".github/workflows").glob("*.yml")}
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text()
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
# SHA-256 of https://www.apache.org/licenses/LICENSE-2.0.txt
APACHE = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
# What CONTRIBUTING.md adds as an example.
EXAMPLES = {
    "jobs/recipes/mine.yaml", "native/include/hpcgnn/lengths.h", "native/cpu/lengths.cpp", "native/bind/lengths.cpp",
    "hpcgnn/native/lengths.py", "tests/native/test_lengths.py",
}  # fmt: skip
ROOMS, SUFFIXES = ("hpcgnn", "data_tools", "native", "tests"), {".py", ".h", ".cpp", ".cu"}

pytestmark = pytest.mark.serial


def read(name: str) -> str:
    return (REPOSITORY / name).read_text()


def stages() -> list[str]:
    """Of tests/nightly.sh."""
    return re.search(r"^readonly STAGES=\((.*)\)$", read("tests/nightly.sh"), re.MULTILINE)[1].split()


def runs(workflow: dict) -> list[str]:
    """The commands of all jobs."""
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


# ----------------------------------------------------------------------------------------------- license and metadata


def test_license_is_the_whole_text_and_the_metadata_name_it():
    assert hashlib.sha256((REPOSITORY / "LICENSE").read_bytes()).hexdigest() == APACHE
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    # Beside an expression they are refused by indexes.
    assert [name for name in PROJECT["classifiers"] if name.startswith("License ::")] == []
    assert all(PROJECT[name] for name in ("authors", "keywords", "classifiers"))


def test_citation_agrees_with_the_metadata():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "abstract", "keywords"} <= set(citation)
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert citation["authors"] == PROJECT["authors"]


def test_one_lowest_python_everywhere():
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert f"find_package(Python {lowest} REQUIRED" in read("CMakeLists.txt")
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + lowest.replace(".", "")
    for page in ("README.md", "CONTRIBUTING.md"):
        assert set(re.findall(r"Python (\d\.\d+) or later", read(page))) == {lowest}, page


def test_changelog_begins_with_what_is_not_released():
    headings = re.findall(r"^## (.+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])
    kinds = re.findall(r"^### (.+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def anchors(name: str) -> set[str]:
    """Name the sections of a page as links do."""
    titles = re.findall(r"^#+ (.*)$", read(name), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    prose = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#([^)]*))?\)", prose) if "://" not in link[0]]
    missing = [link for link in links if not (REPOSITORY / link[0]).exists()]
    missing += [link for link in links if link[1] and link[1] not in anchors(link[0])]
    assert missing == []


# ----------------------------------------------------------------------------------------------------------- workflows


def test_nightly_runs_every_stage():
    """That of GitHub all stages of the script, which tells of each in its head and on the page."""
    (job,) = WORKFLOWS["nightly.yml"]["jobs"].values()
    assert job["strategy"]["matrix"]["stage"] == stages()
    head = read("tests/nightly.sh").partition("\nset ")[0]
    assert re.findall(r"^#   (\w+)  ", head, re.MULTILINE) == stages()
    page = read("docs/hygiene.md").partition("|---|")[2]
    assert re.findall(r"^\| (\w+) \|", page, re.MULTILINE) == stages()
    functions = re.findall(r"^(\w+)\(\) \{", read("tests/nightly.sh"), re.MULTILINE)
    assert set(stages()) <= set(functions)


def test_stages_of_installed_packages_exist():
    named = re.findall(r"bash tests/installed\.sh (\w+)", read("tests/nightly.sh"))
    assert named
    assert set(named) <= set(re.findall(r"^(\w+)\(\) \{", read("tests/installed.sh"), re.MULTILINE))


@pytest.mark.parametrize("name", ["ci.yml", "nightly.yml"])
def test_workflow_starts_scripts_that_exist(name):
    words = [word for text in runs(WORKFLOWS[name]) for word in shlex.split(text)]
    scripts = [word for word in words if word.startswith((".ci/", "tests/"))]
    assert scripts
    assert [script for script in scripts if not (REPOSITORY / script).is_file()] == []


@pytest.mark.parametrize("name", ["ci.yml", "nightly.yml"])
def test_workflow_is_bounded_and_pinned(name):
    """A limit of time, no rights but to read, actions of a major version."""
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 360
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        assert used
        assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", action) for action in used)


# -------------------------------------------------------------------------------------------------------- contributing


def quoted() -> set[str]:
    """Words in backquotes, but those of examples."""
    return set(re.findall(r"`([\w./:-]+)`", CONTRIBUTING)) - EXAMPLES


def test_paths_of_contributing_exist():
    commands = re.findall(r"^ {4,}(?!\s)(.*)", CONTRIBUTING, re.MULTILINE)
    words = {word for command in commands for word in command.split() if word.startswith(("tests/", "jobs/"))}
    paths = {word for word in quoted() | words if "/" in word} - EXAMPLES
    assert len(paths) > 40
    assert sorted(path for path in paths if not (REPOSITORY / path.lstrip(">")).exists()) == []


def test_names_of_contributing_are_in_the_sources():
    """What it calls by name is there under that name."""
    sources = [path for room in ROOMS for path in (REPOSITORY / room).rglob("*") if path.suffix in SUFFIXES]
    text = "\n".join(path.read_text() for path in sources if path != Path(__file__))
    text += read("CMakeLists.txt") + read("pyproject.toml")
    known = set(re.findall(r"\w+", text))
    names = {word for word in quoted() if re.fullmatch(r"\w+((\.|::)\w+)?", word) and not (REPOSITORY / word).exists()}
    assert len(names) > 25
    assert sorted(name for name in names if not set(re.findall(r"\w+", name)) <= known) == []


def steps() -> list[tuple[tuple[str, ...], set[str]]]:
    """(files, names) of the numbered steps that begin with a file: what a step calls by name is in one of its files."""
    found = []
    for step in re.findall(r"^(?:\d\.|-) (`[\w/]+\.\w+`.*(?:\n {3}.*|\n(?= {3}))*)", CONTRIBUTING, re.MULTILINE):
        text = re.sub(r"```.*?```", "", step, flags=re.DOTALL)
        words = set(re.findall(r"`([\w./:]+)`", text)) - EXAMPLES
        files = tuple(sorted(word for word in words if (REPOSITORY / word).is_file()))
        found.append((files, {word for word in words if re.fullmatch(r"\w+((\.|::)\w+)?", word)}))
    return found


def test_names_of_contributing_are_in_the_files_that_they_are_said_to_be_in():
    assert len(steps()) > 10
    lacking = []
    for files, names in steps():
        known = set(re.findall(r"\w+", "\n".join(read(file) for file in files)))
        lacking += [(files, name) for name in sorted(names) if not set(re.findall(r"\w+", name)) <= known]
    assert lacking == []
