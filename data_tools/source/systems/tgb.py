"""Reads the folder of a data set of the Temporal Graph Benchmark (Huang et al., 2023; Gastinger et al., TGB 2, 2024) as
events between nodes of one type.

The files and the numbers of nodes are as in LinkPropPredDataset and NodePropPredDataset: tgb/linkproppred/dataset.py,
tgb/nodeproppred/dataset.py, tgb/utils/info.py and the readers in tgb/utils/pre_process.py of
github.com/shenyangHuang/TGB (3b83e5c). Files of data set NAME; from its second version on, names end in _v2, ...:

* NAME_edgelist.csv: an edge a row, of the columns of ``EdgeList``;
* airport_node_feat.csv of tgbl-flight: features of nodes; NAME_nodetype.csv of thgl-: types of nodes;
* NAME_node_labels.csv of tgbn-: rows of time, node, class and weight, which ``tgb_labels`` reads;
* NAME_val_ns.pkl, NAME_test_ns.pkl: negatives, which ``tgb_negatives`` reads;
* ml_NAME*.pkl, which TGB makes of the files above, are not read.

There are two differences. Features that are 0 in every row are left out, and so is the second of two equal columns of
tgbl-comment.
"""

from __future__ import annotations

import csv
import pathlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.source.formats.dgl_partitions import Chunks
from data_tools.source.formats.text_stream import natural
from data_tools.source.formats.values import (
    Place,
    Raw,
    Reference,
    parse_ids,
    parse_names,
    parse_numbers,
    single,
    to_numbers,
    to_text,
)
from data_tools.source.objects import NODE, RELATION
from data_tools.source.schema import one_of
from data_tools.source.spec_file import build_spec
from data_tools.source.systems.content import FolderContent
from data_tools.source.systems.csv_tables import batches
from data_tools.source.systems.tgb_labels import write_labels
from data_tools.source.systems.tgb_negatives import write_negatives
from hpcgnn.graph.files import FileFormatError
from hpcgnn.graph.splits import SPLITS

SETTINGS = ("folder", "name", "inverse")
EDGES = re.compile(r"(?P<name>[a-z]+-[a-z]+)_edgelist(_v\d+)?\.csv")
PADDED, PAD = 8, "!"  # characters of a call sign and of a type code
LEAST_LETTER = 35  # is subtracted from the code of a letter


@dataclass(frozen=True, slots=True)
class EdgeList:
    """An edge list. time, src, dst, type: positions of its columns.

    numbering: "given": sources keep their numbers, and destinations follow behind the largest one; "met": nodes are
    numbered in the order of rows, the source of a row first; "classes": destinations are numbered so, and so are
    sources, from ``num_classes`` on. text: ids are words; type_words: types are words, numbered in the order of rows.
    features: columns; make: makes features [n, F] of them, from numbers [n, c] or, ``from_text``, from ``Raw``.
    inverse: each edge has an inverse, of another type.
    """

    time: int = 0
    src: int = 1
    dst: int = 2
    type: int | None = None
    numbering: Literal["given", "met", "classes"] = "met"
    text: bool = True
    type_words: bool = False
    num_classes: int = 0
    features: Reference | None = None
    make: Callable[[Any], np.ndarray] = np.asarray
    from_text: bool = False
    inverse: bool = False

    @property
    def columns(self) -> dict[str, Reference]:
        """The columns to read, by role."""
        roles = {"time": self.time, "src": self.src, "dst": self.dst, "type": self.type, "feat": self.features}
        return {role: column for role, column in roles.items() if column is not None}


def of_weights(weights: np.ndarray) -> np.ndarray:
    """Make features [n, 1] of weights [n, 1]: their binary logarithm, 0 for weight 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log2(np.where(weights == 0, 1, weights))


def of_transfers(columns: np.ndarray) -> np.ndarray:
    """Make features [n, 2] of the value and the direction of transfers: the value as its natural logarithm."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.column_stack([np.log(columns[:, 0]), columns[:, 1]])


def codes(text: pa.Array, width: int) -> np.ndarray:
    """Make numbers [n, width] of text: digits are themselves, letters follow from 30 on, and padding is -1."""
    padded = pc.utf8_rpad(pc.utf8_upper(text), width, PAD)
    code = padded.to_numpy(zero_copy_only=False).astype(f"U{width}").view(np.uint32).reshape(-1, width).astype(np.int64)
    is_digit = (code >= ord("0")) & (code <= ord("9"))
    return np.where(is_digit, code - ord("0"), np.where(code == ord(PAD), -1, code - LEAST_LETTER))


