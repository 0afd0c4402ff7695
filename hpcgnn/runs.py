"""Trains models and uses finished runs from Python: in a notebook, in a script, or on all ranks of an MPI program.

    run = hpcgnn.fit("graph.h5", recipe="sage", config={"train.epochs": 10})
    run.metrics()
    run.predict()

Each call does what the command of the same name does, and returns what the command writes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import h5py
import numpy as np
import torch

from hpcgnn import config as configuration
from hpcgnn import evaluate, predict, train
from hpcgnn.comm.ledger import Ledger
from hpcgnn.comm.together import together
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph import files
from hpcgnn.loop.answer_file import METADATA
from hpcgnn.loop.launch import EXIT_DONE, EXIT_FAILURE, EXIT_REQUEUE, SWITCH_SECONDS, Answered, abort
from hpcgnn.loop.logs import read_lines
from hpcgnn.loop.settings import Sections

if TYPE_CHECKING:
    import pandas as pd

Values = Mapping[str, Any]
Result = TypeVar("Result")


def fit(
    data: str | os.PathLike = "", recipe: str = "", config: Values | None = None, *, kind: str = "",
    folder: str | os.PathLike = "", quiet: bool = False,
) -> Run:  # fmt: skip
    """Collective. Train as ``hpcgnn train`` does, and return the run.

    data: folder of a partition set; or a graph file, which is partitioned first, into the folder GRAPH-parts beside it,
    unless that folder has its partition set already; empty: the ``data.path`` of ``config``, or a built-in graph.
    recipe: name of a recipe. config: values of configuration keys, such as ``{"train.epochs": 10, "sampling.fanouts":
    [10, 5]}``; a class is taken for its path. kind: of a built-in graph, as the key ``kind`` of ``config``; the data
    decides where there is some. folder: the run folder; empty: a new one below ``runs/``. quiet: print nothing; the log
    is in the run folder.

    Raises ValueError and DistributedError for wrong data or values, and KeyboardInterrupt after a request to stop, such
    as Ctrl-C: ``Run.resume`` then continues.
    """
    argv = ["--recipe", recipe] if recipe else []
    sections = dict(config or {})
    kind = _either("kind", kind, "kind", sections.pop("kind", ""))
    _check_keys(sections)
    values = _flat(sections)
    data = _either("data", data, "data.path", values.pop("data.path", ""))
    if data:
        path, found = _on_ranks(lambda world: partition_set(Path(data), world))
        wanted = kind or (configuration.kind_of(argv) if recipe else found)
        if wanted != found:
            source = f"kind {kind!r}" if kind else f"recipe {recipe!r}"
            raise ValueError(f"{source} is for {wanted} graphs, and {os.fspath(data)} is a {found} graph")
        argv += ["--kind", found, "--data.path", str(path)]
    elif kind:
        argv += ["--kind", kind]
    return _train([*argv, *words(values), *(["--output.dir", os.fspath(folder)] if folder else [])], quiet)


def load_run(folder: str | os.PathLike) -> Run:
    """Open a run folder of ``hpcgnn train`` or ``fit``. Raises ValueError if it is none."""
    run = Run(folder)
    run.config  # noqa: B018  raises what is wrong with the folder
    return run


class Run:
    """A run folder. All methods except ``metrics`` are collective, and need the run's partition set at its place."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def config(self) -> Sections:
        """The run's configuration, with all defaults: ``run.config.train.lr``. Raises ValueError without one."""
        return configuration.load(self.folder / "config.yaml")

    def metrics(self) -> pd.DataFrame:
        """Return the lines of metrics.jsonl as a data frame: one row per epoch and, at the end, one for the test.
        Before the first epoch there is no row. Raises ValueError for a damaged file."""
        return _pandas().DataFrame(read_lines(self.folder / "metrics.jsonl"))

    def resume(self, config: Values | None = None, *, quiet: bool = False) -> Run:
        """Continue the run after a stop, or with more epochs, as ``hpcgnn train --resume`` does. config: keys that may
        change, such as ``{"train.epochs": 20}``. Raises as ``fit`` does."""
        return _train(["--resume", str(self.folder), *words(config)], quiet)

    def evaluate(self, config: Values | None = None, *, data: str | os.PathLike = "") -> dict[str, Any]:
        """Validate and test the best epoch, as ``hpcgnn evaluate`` does; returns metrics by name on all ranks.

        config: options of the command, such as ``{"eval.protocol": "tgb"}``. data: another graph, as for ``fit``;
        empty: the run's. Raises DistributedError.
        """
        argv = [str(self.folder), *_path_of(_parts_of(data)), *words(config)]
        return _on_ranks(lambda world: evaluate.evaluate(world, argv))

    def predict(
        self, *, pairs: Any = None, nodes: Any = None, sources: Any = None, destinations: Any = None,
        data: str | os.PathLike = "", **options: Any,
    ) -> pd.DataFrame | None:  # fmt: skip
        """Predict as ``hpcgnn predict`` does; returns the answers as a data frame on rank 0, None on other ranks.

        pairs, nodes, sources, destinations: the questions, as a file, a data frame, or a mapping of columns to arrays.
        data: another graph, as for ``fit``; empty: the run's. options: further options of the command, such as
        ``top_k=10``, ``new_only=True``, ``probabilities=True``. ``attrs["hpcgnn"]`` of the data frame has where the
        answers come from, as files of answers do. Raises DistributedError.
        """
        asked = {"pairs": pairs, "nodes": nodes, "sources": sources, "destinations": destinations}
        asked = {name: _table_of(name, table) for name, table in asked.items() if table is not None}
        _pandas()
        return self._answer(".parquet", asked, options | {"data.path": _parts_of(data)}, _frame_of)

    def embeddings(
        self, nodes: Any = None, *, data: str | os.PathLike = "", task: str = ""
    ) -> dict[str, np.ndarray] | None:  # fmt: skip
        """Return the embeddings of all nodes, or of the ones in ``nodes`` (as for ``predict``), on rank 0, None on
        other ranks: arrays ``node`` [N], ``type`` [N] if the graph has several types, and ``embedding`` [N, F]. On
        temporal graphs they are of the time after the last event, ``time`` [N], unless ``nodes`` has times; on snapshot
        graphs of the last snapshot s, as ``embedding_s``. task: of a run with several tasks, whose nodes are meant;
        empty: the main one. Raises DistributedError."""
        options = {"embeddings": True, "data.path": _parts_of(data), "task": task}
        asked = {} if nodes is None else {"nodes": _table_of("nodes", nodes)}
        return self._answer(".npz", asked, options, _arrays_of)

    def _answer(self, suffix: str, asked: Values, options: Values, read: Callable[[Path], Any]) -> Any:
        """Collective. Run ``hpcgnn predict`` with questions from memory, and read its answer file on rank 0."""

        def answer(world: World) -> Any:
            with _shared_folder(self.folder, world) as place:
                out = place / f"answers{suffix}"
                argv = [str(self.folder), "--out", str(out)]
                with together(world, "write the questions"):
                    for name, table in asked.items():
                        argv += [f"--{name}", str(_as_file(table, place / f"{name}.csv", world.rank == 0))]
                with (
                    contextlib.redirect_stdout(io.StringIO()),  # a line that names the file, which is removed
                    _naming_arguments(place, asked),
                ):
                    predict.main(world, [*argv, *_options(options)])
                result = None
                with together(world, "read the answers"):
                    if world.rank == 0:
                        result = read(out)
                return result

        return _on_ranks(answer)


