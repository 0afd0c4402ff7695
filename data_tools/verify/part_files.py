"""Check that the part files of a set are there, belong to it, and have the hashes that its book stores."""

from __future__ import annotations

import pathlib

from data_tools.graph.book import SetBook
from data_tools.graph.findings import Findings, each
from data_tools.graph.leftovers import leftovers
from data_tools.team import Team
from hpcgnn.graph import files


def check_files(team: Team, book: SetBook, findings: Findings) -> None:
    """Collective. Check that every part file is there, belongs to the set, and is the very bytes that the book
    describes."""
    each(team, findings, range(book.num_parts), lambda part, problems: check_file(book, part, problems))
    each(team, findings, [book], check_strangers)


def check_file(book: SetBook, part: int, findings: Findings) -> None:
    """Check that one part file is there, and its bytes and header."""
    path = book.part_path(part)
    if not path.is_file():
        findings.add(path, "", "no such file; copy it again or partition again")
        findings.unusable.add(part)
        return
    with findings.reading(path, part):
        if check_bytes(book, path, part, findings):
            check_header(book, path, part, findings)
        else:
            findings.unusable.add(part)


def check_strangers(book: SetBook, findings: Findings) -> None:
    """Note part files that do not belong to the set, except for those that a stopped append has left."""
    right = {book.part_path(part) for part in range(book.num_parts)} | set(leftovers(book))
    for path in sorted(book.path.parent.glob("part-*")):
        if path not in right:
            findings.add(path, "", f"does not belong to this set of {book.num_parts} parts; remove it")


def check_bytes(book: SetBook, path: pathlib.Path, part: int, findings: Findings) -> bool:
    """Check size and hash of one part file; False: it must not be opened, since HDF5 can hang on a damaged header."""
    size = path.stat().st_size
    if size != book.sizes[part]:
        findings.add(path, "", f"{size} bytes, expected {book.sizes[part]} (book.h5: /parts/bytes, row {part})")
        return False
    digest = files.file_hash(path)
    if digest != book.hashes[part]:
        expected = f"expected {book.hashes[part]} (book.h5: /parts/hash, row {part})"
        remedy = "damaged or from another set, its content is not checked; copy it again or partition again"
        findings.add(path, "", f"sha256 {digest}, {expected}: {remedy}")
        return False
    return True


def check_header(book: SetBook, path: pathlib.Path, part: int, findings: Findings) -> None:
    """Check format, version, part number and set of one part file."""
    with files.open_checked(path, files.PART) as file:
        expected = {"part": part, "num_parts": book.num_parts, "set_id": book.set_id}
        for name, value in expected.items():
            if file.attrs.get(name) != value:
                actual = file.attrs.get(name)
                findings.add(path, "", f"attribute {name} is {actual!r}, expected {value!r}; is it from another set?")
                findings.unusable.add(part)
