"""``hpcgnn partition``."""

import sys

from data_tools.partition.command import main
from data_tools.team import run_team

if __name__ == "__main__":
    sys.exit(run_team(lambda team: main(team=team)))
