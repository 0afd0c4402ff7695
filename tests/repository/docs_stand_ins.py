"""Small files by the names that the docs use, made when a command reads them."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import link_graphs
import numpy as np
import static_runs
from docs_sources import SOURCES
from random_graphs import write_columns, write_graph
from run_commands import run_caught
from training_runs import bipartite

from data_tools.built_in import make_synthetic_graph
from data_tools.partition.command import partition
from data_tools.synthetic.snapshots import synthesize_snapshots

TEMPORAL, STATIC, UNSPLIT, FACTS, TYPED, SNAPSHOTS = "temporal", "static", "unsplit", "facts", "typed", "snapshots"
SHOP, LEARNED_SHOP, LINKS, ANSWERS, TIMED = "shop", "shop with a split", "links", "answers", "timed"
# Which kind of graph a command is about: the first pattern that its text has.
KINDS = {
    r"(data_tools\.|hpcgnn )derive|(recipes/|--recipe )bipartite": LEARNED_SHOP, r"user\.likes\.item": SHOP,
    r"sampling\.time_column": TIMED, r"\banswers\b": ANSWERS, r"link_loop\.py": LINKS, r"--nodes node": UNSPLIT,
    r"(recipes/|--recipe )distmult|accuracy/(fb15k237|umls)|message_edges both": FACTS,
    r"(recipes/|--recipe )rgcn": TYPED,
    r"(recipes/|--recipe )(sage|gat|gcn)|--kind static|bench sage|(loop_static|server_loop)\.py": STATIC,
    r"--method hotness|--format pyg|--balance nodes,edges": STATIC,
    r"(recipes/|--recipe )(tgcn|evolvegcn)|--kind snapshots|bench snapshots|snapshots\.py|--task.target": SNAPSHOTS,
}  # fmt: skip
PAGE_KINDS = {"static.md": STATIC, "snapshots.md": SNAPSHOTS}
RUN_OPTIONS = {
    TEMPORAL: [], STATIC: ["--kind=static", "--sampling.fanouts=[3,2]", "--model.layers=2"],
    SNAPSHOTS: ["--kind=snapshots"],
}  # fmt: skip
GRAPHS: dict[str, Callable[[Path], object]] = {
    TEMPORAL: lambda path: bipartite(path, 12_000, 100, 40, ticks=3_000_000, edge_width=2),
    STATIC: static_runs.plain,
    TIMED: lambda path: _timed(static_runs.plain(path)),
    TYPED: static_runs.bare,
    FACTS: link_graphs.facts,
    UNSPLIT: lambda path: _without_split(static_runs.plain(path)),
    SHOP: lambda path: _shop(path, {}),
    LEARNED_SHOP: lambda path: _shop(path, {"split": np.arange(200) % 3}),
    SNAPSHOTS: lambda path: synthesize_snapshots(path, 40, 60, seed=1),
    LINKS: link_graphs.friends,
    ANSWERS: lambda path: _answers(path),
}
FILE_KINDS = dict.fromkeys((STATIC, TIMED, UNSPLIT, FACTS, TYPED, SHOP, LEARNED_SHOP), "static")
FILE_KINDS |= {TEMPORAL: "temporal", ANSWERS: "temporal", SNAPSHOTS: "snapshots"}
OWN = "made by the page itself"
WRITERS = ("synthesize", "convert", "snapshots", "derive", "split", "partition", "export", "export_metis")
GRAPH_NAMES = ("graph.h5", "events.h5", "mathoverflow.h5")
SET_NAMES = (
    "parts/", "sfhh-parts/", "mo-parts/", "enron-parts/", "cora-parts/", "fb15k-237-parts/", "gowalla-parts/",
    "umls-parts/",
)  # fmt: skip
FLAGS = ("--stratify", "--sort", "--undirected", "--cumulative", "--static", "--rmat", "--raw")
RUN_NAMES = ("run/", "other/", "run2/")
STAND_INS = GRAPH_NAMES + SET_NAMES + RUN_NAMES


class StandIns:
    """Of one page, in its folder."""

    def __init__(self, folder: Path, page: str):
        self._folder, self._page = folder, page
        self._made: dict[str, str] = {}  # kind by name, of graphs, sets and runs

    def prepare(self, text: str) -> None:
        """Make what a command reads, and remove what it would not write over."""
        kind, words = self._kind(text), shlex.split(text)
        written = _written(words)
        for word in words:
            name = word.partition("=")[2] or word
            if name in written:
                remove(self._folder / name)
                self._made[name] = OWN
            elif name in STAND_INS and not self._fits(name, kind):
                remove(self._folder / name)
                self._make(name, kind)
                self._made[name] = kind
            elif name in SOURCES and not (self._folder / name).exists():
                (self._folder / name).parent.mkdir(exist_ok=True)
                SOURCES[name](self._folder / name)

    def _kind(self, text: str) -> str:
        """Which kind of graph a command is about."""
        found = next((kind for pattern, kind in KINDS.items() if re.search(pattern, text)), "")
        return found or PAGE_KINDS.get(self._page, TEMPORAL)

    def _fits(self, name: str, kind: str) -> bool:
        """Whether a graph, set or run is there that a command about such a graph can use."""
        made, path = self._made.get(name), self._folder / name
        if made != OWN or not path.exists():
            return made == kind
        return name in RUN_NAMES or _kind_of(path) == FILE_KINDS[kind]

    def _make(self, name: str, kind: str) -> None:
        path = self._folder / name
        if name in SET_NAMES:  # runs on the set that was there cannot go on
            self._made = {made: kind for made, kind in self._made.items() if made not in RUN_NAMES}
        if name in GRAPH_NAMES:
            GRAPHS[kind](path)
        elif name in SET_NAMES and kind == LEARNED_SHOP:
            make_synthetic_graph(path, 120, links=True)
        elif name in SET_NAMES:
            graph = self._folder / "graph.h5"
            if self._made.get("graph.h5") != kind:
                graph = self._folder / f"{kind}.h5"
                GRAPHS[kind](graph)
            partition(graph, path, 8)
        else:
            small = ["--data.synthetic_events=600"] if kind == TEMPORAL else ["--data.synthetic_nodes=120"]
            ended = run_caught("train", "--train.epochs=1", f"--output.dir={path}", *small, *RUN_OPTIONS[kind])
            assert ended.returncode == 0, ended


def _kind_of(path: Path) -> str:
    """The kind of graph in a graph file or partition set."""
    with h5py.File(path / "book.h5" if path.is_dir() else path) as file:
        return str(file.attrs["kind"])


def _written(words: list[str]) -> list[str]:
    """Names of folders and files that a command makes."""
    if "--output.dir" in words:
        return [words[words.index("--output.dir") + 1]]
    program = next((i for i, word in enumerate(words) if word in ("hpcgnn", "-m")), None)
    tool = "" if program is None else words[program + 1].removeprefix("data_tools.")
    return [_positional(words)[-1]] if tool in WRITERS else []


def _positional(words: list[str]) -> list[str]:
    """Words that are no options nor values of these."""
    pairs = zip(["", *words], words, strict=False)
    return [word for before, word in pairs if word[0] != "-" and (before[:1] != "-" or before in FLAGS)]


def remove(path: Path) -> None:
    """A file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _without_split(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["nodes/node/split"]


def _timed(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        for name, column in (("nodes/node", "label"), ("edges/node.meets.node", "src")):
            write_columns(file[name], {"time": np.arange(len(file[name][column]))})


def _shop(path: Path, columns: dict[str, np.ndarray]) -> None:
    """Users like items at some time; the same rows lead back."""
    rng = np.random.default_rng(7)
    likes = {"src": rng.integers(0, 30, 200), "dst": rng.integers(0, 12, 200), "time": np.arange(200)} | columns
    back = {"src": likes["dst"], "dst": likes["src"], "time": likes["time"]}
    nodes = {"user": {"id": np.arange(30)}, "item": {"id": np.arange(12)}}
    write_graph(path, nodes, {("user", "likes", "item"): likes, ("item", "liked_by", "user"): back}, "static")


def _answers(path: Path) -> None:
    """Events of three relations between users, in one order of time."""
    rng, relations = np.random.default_rng(7), ("answers", "comments", "asks")
    tables = {
        ("user", name, "user"): {end: rng.integers(0, 60, 900) for end in ("src", "dst")}
        | {"time": 3 * np.arange(900) + number, "event": 3 * np.arange(900) + number}
        for number, name in enumerate(relations)
    }
    write_graph(path, {"user": {"id": np.arange(60)}}, tables)