def of_flights(raw: Raw) -> np.ndarray:
    """Make features [n, 16] of call sign and type code, 8 characters each; a longer text counts as missing."""
    halves = []
    for part, label in zip(raw.parts, raw.labels, strict=True):
        text = pc.fill_null(to_text(part, Place("", label, 0)), "")
        halves.append(codes(pc.if_else(pc.greater(pc.utf8_length(text), PADDED), "", text), PADDED))
    return np.hstack(halves)


BIPARTITE = EdgeList(time=2, src=0, dst=1, numbering="given", text=False, features="4:")
WEIGHTED = EdgeList(features=[3], make=of_weights)
FACTS = EdgeList(type=3, text=False, inverse=True)
NAMED_FACTS = EdgeList(type=3, type_words=True, inverse=True)
TYPED = EdgeList(type=3, text=False)
PROPERTIES = EdgeList(numbering="classes", features=[3])
SETS = {
    **dict.fromkeys(("tgbl-wiki", "tgbl-subreddit", "tgbl-lastfm", "tgbl-uci", "tgbl-enron"), BIPARTITE),
    **dict.fromkeys(("tgbl-coin", "tgbl-review"), WEIGHTED),
    "tgbl-comment": EdgeList(features=[3, 4], make=lambda columns: columns / (5000, 1)),
    "tgbl-flight": EdgeList(features=[3, 4], make=of_flights, from_text=True),
    **dict.fromkeys(("tkgl-polecat", "tkgl-icews", "tkgl-yago"), FACTS),
    **dict.fromkeys(("tkgl-wikidata", "tkgl-smallpedia"), NAMED_FACTS),
    **dict.fromkeys(("thgl-myket", "thgl-github", "thgl-software"), TYPED),
    "thgl-forum": replace(TYPED, features=[4, 5], make=lambda columns: columns / 10_000),
    "tgbn-trade": EdgeList(features=[3]),
    "tgbn-genre": replace(PROPERTIES, num_classes=513),
    "tgbn-reddit": replace(PROPERTIES, num_classes=698, features=[4]),
    "tgbn-token": replace(PROPERTIES, num_classes=1001, features=[3, 4], make=of_transfers),
}
LISTED = ("tkgl-wikidata", *(name for name in SETS if name.startswith("thgl-")))  # with lists of negatives
AIRPORTS = "airport_node_feat"
# Shares of validation and test of tkgl-yago: hpcgnn's usual ones are TGB's for all others.
YAGO, YAGO_RATIO = "tkgl-yago", 0.1


class Numbers:
    """Numbers ids in order of appearance, from ``first`` on. of: the numbers by id."""

    def __init__(self, first: int = 0):
        self._first = first
        self.of: dict[Any, int] = {}

    def __call__(self, ids: pa.Array) -> np.ndarray:
        """Number ids [n], int64."""
        words = ids.dictionary_encode()
        numbers, of = [], self.of
        for word in words.dictionary.to_pylist():
            numbers.append(of.setdefault(word, self._first + len(of)))
        return np.array(numbers, np.int64)[words.indices.to_numpy(zero_copy_only=False)]


@dataclass
class ListFacts:
    """Contents of an edge list as far as it was read. nodes: numbers of the ids; classes: of the destinations that are
    numbered apart; types: of words; offset: is added to destinations; relations: the types as numbers; fractions:
    number of times that had one."""

    nodes: Numbers
    classes: Numbers
    types: Numbers
    offset: int = 0
    num_nodes: int = 0
    relations: np.ndarray | Any = None
    fractions: int = 0


