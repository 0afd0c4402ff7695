"""Finds what an append that was stopped has left in the folder of a partition set; the set is whole without it."""

from __future__ import annotations

import pathlib
import re

from data_tools.graph.book import SetBook

SCRATCH, LOCK = ".append-", ".append.lock"  # how the names of its folders begin, and the file that it locks
PART = re.compile(r"part-(\d+)(\.\d+)?\.h5")


def leftovers(book: SetBook) -> list[pathlib.Path]:
    """List scratch folders, a lock file, and files of the set's parts in other editions than the book's."""
    folder, own = book.path.parent, {book.part_path(part).name for part in range(book.num_parts)}
    names = [PART.fullmatch(path.name) for path in folder.glob("part-*.h5")]
    others = [found[0] for found in names if found and int(found[1]) < book.num_parts and found[0] not in own]
    scratch = [path.name for path in folder.glob(f"{SCRATCH}*")]
    lock = [LOCK] if (folder / LOCK).exists() else []
    return [folder / name for name in sorted([*scratch, *lock, *others])]


def describe_leftovers(book: SetBook) -> str:
    """Describe in one line what an append has left, with the remedy; empty where there is nothing."""
    count = len(leftovers(book))
    if not count:
        return ""
    return (
        f"{book.path.parent}: {count} files or folders of an append that was stopped, or still runs; the set is whole "
        "without them, and the next hpcgnn append removes them"
    )
