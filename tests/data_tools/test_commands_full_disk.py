"""A disk that fills under a command: one line, exit code 1, and nothing that looks like what was asked for."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from convert_sources import random_table, write_text
from selection import long_but

from data_tools.synthesize import main as synthesize

pytestmark = pytest.mark.serial
PROGRAM = Path(__file__).with_name("full_disk.py")
CSV_SPEC = """
files: {events: {path: events.csv}}
nodes: [{type: user}, {type: item}]
edges:
  - {relation: user.rates.item, file: events, src: u, dst: i, time: t, columns: {label: y, feat: [f0, f1]}}
"""
COMMANDS = {
    "convert": ["convert", "--spec", "spec.yaml", "out/g.h5"],
    "convert by the disk": ["convert", "--spec", "spec.yaml", "--memory", "400MiB", "out/g.h5"],
    "split": ["split", "events.h5", "out/g.h5", "--relation", "user.interacts.item", "--by", "time"],
    "derive": ["derive", "events.h5", "out/g.h5", "--relation", "user.interacts.item", "--all_edges"],
    "windows": ["snapshots.command", "windows", "events.h5", "out/g.h5", "--windows", "20"],
    "lists": ["snapshots.command", "lists", "lists.csv", "out/g.h5"],
    "events": ["synthesize", "out/g.h5", "--events", "20000", "--features", "8"],
    "static": ["synthesize", "out/g.h5", "--static", "--num_nodes", "1500", "--num_edges", "60000"],
    "rmat": ["synthesize", "out/g.h5", "--rmat", "--num_nodes", "1024", "--num_edges", "60000"],
    "snapshots": ["synthesize", "out/g.h5", "--snapshots", "6", "--num_nodes", "1500"],
    "metis": ["export_metis", "events.h5", "out/g.metis"],
    "parquet": ["export.command", "events.h5", "out/e", "--format", "parquet"],
    "npz": ["export.command", "events.h5", "out/e", "--format", "npz"],
    "pyg": ["export.command", "events.h5", "out/e", "--format", "pyg"],
}


SLOW = ("npz", "pyg", "rmat")  # and much like others


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with what the commands read."""
    folder = tmp_path_factory.mktemp("sources")
    write_text(folder / "events.csv", random_table(0, 20_000), ",")
    (folder / "spec.yaml").write_text(CSV_SPEC)
    rows = np.random.default_rng(0).integers(0, 300, (30_000, 3))
    np.savetxt(folder / "lists.csv", rows // [[10, 1, 1]], "%d", delimiter=",")
    assert synthesize([str(folder / "events.h5"), "--events=20000", "--features=8"]) == 0
    return folder


@pytest.mark.parametrize("name", long_but(COMMANDS, lambda name: name not in SLOW))
def test_a_file_that_cannot_grow_ends_the_command_in_one_line(sources, name):
    limits = [3_000, 40_000, 130_000, 200_000]
    module, *arguments = COMMANDS[name]
    command = [sys.executable, str(PROGRAM), ",".join(map(str, limits)), f"data_tools.{module}"]
    result = subprocess.run(
        [*command, *arguments], cwd=sources, capture_output=True, text=True, timeout=300, check=False
    )
    lines = result.stderr.splitlines()
    assert lines[1::2] == ["exit 1"] * len(limits), result.stderr
    assert all("File too large; make room there" in line for line in lines[::2]), result.stderr
    assert not list((sources / "out").glob("*")), "nothing was left"