def read_tgb(assigned: Mapping[str, str], unpacked: pathlib.Path) -> FolderContent:
    """Make the spec of a folder; ``assigned``: folder; name of the data set, where the folder has several; and inverse,
    which is false to leave out the inverse of each fact of tkgl-. Arrays are written to the folder ``unpacked``. Raises
    ValueError naming the setting, or the file, the row and the remedy."""
    for setting in assigned:
        one_of("--set", setting, SETTINGS)
    if "folder" not in assigned:
        raise ValueError("--preset tgb: give --set folder=FOLDER, such as the unpacked tgbl_wiki/")
    folder = pathlib.Path(assigned["folder"])
    name = assigned.get("name") or find_name(folder)
    one_of("--set name", name, SETS)
    layout, inverse = SETS[name], assigned.get("inverse", "true")
    one_of("--set inverse", inverse, ("true", "false"))
    if "inverse" in assigned and not layout.inverse:
        raise ValueError(f"--set inverse: {name} has no inverse edges in TGB; leave it out")
    path, writer = find_file(folder, f"{name}_edgelist", "csv"), Chunks(unpacked)
    facts = write_edges(path, layout, writer)
    notes = [describe_numbers(name, layout, facts)]
    if facts.fractions:
        notes.append(f"{path.name}: {facts.fractions:,} times have a fraction, which is left out, as in TGB")
    edge: dict[str, Any] = {"relation": RELATION, "file": path.name, "src": "src", "dst": "dst", "time": "time"}
    edge["columns"] = {} if layout.features is None or not has_features(writer, path.name) else {"feat": "feat"}
    if layout.type is not None:
        edge["columns"]["type"] = {"column": "type", "dtype": "int64"}
    if layout.inverse and inverse == "true":
        add_inverses(writer, path.name, len(facts.relations))
        edge["sort"] = True  # they follow all others
        notes.append(f"{name}: the inverse of each fact is an event, too: type + {len(facts.relations)}, as in TGB")
    node: dict[str, Any] = {"type": NODE, "ids": "row", "count": facts.num_nodes}
    node["columns"] = node_columns(folder, name, facts, writer, notes)
    if name == YAGO:
        notes.append(f"{name}: TGB's split is --data.val_ratio {YAGO_RATIO} --data.test_ratio {YAGO_RATIO}")
    spec = {"kind": "temporal", "files": writer.files, "nodes": [node], "edges": [edge]}
    content = FolderContent(build_spec(spec, pathlib.Path(), {}), notes, names_columns=True)
    if name.startswith("tgbn-"):
        labels, classes = find_file(folder, f"{name}_node_labels", "csv"), facts.classes.of or facts.nodes.of
        beside = partial(write_labels, labels, facts.nodes.of, classes, layout.num_classes or facts.num_nodes)
        return replace(content, beside=beside, beside_what="labels")
    lists = find_negatives(folder, name, notes) if inverse == "true" else {}
    return replace(content, beside=partial(write_negatives, lists)) if lists else content


def find_name(folder: pathlib.Path) -> str:
    """Find the name of the data set of a folder. Raises ValueError where it has none, or several."""
    if not folder.is_dir():
        raise FileFormatError(f"{folder}: no such folder")
    found = sorted({match["name"] for path in folder.iterdir() if (match := EDGES.fullmatch(path.name))})
    if len(found) > 1:
        raise ValueError(
            f"{folder}: has several data sets; choose one: --set name={found[0]}, or {', '.join(found[1:])}"
        )
    if not found:
        made = " (ml_*.pkl, which TGB makes of it, are not read)" * any(folder.glob("ml_*.pkl"))
        raise FileFormatError(
            f"{folder}: no edge list in it, such as tgbl-wiki_edgelist_v2.csv{made}; unzip the archive of the data set"
        )
    return found[0]


def find_file(folder: pathlib.Path, stem: str, suffix: str) -> pathlib.Path:
    """Find a file of a data set, of the newest version that is there. Raises FileFormatError where there is none."""
    form = re.compile(rf"{re.escape(stem)}(_v\d+)?\.{suffix}")
    found = sorted((path.name for path in folder.glob(f"{stem}*") if form.fullmatch(path.name)), key=natural)
    if not found:
        raise FileFormatError(f"{folder / stem}.{suffix}: no such file; unzip the archive of the data set")
    versions = [name for name in found if name != f"{stem}.{suffix}"]
    return folder / (versions or found)[-1]


def find_negatives(folder: pathlib.Path, name: str, notes: list[str]) -> dict[str, pathlib.Path]:
    """Find the files of negatives of val and test that have to be converted, by split. A note says how others are
    used, or that there are none."""
    try:
        paths = {split: find_file(folder, f"{name}_{split}_ns", "pkl") for split in SPLITS[1:]}
    except FileFormatError:
        notes.append(f"{name}: no {name}_val_ns.pkl and {name}_test_ns.pkl, TGB's negatives")
        return {}
    if name in LISTED:
        return paths
    if SETS[name].type is None:
        both = str(paths["val"]).replace("_val_ns", "_{split}_ns")
        notes.append(f"{name}: TGB's negatives fit this graph: --eval tgb --eval.negatives_file '{both}'")
    else:
        notes.append(f"{name}: {paths['val'].name} and {paths['test'].name} hold true destinations; they are not used")
    return {}


