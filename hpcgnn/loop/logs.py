"""The files in which a run reports: metrics.jsonl (rank 0) and log/rank-<r>.log, which rank 0 also prints."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
from pathlib import Path

from hpcgnn.graph.decode import decode_json

FINISHED = "finished"  # empty file in a run folder, of a run that came to its end
SOURCES = "sources.json"  # in a run folder: the graph that the run is trained on, and its source files
STAMP = "%Y-%m-%d %H:%M:%S"  # begins every line of a log


def without_nan(values: dict) -> dict:
    """Replace NaN, which JSON does not know, by None."""
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in values.items()}


class MetricsFile:
    """A file of JSON objects, one a line; a resumed run continues at the ``position`` that its checkpoint has.

    Lines that a full disk does not take are kept and written with the next line, or by ``position``, which raises
    OSError: there, all ranks can leave together.
    """

    def __init__(self, path: Path, start: int = 0):
        """Open for appending after the first ``start`` bytes; the rest is cut off.

        Raises OSError when that fails, or when the file is shorter: lines would be missing.
        """
        size = path.stat().st_size if path.exists() else 0
        if size < start:
            raise OSError(f"{path}: {size} bytes, but the checkpoint was written after {start}: restore the file")
        self._path, self._pending = path, b""
        self._file = open(path, "ab", buffering=0)
        self._file.truncate(start)
        self._file.seek(start)

    def write(self, kind: str, **values) -> None:
        """Append a line; NaN becomes null."""
        self._pending += (json.dumps({"kind": kind, **without_nan(values)}) + "\n").encode()
        with contextlib.suppress(OSError):
            self._drain()

    def position(self) -> int:
        """Write the pending lines to disk; returns the bytes written so far. Raises OSError."""
        try:
            self._drain()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OSError(f"{self._path}: cannot write: {error.strerror or error}") from error
        return self._file.tell()

    def _drain(self) -> None:
        while self._pending:
            self._pending = self._pending[self._file.write(self._pending) :]


def read_lines(path: Path, damaged: list[str] | None = None) -> list[dict]:
    """Read the objects of a file of JSON lines, each with a ``kind``; a last line that was cut off is left out, a
    missing file is empty. damaged: takes messages about other lines that are no such objects. Raises ValueError for
    such a line where ``damaged`` is None, or where no line is left."""
    if not path.is_file():
        return []
    objects, problems = [], []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            found = decode_json(line) if line else None
            problem = "" if line == b"" or (isinstance(found, dict) and "kind" in found) else "no object of a kind"
        except ValueError as error:
            found, problem = None, str(error)
        if found is not None and not problem:
            objects.append(found)
        elif problem and number < len(lines):
            problems.append(f"{path}, line {number}: {problem}; damaged, or not written by hpcgnn")
    if problems and (damaged is None or not objects):
        raise ValueError(problems[0])
    if damaged is not None:
        damaged += problems
    return objects


class RunLog:
    """Writes time-stamped lines: every rank into its own file, rank 0 also on the terminal. name: of the run, on the
    terminal, where a job has several."""

    def __init__(self, folder: Path, rank: int, name: str = ""):
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / f"rank-{rank}.log", "ab", buffering=0)
        self._rank, self._name = rank, f"[{name}] " if name else ""

    def __call__(self, text: str, everywhere: bool = False) -> None:
        """Log from rank 0, or from every rank into its file."""
        if self._rank and not everywhere:
            return
        stamp = datetime.datetime.now().strftime(STAMP)
        with contextlib.suppress(OSError):  # a log that does not fit on the disk is no reason to stop
            self._file.write(f"{stamp} {text}\n".encode())
        if self._rank == 0:
            with contextlib.suppress(BrokenPipeError):  # nobody reads the terminal any more; the file has all
                print(f"{stamp} {self._name}{text}", flush=True)
