"""Opens a finished run again, with the weights and node memory of its best epoch."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcgnn import __version__, kinds
from hpcgnn import config as configuration
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph import files
from hpcgnn.graph.decode import decode_json
from hpcgnn.loop import checkpoint
from hpcgnn.loop.checkpoint import Progress
from hpcgnn.loop.checkpoint_writer import load, load_elsewhere
from hpcgnn.loop.launch import on_first_rank
from hpcgnn.loop.logs import SOURCES
from hpcgnn.loop.schema import Schema
from hpcgnn.loop.session import Session
from hpcgnn.loop.settings import Sections

if TYPE_CHECKING:
    import jsonargparse

USUAL = ("comm.device", "comm.threads", "comm.watchdog_seconds")  # keys of comm that --help lists


def command_parser(program: str, description: str) -> jsonargparse.ArgumentParser:
    """Arguments of the commands that open a run: its folder, where its data is, and how ranks talk."""
    import jsonargparse

    parser = jsonargparse.ArgumentParser(prog=program, description=description, exit_on_error=False)
    everything = parser.format_help
    parser.format_help = lambda *_: _short_help(parser, everything)  # type: ignore[method-assign]
    configuration.add_help_all(parser, "show all options", everything)
    parser.add_argument("run", type=str, help="run folder to read")
    parser.add_argument(
        "--data.path", type=str, default="",
        help="partition set to use: of the run's graph, or of another graph with the same node types, relations and "
        "columns; empty: the run's",
    )  # fmt: skip
    parser.add_argument(
        "--data.stage_to",
        type=str,
        default="",
        help="folder on a disk of each machine to copy the parts to first; empty: none",
    )
    parser.add_class_arguments(CommConfig, "comm")
    next(a for a in parser._actions if a.dest == "comm").help = "YAML file with the keys of comm"
    return parser


def _short_help(parser: jsonargparse.ArgumentParser, everything: Callable[[], str]) -> str:
    """Write the help without the keys of comm that few people use."""
    hidden = {a: a.help for a in parser._actions if a.dest.split(".")[0] == "comm" and a.dest not in USUAL}
    try:
        for action in hidden:
            action.help = argparse.SUPPRESS
        return f"{everything()}\n{len(hidden)} further options: {parser.prog} --help_all\n"
    finally:
        for action, text in hidden.items():
            action.help = text


def parse(
    parser: jsonargparse.ArgumentParser, argv: list[str], world: World
) -> tuple[jsonargparse.Namespace, CommConfig]:
    """Collective. The arguments and how ranks talk; wrong ones leave together."""

    def read() -> tuple[jsonargparse.Namespace, CommConfig]:
        arguments = configuration.parse_arguments(parser, argv)
        comm = CommConfig(**arguments.comm.as_dict())
        if comm.sampling_servers:
            raise ValueError("comm.sampling_servers is for training: here every rank draws for itself; leave it 0")
        return arguments, comm

    return on_first_rank(world, "arguments", read)


@contextmanager
def open_run(
    folder: str, path: str, comm: CommConfig, world: World, change: Callable[[Any], Any] | None = None,
    stage_to: str = "",
) -> Iterator[tuple[Session, Progress]]:  # fmt: skip
    """Collective. A session with the best checkpoint of a run folder; ``path``: another partition set, of its graph or
    of one with the same schema; ``change``, ``stage_to``: see ``open_session``."""
    with open_session(folder, path, comm, world, change, stage_to) as session:
        yield session, load_best(session, folder)


@contextmanager
def open_session(
    folder: str, path: str, comm: CommConfig, world: World, change: Callable[[Any], Any] | None = None,
    stage_to: str = "",
) -> Iterator[Session]:  # fmt: skip
    """Collective. A session as a run had it, without its weights, on the graph at ``path`` (empty: the run's); with
    ``change``, of the configuration that this makes of the run's. stage_to: where parts are copied to first; empty:
    nowhere, wherever the run did, which may have been a job's own disk."""

    def read() -> tuple[Sections, Schema | None]:
        config = configuration.load(Path(folder) / "config.yaml")
        config.train.cuda_graphs = "off"  # of training steps, and there are none
        config.data.stage_to = stage_to
        best = checkpoint.find_best(Path(folder) / "checkpoints")
        trained = None
        with contextlib.suppress(ValueError):  # who loads a damaged checkpoint names the remedy
            trained = checkpoint.recorded_schema(best) if best else None
        return change(config) if change else config, trained

    with Watchdog(world, CommConfig.watchdog_seconds) as watchdog:
        watchdog.at("open the run")
        config, trained = on_first_rank(world, "open the run", read)
    world = World(comm, world.mpi)
    with Watchdog(world, comm.watchdog_seconds) as watchdog:
        opened = path or data_path(config, Path(folder))
        session = kinds.open_session(config, opened, world, watchdog, trained=trained)
        yield session
        world.barrier()
        session.close()
    world.close()


def load_best(session: Session, folder: str) -> Progress:
    """Collective. Load weights and node memory of a run's best epoch into a session. On another graph than the run's,
    memory is formed from its edges, and learnable node embeddings follow original ids."""

    def find() -> tuple[Path, str, Progress]:
        best = find_best(Path(folder), session.config)
        manifest = checkpoint.read_manifest(best, checkpoint.NO_FILES)
        return best, manifest["graph"], checkpoint.progress_of(best, manifest)

    best, graph, progress = on_first_rank(session.world, "open the run", find)
    try:
        if graph == session.partition.graph_hash:
            return load(session, best).progress
        carried = load_elsewhere(session, best, data_path(session.config, Path(folder)))
        if session.world.rank == 0:
            print("; ".join(["note: this is another graph than the run's", *carried.notes()]), file=sys.stderr)
        return progress
    except DistributedError as error:
        problem = checkpoint.find_damage(best, session.world)
        if problem is None:
            raise
        message = f"{problem}; hpcgnn train --resume {folder} makes a damaged checkpoint anew where it can"
        raise DistributedError(message, user_error=True) from error


def data_path(config: Sections, folder: Path) -> str:
    """The partition set of a run; the built-in graph lies in the run folder."""
    return config.data.path or str(folder / "data" / "parts")


def read_sources(folder: Path) -> dict[str, Any]:
    """Read the graph that a run is trained on, as ``files.read_origin`` describes it; empty for a run of an earlier
    version. Raises ValueError for a damaged file."""
    path = folder / SOURCES
    if not path.is_file():
        return {}
    try:
        origin = decode_json(path.read_text())
        texts = [origin["graph"]["name"], origin["graph"]["sha256"]]
        for source in origin.get("sources", []):
            texts += [source] if isinstance(source, str) else [files.source_name(source), source["sha256"]]
        if all(isinstance(text, str) for text in texts):
            return origin
        problem = "names and hashes must be text"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        problem = str(error)
    raise ValueError(f"{path}: damaged, or not written by hpcgnn ({problem})")


def provenance(folder: Path, session: Session, progress: Progress) -> dict[str, Any]:
    """Describe where the answers of a run come from: the run and its best epoch, the session's graph with its source
    files, and the graph of training where that is another one. Raises ValueError."""
    graph, config = files.read_origin(session.path), session.config
    trained = read_sources(folder) or graph
    run = {"folder": os.path.abspath(folder), "model": config.model_name, "seed": config.train.seed}
    known = {"hpcgnn": __version__, "run": run | {"epoch": progress.epoch}, **graph}
    return known | ({} if trained["graph"]["sha256"] == graph["graph"]["sha256"] else {"trained_on": trained})


def find_best(folder: Path, config: Sections) -> Path:
    """Return the folder of a run's best checkpoint. Raises ValueError where there is none."""
    if config.baseline_name:
        raise ValueError(f"{folder} is a run of baseline {config.baseline_name}: it has no model to open")
    best = checkpoint.find_best(folder / "checkpoints")
    if best is None:
        raise ValueError(
            f"{folder}: no best checkpoint: the run has not finished an epoch; continue it with --resume {folder}"
        )
    return best
