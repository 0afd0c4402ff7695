"""``hpcgnn snapshots``."""

import sys

from data_tools.cli import run_alone
from data_tools.snapshots.command import main

if __name__ == "__main__":
    sys.exit(run_alone(main))
