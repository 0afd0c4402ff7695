"""``hpcgnn verify``."""

import sys

from data_tools.team import run_team
from data_tools.verify.command import main

if __name__ == "__main__":
    sys.exit(run_team(lambda team: main(team=team)))
