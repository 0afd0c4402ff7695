"""Reads the folder of a data set of the Open Graph Benchmark: raw files, processed files, splits and given negatives.

Forms, as ogb/io/read_graph_raw.py and ogb/{nodeproppred,linkproppred}/dataset{,_pyg}.py of
github.com/snap-stanford/ogb (61e9784) write and read them:

* raw/, which `ogb_folder` describes. Where it is missing: processed/data_processed, or
  processed/geometric_data_processed.pt, whose edges have their reverses already where OGB's loader adds them.
* split/<name>/ with train, valid and test, or all in one file split_dict.pt.
  Links of several types, and negatives: `ogb_links`.
"""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from data_tools.source.formats.arrays import open_tensors
from data_tools.source.formats.ogb_folder import SETS, describe_raw, find_split, link_edges, put_splits
from data_tools.source.formats.pyg_file import load_attributes
from data_tools.source.object_columns import array_of
from data_tools.source.object_spec import ENDS, GraphTables, ObjectTable, save_tables
from data_tools.source.objects import NODE, RELATION
from data_tools.source.schema import one_of
from data_tools.source.spec import SourceSpec
from data_tools.source.spec_file import build_spec
from data_tools.source.systems.content import FolderContent
from data_tools.source.systems.csv_tables import has_fractions
from data_tools.source.systems.ogb_links import Names, refuse_lists, typed_links, write_negatives
from hpcgnn.graph.files import FileFormatError, relation_name, split_relation

MAG = "ogbn-mag"
LINKS, NODES = "ogb-linkprop", "ogb-nodeprop"
TASKS = (NODES, LINKS, MAG)
SETTINGS = ("folder", "split", "undirected", "reverse")
PROCESSED = ("data_processed", "geometric_data_processed.pt")
REVERSE = "rev_"  # before the name of a relation, as in ToUndirected of PyTorch Geometric
NAMES = {"x": "feat", "y": "label", "feat": "feat", "attr": "feat"}


def read_ogb(task: str, assigned: Mapping[str, str], unpacked: pathlib.Path) -> FolderContent:
    """Make the spec of a folder for a task; ``assigned``: folder, split (not needed where there is only one),
    undirected, and reverse, which adds a relation rev_X for every relation X. Arrays that have to be rearranged go to
    the folder ``unpacked``. Raises ValueError naming the setting or the file."""
    for name in assigned:
        one_of("--set", name, SETTINGS)
    if "folder" not in assigned:
        raise ValueError("files.folder has no path; pass --set folder=PATH")
    flags = {"undirected": "false", "reverse": "true" if task == MAG else "false"}
    for name, usual in flags.items():
        flags[name] = assigned.get(name, usual)
        one_of(f"--set {name}", flags[name], ("true", "false"))
    if "true" == flags["reverse"] == flags["undirected"]:
        raise ValueError("--set undirected=true: a reverse of every relation is added already; leave it out")
    folder = pathlib.Path(assigned["folder"])
    is_typed = (folder / "raw" / "triplet-type-list.csv.gz").is_file()
    notes: list[str] = []
    processed = None if (folder / "raw").is_dir() else find_processed(folder)
    split = plain_split(find_split(folder, assigned.get("split")), unpacked)
    if processed is None:
        spec = describe_raw(folder / "raw")
    else:
        spec = describe_processed(processed, unpacked)
        notes.append(f"{processed}: read in place of raw/, which is missing; its edges are stored as in it")
    negatives = None
    if task == LINKS:
        names: Names = {None: RELATION}
        if flags["undirected"] == "true":
            refuse_lists(split)
        if len(spec["nodes"]) > 1 and not is_typed:
            raise FileFormatError(f"{folder}: links of several types are read with raw/, which is missing")
        if is_typed:
            names = typed_links(folder / "raw", spec, split, unpacked)
        else:
            spec["edges"] = [link_edges(split, spec["files"])]
        negatives = partial(write_negatives, split, names)
    else:
        put_splits(spec, split)
    is_whole = processed is not None and task != LINKS  # its edges have their reverses where OGB's loader adds them
    for edge in spec["edges"]:
        _, relation, _ = split_relation(edge["relation"])
        if flags["reverse"] == "true":
            edge["reverse"] = f"{REVERSE}{relation}"
        else:
            edge["undirected"] = flags["undirected"] == "true" and not is_whole
        if task == MAG:  # one number for all edges of a relation
            edge["columns"].pop("reltype", None)
    built = with_numbers(build_spec({"kind": "static", **spec}, pathlib.Path(), {}))
    return FolderContent(built, notes, beside=negatives)


def with_numbers(spec: SourceSpec) -> SourceSpec:
    """Make numbers to predict, NaN where missing, of the labels of nodes in files that have fractions; labels without
    fractions are classes. Raises FileFormatError for labels that are no numbers."""
    nodes = []
    for node in spec.nodes:
        label = node.columns.get("label")
        if label is not None and label.file is not None and has_fractions(spec.files[label.file], label.column):
            numbers = dataclasses.replace(label, dtype="float64", fill=np.nan)
            node = dataclasses.replace(node, columns=node.columns | {"label": numbers})
        nodes.append(node)
    return dataclasses.replace(spec, nodes=nodes)


