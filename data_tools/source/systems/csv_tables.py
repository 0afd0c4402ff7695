"""Makes the spec of the preset csv-static: a table of edges with the columns src and dst, and maybe weight; and, where
it is given, a table of nodes with ids, features, labels and a split. Both may be CSV, Parquet or Feather."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from data_tools.source.file_spec import FileSpec
from data_tools.source.formats.text_stream import UTF8, natural
from data_tools.source.formats.values import Raw, Reference, RowError, parse_numbers
from data_tools.source.objects import NODE, RELATION
from data_tools.source.schema import build, one_of
from data_tools.source.spec_file import build_spec, setting
from data_tools.source.systems.content import FolderContent

FILES = ("edges", "nodes")
OF_FILES = {"delimiter": ",", "encoding": UTF8}
OF_EDGES = {"undirected": False, "missing_ids": "error", "duplicates": "keep", "self_loops": "keep", "dangling": None}
# Names of columns; a column that is not named by --set is read where it is there. feat: also feat_0, feat_1, ...
COLUMNS = {"weight": "weight", "id": "id", "feat": "feat", "label": "label", "split": "split"}
OF_NODES = ("id", "feat", "label", "split")
FEATURE = re.compile(r"feat(_\d+)?")


def read_csv(assigned: Mapping[str, str], unpacked: pathlib.Path) -> FolderContent:
    """Make the spec of tables; ``assigned``: FILES and settings, with the names of the keys of specs, or, for COLUMNS,
    the names of columns in the tables. Nothing is unpacked. Raises ValueError naming the setting or the file."""
    defaults: dict[str, Any] = OF_FILES | OF_EDGES | COLUMNS
    for name in assigned:
        one_of("--set", name, (*FILES, *defaults))
    if "edges" not in assigned:
        raise ValueError("files.edges has no path; pass --set edges=PATH")
    if "nodes" not in assigned and (unused := [name for name in OF_NODES if name in assigned]):
        raise ValueError(f"--set {unused[0]}: names a column of a table of nodes, which is missing: --set nodes=PATH")
    values = {name: setting(name, assigned[name], usual) if name in assigned else usual
              for name, usual in defaults.items()}  # fmt: skip
    layout = {name: values[name] for name in OF_FILES}
    files = {name: {"path": assigned[name], **layout} for name in FILES if name in assigned}
    tables = {name: build(FileSpec, file, f"files.{name}") for name, file in files.items()}
    there = {name: table.pieces()[0].open().names({}) for name, table in tables.items()}

    def columns(file: str, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: {"column": values[name]} for name in names if name in assigned or values[name] in there[file]}

    edge = {"relation": RELATION, "file": "edges", "src": "src", "dst": "dst", "columns": columns("edges", ("weight",))}
    edge |= {name: values[name] for name in OF_EDGES}
    node: dict[str, Any] = {"type": NODE}
    if "nodes" in files:
        of_node = columns("nodes", ("label", "split"))
        if "label" in of_node:
            of_node["label"] = label_column(tables["nodes"], values["label"])
        if features := feature_columns(values["feat"], there["nodes"], "feat" in assigned):
            of_node["feat"] = {"column": features}
        node |= {"file": "nodes", "id": values["id"], "missing_ids": values["missing_ids"], "columns": of_node}
    spec = {"kind": "static", "files": files, "nodes": [node], "edges": [edge]}
    return FolderContent(build_spec(spec, pathlib.Path(), {}))


def batches(path: pathlib.Path, columns: Mapping[str, Reference]) -> Iterator[tuple[int, dict[str, Raw]]]:
    """Yield pieces of some columns of a CSV file, whose first line is skipped, and the row that each piece begins
    with."""
    row = 0
    for batch in FileSpec(path=str(path), header="skip").open().batches(columns):
        yield row, batch
        row += next(iter(batch.values())).num_rows


def feature_columns(named: Any, there: list[str], is_assigned: bool) -> Reference:
    """List the columns of features: ``named`` by a list, by names between commas, or by a range of positions; by
    default the columns feat, feat_0, feat_1, ... that are there."""
    if not is_assigned:
        return sorted((name for name in there if FEATURE.fullmatch(name)), key=natural)
    return [name.strip() for name in named.split(",")] if isinstance(named, str) and "," in named else named


def label_column(table: FileSpec, name: Reference) -> dict[str, Any]:
    """Describe a column of labels: words are classes, -1 where missing; numbers of which one has a fraction are to be
    predicted, NaN where missing; integers may be either, NaN where missing."""
    try:
        numbers = any(has_fractions(piece, name) for piece in table.pieces())
    except RowError:
        return {"column": name, "classes": True, "fill": -1}
    return {"column": name, **({"dtype": "float64", "fill": np.nan} if numbers else {})}


def has_fractions(file: FileSpec, reference: Reference | None) -> bool:
    """Say whether a column of numbers, NaN where missing, has one with a fraction. Raises RowError for words."""
    table, row, found = file.open(), 0, False
    for batch in table.batches({"label": reference}):
        values = parse_numbers(batch["label"], table.name, row, np.dtype(np.float64), np.nan, {})
        found |= bool((values % 1 > 0).any())
        row += len(values)
    return found
