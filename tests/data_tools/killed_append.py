"""Appends to a partition set again and again, killed at random moments: `killed_append.py set new.csv folder kills`.

Prints a JSON list with "old" or "new" for the set that each kill left. Exits with 1 where a kill left neither, or where
the next append ends in another set than an undisturbed one. Children are forked, so imports cost once.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import sys
import time

from data_tools.append import append
from data_tools.graph.book import open_book
from data_tools.verify.command import verify


def start(folder: pathlib.Path, new: str) -> int:
    """Fork a process that appends; returns its id."""
    child = os.fork()
    if child == 0:
        append(folder, {"": new})
        os._exit(0)
    return child


def contents(folder: pathlib.Path) -> list[str]:
    """The hashes of a set's parts, in order, which its book has."""
    return open_book(folder).hashes


def main(old: str, new: str, folder: str, kills: str) -> int:
    """Kill, look, append again, compare."""
    place, moments, left = pathlib.Path(folder) / "killed", random.Random(1), []
    shutil.copytree(old, place)
    before, began = contents(place), time.monotonic()
    assert os.waitpid(start(place, new), 0)[1] == 0
    duration, after, count = time.monotonic() - began, contents(place), len(list(place.iterdir()))
    for number in range(int(kills)):
        shutil.rmtree(place)
        shutil.copytree(old, place)
        child = start(place, new)
        # The last third of the moments is close to the end, where the new set takes the place of the old one.
        late = number > int(kills) * 2 // 3
        time.sleep(moments.uniform(0.85 * duration if late else 0, duration))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = contents(place)
        if found not in (before, after) or verify(place):
            print(f"a damaged set after kill {number}: {verify(place)}")
            return 1
        left.append("old" if found == before else "new")
        if found == before:
            assert os.waitpid(start(place, new), 0)[1] == 0
            if contents(place) != after or len(list(place.iterdir())) != count:
                print(f"another set after kill {number}")
                return 1
    print(json.dumps(left))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
