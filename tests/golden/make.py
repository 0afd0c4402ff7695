"""Write a graph file, a partition set of two parts and a run folder of every kind of graph, as tiny as they can be.

    python tests/golden/make.py FOLDER [KIND ...]

``FOLDER/<kind>.h5``, ``FOLDER/<kind>/`` and ``FOLDER/run-<kind>/``. By commands only, so that PYTHONPATH may name a
checkout of an older commit: README.md beside this file says which commit made which archive.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

EVENTS = """u,i,t,y,f0,f1
3,ham,0.5,0,0.5,1
5,egg,1,1,1.5,2
3,egg,1,0,2.5,3
8,jam,2.5,0,3.5,4
5,ham,3,1,4.5,5
9,fig,4,0,5.5,6
3,jam,4,0,6.5,7
8,egg,5,1,7.5,8
5,egg,6.5,0,8.5,9
9,ham,7,0,9.5,10
3,fig,8,1,10.5,11
8,ham,9,0,11.5,12
5,jam,9,0,12.5,13
9,egg,10.5,1,13.5,14
3,ham,11,0,14.5,15
8,fig,12,0,15.5,16
5,fig,13,1,16.5,17
9,jam,14,0,17.5,18
3,egg,15,0,18.5,19
8,jam,16,1,19.5,20
"""

TEMPORAL = """
files: {events: {}}
nodes: [{type: user}, {type: item, ids: string}]
edges:
- {relation: user.takes.item, file: events, src: u, dst: i, time: t, time_scale: 2,
   columns: {label: y, feat: [f0, f1]}}
"""

PAPERS = """id,x,y,label,split
10,0.5,1,0,0
11,1.5,2,1,0
12,2.5,3,0,0
13,3.5,4,1,0
14,4.5,5,0,1
15,5.5,6,1,1
16,6.5,7,0,2
17,7.5,8,1,2
"""

CITES = """src,dst,w,f
10,11,1,0.5
11,10,2,1.5
12,13,3,2.5
13,12,4,3.5
14,15,5,4.5
15,14,6,5.5
16,17,7,6.5
17,16,8,7.5
10,12,9,8.5
12,10,1,9.5
11,13,2,10.5
14,16,3,11.5
16,14,4,12.5
15,17,5,13.5
10,10,6,14.5
"""

WRITES = """who,paper
ann,10
ann,11
bob,17
"""

STATIC = """
files: {papers: {}, cites: {}, writes: {}}
nodes:
- {type: paper, file: papers, id: id, columns: {feat: [x, y], label: label, split: {column: split, dtype: int8}}}
- {type: author, ids: string}
edges:
- {relation: paper.cites.paper, file: cites, src: src, dst: dst, columns: {weight: w, feat: f}}
- {relation: author.writes.paper, file: writes, src: who, dst: paper}
"""

SNAPSHOTS = """
import sys
import numpy as np
from data_tools.snapshots.graph import SnapshotGraph, write_snapshots
ring, first = np.arange(8), np.array([0, 0, 0, 0, 1, 1, 2, 3], np.int32)
graph = SnapshotGraph(8, 6, ring, (ring + 1) % 8, first, np.full(8, 4, np.int32))
graph.edges["weight"] = 1 + np.arange(8, dtype=np.float32)
graph.id = 100 + ring
graph.nodes["feat"] = np.arange(16, dtype=np.float32).reshape(8, 2)
graph.series["target"] = np.arange(48, dtype=np.float32).reshape(8, 6) / 48
graph.splits = {"train": (0, 2), "val": (3, 3), "test": (4, 4)}
write_snapshots(sys.argv[1], graph, ["golden"], "golden")
"""

TRAIN = ["--train.epochs=1", "--train.seed=3", "--comm.threads=1", "--comm.device=cpu"]
SETTINGS = {
    "temporal": [
        "--train.batch_size=4", "--train.checkpoint_every=2", "--sampling.fanouts=[2]",
        "--memory.dim=4", "--model.time_dim=4", "--model.hidden=4",
    ],
    "static": [
        "--kind=static", "--train.batch_size=2", "--sampling.fanouts=[2]", "--model.layers=1", "--model.hidden=4",
    ],
    "snapshots": ["--kind=snapshots", "--model.hidden=4"],
}  # fmt: skip


def run(folder: Path, *arguments: str) -> None:
    """Run this Python in a folder, so that no path of this machine gets into a file; its output is shown where it
    fails."""
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def convert(folder: Path, kind: str, spec: str, tables: dict[str, str]) -> None:
    """Write ``<kind>.h5`` from tables of text."""
    for name, text in {f"{kind}.yaml": spec, **{f"{name}.csv": text for name, text in tables.items()}}.items():
        (folder / name).write_text(text)
    paths = [text for name in tables for text in ("--set", f"{name}={name}.csv")]
    run(folder, "-m", "data_tools.convert", "--spec", f"{kind}.yaml", *paths, f"{kind}.h5")


def make_graph(folder: Path, kind: str) -> None:
    """Events of users and items; papers and their authors; or a ring whose edges come one by one."""
    if kind == "temporal":
        convert(folder, kind, TEMPORAL, {"events": EVENTS})
    elif kind == "static":
        convert(folder, kind, STATIC, {"papers": PAPERS, "cites": CITES, "writes": WRITES})
    else:
        run(folder, "-c", SNAPSHOTS, f"{kind}.h5")


def make_parts(folder: Path, kind: str) -> None:
    """Cut ``<kind>.h5`` into two parts; of a static graph with out-edges and a ranking of remote nodes."""
    options = ["--out_edges", "--cache_ranking", "0.5"] if kind == "static" else []
    run(folder, "-m", "data_tools.partition", f"{kind}.h5", kind, "--parts", "2", *options)


def make_run(folder: Path, kind: str) -> None:
    """Train an epoch on the partition set."""
    run(folder, "-m", "hpcgnn.train", f"--data.path={kind}", f"--output.dir=run-{kind}", *TRAIN, *SETTINGS[kind])


def main() -> None:
    """Make what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="*", default=list(SETTINGS), metavar="KIND", help=", ".join(SETTINGS))
    parser.add_argument("--without-run", action="store_true", help="graph file and partition set only")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for kind in options.kinds:
        make_graph(options.folder, kind)
        make_parts(options.folder, kind)
        if not options.without_run:
            make_run(options.folder, kind)


if __name__ == "__main__":
    main()
