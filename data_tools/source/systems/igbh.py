"""Reads a folder of IGB-Heterogeneous, of the Illinois Graph Benchmark, as the graph of MLPerf's benchmark R-GAT.

The layout is the one that igb/dataloader.py of github.com/IllinoisGraphBenchmark/IGB-Datasets (0db1143) reads, and
graph/R-GAT/dgl_utilities/feature_fetching.py of github.com/mlcommons/inference (390a8cb):

* processed/TYPE/node_feat.npy: rows of float32. In the sizes large and full, the files of papers and authors, and the
  labels, have no header of NumPy.
* processed/paper/node_label_19.npy and node_label_2K.npy (2,983 classes): a float32 a paper. In the size full, only the
  first papers have a label.
* processed/SOURCE__NAME__DESTINATION/edge_index.npy: row numbers of source and destination [E, 2].
* processed/train_idx.pt and val_idx.pt: rows of papers, which MLPerf's split_seeds.py draws. Without these files the
  split is the one of IGB's loader: of the papers with a label, the first 60 % are for training, 20 % for validation.

As in MLPerf's loader, citations have both directions, every paper has a self-loop, and each relation NAME between two
types has a reverse rev_NAME.
"""

from __future__ import annotations

import glob
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from data_tools.source.formats.arrays import open_tensors
from data_tools.source.formats.npz_arrays import open_npy
from data_tools.source.object_columns import array_of
from data_tools.source.schema import one_of
from data_tools.source.spec_file import build_spec
from data_tools.source.spool import forget
from data_tools.source.systems.content import FolderContent
from hpcgnn.graph.files import FileFormatError, relation_name, slabs

SETTINGS = ("folder", "classes")
TYPES = ("paper", "author", "institute", "fos", "journal", "conference")
OPTIONAL = ("journal", "conference")  # the loader of IGB leaves them out
CITES = "paper__cites__paper"
RELATIONS = (
    CITES, "paper__written_by__author", "author__affiliated_to__institute", "paper__topic__fos",
    "paper__published__journal", "paper__venue__conference",
)  # fmt: skip
LABELS = {"19": "node_label_19.npy", "2983": "node_label_2K.npy"}
FULL_PAPERS = 269_346_174  # of the size full
LABELED = {"19": 227_130_858, "2983": 157_675_969}  # of these, the first ones
TRAIN, VALIDATION = 0.6, 0.2  # of the papers with a label
WIDTH = 1024  # of files without a header
MAGIC = b"\x93NUMPY"
SLAB_ROWS = 1 << 20
LISTED = 8


def read_igbh(assigned: Mapping[str, str], unpacked: pathlib.Path) -> FolderContent:
    """Make the spec of a folder; ``assigned``: folder, which is or holds processed/; and classes, 19 or 2983 (the
    default). Self-loops and the split are written to the folder ``unpacked``. Raises ValueError naming the setting or
    the file."""
    for name in assigned:
        one_of("--set", name, SETTINGS)
    if "folder" not in assigned:
        raise ValueError("--preset igbh: give --set folder=FOLDER, the folder that holds processed/")
    classes = assigned.get("classes", "2983")
    one_of("--set classes", classes, LABELS)
    folder = pathlib.Path(assigned["folder"]).resolve()
    folder = folder / "processed" if (folder / "processed").is_dir() else folder
    kinds = [kind for kind in TYPES if kind not in OPTIONAL or (folder / kind).is_dir()]
    relations = [name for name in RELATIONS if name.rpartition("__")[2] in kinds]
    width = feature_width(folder)
    files: dict[str, Any] = {kind: describe_array(folder / kind / "node_feat.npy", width) for kind in kinds}
    files["label"] = describe_array(folder / "paper" / LABELS[classes], 0)
    num_papers = count_rows(files["label"])
    num_labeled = LABELED[classes] if num_papers == FULL_PAPERS else num_papers
    if num_labeled < num_papers:
        files["label"] = write_labels(files["label"], num_labeled, unpacked)
    split, notes = describe_split(folder, files, num_labeled, num_papers, unpacked)
    files |= {name: {"path": str(edge_path(folder, name)), "format": "npy"} for name in relations}
    loops = write_loops(edge_path(folder, CITES), num_papers, unpacked)
    files[CITES] = {"format": "npy", "chunks": [glob.escape(str(path)) for path in (edge_path(folder, CITES), loops)]}
    notes.append(f"paper.cites.paper: {len(open_npy(loops)):,} self-loops added, so that every paper has one")
    columns: dict[str, dict[str, Any]] = {kind: {"feat": "array"} for kind in kinds}
    columns["paper"] |= {"label": {"file": "label", "column": "array", "fill": -1}, "split": split}
    spec = {
        "kind": "static", "files": files, "edges": [describe_relation(name) for name in relations],
        "nodes": [{"type": kind, "ids": "row", "file": kind, "columns": columns[kind]} for kind in kinds],
    }  # fmt: skip
    return FolderContent(build_spec(spec, unpacked, {}), [*notes, *name_unread(folder, files)])


def feature_width(folder: pathlib.Path) -> int:
    """Return the width of the features, which a file with a header has."""
    paths = [path for kind in TYPES if has_header(path := folder / kind / "node_feat.npy")]
    return int(open_header(paths[0]).shape[1]) if paths else WIDTH