def _either(name: str, value: Any, key: str, of_config: Any) -> Any:
    """Return the value of an argument, or of its key in the configuration. Raises ValueError for two values."""
    if value and of_config:
        raise ValueError(f"{name} is {value}, and {key} of config {of_config}: leave out one of them")
    return value or of_config


def _check_keys(config: Values) -> None:
    """Raise ValueError for names that are options of the command line, but no keys of the configuration."""
    for key, value in config.items():
        if "." not in key and not isinstance(value, Mapping):
            raise ValueError(f"config: {key!r} is no key of the configuration, such as 'train.epochs'")


def words(values: Values | None) -> list[str]:
    """Write values of keys, or of options, as a command line. Raises ValueError for a value that no option takes."""
    return [f"--{key}={_word(key, value)}" for key, value in _flat(values or {}).items()]


def _flat(values: Values, above: str = "") -> dict[str, Any]:
    """Name the keys of nested sections as the command line does."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        is_section = isinstance(value, Mapping) and not above
        flat |= _flat(value, f"{key}.") if is_section and "." not in key else {above + key: value}
    return flat


def _word(key: str, value: Any) -> str:
    plain = _plain(key, value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _plain(key: str, value: Any) -> Any:
    """Return a value as JSON has it: arrays as lists, classes and functions as their paths. Raises ValueError."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(key, entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(key, entry) for entry in value]
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    raise ValueError(f"{key}: {value!r} is of type {type(value).__name__}; expected text, a number, a list or a class")


def partition_set(data: Path, world: World) -> tuple[Path, str]:
    """Collective. Find the partition set of a folder, or of a graph file, which is partitioned if it has none yet;
    returns its folder and the kind of graph. Raises DistributedError."""
    parts, kind = data, ""
    with together(world, "find the partition set"):
        world.working("partition the graph")
        if world.rank == 0:
            if not data.exists():
                raise files.FileFormatError(
                    f"{data}: no such file or folder; expected a graph file, or the folder of a partition set"
                )
            if data.is_file():
                parts = _partition_once(data)
            elif not files.book_path(data).exists():
                files.refuse_folder(data)
            with files.naming(files.book_path(parts), f"{data} is no partition set and no graph file"):
                with h5py.File(files.book_path(parts)) as book:
                    kind = str(book.attrs["kind"])
    return world.broadcast((parts, kind))


def _partition_once(graph: Path) -> Path:
    """Partition a graph file into the folder GRAPH-parts beside it, unless that holds its partition set. Raises
    ValueError if the folder holds another one."""
    from data_tools.partition.command import partition

    parts = graph.with_name(f"{graph.stem}-parts")
    book = files.book_path(parts)
    if not book.exists():
        partition(graph, parts)
        return parts
    with h5py.File(book) as file:
        source = str(file.attrs["source_hash"])
    if source != files.file_hash(graph):
        raise ValueError(f"{parts} has the partition set of another graph than {graph}: remove or rename that folder")
    return parts


