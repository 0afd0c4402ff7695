"""Cut a graph file into a partition set: book.h5 and part-<i>.h5.

Consecutive parts are neighbours, so any number of ranks up to the number of parts can take contiguous runs of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import sys
from dataclasses import asdict, dataclass

import h5py
import numpy as np

from data_tools.assignment import METHODS
from data_tools.cli import run_command
from data_tools.node_weights import CONSTRAINTS
from data_tools.part_layout import Layout, make_layout
from data_tools.part_writer import write_parts
from data_tools.partition_source import Source, open_source, validate
from data_tools.quality import measure, summary, unmet
from data_tools.rebalance import TARGET
from hpcgnn.store import files

DEFAULT_BALANCE = ("events", "time")
OBJECTIVES = ("cut", "volume")


@dataclass(frozen=True, slots=True)
class Options:
    """What a partition set depends on besides its source."""

    parts: int = 64
    method: str = "metis"
    balance: tuple[str, ...] = DEFAULT_BALANCE
    seed: int = 0
    objective: str = "cut"

    def __post_init__(self):
        if self.parts < 1:
            raise ValueError(f"parts={self.parts}: at least one part is needed")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: must not be negative")
        check_choice("method", self.method, METHODS)
        check_choice("objective", self.objective, OBJECTIVES)
        for name in self.balance:
            check_choice("balance", name, CONSTRAINTS)
        if len(set(self.balance)) != len(self.balance):
            raise ValueError(f"balance={','.join(self.balance)}: a constraint is named twice")


def check_choice(option: str, value: str, choices) -> None:
    """ValueError unless value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{option}={value!r}: expected one of {', '.join(choices)}")


def make_set_id(source_hash: str, options: Options) -> str:
    """Identity of a partition set, hex: equal inputs give equal sets."""
    text = json.dumps({"source": source_hash, "version": files.VERSION, **asdict(options)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def clear_folder(folder: pathlib.Path) -> None:
    """Remove an older set, the book first: a set without a book is none."""
    folder.mkdir(parents=True, exist_ok=True)
    files.book_path(folder).unlink(missing_ok=True)
    for path in (*folder.glob("part-*.h5"), *folder.glob("part-*.h5.tmp")):
        path.unlink()


def write_book(
    path: pathlib.Path, source: Source, layout: Layout, options: Options, attributes: dict[str, str]
) -> None:
    """Write the book; the part files must be in place."""
    folder = path.parent
    parts = [files.part_path(folder, part) for part in range(options.parts)]
    with files.writing(
        path,
        files.BOOK,
        kind=source.kind,
        num_parts=options.parts,
        seed=options.seed,
        method=options.method,
        **attributes,
    ) as book:
        write_outline(book, source, layout)
        group = book.create_group("parts")
        group["hash"] = np.array([files.file_hash(part).encode() for part in parts], "S64")
        group["bytes"] = np.array([part.stat().st_size for part in parts], np.int64)


def write_outline(book: h5py.File, source: Source, layout: Layout) -> None:
    """Types with their offsets and relations with their columns."""
    book.create_group("nodes")
    book.create_group("edges")
    for type_id, node_type in enumerate(source.types):
        group = book["nodes"].create_group(node_type.name)
        group.attrs["num_nodes"], group.attrs["type_id"] = node_type.num_nodes, type_id
        group["offsets"] = layout.offsets[type_id]
    for relation_id, relation in enumerate(source.relations):
        group = book["edges"].create_group(relation.name)
        group.attrs["num_edges"], group.attrs["relation_id"] = relation.num_edges, relation_id
        if relation.time_scale is not None:
            group.attrs["time_scale"] = relation.time_scale
        group["columns"] = np.array([name.encode() for name in relation.columns], "S")


def partition_temporal(source: Source, folder: pathlib.Path, options: Options) -> dict:
    """Write the partition set of a temporal graph and return its quality."""
    path = pathlib.Path(source.file.filename)
    source_hash = files.file_hash(path)
    set_id = make_set_id(source_hash, options)
    assign = METHODS[options.method]
    part = assign(source, options.parts, options.balance, options.seed, options.objective)
    layout = make_layout(source, part, options.parts)
    quality = measure(source, layout, options.balance)
    clear_folder(folder)
    write_parts(source, layout, folder, set_id)
    attributes = {
        "set_id": set_id,
        "options": json.dumps(asdict(options), sort_keys=True),
        "source_name": path.name,
        "source_hash": source_hash,
        "quality": json.dumps(quality, sort_keys=True),
    }
    write_book(files.book_path(folder), source, layout, options, attributes)
    return quality


WRITERS = {"temporal": partition_temporal}


def partition(
    path: str | os.PathLike,
    folder: str | os.PathLike,
    parts: int = 64,
    method: str = "metis",
    balance: tuple[str, ...] | list[str] = DEFAULT_BALANCE,
    seed: int = 0,
    objective: str = "cut",
    overwrite: bool = False,
) -> dict:
    """Partition a graph file into ``folder`` and return the quality measures that the book stores.

    method: metis or random; balance: names of constraints; objective: cut or volume (metis only).
    Raises ValueError for a bad option or an existing set, FileFormatError for a file that cannot be used.
    """
    options = Options(parts, method, tuple(balance), seed, objective)
    if files.book_path(folder).exists() and not overwrite:
        raise ValueError(f"{folder}: holds a partition set already; choose another folder or pass --overwrite")
    source = open_source(path)
    with source.file:
        if source.kind not in WRITERS:
            raise ValueError(f"{path}: kind {source.kind} is not supported yet by partition")
        validate(source)
        return WRITERS[source.kind](source, pathlib.Path(folder), options)


def main(argv: list[str] | None = None) -> int:
    """Command line: ``python -m data_tools.partition graph.h5 parts/ --parts 16``."""
    parser = argparse.ArgumentParser(prog="python -m data_tools.partition", description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="graph file")
    parser.add_argument("folder", help="folder of the partition set")
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--method", choices=tuple(METHODS), default="metis")
    parser.add_argument(
        "--balance", default=",".join(DEFAULT_BALANCE), help=f"constraints, comma separated: {', '.join(CONSTRAINTS)}"
    )
    parser.add_argument("--objective", choices=OBJECTIVES, default="cut")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overwrite", action="store_true", help="replace a set that is there")
    args = parser.parse_args(argv)
    balance = tuple(name for name in args.balance.split(",") if name)
    quality = partition(
        args.graph, args.folder, args.parts, args.method, balance, args.seed, args.objective, args.overwrite
    )
    print(summary(quality))
    if args.method == "metis":
        for line in unmet(quality, TARGET):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