def write_edges(path: pathlib.Path, layout: EdgeList, writer: Chunks) -> ListFacts:
    """Write src, dst, time, type and feat of the edges of a list, piece by piece. Raises FileFormatError."""
    facts = ListFacts(Numbers(layout.num_classes), Numbers(), Numbers(), relations=np.empty(0, np.int64))
    if layout.numbering == "given":
        tops = [parse_ids(batch["src"], path.name, row).max(initial=-1)
                for row, batch in batches(path, {"src": layout.src})]  # fmt: skip
        facts.offset = int(max(tops, default=-1)) + 1
    for row, batch in batches(path, layout.columns):
        arrays = dict(zip(("src", "dst"), number_ends(layout, batch, path.name, row, facts), strict=True))
        arrays["time"] = whole_times(batch["time"], path.name, row, facts)
        if "type" in batch:
            parse = parse_names if layout.type_words else parse_ids
            types: Any = parse(batch["type"], path.name, row)
            arrays["type"] = facts.types(types) if layout.type_words else types
            facts.relations = np.union1d(facts.relations, arrays["type"])
        if "feat" in batch:
            arrays["feat"] = make_features(layout, batch["feat"], path.name, row)
        facts.num_nodes = max(facts.num_nodes, 1 + max(int(arrays[end].max(initial=-1)) for end in ("src", "dst")))
        writer.add_arrays(path.name, arrays)
    if len(facts.classes.of) > layout.num_classes and layout.numbering == "classes":
        raise FileFormatError(
            f"{path}: {len(facts.classes.of)} destinations, but TGB has {layout.num_classes} classes of this data "
            "set, and numbers sources from there on; fetch the archive again"
        )
    writer.files[path.name]["source"] = path.name
    return facts