def plain_split(split: pathlib.Path, unpacked: pathlib.Path) -> pathlib.Path:
    """Return a folder with the files of each set; where they are all in split_dict.pt, they are written to one."""
    path = split / "split_dict.pt"
    if not path.is_file():
        return split
    sets = open_tensors(path)
    if not isinstance(sets, Mapping) or set(SETS) - set(sets):
        raise FileFormatError(f"{path}: expected {', '.join(SETS)}, got {', '.join(map(str, sets))}")
    import torch  # only here: it takes more memory than all the rest

    for name in SETS:
        content = sets[name]
        if isinstance(content, Mapping) and {"edge", "head", "source_node"} & content.keys():
            torch.save(content, unpacked / f"{name}.pt")
            continue
        for kind, rows in content.items() if isinstance(content, Mapping) else [("", content)]:
            if "/" in kind or kind == "..":
                raise FileFormatError(f"{path}: {kind!r} is no name of a type of nodes")
            (unpacked / kind).mkdir(exist_ok=True)
            with gzip.open(unpacked / kind / f"{name}.csv.gz", "wt") as file:
                np.savetxt(file, array_of(rows), "%d")
    return unpacked


def find_processed(folder: pathlib.Path) -> pathlib.Path:
    """Find the processed file of a folder. Raises FileFormatError where there is none."""
    path = next((path for name in PROCESSED if (path := folder / "processed" / name).is_file()), None)
    if path is None:
        names = ", ".join(f"processed/{name}" for name in PROCESSED)
        raise FileFormatError(f"{folder}: no folder raw/ in it, nor {names}; is this the folder of an OGB data set?")
    return path


def describe_processed(path: pathlib.Path, unpacked: pathlib.Path) -> dict[str, Any]:
    """Describe the graph of a processed file as a spec, with its arrays in a folder. Raises FileFormatError."""
    store = load_attributes(path) if path.suffix == ".pt" else open_tensors(path)
    if not isinstance(store, Mapping):
        raise FileFormatError(f"{path}: not a graph as OGB writes it, but a {type(store).__name__}")
    labels = store.get("labels")
    graph = dict(store.get("graph", store)) | ({} if labels is None else {"node_label": labels})
    try:
        tables = typed_tables(graph) if "edge_index_dict" in graph else homogeneous_tables(graph)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise FileFormatError(f"{path}: not a graph as OGB writes it ({error!r})") from None
    spec = save_tables(tables, unpacked)
    for file in spec["files"].values():
        file["path"] = str(unpacked / file["path"])
    return spec


def homogeneous_tables(graph: Mapping[str, Any]) -> GraphTables:
    """Make tables of a processed graph with one type of nodes. Its arrays are edge_index, num_nodes, node_X and edge_X,
    or x and y in place of node_feat and node_label."""
    ends, nodes, edges = array_of(graph["edge_index"]), {}, {}
    for name, values in graph.items():
        kind, _, column = name.partition("_")
        if values is None or name in ("edge_index", "num_nodes"):
            continue
        if kind == "node" or name in ("x", "y"):
            nodes[NAMES.get(column or name, column)] = array_of(values)
        elif kind == "edge":
            edges[NAMES.get(column, column)] = array_of(values)
    edges = {"src": ends[0], "dst": ends[1], **{name: one_column(name, values) for name, values in edges.items()}}
    nodes = {name: one_column(name, values) for name, values in nodes.items()}
    count = int(graph["num_nodes"])
    return GraphTables({NODE: ObjectTable(nodes, count=count)}, {RELATION: ObjectTable(edges, keys=ENDS)})


def typed_tables(graph: Mapping[str, Any]) -> GraphTables:
    """Make tables of a processed graph with several types: dictionaries by type, and by relation, in place of arrays.
    X_dict is the same as X."""
    by_name = {name.removesuffix("_dict"): values for name, values in graph.items()}
    tables = GraphTables({kind: ObjectTable(count=int(count)) for kind, count in by_name["num_nodes"].items()})
    for ends, pair in by_name.pop("edge_index").items():
        columns = {"src": array_of(pair)[0], "dst": array_of(pair)[1]}
        tables.edges[relation_name(*ends)] = ObjectTable(columns, keys=ENDS)
    for name, values in by_name.items():
        kind, _, column = name.partition("_")
        column = NAMES.get(column or name, column)
        if not isinstance(values, Mapping) or name == "num_nodes":
            continue
        for key, array in values.items():
            table = tables.edges[relation_name(*key)] if kind == "edge" else tables.nodes[key]
            table.columns[column] = one_column(column, array_of(array))
    return tables


def one_column(name: str, values: np.ndarray) -> np.ndarray:
    """Make a vector of a matrix with one column, except features. Labels without fractions are classes and become
    integers, -1 where there is none; others are numbers to predict."""
    if values.shape[1:] == (1,) and name != "feat":
        values = values[:, 0]
    if name == "label" and values.dtype.kind == "f" and not (values % 1 > 0).any():
        values = np.where(np.isnan(values), -1, values).astype(np.int64)
    return values
