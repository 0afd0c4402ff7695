"""Set the version of a release in a checkout: `python .ci/version.py VERSION [--date YYYY-MM-DD] [--root FOLDER]`.

It is put wherever a file names it, and `## Unreleased` in CHANGELOG.md becomes `## VERSION - DATE`, below a new
`## Unreleased`. A file that does not name a version where it is looked for is refused, and then nothing is written.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

RECIPE = "jobs/spack/spack_repo/hpcgnn/packages/py_hpcgnn/package.py"
# (file, pattern): all lines that name the version. The text between the two groups is replaced.
VERSIONS = (
    ("pyproject.toml", r'^(version = ")[^"]*(")$'),
    ("hpcgnn/__init__.py", r'^(__version__ = ")[^"]*(")$'),
    ("CITATION.cff", r"^(version: ).*()$"),
    ("jobs/container/hpcgnn.def", r"^( *VERSION=).*()$"),
    (RECIPE, r'^( *version\(")[^"]*("\))$'),
    (RECIPE, r"^(spack dev-build .*py-hpcgnn@)\S+()$"),
    ("docs/install.md", r"^( *spack dev-build .*py-hpcgnn@)\S+()$"),
)
DATES = (("CITATION.cff", r"^(date-released: ).*()$"),)
CHANGELOG, UNRELEASED = "CHANGELOG.md", "## Unreleased"


def check_version(text: str) -> str:
    """Refuse what is not MAJOR.MINOR.PATCH. Raises ValueError."""
    if not re.fullmatch(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}", text):
        raise ValueError(f"version {text!r} is not MAJOR.MINOR.PATCH, such as 1.2.0")
    return text


def check_date(text: str) -> str:
    """Refuse what is not a day of the calendar, as YYYY-MM-DD. Raises ValueError."""
    try:
        day = datetime.datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise ValueError(f"date {text!r} is not a day as YYYY-MM-DD, such as 2026-11-28")
    return text


def released(changelog: str, version: str, date: str) -> str:
    """The changelog after the release. Raises ValueError where nothing is unreleased, or the version is in it."""
    if re.search(rf"^## {re.escape(version)}( |$)", changelog, re.MULTILINE):
        raise ValueError(f"{CHANGELOG} has a section of version {version} already: choose a higher version")
    heading = re.compile(rf"^{UNRELEASED}$", re.MULTILINE)
    if len(heading.findall(changelog)) != 1:
        raise ValueError(f"{CHANGELOG} does not have one section '{UNRELEASED}': add one with what has changed")
    return heading.sub(f"{UNRELEASED}\n\n## {version} - {date}", changelog)


def changed(root: Path, version: str, date: str) -> dict[str, str]:
    """Content of all changed files after the release, by name. Raises ValueError, OSError."""
    check_version(version)
    check_date(date)
    texts: dict[str, str] = {}
    for new, places in ((version, VERSIONS), (date, DATES)):
        for name, pattern in places:
            text = texts.get(name) or (root / name).read_text(encoding="utf-8")
            texts[name], count = re.subn(pattern, rf"\g<1>{new}\g<2>", text, flags=re.MULTILINE)
            if count != 1:
                raise ValueError(f"{name} has {count} lines like {pattern}, not one: correct it, or .ci/version.py")
    texts[CHANGELOG] = released((root / CHANGELOG).read_text(encoding="utf-8"), version, date)
    return texts


def main(arguments: list[str] | None = None) -> int:
    """Write the changed files. Exit code 2 for what is refused."""
    parser = argparse.ArgumentParser(description="Set the version of a release.")
    parser.add_argument("version")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.timezone.utc).date().isoformat())
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    given = parser.parse_args(arguments)
    try:
        texts = changed(given.root, given.version, given.date)
    except (ValueError, OSError) as error:
        print(f"version: {error}", file=sys.stderr)
        return 2
    for name, text in texts.items():
        (given.root / name).write_text(text, encoding="utf-8")
    print(f"version {given.version} of {given.date} in {', '.join(texts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
