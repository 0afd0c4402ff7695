"""What .ci/release sets and refuses. Builds and uploads are not made here; .ci/version.py works on a copy."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from places import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

SCRIPT, PROGRAM = REPOSITORY / ".ci" / "release", REPOSITORY / ".ci" / "version.py"
RECIPE = "jobs/spack/spack_repo/hpcgnn/packages/py_hpcgnn/package.py"
FILES = (
    "pyproject.toml", "hpcgnn/__init__.py", "CITATION.cff", "jobs/container/hpcgnn.def", RECIPE, "docs/install.md",
    "CHANGELOG.md",
)  # fmt: skip
OTHERS = (".ci/release", ".ci/version.py", "tests/installed.sh")  # what the script reads
VERSION, DATE = "97.61.4", "2031-05-06"
# Where a version of the package may stand; tests and measurements name those they were made with.
ROOMS = (".ci", ".github", "data_tools", "docs", "examples", "hpcgnn", "jobs", "native")
SUFFIXES = ("", ".cff", ".def", ".md", ".py", ".sh", ".slurm", ".toml", ".txt", ".yaml", ".yml")

pytestmark = pytest.mark.serial


@pytest.fixture
def checkout(tmp_path):
    """A copy of the files that a release reads and changes."""
    for name in FILES + OTHERS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def set_version(folder, version=VERSION, date=DATE):
    command = [sys.executable, PROGRAM, version, "--date", date, "--root", folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def contents(folder) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in FILES if (folder / name).exists()}


def mentions(version: str, folder) -> list[str]:
    """Lines of the folder's files, but the changelog, that name a version of the package."""
    paths = [path for room in ROOMS for path in (folder / room).rglob("*")]
    paths += [path for path in folder.glob("*") if path.name != "CHANGELOG.md"]
    whole = re.compile(rf"(?<![\w.]){re.escape(version)}(?![\w.])")
    found = []
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.suffix in SUFFIXES and not name.startswith("docs/measurements/"):
            lines = re.findall(r".*version.*|.*hpcgnn.*", path.read_text(errors="ignore"), re.IGNORECASE)
            found += [f"{name}: {line}" for line in lines if whole.search(line)]
    return sorted(found)


def test_release_changes_every_place(checkout):
    assert set_version(checkout).returncode == 0
    new = contents(checkout)
    assert tomllib.loads(new["pyproject.toml"])["project"]["version"] == VERSION
    assert re.search(r'^__version__ = "(.*)"$', new["hpcgnn/__init__.py"], re.MULTILINE)[1] == VERSION
    citation = yaml.safe_load(new["CITATION.cff"])
    assert (citation["version"], str(citation["date-released"])) == (VERSION, DATE)
    assert f"\n    VERSION={VERSION}\n" in new["jobs/container/hpcgnn.def"]
    assert f'\n    version("{VERSION}")\n' in new[RECIPE]
    assert f"py-hpcgnn@{VERSION}\n" in new[RECIPE]
    assert f"py-hpcgnn@{VERSION}\n" in new["docs/install.md"]


def test_no_other_file_names_the_version(checkout):
    """A new place is in .ci/version.py too: all lines that name the version today are among those that it changes."""
    old = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    before = mentions(old, REPOSITORY)
    assert len(before) >= len(FILES)
    assert set_version(checkout).returncode == 0
    assert mentions(VERSION, checkout) == sorted(line.replace(old, VERSION) for line in before)


def test_rest_of_the_files_stays(checkout):
    """But for the lines of versions and dates; the changelog gets lines, and loses none."""
    before = contents(checkout)
    assert set_version(checkout).returncode == 0
    for name, text in contents(checkout).items():
        old, new = before[name].splitlines(), text.splitlines()
        if name == "CHANGELOG.md":
            at = old.index("## Unreleased")
            assert new == [*old[: at + 1], "", f"## {VERSION} - {DATE}", *old[at + 1 :]]
        else:
            assert len(old) == len(new)
            assert all(one == other or VERSION in other or DATE in other for one, other in zip(old, new, strict=True))


