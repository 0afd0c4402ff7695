"""Train a graph neural network; without arguments, TGN on built-in synthetic events.

``--kind static`` trains on a static graph, by mini-batches (neighbor sampling) or full-batch, ``--kind snapshots`` on a
sequence of graphs. A run file (``--config``) may name the kind, too.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import hpcgnn
from hpcgnn import config as configuration
from hpcgnn.comm.launch import launched_by_batch_system
from hpcgnn.comm.same import check_shared
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, World, mpi_version
from hpcgnn.graph import files
from hpcgnn.graph.stage import unusable
from hpcgnn.kinds import DEFAULT_KIND, kind_of, make_built_in, open_session
from hpcgnn.loop import launch
from hpcgnn.loop.checkpoint import recorded_config
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.lock import held
from hpcgnn.loop.logs import STAMP, RunLog
from hpcgnn.loop.session import Session
from hpcgnn.loop.settings import Sections
from hpcgnn.loop.trainer import Trainer
from hpcgnn.recipes import expand_recipe
from hpcgnn.reopen import data_path

if TYPE_CHECKING:
    import jsonargparse

PROFILED = "10-19"  # steps of the run, by default
FINISHED = "finished"  # file in the run folder, of a run that came to its end


def main(world: World, argv: list[str]) -> int:
    """Collective. Train; returns the exit code."""
    return train(world, argv)[0]


def train(world: World, argv: list[str]) -> tuple[int, Path]:
    """Collective. Parse, build, run, close; returns the exit code and the run folder."""
    with StopRequest() as stop:
        with Watchdog(world, CommConfig.watchdog_seconds) as watchdog:
            watchdog.at("configuration")
            config, folder, resume = launch.on_first_rank(world, "configuration", lambda: _parse(argv))
        world = World(config.comm)
        seconds = config.comm.watchdog_seconds
        with Watchdog(world, seconds, stop.is_leaving) as watchdog, held(folder, world, _say):
            check_shared(folder, world)
            path = _prepare(config, folder, world, resume)
            log = RunLog(folder / "log", world.rank)
            if resume and config.data.stage_to and _option(argv, "--data.stage_to") is None:
                _stage_if_possible(config, world, log)
            watchdog.at("open the partition set")

            def run_on(part: World, servers: Any) -> int:
                group = part.split(config.num_groups)
                session = open_session(config, path, group, watchdog, servers)
                code = _run(session, part, folder, log, stop, resume)
                session.close()
                if group is not part:
                    group.close()
                return code

            code = kind_of(config).beside_servers(config, path, world, watchdog, log, run_on)
            watchdog.at("leave")
            with together(world, "leave"):
                if world.rank == 0 and code == launch.EXIT_DONE:
                    (folder / FINISHED).touch()
        world.close()
    return code, folder


def _run(session: Session, world: World, folder: Path, log: RunLog, stop: StopRequest, resume: bool) -> int:
    """Collective. Say what is about to run, and run it; returns the exit code."""
    config = session.config
    for line in [*_describe_start(session), *session.watchdog.describe(), *session.describe()]:
        log(line)
    log(f"rank {world.rank} on {world.host}: {session.partition.num_nodes} graph nodes", everywhere=world.rank > 0)
    if config.baseline_name:
        _save_config(config, folder, world)
        run = kind_of(config).run_baseline
        assert run is not None
        code = run(session, folder, log, stop)
    else:
        code = _train(session, folder, log, stop, resume)
    log(f"results in {folder}")
    return code


def _describe_start(session: Session) -> list[str]:
    """The first lines of a run: its data, and its model with the number of parameters.

    The built-in graph is a convincing one: in a batch job it is more likely a forgotten key than a wish.
    """
    config = session.config
    data = f"data: {config.data.path or f'built-in synthetic {kind_of(config).data}: no data.path was given'}"
    if not config.data.path and launched_by_batch_system():
        data = f"warning: {data}"
    if config.baseline_name:
        return [data, f"baseline: {config.baseline_name}; no model is trained"]
    parameters = sum(parameter.numel() for parameter in session.model.parameters())
    unused = session.world.unused_gpus
    warning = [f"warning: {unused} GPUs of a machine are not used: start a rank for each GPU"] if unused else []
    return [data, *warning, f"model: {config.model_name}, {parameters:,} parameters"]


def _train(session: Session, folder: Path, log: RunLog, stop: StopRequest, resume: bool) -> int:
    """Collective. Start or resume, and run to the end; returns the exit code."""
    session.watchdog.at("build the trainer")
    with together(session.world.job, "read the end of the job's time"):
        decision = stop.leave_before_end(session.config.train.leave_seconds)
    if decision:
        log(decision)
    trainer = Trainer(session, folder, log, stop)
    if resume:
        session.watchdog.at("resume")
        trainer.resume()
    else:
        trainer.start()
    _save_config(session.config, folder, trainer.world)  # last: a start that was refused leaves the old one as it is
    code = trainer.run()
    trainer.close()
    return code


def _parse(argv: list[str]) -> tuple[Sections, Path, bool]:
    """Read the configuration, the run folder, and whether to resume. Raises ValueError."""
    argv = [f"--train.profile={PROFILED}" if argument == "--profile" else argument for argument in argv]
    argv = [re.sub("^--init(?==|$)", "--train.init", argument) for argument in argv]
    argv = expand_recipe(argv)  # here already, as a resumed run's own file comes before it
    resume = _option(argv, "--resume")
    if resume is None:
        config, _ = configuration.parse(make_parser(configuration.kind_of(argv)), argv)
        config.resolve_inputs()
        if not config.output.dir:
            return config, _new_folder(config.run_name), False
        folder = Path(config.output.dir)
        _refuse_old_run(folder)
        return config, folder, False
    if not resume:
        raise ValueError("--resume needs the run folder to continue")
    folder = Path(resume)
    old = configuration.load(folder / "config.yaml")
    checkpoint, recorded = recorded_config(folder / "checkpoints")
    configuration.check_recorded(recorded, old, folder / "config.yaml", checkpoint)
    config, _ = configuration.parse(make_parser(old.KIND), ["--config", str(folder / "config.yaml"), *argv])
    config.resolve_inputs()
    config.output.dir = old.output.dir
    configuration.check_resumable(old, config)
    return config, folder, True


def _refuse_old_run(folder: Path) -> None:
    if (folder / "metrics.jsonl").exists() or (folder / "checkpoints").exists():
        raise ValueError(
            f"{folder} holds a run already: continue it with --resume {folder}, or choose another output.dir"
        )


def _new_folder(name: str) -> Path:
    """Make the default run folder, runs/<name>-<date>-<time>, with a number added where another run was as fast.

    Below the home folder where the current one cannot be written, such as a checkout of somebody else. Raises OSError.
    """
    stem = f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    runs = Path("runs")
    try:
        runs.mkdir(exist_ok=True)
        writable = os.access(runs, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        runs = Path.home() / "runs"
        runs.mkdir(exist_ok=True)
    for number in itertools.count(1):
        folder = runs / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("numbers have no end")


def make_parser(kind: str = DEFAULT_KIND) -> jsonargparse.ArgumentParser:
    """Make the parser of the command line, of runs on a kind of graph."""
    parser = configuration.parser("hpcgnn train", __doc__, kind)
    parser.add_argument("--resume", type=str, default="", help="run folder to resume; empty: start a new run")
    parser.add_argument("--init", type=str, default="", help="run folder to start from; short form of --train.init")
    parser.add_argument("--profile", action="store_true", help=f"short form of --train.profile {PROFILED}")
    return parser


def _option(argv: list[str], name: str) -> str | None:
    """Read the value of an option before the full parse; None when it is absent."""
    for place, argument in enumerate(argv):
        if argument == name and place + 1 < len(argv):
            return argv[place + 1]
        if argument.startswith(name + "="):
            return argument[len(name) + 1 :]
    return None


def _prepare(config: Sections, folder: Path, world: World, resume: bool) -> str:
    """Collective. Check that no run began in the folder before it was locked, and make the built-in graph where there
    is no data path; returns the partition set's path."""
    with together(world, "prepare the run folder"):
        if world.rank == 0 and not resume:
            _refuse_old_run(folder)
    path = data_path(config, folder)
    with together(world, "make the synthetic graph"):
        world.working("make the synthetic graph")
        if world.rank == 0 and not config.data.path and not files.book_path(path).exists():
            make_built_in(config, Path(path))
    return path


