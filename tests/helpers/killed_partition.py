"""Partitions a graph again and again, killed at random moments: `killed_partition.py graph folder method kills`.

Prints a JSON list with, for every kill, the stages that were finished by then. Exits with 1 where the files of a run
that was killed and called again differ from those of an undisturbed one. Children are forked, so imports cost once.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import sys
import time

from data_tools.partition import memory
from data_tools.partition.command import partition
from data_tools.partition.journal import NAME, read_notes
from hpcgnn.graph import files

memory.PARTS_AT_ONCE = 2


def start(graph: str, folder: pathlib.Path, method: str) -> int:
    """Fork a process that partitions; returns its id."""
    child = os.fork()
    if child == 0:
        partition(graph, folder, 6, method, passes=2 if method == "ldg" else None)
        os._exit(0)
    return child


def finish(graph: str, folder: pathlib.Path, method: str) -> dict[str, str]:
    """Run to the end; hashes of all files of the folder."""
    _, status = os.waitpid(start(graph, folder, method), 0)
    assert status == 0, status
    return hashes(folder)


def hashes(folder: pathlib.Path) -> dict[str, str]:
    """Hash of every file of a folder."""
    return {path.name: files.file_hash(path) for path in folder.iterdir()}


def main(graph: str, folder: str, method: str, kills: str) -> int:
    """Kill, call again, compare."""
    began, wanted, finished = time.monotonic(), finish(graph, pathlib.Path(folder) / "whole", method), []
    duration, moments = time.monotonic() - began, random.Random(1)
    for _ in range(int(kills)):
        place = pathlib.Path(folder) / "killed"
        child = start(graph, place, method)
        time.sleep(moments.uniform(0, duration))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        notes = read_notes(place / NAME)
        finished.append([stage for stage, value in notes.items() if value and stage != "inputs_id"])
        complete = files.book_path(place).exists() and not (place / NAME).exists()
        if (hashes(place) if complete else finish(graph, place, method)) != wanted:
            print(f"another set after a kill behind the stages {finished[-1]}")
            return 1
        shutil.rmtree(place)
    print(json.dumps(finished))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
