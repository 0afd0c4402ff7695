"""How a command starts and ends: checks, one message for expected errors, Abort for unexpected ones."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from hpcgnn.comm.together import together
from hpcgnn.comm.world import CommConfig, DistributedError, World

Result = TypeVar("Result")

# How long the planning thread may keep the interpreter while the main thread waits for it to start its next kernel.
SWITCH_SECONDS = 1e-3
LEAVE_SECONDS = 60
EXIT_DONE, EXIT_FAILURE, EXIT_USER, EXIT_REQUEUE = 0, 1, 2, 75


class Answered(Exception):
    """Raised on all ranks: the command line asked for text only (--help), and rank 0 has printed it."""


def run(main: Callable[[World, list[str]], int], argv: list[str] | None = None) -> int:
    """Run a command's main function on all ranks; returns its exit code.

    DistributedError leaves together with one message (exit code 2 for the user's input, else 1); anything else on any
    rank, SystemExit of any code included (the others would wait for that rank), is printed with rank, host and stage
    and aborts the job.
    """
    argv = sys.argv[1:] if argv is None else argv
    sys.setswitchinterval(SWITCH_SECONDS)
    world: Any = None
    try:
        World.check_singleton()
        world = World(CommConfig(device="cpu"))  # a GPU is bound once the configuration is known
        return main(world, argv)
    except Answered:
        return EXIT_DONE
    except DistributedError as error:
        if world.rank == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_USER if error.user_error else EXIT_FAILURE
    except ValueError as error:
        if world is None:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return EXIT_USER
        return _abort(world, EXIT_FAILURE, error)
    except BaseException as error:
        return _abort(world, EXIT_FAILURE, error)


def leave(code: int) -> NoReturn:
    """End this process with an exit code. Launchers take one that asks for a requeue for a failure: `srun
    --kill-on-bad-exit` and mpirun send SIGTERM to ranks that are slower to leave, which would change the job's code.
    MPI's end waits for all ranks; for one that hangs, or a launcher that has died, not for ever.
    """
    signal.alarm(LEAVE_SECONDS)
    if code == EXIT_REQUEUE:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)


def _abort(world: World | None, code: int, error: BaseException) -> int:
    place = f"rank {world.rank} of {world.size} on {world.host}" if world else "start-up"
    if stage := getattr(error, "stage", ""):
        place += f", {stage}"
    print(f"hpcgnn: {place}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    if world is not None and world.size > 1:
        world.abort(code)
    return code


def on_first_rank(world: World, stage: str, function: Callable[[], Result]) -> Result:
    """Collective. What ``function`` returns on rank 0, on every rank; its ValueError or OSError leaves together.

    Raises Answered on every rank when it ends with SystemExit(0), as parsers do after --help.
    """
    result, answered = None, False
    with together(world, stage):
        if world.rank == 0:
            try:
                result = function()
            except SystemExit as error:
                if error.code:
                    raise ValueError("wrong arguments (see --help)") from error
                answered = True
    result, answered = world.broadcast((result, answered))
    if answered:
        raise Answered
    return result