def _train(argv: list[str], quiet: bool) -> Run:
    def run(world: World) -> tuple[int, Path]:
        with contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext():
            return train.train(world, argv)

    code, folder = _on_ranks(run)
    if code == EXIT_REQUEUE:
        raise KeyboardInterrupt(f"the run was asked to stop; hpcgnn.load_run({str(folder)!r}).resume() continues")
    if code != EXIT_DONE:
        raise DistributedError(f"{folder}: not all is done; the log there has the reason", user_error=False)
    return Run(folder)


def _on_ranks(function: Callable[[World], Result]) -> Result:
    """Collective. Call a function as a command is called: with all ranks, on the CPU until it has read its options."""
    World.check_singleton()
    ledger = Ledger()
    with _callers_settings():
        world = World(CommConfig(device="cpu"), ledger, compares=False)
        try:
            result = function(world)
        except Answered as error:
            ledger.free()
            raise ValueError("a command line would print a text and end here: leave out the option for it") from error
        except DistributedError:  # raised by all ranks
            ledger.free()
            raise
        except Exception as error:
            if world.size > 1:
                abort(world, EXIT_FAILURE, error)  # the other ranks would wait for this one
            ledger.free(windows=False)  # a thread that plans ahead may still read them
            raise
        ledger.free()
    return result


@contextlib.contextmanager
def _callers_settings() -> Iterator[None]:
    """Restore the settings of the process that runs have for themselves: how threads take turns, and of torch the
    random generators, the number of threads, and how float32 is multiplied."""
    interval, threads, state = sys.getswitchinterval(), torch.get_num_threads(), torch.get_rng_state()
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    precision, products = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul
    reduced = products.allow_bf16_reduced_precision_reduction
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
        if on_devices:
            torch.cuda.set_rng_state_all(on_devices)
        elif torch.cuda.is_initialized():  # since then
            torch.cuda.manual_seed_all(torch.initial_seed())  # as torch does for the seed that the caller gave
        torch.set_float32_matmul_precision(precision)
        products.allow_bf16_reduced_precision_reduction = reduced


def _options(options: Values) -> list[str]:
    """Write options of predict: flags have no value, and what is empty is left out."""
    flags = [f"--{name}" for name, value in options.items() if value is True]
    return flags + words({name: value for name, value in options.items() if value and value is not True})


def _parts_of(data: str | os.PathLike) -> str | Path:
    """Collective. Return the partition set of a graph file or folder as ``partition_set`` does; empty: none."""
    return _on_ranks(lambda world: partition_set(Path(data), world))[0] if data else ""


def _path_of(data: str | os.PathLike) -> list[str]:
    return [f"--data.path={os.fspath(data)}"] if data else []


@contextlib.contextmanager
def _shared_folder(run: Path, world: World) -> Iterator[Path]:
    """Collective. A temporary folder that all ranks see: in the run folder if it can be written."""
    place = ""
    with together(world, "make a temporary folder"):
        if world.rank == 0:
            place = tempfile.mkdtemp(prefix=".answers-", dir=run if os.access(run, os.W_OK) else None)
    place = world.broadcast(place)
    try:
        yield Path(place)
    finally:
        if world.rank == 0:
            shutil.rmtree(place, ignore_errors=True)
    world.barrier()  # it is gone for all ranks


def _table_of(name: str, table: Any) -> Any:
    """Return a table of Arrow made of a data frame or a mapping, or the path of a file. Raises ValueError for anything
    else."""
    if isinstance(table, (str, os.PathLike)):
        return Path(table)
    import pyarrow as pa

    try:
        is_frame = hasattr(table, "itertuples")
        return pa.Table.from_pandas(table, preserve_index=False) if is_frame else pa.table(table)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise ValueError(f"{name}: expected a file, a data frame, or arrays by name: {error}") from error


def _as_file(table: Any, path: Path, writes: bool) -> Path:
    """Return the file of a table: the one that it names, or ``path``, into which ``writes`` writes it."""
    if isinstance(table, Path):
        return table
    if writes:
        from pyarrow import csv

        csv.write_csv(table, path)
    return path


@contextlib.contextmanager
def _naming_arguments(place: Path, asked: Values) -> Iterator[None]:
    """Name the arguments in errors, in place of the files that they were written into."""
    try:
        yield
    except DistributedError as error:
        message = str(error)
        for name in asked:
            message = message.replace(str(place / f"{name}.csv"), name)
        raise DistributedError(message, error.user_error) from error


def _frame_of(path: Path) -> pd.DataFrame:
    """Read a Parquet file of answers, with where they come from."""
    from pyarrow import parquet

    table = parquet.read_table(path)
    frame = table.to_pandas()
    frame.attrs[METADATA] = json.loads(table.schema.metadata[METADATA.encode()])
    return frame


def _arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("data frames need pandas: pip install pandas") from error
    return pandas
