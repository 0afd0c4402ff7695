"""Where things lie in the repository."""

from __future__ import annotations

from pathlib import Path

HELPERS = Path(__file__).resolve().parent
TESTS = HELPERS.parent
REPOSITORY = TESTS.parent
SHARED = REPOSITORY.parent / "shared" / "data"  # graphs of others, which need not be there
