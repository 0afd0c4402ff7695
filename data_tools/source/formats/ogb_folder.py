"""Reads the folder of a data set of the Open Graph Benchmark, as its package downloads it, as a spec.

It reads raw/ in csv form (one type of nodes, or several with relations/) and in binary form (data.npz, node-label.npz),
and a split. A split of nodes is read from split/<name>/[<type>/]{train,valid,test}.csv.gz, a split of links from
split/<name>/{train,valid,test}.pt, whose positive links are the edges. Other files of raw/ about nodes
(node_year.csv.gz) or edges (edge_reltype.csv.gz) become columns.
"""

from __future__ import annotations

import csv
import gzip
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from data_tools.source.formats.arrays import NpzTable, TensorsTable
from data_tools.source.formats.npz_arrays import NpzArrays
from data_tools.source.formats.text_stream import TextSource
from hpcgnn.graph.files import FileFormatError, relation_name

# Whether OGB's loader adds the reverse of every edge of a set, by the names of its folders: add_inverse_edge of
# ogb/nodeproppred/master.csv and ogb/linkproppred/master.csv (github.com/snap-stanford/ogb, 61e9784).
ADDS_REVERSES = {
    "ogbn": {"products": True, "proteins": True, "arxiv": False, "mag": False, "papers100m": False,
             "papers100m-bin": False},
    "ogbl": {"ppa": True, "ppassoc": True, "collab": True, "ddi": True, "citation2": False, "citation-v2": False,
             "wikikg2": False, "wikikg-v2": False, "biokg": False, "vessel": False},
}  # fmt: skip
SETS = {"train": "train", "valid": "val", "test": "test"}
LINKS = (("edge[:,0]", "edge[:,1]"), ("source_node", "target_node"), ("head", "tail"))