def has_header(path: pathlib.Path) -> bool:
    """Say whether a file is there and begins with a header of NumPy."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def open_header(path: pathlib.Path) -> np.ndarray:
    """Map an array with a header. Raises FileFormatError naming a file that cannot be read."""
    try:
        return open_npy(path)
    except ValueError as error:
        raise FileFormatError(f"{path}: not a readable npy file ({error})") from None


def describe_array(path: pathlib.Path, width: int) -> dict[str, Any]:
    """Describe a file of float32, with a header or without; width: numbers in a row, 0: the rows are numbers. Raises
    FileFormatError where it is missing."""
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file; is this the folder of IGB-Heterogeneous that holds processed/?")
    if has_header(path):
        return {"path": str(path), "format": "npy"}
    return {"path": str(path), "format": "raw", "width": width}


def count_rows(labels: dict[str, Any]) -> int:
    """Count the labels of a file that ``describe_array`` describes."""
    if labels["format"] == "npy":
        return len(open_header(pathlib.Path(labels["path"])))
    return os.path.getsize(labels["path"]) // 4


def write_labels(labels: dict[str, Any], num_labeled: int, unpacked: pathlib.Path) -> dict[str, Any]:
    """Copy the labels of the first papers, and write -1 for the others; returns the description of the new file."""
    num_papers = count_rows(labels)
    if labels["format"] == "npy":
        source = open_header(pathlib.Path(labels["path"]))
    else:
        source = np.memmap(labels["path"], "<f4", "r", shape=(num_papers,))
    path = unpacked / "label.npy"
    target = np.lib.format.open_memmap(path, "w+", np.float32, (num_papers,))
    for start, stop in slabs(num_papers, 1, SLAB_ROWS):
        target[start:stop] = np.where(np.arange(start, stop) < num_labeled, source[start:stop], -1)
        forget(source)
    target.flush()
    return {"path": str(path), "format": "npy"}


def describe_split(
    folder: pathlib.Path, files: dict[str, Any], num_labeled: int, num_papers: int, unpacked: pathlib.Path
) -> tuple[dict[str, Any], list[str]]:
    """Describe the column of the split, whose files are added to ``files``, and say in a note where it comes from."""
    drawn = {name: folder / f"{name}_idx.pt" for name in ("train", "val")}
    if any(path.is_file() for path in drawn.values()):
        for name, path in drawn.items():
            np.save(unpacked / f"{name}.npy", array_of(open_tensors(path)))
            files[name] = {"path": str(unpacked / f"{name}.npy"), "format": "npy"}
        sets = {name: {"file": name, "column": "array"} for name in drawn}
        return {"file": "label", "sets": sets}, ["paper: split of train_idx.pt and val_idx.pt; no paper is for test"]
    num_train, num_val = int(TRAIN * num_labeled), int(VALIDATION * num_labeled)
    column = np.lib.format.open_memmap(unpacked / "split.npy", "w+", np.int8, (num_papers,))
    bounds = np.array([num_train, num_train + num_val, num_labeled])
    for start, stop in slabs(num_papers, 1, SLAB_ROWS):
        place = np.searchsorted(bounds, np.arange(start, stop), side="right")
        column[start:stop] = np.where(place < len(bounds), place, -1)
    column.flush()
    files["split"] = {"path": str(unpacked / "split.npy"), "format": "npy"}
    counts = f"{num_train:,} train, {num_val:,} val, {num_labeled - num_train - num_val:,} test"
    note = f"paper: no train_idx.pt and val_idx.pt: split in order of rows, as IGB's loader does: {counts}"
    return {"file": "split", "column": "array"}, [note]


def edge_path(folder: pathlib.Path, relation: str) -> pathlib.Path:
    """Return the file of a relation. Raises FileFormatError for one that is missing or of another shape."""
    path = folder / relation / "edge_index.npy"
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file; is this the folder of IGB-Heterogeneous that holds processed/?")
    shape = open_header(path).shape
    if shape[1:] != (2,):
        raise FileFormatError(f"{path}: shape {shape}, expected [E, 2], source and destination of each edge")
    return path


def write_loops(cites: pathlib.Path, num_papers: int, unpacked: pathlib.Path) -> pathlib.Path:
    """Write self-loops [n, 2] of the papers that have none among the citations; returns the file."""
    edges, has_loop = open_header(cites), np.zeros(num_papers, bool)
    for start, stop in slabs(len(edges), 1, SLAB_ROWS):
        piece = np.array(edges[start:stop])
        looped = piece[piece[:, 0] == piece[:, 1], 0]
        has_loop[looped[(looped >= 0) & (looped < num_papers)]] = True  # others are refused when edges are read
        forget(edges)
    path = unpacked / "loops.npy"
    loops = np.lib.format.open_memmap(path, "w+", np.int64, (num_papers - int(has_loop.sum()), 2))
    first = 0
    for start, stop in slabs(num_papers, 1, SLAB_ROWS):
        rows = start + np.flatnonzero(~has_loop[start:stop])
        loops[first : first + len(rows)] = rows[:, None]
        first += len(rows)
    loops.flush()
    return path


def describe_relation(name: str) -> dict[str, Any]:
    """Describe the relation of a folder SOURCE__NAME__DESTINATION: in both directions, or with its reverse."""
    source, relation, destination = name.split("__")
    edge = {"relation": relation_name(source, relation, destination), "file": name}
    edge |= {"src": "array[:,0]", "dst": "array[:,1]"}
    return edge | ({"undirected": True} if source == destination else {"reverse": f"rev_{relation}"})


def name_unread(folder: pathlib.Path, files: dict[str, Any]) -> list[str]:
    """Name the files of the folder that are not read, in a note, or none."""
    read = {file["path"] for file in files.values() if "path" in file}
    read |= {str(folder / CITES / "edge_index.npy"), *(str(folder / f"{name}_idx.pt") for name in ("train", "val"))}
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and str(path) not in read)
    names = [str(path.relative_to(folder)) for path in paths]
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return [f"files that are not read: {', '.join(names[:LISTED])}{more}"] if names else []
