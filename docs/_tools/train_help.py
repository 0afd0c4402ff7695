"""Writes hpcgnn/train_help.json, the texts of ``hpcgnn train --help``, from the configuration.

Run ``python docs/_tools/train_help.py`` after a change of a key, of its docstring, or of a row of its table.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from source import REPOSITORY

sys.path.insert(0, str(REPOSITORY))

from hpcgnn.config import help_document
from hpcgnn.kinds import DEFAULT_KIND, KINDS
from hpcgnn.train import make_parser
from hpcgnn.train_help import FILE


def documents() -> dict[str, Any]:
    """Make the texts for every kind of graph, first of all for the default one."""
    kinds = sorted(KINDS, key=lambda kind: kind != DEFAULT_KIND)
    return {kind: help_document(make_parser(kind), kind) for kind in kinds}


if __name__ == "__main__":
    FILE.write_text(json.dumps(documents(), indent=0) + "\n")