def test_next_release_follows(checkout):
    assert set_version(checkout).returncode == 0
    assert set_version(checkout, "97.61.5", "2031-06-01").returncode == 0
    headings = re.findall(r"^## (.+)$", (checkout / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:3] == ["Unreleased", "97.61.5 - 2031-06-01", f"{VERSION} - {DATE}"]
    refused = set_version(checkout)
    assert refused.returncode == 2
    assert "section of version 97.61.4 already" in refused.stderr


@pytest.mark.parametrize("version", ["1.2", "1.2.3.4", "v1.2.3", "1.2.3rc1", "1.02.3", "1.2.3\n", "1.2.\u0663", ""])
def test_versions_that_are_refused(checkout, version):
    before = contents(checkout)
    refused = set_version(checkout, version)
    assert (refused.returncode, contents(checkout)) == (2, before)
    assert "is not MAJOR.MINOR.PATCH" in refused.stderr


@pytest.mark.parametrize("date", ["2031-02-30", "2031-5-6", "today", ""])
def test_dates_that_are_refused(checkout, date):
    before = contents(checkout)
    refused = set_version(checkout, date=date)
    assert (refused.returncode, contents(checkout)) == (2, before)
    assert "is not a day as YYYY-MM-DD" in refused.stderr


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("CHANGELOG.md", "## Unreleased", "## Later", "does not have one section '## Unreleased'"),
        ("CHANGELOG.md", "## Unreleased", "## Unreleased\n\n## Unreleased", "does not have one section"),
        ("CITATION.cff", "date-released:", "released:", "CITATION.cff has 0 lines like"),
        (RECIPE, "    version(", '    version("0.0.1")\n    version(', "has 2 lines like"),
    ],
)
def test_files_that_are_refused(checkout, name, old, new, said):
    """Nothing is written, also of files before them."""
    (checkout / name).write_text((checkout / name).read_text().replace(old, new, 1))
    before = contents(checkout)
    refused = set_version(checkout)
    assert (refused.returncode, contents(checkout)) == (2, before)
    assert said in refused.stderr


@pytest.fixture
def repository(checkout):
    """The copy, committed."""
    settings = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "--quiet"], ["add", "--all"], [*settings, "commit", "--quiet", "-m", "all"]):
        subprocess.run(["git", *words], cwd=checkout, check=True, timeout=60)
    return checkout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say which version"),
        (["1.2.3", "1.2.4"], "two versions"),
        (["1.2.3", "--upload"], "unknown option --upload"),
        (["1.2.3", "--date"], "--date needs a day"),
        (["1.2"], "is not MAJOR.MINOR.PATCH"),
        (["1.2.3", "--date", "2031-02-30"], "is not a day"),
    ],
)
def test_words_that_the_script_refuses(repository, words, said):
    refuses(repository, words, said)


def test_the_script_refuses_a_dirty_tree_and_a_tag_that_is_there(repository):
    subprocess.run(["git", "tag", "v1.2.3"], cwd=repository, check=True, timeout=60)
    refuses(repository, ["1.2.3"], "there is a tag v1.2.3")
    (repository / "notes.txt").touch()
    refuses(repository, ["1.2.4"], "the tree has changes")
    (repository / "notes.txt").unlink()
    (repository / "CITATION.cff").write_text("")
    refuses(repository, ["1.2.4"], "the tree has changes")


def refuses(repository, words, said):
    """Before anything is built, and leaving the tree as it was."""
    before = contents(repository)
    run = subprocess.run(
        ["bash", repository / ".ci" / "release", *words], cwd=repository, capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert said in run.stderr
    assert contents(repository) == before
    assert not (repository / "dist").exists()


def test_shellcheck_has_nothing_to_say():
    program = shutil.which("shellcheck")
    if program:
        run = subprocess.run([program, "-x", SCRIPT], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stdout


def test_the_programs_name_the_same_files():
    """The list of files above is that of .ci/version.py."""
    spec = importlib.util.spec_from_file_location("version", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert {name for name, _ in program.VERSIONS} | {program.CHANGELOG} == set(FILES)
