"""``python -m hpcgnn.job_runs``: what job scripts decide about a run: its folder and arguments, whether it resumes, and
when it is given up.

``jobs/lib.sh`` calls it before and after every start. It prints assignments to variables of the shell. It imports
neither torch nor MPI, so it answers at once, and starts no MPI outside of a launcher.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcgnn.each import choices, run_name, with_each
from hpcgnn.recipes import recipe_file, take_options

EXIT_USAGE = 2
Answer = dict[str, str | list[str]]  # variable of lib.sh -> value; NOTE is printed


def main(argv: list[str] | None = None) -> int:
    """Run one of COMMANDS, and print its answer for the shell. Returns exit code 2 for what the user has to correct."""
    command, *words = sys.argv[1:] if argv is None else argv
    try:
        answer = COMMANDS[command](*words)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ValueError) else 1
    sys.stdout.buffer.write(os.fsencode(shell_assignments(answer)))
    return 0


def shell_assignments(answer: Answer) -> str:
    """Write an answer as lines of bash: ``NAME=word``, or ``NAME=(word ...)`` for a list."""
    lines = []
    for name, value in answer.items():
        words = shlex.quote(value) if isinstance(value, str) else f"({shlex.join(value)})"
        lines.append(f"{name}={words}\n")
    return "".join(lines)


def recipe_run(jobs: str, run_id: str, element: str, requeue: str, name: str = "", *arguments: str) -> Answer:
    """Choose FOLDER and ARGUMENTS of a recipe's run.

    Each element of a job array trains with its index as seed, into a separate folder, unless the elements resume one
    run (requeue ``array``). Raises ValueError for an unknown recipe and for ``--resume``.
    """
    file = recipe_file(name, Path(jobs))
    if take_options(arguments, "--resume")[0]:
        raise ValueError(
            "a job script automatically resumes the run that --output.dir or HPCGNN_RUN names: leave out --resume"
        )
    folders, others = take_options(arguments, "--output.dir")
    folder = str(Path(folders[-1])) if folders and folders[-1] else f"runs/{name}-{run_id}"
    keys = ["--config", str(file)]
    if element and requeue != "array":
        folder += f"-seed-{element}"
        keys += ["--train.seed", element]
    return {"FOLDER": folder, "ARGUMENTS": [*keys, *others]}


def next_start(restarts: str, folder: str, *arguments: str) -> Answer:
    """Choose the ARGUMENTS of the next start: it resumes where there is a checkpoint, a lock beside a run's
    configuration, or the file of a sweep. NEWEST is the checkpoint that ``judge`` compares with.

    Values (``--config``, ``--recipe``, ``--each``) hold since the run began and are left out when it resumes. So are
    all arguments in a job that is started again: the run has them, and may be on a machine where one of them is of no
    use. Raises ValueError for a folder that holds other runs than those that the arguments start.
    """
    run, arguments = Path(folder), tuple(with_each(arguments))
    note = check_runs(run, restarts != "0", arguments)
    newest = newest_checkpoint(run)
    (run / "finished").unlink(missing_ok=True)
    # The program finds out whether the job of a lock still runs, and refuses then.
    locked = (run / "lock.json").exists()
    if newest or (run / "sweep.yaml").exists() or (locked and (run / "config.yaml").exists()):
        _, others = take_options(arguments, "--config", "--recipe", "--each")
        words = ["--resume", folder, *(others if restarts == "0" else [])]
        return {"NEWEST": newest, "ARGUMENTS": words, "NOTE": note}
    note = "" if locked else put_aside(run)
    return {"NEWEST": "", "ARGUMENTS": ["--output.dir", folder, *arguments], "NOTE": note}


def check_runs(run: Path, is_restart: bool, arguments: Sequence[str]) -> str:
    """Return a note about the runs of a sweep that a folder holds; empty where the arguments start the same runs.
    Raises ValueError for other runs."""
    has_each = bool(take_options(arguments, "--each")[0])
    remedy = "choose another folder (--output.dir, HPCGNN_RUN)"
    if (run / "sweep.yaml").exists():
        from hpcgnn.loop.sweep_file import read_sweep

        _, runs = read_sweep(run) or (0, {})
        names = ", ".join([*runs][:3]) + ", .." * (len(runs) > 3)
        if has_each and {run_name(choice): choice for choice in choices(arguments)[0]} != runs:
            raise ValueError(
                f"{run} holds {len(runs)} runs of another --each ({names}): {remedy}, or leave --each out to resume"
            )
        is_said = not has_each and not is_restart
        return f"{run} holds {len(runs)} runs of --each ({names}): all of them are resumed" if is_said else ""
    if has_each and (run / "checkpoints").exists():
        raise ValueError(f"{run} holds one run, and --each starts several: {remedy}, or leave out --each to resume it")
    below = sorted(path.parent.name for path in run.glob("*/checkpoints"))
    if below and not (run / "checkpoints").exists():
        raise ValueError(f"{run} holds other runs, such as {below[0]}: {remedy}, such as {run / 'new'}")
    return ""


def newest_checkpoint(run: Path) -> str:
    """Return the path of the newest manifest in a run folder, of a sweep the paths of all its runs; empty without one.
    Tags sort by their step."""
    folders = sorted([*run.glob("checkpoints"), *run.glob("*/checkpoints")])
    newest = (max(map(str, folder.glob("*/manifest.json")), default="") for folder in folders)
    return " ".join(filter(None, newest))


def put_aside(run: Path) -> str:
    """Rename a folder without checkpoint, which a start left that ended too early, as by the loss of a machine: the
    program refuses a folder that holds a run. Returns the note about it, empty where nothing is renamed."""
    if not run.exists():
        return ""
    kept = run.rename(f"{run}.lost-{time.strftime('%Y%m%d-%H%M%S')}")
    return f"{run} has no checkpoint: kept as {kept}, starting anew"


def judge(allowed: str, before: str, folder: str) -> Answer:
    """Compare the newest checkpoint with the one before a start: OUTCOME in words, and whether the job GIVES_UP.

    A file beside the run counts the starts in a row that left no new checkpoint, and the job gives up at the number
    ``allowed``. Otherwise a job whose time is shorter than its work between two checkpoints would be queued again and
    again.
    """
    if newest_checkpoint(Path(folder)) not in ("", before):
        _stalled(folder).unlink(missing_ok=True)
        return {"OUTCOME": "checkpointed", "GIVES_UP": "no"}
    count = _count_stalled(_stalled(folder))
    if count < int(allowed):
        return {"OUTCOME": "no new checkpoint", "GIVES_UP": "no"}
    _stalled(folder).unlink()
    advice = "giving up; ask for more time, or checkpoint more often"
    return {"OUTCOME": f"no new checkpoint in {count} starts: {advice}", "GIVES_UP": "yes"}


def _stalled(folder: str) -> Path:
    """Not within the run folder, which may be put aside."""
    return Path(f"{Path(folder)}.stalled")


def _count_stalled(path: Path) -> int:
    """Add one to the number in a file; a file that is missing or empty holds 0."""
    count = 1 + int((path.read_text() if path.exists() else "").strip() or 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{count}\n")
    return count


COMMANDS: dict[str, Callable[..., Answer]] = {"recipe": recipe_run, "start": next_start, "judge": judge}

if __name__ == "__main__":
    sys.exit(main())
