"""Train a graph neural network; without arguments, TGN on built-in synthetic events.

``--kind static`` trains on a static graph, by mini-batches (neighbor sampling) or full-batch, ``--kind snapshots`` on a
sequence of graphs. A run file (``--config``) may name the kind, too.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import hpcgnn
from hpcgnn import config as configuration
from hpcgnn.comm.launch import launched_by_batch_system
from hpcgnn.comm.same import check_shared
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World, mpi_version
from hpcgnn.each import EACH, GROUPS, with_each
from hpcgnn.graph import durable, files
from hpcgnn.graph.stage import unusable
from hpcgnn.kinds import DEFAULT_KIND, kind_of, make_built_in, open_session
from hpcgnn.loop import launch
from hpcgnn.loop.baselines import run_baseline
from hpcgnn.loop.checkpoint import recorded_config
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.lock import held
from hpcgnn.loop.logs import FINISHED, SOURCES, STAMP, RunLog
from hpcgnn.loop.session import Session
from hpcgnn.loop.settings import Sections
from hpcgnn.loop.sweep_file import SWEEP, read_sweep
from hpcgnn.loop.trainer import Trainer
from hpcgnn.native.products import is_slow
from hpcgnn.recipes import expand_recipe, take_options
from hpcgnn.reopen import data_path
from hpcgnn.sweep import Start, Sweep, new_sweep, old_sweep, run_sweep, summary

if TYPE_CHECKING:
    import jsonargparse

PROFILED = "10-19"  # steps of the run, by default


def main(world: World, argv: list[str]) -> int:
    """Collective. Train; returns the exit code."""
    return train(world, argv)[0]


def train(world: World, argv: list[str]) -> tuple[int, Path]:
    """Collective. Parse, build, run, close; returns the exit code and the run folder."""
    with StopRequest() as stop:
        with Watchdog(world, CommConfig.watchdog_seconds) as watchdog:
            watchdog.at("configuration")
            plan = launch.on_first_rank(world, "configuration", lambda: _plan(argv))
        if isinstance(plan, Sweep) and not plan.starts:
            return _say_done(plan, world), plan.folder
        world = World(plan.comm, world.mpi)
        is_staged = _option(argv, "--data.stage_to") is not None

        def run_one(start: Start, part: World, watchdog: Watchdog) -> int:
            return _train_run(start, part, watchdog, stop, is_staged)

        if isinstance(plan, Sweep):
            code = run_sweep(plan, world, stop, _check_run, run_one)
        else:
            with Watchdog(world, world.config.watchdog_seconds, stop.is_leaving) as watchdog:
                code = run_one(plan, world, watchdog)
        world.close()
    return code, plan.folder


def _say_done(sweep: Sweep, world: World) -> int:
    """Collective. Print the results of a sweep whose runs are all at their end; returns the exit code."""

    def say() -> None:
        (sweep.folder / FINISHED).touch()
        print(summary(sweep.folder), flush=True)

    launch.on_first_rank(world, "summary", say)
    return launch.EXIT_DONE


def _train_run(start: Start, world: World, watchdog: Watchdog, stop: StopRequest, is_staged: bool) -> int:
    """Collective. Train one run, from its beginning or its newest checkpoint; returns the exit code. is_staged: whether
    the command line has data.stage_to."""
    config, folder = start.config, start.folder
    with held(folder, world, _say):
        check_shared(folder, world)
        path = _prepare(config, folder, world, start.resumes)
        log = RunLog(folder / "log", world.rank, start.name)
        if start.resumes and config.data.stage_to and not is_staged:
            _stage_if_possible(config, world, log)
        code = _with_session(
            start,
            path,
            world,
            watchdog,
            log,
            lambda session, part: _run(session, part, folder, log, stop, start.resumes),
        )
        watchdog.at("leave")
        with together(world, "leave"):
            if world.rank == 0 and code == launch.EXIT_DONE:
                (folder / FINISHED).touch()
    return code


def _check_run(start: Start, world: World, watchdog: Watchdog) -> int:
    """Collective. Open a new run as far as its first step, so that it is refused before any other begins; returns the
    exit code of a run that is fine."""
    path = _prepare(start.config, start.folder, world, resume=False)

    def build(session: Session, _: World) -> int:
        if not session.config.baseline_name:
            log: Any = _unlogged
            trainer = Trainer(session, start.folder, log, StopRequest())
            trainer.start()
            trainer.close()
        return launch.EXIT_DONE

    return _with_session(start, path, world, watchdog, _unlogged, build)


def _unlogged(text: str, everywhere: bool = False) -> None:
    """Log nothing: what is said is said again when the run begins."""


def _with_session(
    start: Start, path: str, world: World, watchdog: Watchdog, log: Any, act: Callable[[Session, World], int]
) -> int:
    """Collective. Open the session of a run on the partition set at ``path``, and act on it, beside sampling servers if
    there are any; returns the exit code of ``act``. After an error the session is closed where other runs follow."""
    config = start.config
    watchdog.at("open the partition set")

    def with_trainers(part: World, servers: Any) -> int:
        group = part.split(config.num_groups)
        session = open_session(config, path, group, watchdog, servers)
        try:
            code = act(session, part)
        except DistributedError:
            if start.name:  # the only run of a job leaves at once
                session.close()
            raise
        session.close()
        if group is not part:
            group.close()
        return code

    return kind_of(config).beside_servers(config, path, world, watchdog, log, with_trainers)


def _run(session: Session, world: World, folder: Path, log: RunLog, stop: StopRequest, resume: bool) -> int:
    """Collective. Say what is about to run, and run it; returns the exit code."""
    config = session.config
    for line in [*_describe_start(session), *session.watchdog.describe(), *session.describe()]:
        log(line)
    log(f"rank {world.rank} on {world.host}: {session.partition.num_nodes} graph nodes", everywhere=world.rank > 0)
    if config.baseline_name:
        _save_config(config, folder, world)
        score = kind_of(config).score_baseline
        assert score is not None
        code = run_baseline(session, folder, log, stop, score)
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
    warnings, matmul = session.world.describe_sharing(), config.train.matmul
    if is_slow(matmul, session.world.device):
        warnings.append(f"warning: train.matmul {matmul} takes longer than float32: this processor has no units for it")
    elif session.world.device.type == "cpu" and matmul == "bf16":
        warnings.append(
            "train.matmul bf16: layers that are one call in float32 run operation by operation: compare the seconds"
        )
    return [data, *warnings, f"model: {config.model_name}, {parameters:,} parameters"]


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
    try:
        code = trainer.run()
    except DistributedError:
        trainer.optimizer.close()  # of a sweep, the next run makes another process group
        raise
    trainer.close()
    return code


def _plan(argv: list[str]) -> Sweep | Start:
    """Read the run, or the runs, that a command line is about. Raises ValueError."""
    argv, resume = with_each(argv), _option(argv, "--resume")
    has_each = bool(take_options(argv, EACH)[0])
    if resume and read_sweep(Path(resume)):
        return old_sweep(Path(resume), argv, _parse)
    if has_each and resume is not None:
        raise ValueError(f"{EACH} starts new runs, and --resume {resume} continues one: leave out one of them")
    if has_each:
        sweep = new_sweep(argv, _configure, _folder_of)
        for start in sweep.starts:  # all of them, before anything is written
            _refuse_old_run(start.folder)
        return sweep
    if take_options(argv, GROUPS)[0]:
        raise ValueError(f"{GROUPS} is for several runs, which {EACH} KEY=VALUE,VALUE starts")
    return Start(*_parse(argv))


def _configure(argv: list[str]) -> Sections:
    """Read the configuration of a new run. Raises ValueError."""
    argv = _write_out(argv)
    config, _ = configuration.parse(make_parser(configuration.kind_of(argv)), argv)
    config.resolve_inputs()
    return config


def _folder_of(config: Sections) -> Path:
    """Return the folder of a new run, made where it has the default name. Raises ValueError where it holds a run."""
    if not config.output.dir:
        return _new_folder(config.run_name)
    folder = Path(config.output.dir)
    _refuse_old_run(folder)
    return folder


def _write_out(argv: list[str]) -> list[str]:
    """Write out the short forms of a command line."""
    argv = [f"--train.profile={PROFILED}" if argument == "--profile" else argument for argument in argv]
    argv = [re.sub("^--init(?==|$)", "--train.init", argument) for argument in argv]
    return expand_recipe(argv)  # here already, as a resumed run's own file comes before it


def _parse(argv: list[str]) -> tuple[Sections, Path, bool]:
    """Read the configuration, the run folder, and whether to resume. Raises ValueError."""
    argv = _write_out(argv)
    resume = _option(argv, "--resume")
    if resume is None:
        config = _configure(argv)
        return config, _folder_of(config), False
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
    held = [name for name in ("metrics.jsonl", "checkpoints", SWEEP) if (folder / name).exists()]
    if held:
        raise ValueError(
            f"{folder} holds {'runs' if SWEEP in held else 'a run'} already: continue it with --resume {folder}, or "
            "choose another output.dir"
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
    parser.add_argument(
        EACH, action="append", default=argparse.SUPPRESS, metavar="KEY=VALUE,VALUE",
        help="train a run for each value of a key; several of these options: for each combination of values; "
        "--train.seed 0,1,2 is short for --each train.seed=0,1,2",
    )  # fmt: skip
    parser.add_argument(
        GROUPS,
        type=int,
        default=argparse.SUPPRESS,
        help="number of equal groups of ranks, which train the runs of --each side by side; default 1",
    )
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
            origin = files.read_origin(data_path(config, folder))
            durable.write_text(folder / SOURCES, json.dumps(origin, indent=1) + "\n")
            configuration.save(config, _facts(world.size, hosts) | _origin_facts(origin), folder / "config.yaml")


def _origin_facts(origin: dict[str, Any]) -> dict[str, str]:
    """Describe the graph of a run, its source files and the spec that they were read by, as far as they are known."""
    graph = {"graph": f"{origin['graph']['name']} (sha256 {origin['graph']['sha256']})"}
    sources = "; ".join(files.describe_sources(origin))
    further = {"sources": sources, "spec": json.dumps(origin["spec"]) if "spec" in origin else ""}
    return graph | {name: text for name, text in further.items() if text}


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
