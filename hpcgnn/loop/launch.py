"""Starts and ends a command: checks at the start, one message for expected errors, Abort for others, requests to
leave."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TextIO, TypeVar

from hpcgnn.comm.together import together
from hpcgnn.comm.world import CommConfig, DistributedError, World

Result = TypeVar("Result")

# How long the planning thread may keep the interpreter while the main thread waits for it to start its next kernel.
SWITCH_SECONDS = 1e-3
LEAVE_SECONDS = 60
EXIT_DONE, EXIT_FAILURE, EXIT_USER, EXIT_REQUEUE = 0, 1, 2, 75
EXIT_INTERRUPTED, EXIT_UNREAD = 128 + signal.SIGINT, 128 + signal.SIGPIPE  # as a shell has it


class Answered(Exception):
    """Raised on all ranks: the command line asked for text only (--help), and rank 0 has printed it."""


def run(main: Callable[[World, list[str]], int], argv: list[str] | None = None) -> int:
    """Run a command's main function on all ranks; returns its exit code. Standard output that nobody reads any more, as
    behind `| head`, is no error.

    After DistributedError all ranks leave with one message (exit code 2 for the user's input, else 1). Any other error
    on any rank, SystemExit included (the others would wait for that rank), is printed with rank, host and stage, and
    aborts the job.
    """
    argv = sys.argv[1:] if argv is None else argv
    sys.setswitchinterval(SWITCH_SECONDS)
    world: Any = None
    try:
        # A GPU is bound, and ranks are compared, once the configuration is known.
        world = World(CommConfig(device="cpu"), compares=False)
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
        return abort(world, EXIT_FAILURE, error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        if world is not None and world.size > 1:
            world.abort(EXIT_INTERRUPTED)
        return EXIT_INTERRUPTED
    except BaseException as error:
        if isinstance(error, BrokenPipeError) and not _is_read(sys.stdout) and (world is None or world.size == 1):
            return EXIT_UNREAD
        return abort(world, EXIT_FAILURE, error)
    finally:
        _drop_unread(sys.stdout)


def _is_read(stream: TextIO) -> bool:
    """Return False for a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    return not any(events & select.POLLERR for _, events in poll.poll(0))


def _drop_unread(stream: TextIO) -> None:
    """Flush a stream; if nobody reads it any more, discard its contents, so that Python's own flush at exit does not
    fail."""
    try:
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def leave(code: int) -> NoReturn:
    """End this process with an exit code, at the latest after LEAVE_SECONDS: MPI's end waits for all ranks, one of
    which may hang. Launchers take the code EXIT_REQUEUE for a failure: `srun --kill-on-bad-exit` and mpirun then send
    SIGTERM to ranks that are slower to leave. That signal must not change the job's code."""
    signal.alarm(LEAVE_SECONDS)
    if code == EXIT_REQUEUE:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)


def abort(world: World | None, code: int, error: BaseException) -> int:
    """Print an error that nothing expects, which is being handled, and end all ranks; returns the code if there is no
    other rank. One that a watchdog has explained is one line, others have their traceback."""
    place = f"rank {world.rank} of {world.size} on {world.host}" if world else "start-up"
    if stage := getattr(error, "stage", ""):
        place += f", {stage}"
    remedy = f"{error.remedy}\n" if hasattr(error, "remedy") else ""
    text = f"hpcgnn: {place}:\n{traceback.format_exc()}{remedy}"
    if explained := getattr(error, "explained", ""):
        text = f"error: {explained} [{getattr(error, 'stage', '')}]\n"
    print(text, end="", file=sys.stderr, flush=True)
    if world is not None and world.size > 1:
        world.abort(code)
    return code


def on_first_rank(world: World, stage: str, function: Callable[[], Result]) -> Result:
    """Collective. Call ``function`` on rank 0 and return its result on every rank. Its ValueError or OSError becomes a
    DistributedError on all ranks; SystemExit(0), with which parsers end after --help, becomes Answered.
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
            except BrokenPipeError:  # the reader of our output (head, less) has left; flushing at exit would complain
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                answered = True
    result, answered = world.broadcast((result, answered))
    if answered:
        raise Answered
    return result


WATCHED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
END_TIMES = ("HPCGNN_JOB_END", "SLURM_JOB_END_TIME")  # in seconds since 1970; the first one counts
SHARE = 0.1  # of the time that is left at the start, which a run does not give up however early it should leave


class StopRequest:
    """Remembers that USR1, TERM or INT (Ctrl-C) arrived, for the run loop to ask; a second INT is not waited for. A
    context manager that restores the old handlers. Outside of the main thread, signals stay as they are."""

    def __init__(self):
        self._signalled, self._deadline = False, float("inf")
        self._old: dict = {}
        self._pipe: tuple[int, int] | None = None  # signals are written into it as they arrive

    @property
    def requested(self) -> bool:
        """Whether the run should leave."""
        return self._signalled or time.time() >= self._deadline

    def is_leaving(self) -> bool:
        """Say, to any thread, whether the run should leave, or a signal has arrived that the main thread, within a
        kernel or an exchange, has not looked at."""
        return self.requested or (self._pipe is not None and bool(select.select(self._pipe[:1], [], [], 0)[0]))

    def leave_before_end(self, seconds: float) -> str:
        """Request to leave ``seconds`` (0: never) before the end of the job's time, if the environment has it. If a
        tenth of the time left is less than ``seconds``, leave with that tenth left. An end in the past is ignored: it
        belongs to another job, or to a limit that was raised since. Returns the decision in words."""
        name = next((name for name in END_TIMES if os.environ.get(name)), None)
        if name is None or seconds <= 0:
            return ""
        try:
            end = float(os.environ[name])
        except ValueError as error:
            raise ValueError(f"{name}={os.environ[name]}: expected seconds since 1970") from error
        left = end - time.time()
        if not left > 0:
            return f"{name}={os.environ[name]} is over: ignored; the run does not know when the job's time ends"
        early = min(seconds, SHARE * left)
        self._deadline = end - early
        return f"{left / 60:.0f} minutes left; the run leaves {early:.0f} s before the end with a checkpoint"

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python lets no other thread handle signals
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._old_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in WATCHED:
            if signal.getsignal(number) != signal.SIG_IGN:  # as of a command that a shell started in the background
                self._old[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_) -> None:
        if self._pipe is None:
            return
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        for end in self._pipe:
            os.close(end)
        self._pipe = None

    def _remember(self, number: int, _) -> None:
        if number == signal.SIGINT:
            signal.signal(number, self._old[number])
        self._signalled = True