def number_ends(
    layout: EdgeList, batch: Mapping[str, Raw], file: str, row: int, facts: ListFacts
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Number the sources and destinations [n] of a piece as TGB does."""
    if layout.numbering == "given":
        return parse_ids(batch["src"], file, row), parse_ids(batch["dst"], file, row) + facts.offset
    parse = parse_names if layout.text else (lambda *piece: pa.array(parse_ids(*piece)))
    src, dst = (parse(batch[end], file, row) for end in ("src", "dst"))
    if layout.numbering == "classes":
        return facts.nodes(src), facts.classes(dst)
    in_turn = np.arange(2 * len(src)).reshape(2, -1).T.ravel()
    numbers = facts.nodes(pa.concat_arrays([src, dst]).take(pa.array(in_turn))).reshape(-1, 2)
    return numbers[:, 0].copy(), numbers[:, 1].copy()


def whole_times(raw: Raw, file: str, row: int, facts: ListFacts) -> np.ndarray:
    """Read times [n] int64 without their fractions, which are counted. Raises FileFormatError for what is no number,
    such as the dates of an old version of tgbl-flight."""
    part, place = single(raw, file, row)
    numbers = to_numbers(part, place, None, "a time (a number; fetch the newest version of the data set)")
    if numbers.dtype.kind != "f":
        return numbers.astype(np.int64)
    if len(bad := np.flatnonzero(~(np.abs(numbers) < 2**53))):
        raise place.error(
            int(bad[0]), f"the time {numbers[bad[0]]} is no whole number that a float64 holds; mend the row"
        )
    whole = np.trunc(numbers)
    facts.fractions += int((whole != numbers).sum())
    return whole.astype(np.int64)


def make_features(layout: EdgeList, raw: Raw, file: str, row: int) -> np.ndarray:
    """Make features [n, F] float32 of the columns of a piece. Raises FileFormatError for a feature that is not
    finite."""
    source: Any = raw if layout.from_text else parse_numbers(raw, file, row, np.dtype(np.float64), None, {})
    with np.errstate(over="ignore"):
        features = layout.make(source).astype(np.float32)
    if len(bad := np.argwhere(~np.isfinite(features))):
        line, column = bad[0]
        raise Place(file, raw.labels[column], row).error(
            int(line),
            f"the value {source[line, column]} gives no finite feature ({features[line, column]}); mend the row",
        )
    return features


def has_features(writer: Chunks, name: str) -> bool:
    """Say whether a feature of some edge is not 0; TGB has such columns where a data set has no features."""
    for path in writer.files[name]["chunks"]:
        with np.load(path) as arrays:
            if arrays["feat"].any():
                return True
    return False


def add_inverses(writer: Chunks, name: str, num_types: int) -> None:
    """Write the inverse of each edge behind all edges, its type increased by ``num_types``."""
    for path in list(writer.files[name]["chunks"]):
        with np.load(path) as arrays:
            inverse = {"src": arrays["dst"], "dst": arrays["src"], "type": arrays["type"] + num_types}
            writer.add_arrays(name, dict(arrays) | inverse)


def describe_numbers(name: str, layout: EdgeList, facts: ListFacts) -> str:
    """Describe, for users, which ids the nodes have."""
    how = {
        "given": f"the destinations of {name}_edgelist are these numbers + {facts.offset}",
        "met": "numbered in the order of the edge list",
        "classes": f"classes from 0, other nodes from {layout.num_classes} on, in the order of the edge list",
    }[layout.numbering]
    return f"{name}: ids of nodes are TGB's: {how}"


def node_columns(
    folder: pathlib.Path, name: str, facts: ListFacts, writer: Chunks, notes: list[str]
) -> dict[str, Any]:  # fmt: skip
    """Write the columns of nodes that a data set has, and return them for its spec."""
    if name == "tgbl-flight":
        path = find_file(folder, AIRPORTS, "csv")
        writer.add(path.name, airport_features(path, facts))
        return {"feat": {"file": path.name, "column": "array"}}
    if name.startswith("thgl-"):
        path = find_file(folder, f"{name}_nodetype", "csv")
        writer.add(path.name, node_types(path, facts, notes))
        return {"type": {"file": path.name, "column": "array", "dtype": "int64"}}
    return {}


def airport_features(path: pathlib.Path, facts: ListFacts) -> np.ndarray:
    """Make features [N, F] of airports: kind and continent as 0 and 1, the seven characters of the region, longitude
    and latitude; all 0 without a row. Raises FileFormatError."""
    rows = []
    with open(path, newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.reader(file)):
            if len(row) < 6:
                raise FileFormatError(f"{path}: row {number}: {len(row)} columns, expected 6")
            if number and row[0] in facts.nodes.of:
                rows.append(row)
    if not rows:
        raise FileFormatError(f"{path}: no airport of the edge list is in it; fetch the archive again")
    ids, kinds, continents, regions = (pa.array([row[column] for row in rows]) for column in range(4))
    one_hot = []
    for words in (kinds, continents):
        numbers = Numbers()(words)
        one_hot.append(np.eye(numbers.max() + 1)[numbers])
    try:
        places = np.array([row[4:6] for row in rows], np.float64)
    except ValueError as error:
        raise FileFormatError(f"{path}: longitude and latitude must be numbers ({error}); mend the row") from None
    features = np.hstack([*one_hot, codes(regions, 7), places])
    table = np.zeros((facts.num_nodes, features.shape[1]), np.float32)
    table[[facts.nodes.of[word] for word in ids.to_pylist()]] = features
    return table


def node_types(path: pathlib.Path, facts: ListFacts, notes: list[str]) -> np.ndarray:
    """Read the types [N] of nodes; a node without a row has type 0, as in TGB, and a note counts such nodes."""
    types, known, others = np.zeros(facts.num_nodes, np.int64), np.zeros(facts.num_nodes, bool), 0
    for row, batch in batches(path, {"id": 0, "type": 1}):
        ids, of_rows = (parse_ids(batch[column], path.name, row) for column in ("id", "type"))
        numbers = np.array([facts.nodes.of.get(word, -1) for word in ids.tolist()], np.int64)
        there = numbers >= 0
        types[numbers[there]], known[numbers[there]] = of_rows[there], True
        others += int((~there).sum())
    if missing := int((~known).sum()):
        notes.append(f"{path.name}: {missing:,} nodes have no row; their type is 0, as in TGB")
    if others:
        notes.append(f"{path.name}: {others:,} rows of nodes without an edge, which are left out")
    return types
