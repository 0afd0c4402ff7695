"""Questions of tests, as files that predict reads."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def asked(read: Callable[[str], Any], **columns) -> Any:
    """Collective. What ``read`` makes of a file with these columns, which each rank writes for itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "questions.csv"
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        return read(str(path))