def choose_direction(assigned: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Set ``undirected`` where it is ``auto`` or missing, as in OGB's loader for the set with the name of the folder or
    archive. Returns the settings, and a note for users."""
    if assigned.get("undirected", "auto") != "auto" or "folder" not in assigned:
        return dict(assigned), None
    name = pathlib.Path(assigned["folder"]).resolve().name
    plain = re.sub(r"\.(zip|tar|tgz|tar\.gz)$", "", name.lower()).replace("_", "-")
    plain = re.sub(r"-(pyg|dgl)$", "", plain)
    known = {f"{prefix}-{key}": both for prefix, sets in ADDS_REVERSES.items() for key, both in sets.items()}
    known |= {key: both for sets in ADDS_REVERSES.values() for key, both in sets.items()}
    both = known.get(plain)
    if both:
        note = f"{name}: both directions of every edge, as OGB's loader has them; --set undirected=false: one"
    elif both is False:
        note = f"{name}: edges stored as in the file, in one direction, as OGB's loader has them"
    else:
        names = ", ".join(sorted(key for key, both in known.items() if both and key.startswith("ogb")))
        note = (
            f"{name}: not the name of a set of OGB, so edges are stored in one direction, as in the file; "
            f"--set undirected=true adds their reverses, as OGB's loader does for {names}"
        )
    return {**assigned, "undirected": "true" if both else "false"}, note


def describe_raw(raw: pathlib.Path) -> dict[str, Any]:
    """Describe the nodes and edges of raw/ as a spec. Raises FileFormatError for a file that is missing."""
    files: dict[str, Any] = {}
    read = typed if (raw / "triplet-type-list.csv.gz").is_file() else homogeneous
    nodes, edges = read(raw, files)
    return {"files": files, "nodes": nodes, "edges": edges}


def put_splits(spec: dict[str, Any], split: pathlib.Path) -> None:
    """Add the split of nodes that a folder has to the node types of a spec."""
    for node in spec["nodes"]:
        sets = split / node["type"] if (split / node["type"]).is_dir() else split
        if (sets / "train.csv.gz").is_file():
            files = {
                role: put(spec["files"], f"{node['type']}.split.{name}", sets / f"{name}.csv.gz")
                for name, role in SETS.items()
            }
            rows = {role: {"file": file, "column": 0} for role, file in files.items()}
            node.setdefault("columns", {})["split"] = {"file": files["train"], "sets": rows}


def find_split(folder: pathlib.Path, name: str | None) -> pathlib.Path:
    """Find the folder of a split, or of the only split where ``name`` is None."""
    splits = sorted(path.name for path in (folder / "split").iterdir()) if (folder / "split").is_dir() else []
    if name is None and len(splits) == 1:
        name = splits[0]
    if name not in splits:
        raise FileFormatError(f"{folder}: split {name!r} is not one of {', '.join(splits)}; pass --set split=NAME")
    return folder / "split" / name


def homogeneous(raw: pathlib.Path, files: dict[str, Any]) -> tuple[list[dict], list[dict]]:
    """Describe nodes and edges of a data set with one type of nodes, in csv or binary form."""
    if (raw / "data.npz").is_file():
        return binary(raw, files)
    node: dict[str, Any] = {"type": "node", "ids": "row", "columns": columns(raw, "node", "node", files)}
    if (raw / "species.csv.gz").is_file():  # of ogbn-proteins; OGB's loader renames it to node_species.csv.gz
        species = put(files, "node.species", raw / "species.csv.gz")
        node["columns"]["species"] = {"file": species, "column": 0, "dtype": "int64"}
    node["count"] = {"file": put(files, "count", raw / "num-node-list.csv.gz"), "column": 0}
    edge = {"relation": "node.to.node", "file": put(files, "edge", raw / "edge.csv.gz"), "src": 0, "dst": 1}
    return [node], [edge | {"columns": columns(raw, "edge", "edge", files)}]


def binary(raw: pathlib.Path, files: dict[str, Any]) -> tuple[list[dict], list[dict]]:
    """Describe nodes and edges of a data set with one type of nodes, from data.npz and node-label.npz."""
    files["data"] = {"path": str(raw / "data.npz")}
    tables: dict[str, dict] = {"node": {}, "edge": {}}
    if (raw / "node-label.npz").is_file():
        files["label"] = {"path": str(raw / "node-label.npz")}
    for file, entry in files.items():
        for name in NpzTable(TextSource(path := pathlib.Path(entry["path"]))).arrays:
            kind, _, column = name.partition("_")
            if kind in tables and column not in ("index", ""):
                shape, dtype = NpzArrays(path).header(name)
                reference = f"{name}[:,0]" if shape[1:] == (1,) and column != "feat" else name
                tables[kind][column] = {"file": file, "column": reference} | dtype_of(column, dtype.kind == "f")
    count = int(np.sum(NpzTable(TextSource(raw / "data.npz")).arrays["num_nodes_list"]))
    node = {"type": "node", "ids": "row", "count": count, "columns": tables["node"]}
    edge = {"relation": "node.to.node", "file": "data", "src": "edge_index[0]", "dst": "edge_index[1]"}
    return [node], [edge | {"columns": tables["edge"]}]


def typed(raw: pathlib.Path, files: dict[str, Any]) -> tuple[list[dict], list[dict]]:
    """Describe nodes and edges of a data set with several types of nodes and relations, in csv form."""
    types, counts = read_rows(raw / "num-node-dict.csv.gz")[:2]
    nodes = []
    for name, count in zip(types, counts, strict=True):
        node_columns = columns(raw / "node-feat" / name, "node", f"{name}.feat", files)
        node_columns |= columns(raw / "node-label" / name, "node", f"{name}.label", files)
        nodes.append({"type": name, "ids": "row", "count": int(count), "columns": node_columns})
    edges = []
    for ends in read_rows(raw / "triplet-type-list.csv.gz"):
        path = raw / "relations" / "___".join(ends)
        file = put(files, ".".join(ends), path / "edge.csv.gz")
        edge = {"relation": relation_name(*ends), "file": file, "src": 0, "dst": 1}
        edges.append(edge | {"columns": columns(path, "edge", ".".join(ends), files)})
    return nodes, edges


def link_edges(split: pathlib.Path, files: dict[str, Any]) -> dict[str, Any]:
    """Describe the links of training, validation and test as one relation; negative links are left out."""
    tables, arrays = {}, {}
    for name, role in SETS.items():
        path = split / f"{name}.pt"
        tables[role] = put(files, role, path)
        files[role] = {"path": str(path), "format": "pt"}
        arrays[role] = TensorsTable(TextSource(path)).arrays
    first = arrays["train"]
    ends = next((ends for ends in LINKS if ends[0].split("[")[0] in first), None)
    if ends is None:
        raise FileFormatError(f"{split / 'train.pt'}: no links in it; it has {', '.join(first)}")
    used = {end.split("[")[0] for end in ends}
    link_columns = {
        "rel" if name == "relation" else name: {"column": name} | dtype_of(name, first[name].dtype.kind == "f")
        for name in first
        if name not in used and all(name in array for array in arrays.values()) and first[name].ndim == 1
    }
    return {"relation": "node.to.node", "file": tables, "src": ends[0], "dst": ends[1], "columns": link_columns}


def columns(folder: pathlib.Path, kind: str, where: str, files: dict[str, Any]) -> dict[str, Any]:
    """Describe the files <kind>-x.csv.gz and <kind>_x.csv.gz of a folder as columns x."""
    entries = {}
    for path in sorted(folder.glob(f"{kind}[-_]*.csv.gz")):
        name = path.name.removesuffix(".csv.gz")[len(kind) + 1 :]
        row = next(iter(read_rows(path, 1)), [])
        fractions = any("." in field or "n" in field.lower() for field in row)
        reference = 0 if len(row) == 1 and name != "feat" else ":"
        entries[name] = {"file": put(files, f"{where}.{name}", path), "column": reference} | dtype_of(name, fractions)
    return entries


def dtype_of(name: str, fractions: bool) -> dict[str, Any]:
    """Choose the dtype of a column, and the number that stands for a missing label."""
    if name == "label":
        return {"dtype": "int64", "fill": -1}
    return {"dtype": "float32" if fractions or name in ("feat", "weight") else "int64"}


def put(files: dict[str, Any], name: str, path: pathlib.Path) -> str:
    """Add a file without a header to ``files``; returns its name. Raises FileFormatError when it is missing."""
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    files[name] = {"path": str(path), "header": "none"}
    return name


def read_rows(path: pathlib.Path, most: int | None = None) -> list[list[str]]:
    """Read the first rows of a small csv file. Raises FileFormatError when it is missing."""
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    with gzip.open(path, "rt", newline="") as file:
        return [row for _, row in zip(range(most or 1 << 20), csv.reader(file), strict=False)]