def _stage_if_possible(config: Sections, world: World, log: RunLog) -> None:
    """Collective. Of a resumed run: do not stage where a folder that an earlier job staged to cannot be made."""
    if problem := unusable(config.data.stage_to, world):
        log(f"data.stage_to {config.data.stage_to} of an earlier start is not used ({problem})")
        config.data.stage_to = ""


def _save_config(config: Sections, folder: Path, world: World) -> None:
    """Collective. Write config.yaml of the run folder, with facts about this start; the run is not at its end."""
    hosts = " ".join(dict.fromkeys(world.allgather(world.host)))
    with together(world, "save the configuration"):
        if world.rank == 0:
            (folder / FINISHED).unlink(missing_ok=True)
            configuration.save(config, _facts(world.size, hosts), folder / "config.yaml")


def _facts(ranks: int, hosts: str) -> dict[str, str]:
    return {
        "hpcgnn": hpcgnn.__version__, "git": _git_revision(), "python": platform.python_version(),
        "torch": torch.__version__,
        "mpi": mpi_version(), "ranks": str(ranks), "hosts": hosts,
        "written": f"{datetime.datetime.now():{STAMP}}",
    }  # fmt: skip


def _say(text: str) -> None:
    """Print a line, as RunLog does once the run folder is this job's."""
    print(f"{datetime.datetime.now():{STAMP}} {text}", flush=True)


def _git_revision() -> str:
    """Return the revision of the source, "unknown" outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


if __name__ == "__main__":
    launch.leave(launch.run(main))
