"""Partitions on the ranks that mpirun starts, which kill themselves after a while: `killed_ranks.py seconds arguments`
(0: never); with `seconds,rank` one of them does. Rank 0 prints how long it took otherwise."""

import os
import signal
import sys
import threading
import time

from data_tools.partition import memory
from data_tools.partition.command import main
from data_tools.team import launched_team

memory.PARTS_AT_ONCE = 1

if __name__ == "__main__":
    team, (seconds, _, victim) = launched_team(), sys.argv[1].partition(",")
    seconds = float(seconds)
    if seconds and victim in ("", str(team.rank)):
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    began = time.monotonic()
    code = main(sys.argv[2:], team)
    if team.rank == 0:
        print(time.monotonic() - began)
    sys.exit(code)
