"""Several runs in one job, ``hpcgnn train --each KEY=VALUE,VALUE``: one after the other, or side by side on groups of
ranks."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcgnn import config as configuration
from hpcgnn.comm.same import check_shared
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.each import EACH, GROUPS, choices, read_groups, run_name
from hpcgnn.keys import LONGER
from hpcgnn.loop import launch
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.lock import held
from hpcgnn.loop.logs import FINISHED
from hpcgnn.loop.settings import Sections
from hpcgnn.loop.sweep_file import begun, read_sweep, run_folders, write_sweep
from hpcgnn.recipes import take_options
from hpcgnn.report.compare import SEED, compare, text_table
from hpcgnn.report.records import read_run


@dataclass(frozen=True)
class Start:
    """The start of a run. folder: its run folder; resumes: whether it continues from its newest checkpoint; name: on
    the terminal, empty for the only run of a job."""

    config: Sections
    folder: Path
    resumes: bool
    name: str = ""

    @property
    def comm(self) -> CommConfig:
        """How the ranks of the job are placed."""
        return self.config.comm


@dataclass(frozen=True)
class Sweep:
    """The runs of one command. folder: their common one; groups: of ranks, which train side by side; choices: by the
    name of a run, the keys that set it apart; starts: of the runs that are not at their end; is_new: none of them has
    begun."""

    folder: Path
    groups: int
    choices: dict[str, dict[str, str]]
    starts: list[Start]
    is_new: bool

    @property
    def comm(self) -> CommConfig:
        """How the ranks of the job are placed, the same for all runs."""
        return self.starts[0].comm


Act = Callable[[Start, World, Watchdog], int]  # collective; returns an exit code
Read = Callable[[list[str]], tuple[Sections, Path, bool]]


# ----------------------------------------------------------------------------------------------------------------------
# the command line


def new_sweep(
    argv: list[str], configure: Callable[[list[str]], Sections], folder_of: Callable[[Sections], Path]
) -> Sweep:
    """Plan the runs of a command line with ``--each``. configure: makes the configuration of a command line; folder_of:
    the common folder, of the configuration of the first run. Writes nothing. Raises ValueError where a run is
    refused."""
    groups, argv = read_groups(argv)
    points, others = choices(argv)
    configs: dict[str, Sections] = {}
    for choice in points:
        name = run_name(choice)
        try:
            config = configure([*others, *(f"--{key}={value}" for key, value in choice.items())])
        except ValueError as error:
            raise ValueError(f"run {name}: {error}") from error
        twin = name if name in configs else next((other for other in configs if configs[other] == config), "")
        if twin:
            raise ValueError(f"run {name} is the same as run {twin}: give values that differ, also as names of folders")
        configs[name] = config
    folder = folder_of(next(iter(configs.values())))
    for name, config in configs.items():
        config.output.dir = str(folder / name)
    starts = [Start(config, folder / name, False, name) for name, config in configs.items()]
    return Sweep(folder, groups or 1, dict(zip(configs, points, strict=True)), starts, is_new=True)


def old_sweep(folder: Path, argv: list[str], read: Read) -> Sweep:
    """Plan the runs of a sweep that are not at their end. argv: keys that resumed runs may change; read: makes a start
    of a command line that resumes a run. Raises ValueError."""
    groups, argv = read_groups(argv)
    before, by_name = read_sweep(folder) or (0, {})
    if take_options(argv, EACH)[0]:
        raise ValueError(f"{folder} has its runs: leave out {EACH}, or start new runs in another output.dir")
    _, others = take_options(argv, "--resume")
    starts = []
    for name in by_name:
        run = folder / name
        config, _, _ = read([*others, f"--resume={run}"])
        ends_later = operator.attrgetter(*LONGER)
        if not (run / FINISHED).exists() or ends_later(configuration.load(run / "config.yaml")) != ends_later(config):
            starts.append(Start(config, run, True, name))
    return Sweep(folder, groups or before, by_name, starts, is_new=False)


# ----------------------------------------------------------------------------------------------------------------------
# the runs


def run_sweep(sweep: Sweep, world: World, stop: StopRequest, check: Act, train: Act) -> int:
    """Collective. Train the runs of a sweep, group g of G the runs g, g + G, ...; returns the exit code. A run that
    fails leaves the others alone. check: opens a new run without training it; it is called first, with a run of each
    setting.

    Raises DistributedError where the ranks do not divide into the groups, or where a new run is refused.
    """
    servers, seconds = sweep.comm.sampling_servers, sweep.comm.watchdog_seconds
    if sweep.groups > 1 and servers:
        message = f"{GROUPS} {sweep.groups} is for runs without sampling servers: leave one of the two out"
        raise DistributedError(message, user_error=True)
    part = world.divide(sweep.groups)

    def act(function: Act, starts: list[Start]) -> list[Outcome]:
        """Collective. Act on the group's share of runs, until a run asks to be started again; returns all outcomes."""
        own = []
        with Watchdog(part, seconds, stop.is_leaving) as watchdog:
            for start in starts[world.rank // part.size :: sweep.groups]:
                leaves = part.any(stop.requested)
                own.append(
                    Outcome(start.name, launch.EXIT_REQUEUE) if leaves else _outcome(function, start, part, watchdog)
                )
                if own[-1].code == launch.EXIT_REQUEUE:
                    break
        world.meet()  # without the watchdog: other groups may train for long
        return [outcome for of_rank in world.allgather(own if part.rank == 0 else []) for outcome in of_rank]

    with held(sweep.folder, world, lambda text: print(text, flush=True)):
        check_shared(sweep.folder, world)
        code = launch.EXIT_DONE
        if sweep.is_new:
            opened = act(check, _one_of_each_setting(sweep))
            _refuse(opened)
            code = _code(opened)
        if code == launch.EXIT_DONE:
            with together(world, "write the sweep"):
                if world.rank == 0:
                    _write(sweep)
            code = _code(act(train, sweep.starts))
            with together(world, "end the sweep"):
                if world.rank == 0:
                    if code == launch.EXIT_DONE:
                        (sweep.folder / FINISHED).touch()
                    print(summary(sweep.folder), flush=True)
    part.close()
    return code


@dataclass(frozen=True)
class Outcome:
    """The end of a run. message: of an error, empty without one."""

    name: str
    code: int
    message: str = ""


def _outcome(function: Act, start: Start, part: World, watchdog: Watchdog) -> Outcome:
    """Collective. Act on a run; an error that all ranks of the group share is its outcome."""
    try:
        return Outcome(start.name, function(start, part, watchdog))
    except DistributedError as error:
        if part.rank == 0:
            print(f"error: run {start.name}: {error}", file=sys.stderr, flush=True)
        return Outcome(start.name, launch.EXIT_USER if error.user_error else launch.EXIT_FAILURE, str(error))


def _one_of_each_setting(sweep: Sweep) -> list[Start]:
    """Choose a run for each setting of all keys, the seed excepted, which no run is refused for once it is read."""
    settings = [{key: value for key, value in keys.items() if key != SEED} for keys in sweep.choices.values()]
    return [start for place, start in enumerate(sweep.starts) if settings[place] not in settings[:place]]


def _refuse(outcomes: list[Outcome]) -> None:
    """Raise DistributedError, on all ranks, for the first run that could not be opened."""
    for outcome in outcomes:
        if outcome.message:
            message = f"run {outcome.name}: {outcome.message}; no run was started"
            raise DistributedError(message, outcome.code == launch.EXIT_USER)


def _code(outcomes: list[Outcome]) -> int:
    """Return the exit code of a job: of a run to be started again, else of the first failure."""
    codes = [outcome.code for outcome in outcomes]
    return launch.EXIT_REQUEUE if launch.EXIT_REQUEUE in codes else next(filter(None, codes), launch.EXIT_DONE)


def _write(sweep: Sweep) -> None:
    """Write the runs of a sweep into its folder; ``sweep.yaml`` comes last, so that all of them are there with it."""
    (sweep.folder / FINISHED).unlink(missing_ok=True)
    if sweep.is_new:
        for start in sweep.starts:
            start.folder.mkdir(exist_ok=True)
            configuration.save(start.config, {}, start.folder / "config.yaml")
    write_sweep(sweep.folder, sweep.groups, sweep.choices)


def summary(folder: Path) -> str:
    """Describe the results of a sweep: mean and deviation of metrics over the seeds of each setting, and the best one.
    Raises ValueError for records that cannot be read."""
    runs = run_folders([folder])
    done = sum((run / FINISHED).exists() for run in runs)
    records = [read_run(run) for run in begun(runs)]
    table = [text_table(compare(records))] if records else []
    return "\n".join([f"{folder}: {done} of {len(runs)} runs are at their end", *table])
