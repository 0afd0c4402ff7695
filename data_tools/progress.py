"""Shows that a command works: seconds, and what it has read and written."""

from __future__ import annotations

import contextlib
import io
import pathlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from hpcgnn.comm.launch import ERASE, is_on_terminal, launched_rank

QUIET_SECONDS = 3.0  # before the first line
LINE_SECONDS = {True: 1.0, False: 60.0}  # between lines, on a terminal or in a log


class ProgressLine:
    """Shows progress while its block runs: on a terminal one line over and over, in a log a line a minute. Of several
    ranks the first one shows it."""

    def __init__(self, stream: TextIO | None = None):
        self._stream, self._began, self._done = stream or sys.stderr, time.monotonic(), threading.Event()
        self._on_terminal, self._is_drawn = is_on_terminal(self._stream), False
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # a line is neither drawn nor erased within another writer's text
        self._output = contextlib.ExitStack()
        if launched_rank() == 0:
            self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __enter__(self) -> ProgressLine:
        if self._thread is not None:
            self._thread.start()
            if self._on_terminal:
                self._output.enter_context(contextlib.redirect_stdout(Below(self, sys.stdout)))
        return self

    def __exit__(self, *_) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join()
            self._output.close()
            with self.erased():
                pass

    @contextlib.contextmanager
    def erased(self) -> Iterator[None]:
        """Take the line away to make room for others, and draw none within the block."""
        with self._lock:
            if self._is_drawn:
                self._is_drawn = False
                self._stream.write(ERASE)
                self._stream.flush()
            yield

    def _show(self) -> None:
        wait = QUIET_SECONDS if self._on_terminal else LINE_SECONDS[False]
        while not self._done.wait(wait):
            wait = LINE_SECONDS[self._on_terminal]
            text = f"{time.monotonic() - self._began:.0f} s{moved()}"
            with self._lock:
                self._is_drawn = self._on_terminal
                self._stream.write(f"{ERASE}{text}" if self._on_terminal else f"{text}\n")
                self._stream.flush()


class Below(io.TextIOBase):
    """Writes to ``out`` after erasing the line of progress."""

    def __init__(self, progress: ProgressLine, out: TextIO):
        self._progress, self._out = progress, out

    def write(self, text: str) -> int:
        """Write a text."""
        with self._progress.erased():
            return self._out.write(text)

    def flush(self) -> None:
        """Flush ``out``."""
        self._out.flush()


def moved() -> str:
    """Say how much this process has read and written; nothing where the system does not count it."""
    try:
        counts = dict(line.split(": ") for line in pathlib.Path("/proc/self/io").read_text().splitlines())
    except OSError:
        return ""
    return f", {int(counts['rchar']) >> 20:,} MiB read, {int(counts['wchar']) >> 20:,} MiB written"
