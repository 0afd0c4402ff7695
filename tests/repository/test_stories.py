"""What a newcomer wants to do, and the program or the block of the docs that does it.

Results that programs print are computed again here, in NumPy, from answers of ``hpcgnn predict``.
"""

from __future__ import annotations

import ast
import csv
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from test_docs_commands import COMMANDS, LONG
from test_examples import EXAMPLES, environment_of, run_script

import hpcgnn
from data_tools.convert import main as convert
from data_tools.derive import main as derive_main
from data_tools.split import main as split_main

pytestmark = pytest.mark.launcher
HERE = Path(__file__).parent
# Programs, each with a test that runs it, as FILE::TEST in this folder.
PROGRAMS = {
    "the best items of a user, from a CSV of events": ("tgn_on_events.sh", "test_examples.py::test_tgn_on_events"),
    "events of next week scored by a model of this week": ("next_week.sh", "test_stories.py::test_next_week"),
    "classes, probabilities and embeddings of the nodes of a PyG Data": (
        "further/pyg_data.py", "test_stories.py::test_pyg_data",
    ),
    "the best tails by name and the filtered MRR of a knowledge graph": (
        "knowledge_graph.sh", "test_stories.py::test_knowledge_graph",
    ),
    "classes of entities of RDF triples": ("further/rdf_entities.sh", "test_stories.py::test_rdf_entities"),
    "twenty new items of each user, and recall@20": ("recommend_items.sh", "test_stories.py::test_recommend_items"),
    "a forecast of sensors": ("forecast_sensors.sh", "test_examples.py::test_forecast_sensors"),
    "links of the next snapshot": ("further/next_meetings.sh", "test_stories.py::test_next_meetings"),
    "a PyG module in a training loop": ("pyg_sage.py", "test_examples.py::test_pyg_sage"),
    "a model of PyG layers, trained by the command": (
        "pyg_model.py", "test_docs.py::test_own_model_of_a_static_graph",
    ),
    "an encoder for items and one for users, for links": (
        "further/two_encoders.py", "../static/model/test_two_encoders.py::test_pairs_and_best_items",
    ),
    "a PyG module of typed graphs, trained by the command": (
        "further/typed_module.py", "../static/model/test_edge_index_dict.py::test_links",
    ),
    "layers of PyG modules, trained on the whole typed graph": (
        "further/typed_layers.py", "../static/model/test_typed_layers.py::test_links",
    ),
    "a training loop beside sampling servers": (
        "further/server_loop.py", "../static/loops/test_loop_servers.py::test_server_loop",
    ),
    "a sweep, a report, a stop, more ranks, a warm start": (
        "further/compare_runs.sh", "test_stories.py::test_compare_runs",
    ),
    "a graph that grows: append, score, train on": (
        "further/append_events.sh", "test_stories.py::test_append_events",
    ),
    "Python without mpirun": ("events_in_python.py", "test_docs.py::test_from_a_table_to_best_items"),
}  # fmt: skip
# Blocks of commands, by page and section.
BLOCKS = {
    "predictions on another graph": ("use_a_model.md", "Another graph"),
    "training continued on another graph": ("use_a_model.md", "Continue training on another graph"),
    "a loop with many ranks in Python": ("python.md", "Under mpirun"),
    "Reddit of PyTorch Geometric": ("ports.md", "PyTorch Geometric: Reddit"),
    "Taobao of PyTorch Geometric": ("ports.md", "PyTorch Geometric: Taobao"),
    "GraphSAGE of DGL": ("ports.md", "DGL: GraphSAGE with a custom sampler"),
    "graphlearn's modes": ("ports.md", "graphlearn-for-pytorch: three modes"),
    "RGCN of DGL on ogbn-mag": ("ports.md", "DGL: RGCN on ogbn-mag"),
}
MOST_COMMANDS, MOST_LINES = 5, 15


def sources_of(path: Path) -> dict[str, str]:
    """The source of each test of a suite of every change, with its decorators and the constants that it names."""
    text = path.read_text()
    found, constants = {}, {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = ast.unparse(node)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            if not any("nightly" in mark or "skip" in mark for mark in marks):
                names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                used = [constants[name] for name in sorted(names & constants.keys())]
                found[node.name] = "\n".join([*marks, *used, ast.get_source_segment(text, node) or ""])
    return found


@pytest.mark.parametrize("story", PROGRAMS)
def test_programs_are_there_and_run(story):
    """By a test that names them, in the suite of every change."""
    name, test = PROGRAMS[story]
    assert (EXAMPLES / name).exists()
    file, _, function = test.partition("::")
    assert Path(name).stem in sources_of(HERE / file)[function]


@pytest.mark.parametrize("story", BLOCKS)
def test_blocks_are_there_and_run(story):
    page, section = BLOCKS[story]
    assert page not in LONG
    found = [command for command in COMMANDS[page] if command.section == section and not command.inline]
    assert found
    assert [command.text for command in found if command.reason] == []


def test_the_first_story_is_short():
    """Few commands, or few lines of Python."""
    script = (EXAMPLES / "tgn_on_events.sh").read_text()
    assert 0 < len(re.findall(r"^(?:mpirun .* )?hpcgnn ", script, re.MULTILINE)) <= MOST_COMMANDS
    program = (EXAMPLES / "events_in_python.py").read_text()
    (main,) = (node for node in ast.parse(program).body if isinstance(node, ast.FunctionDef) and node.name == "main")
    assert main.end_lineno - main.lineno <= MOST_LINES


def rows_of(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rank_among(scores: np.ndarray, true: int, left_out: set[int]) -> float:
    """The place of a candidate among all others that are not left out; equal scores count half."""
    others = scores[[number for number in range(len(scores)) if number != true and number not in left_out]]
    return 1 + (others > scores[true]).sum() + (others == scores[true]).sum() / 2


def ends_of(links: set[tuple[int, int]]) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Destinations by source, and sources by destination."""
    ahead, back = {}, {}
    for source, destination in links:
        ahead.setdefault(source, set()).add(destination)
        back.setdefault(destination, set()).add(source)
    return ahead, back


def filtered_mrr(scores: np.ndarray, asked: set[tuple[int, int]], known: set[tuple[int, int]]) -> list[float]:
    """Reciprocal ranks of links at both ends, among scores [source, destination]; other known links are left out."""
    ahead, back = ends_of(known)
    ranks = [rank_among(scores[source], destination, ahead[source]) for source, destination in asked]
    ranks += [rank_among(scores[:, destination], source, back[destination]) for source, destination in asked]
    return [1 / rank for rank in ranks]


def test_next_week(tmp_path):
    """Events of the next week, ranked among all items by a model that never saw them."""
    printed = run_script("next_week.sh", tmp_path, 1)
    events = np.array([[int(value) for value in row.values()] for row in rows_of(tmp_path / "events.csv")])
    new, items = events[-900:], np.unique(events[:, 1])
    pairs = {"src": new[:, 0].repeat(len(items)), "dst": np.tile(items, len(new)), "time": new[:, 2].repeat(len(items))}
    run = hpcgnn.load_run(tmp_path / "run")
    scores = run.predict(pairs=pairs, data=tmp_path / "all-parts")["score"].to_numpy().reshape(len(new), len(items))
    places = np.searchsorted(items, new[:, 1])
    mrr = np.mean([1 / rank_among(row, place, set()) for row, place in zip(scores, places, strict=True)])
    assert re.search(r"next week: 900 events, MRR ([\d.]+)", printed)[1] == f"{mrr:.4f}"
    assert mrr > 0.5  # any item would have 0.09
    written = np.array([float(row["score"]) for row in rows_of(tmp_path / "scores.csv")])
    np.testing.assert_allclose(written, scores[np.arange(len(new)), places], rtol=1e-4, atol=1e-5)


def test_knowledge_graph(tmp_path):
    """The MRR of the test facts, from the scores of all entities at both ends."""
    printed = run_script("knowledge_graph.sh", tmp_path, 1)
    parts = {name: [line.split("\t") for line in (tmp_path / f"facts/{name}.txt").read_text().splitlines()]
             for name in ("train", "valid", "test")}  # fmt: skip
    facts = [fact for rows in parts.values() for fact in rows]
    names = sorted({fact[0] for fact in facts} | {fact[2] for fact in facts})
    assert len(names) == 200
    number = {name: place for place, name in enumerate(names)}
    run, shares = hpcgnn.load_run(tmp_path / "run"), []
    for relation in ("_similar_to", "_hypernym", "_derivationally_related_form"):
        pairs = {"src": np.repeat(names, 200), "rel": [relation] * 40_000, "dst": np.tile(names, 200)}
        scores = run.predict(pairs=pairs)["score"].to_numpy().reshape(200, 200)
        known, asked = (
            {(number[a], number[b]) for a, kind, b in rows if kind == relation} for rows in (facts, parts["test"])
        )
        shares += filtered_mrr(scores, asked, known)
    assert len(shares) == 300
    assert re.search(r"filtered MRR ([\d.]+)", printed)[1] == f"{np.mean(shares):.4f}"
    assert np.mean(shares) == pytest.approx(run.evaluate()["test_mrr"], abs=1e-9)
    assert np.mean(shares) > 0.3  # any entity would have 0.03
    answers = rows_of(tmp_path / "tails.csv")
    assert [(row["src"], row["rel"]) for row in answers[::3]] == [
        ("00001740", "_hypernym"),
        ("00001800", "_similar_to"),
    ]
    assert not {(row["src"], row["rel"], row["dst"]) for row in answers} & set(map(tuple, facts))


def test_recommend_items(tmp_path):
    """recall@20 from the order of all artists of each user."""
    printed = run_script("recommend_items.sh", tmp_path, 2)
    with h5py.File(tmp_path / "ready.h5") as file:
        edges = file["edges/user.plays.artist"]
        split = edges["split"][:]
        ends = [file[f"nodes/{kind}/id"][:][edges[end][:]] for kind, end in (("user", "src"), ("artist", "dst"))]
    played = [ends_of({*zip(*(side[split == part].tolist() for side in ends), strict=True)})[0] for part in range(3)]
    run = hpcgnn.load_run(tmp_path / "run")
    order = {user: rows["dst"].tolist() for user, rows in run.predict(top_k=240).groupby("src")}
    recall = []
    for user, wanted in played[2].items():
        first = [artist for artist in order[user] if artist not in played[0].get(user, ())][:20]
        recall.append(len(wanted & set(first)) / len(wanted))
    assert re.search(r"test: recall@20 ([\d.]+)", printed)[1] == f"{np.mean(recall):.4f}"
    assert np.mean(recall) == pytest.approx(run.evaluate()["test_recall@20"], abs=1e-9)
    assert np.mean(recall) > 0.25  # any artists would have 0.09
    best = rows_of(tmp_path / "best.csv")
    for user, artists in order.items():
        known = set().union(*(part.get(user, ()) for part in played))
        expected = [artist for artist in artists if artist not in known][:20]
        assert [int(row["dst"]) for row in best if row["src"] == str(user)] == expected


def test_rdf_entities(tmp_path):
    printed = run_script("further/rdf_entities.sh", tmp_path, 1)
    true = {row["person"]: row["label_affiliation"] for row in rows_of(tmp_path / "testSet.tsv", "\t")}
    found = {row["node"]: row["class"] for row in rows_of(tmp_path / "groups.csv")}
    assert found.keys() == true.keys()
    right = sum(found[person] == true[person] for person in true)
    assert f"correct: {right} of 40 persons" in printed
    assert hpcgnn.load_run(tmp_path / "run").evaluate()["test_accuracy"] == right / 40 > 0.6


def test_append_events(tmp_path):
    """Every step appends 300 events, which are the test of the models before and after; the newest one is the better
    one. The set that grew has what a set of all events has."""
    printed = run_script("further/append_events.sh", tmp_path, 2)
    line = r"^step (\d): AP of the new events ([\d.]+), with an epoch more ([\d.]+)$"
    scores = np.array(re.findall(line, printed, re.MULTILINE), float)
    assert scores[:, 0].tolist() == [1, 2]
    assert (scores[:, 2] > scores[:, 1]).all()
    for step in (1, 2):
        log = (tmp_path / f"run-{step}" / "log" / "rank-0.log").read_text()
        assert f"{5400 + 300 * step} events in 8 parts" in log
        assert re.search(r"test (\d+)", log)[1] == str(round((5400 + 300 * step) * 0.05))
    run = hpcgnn.load_run(tmp_path / "run-1")
    assert f"{run.evaluate(data=tmp_path / 'parts')['test_ap']:.4f}" == f"{scores[1, 1]:.4f}"
    names = [file for file in (tmp_path / "parts").iterdir() if file.name != "book.h5"]
    assert sorted(path.name for path in names) == [f"part-{number}.2.h5" for number in range(8)]


def test_next_meetings(tmp_path):
    """The links of the last day, from a graph that ends the day before."""
    printed = run_script("further/next_meetings.sh", tmp_path, 1)
    meetings = rows_of(tmp_path / "meetings.csv")
    names = sorted({row["src"] for row in meetings})
    earlier = [row for row in meetings if row["day"] != "29"]
    assert {row["src"] for row in earlier} == set(names)
    with open(tmp_path / "earlier.csv", "w") as file:
        file.write("src,dst,day\n" + "".join(f"{','.join(row.values())}\n" for row in earlier))
    command = [sys.executable, "-m", "hpcgnn", "snapshots", "tables", "earlier.csv", "earlier.h5", "--time", "day"]
    subprocess.run(command, cwd=tmp_path, env=environment_of(1), check=True, capture_output=True)
    hpcgnn.partition(tmp_path / "earlier.h5", tmp_path / "earlier", 4)
    run = hpcgnn.load_run(tmp_path / "run")
    pairs = {"src": np.repeat(names, 60), "dst": np.tile(names, 60)}
    scores = run.predict(pairs=pairs, data=tmp_path / "earlier")["score"].to_numpy().reshape(60, 60)
    number = {name: place for place, name in enumerate(names)}
    last = {(number[row["src"]], number[row["dst"]]) for row in meetings if row["day"] == "29"}
    mrr = np.mean(filtered_mrr(scores, last, last))
    assert re.search(r"last day: MRR ([\d.]+)", printed)[1] == f"{mrr:.4f}"
    assert mrr == pytest.approx(run.evaluate()["test_mrr"], abs=1e-6)
    assert mrr > 0.25  # anybody would have 0.08
    assert {row["src"] for row in rows_of(tmp_path / "best.csv")} == set(names)


def test_compare_runs(tmp_path):
    """A stopped run ends as the undisturbed one; the table has means and deviations over seeds."""
    printed = run_script("further/compare_runs.sh", tmp_path, 1)
    names = {(rate, seed): f"sweep/lr={rate},seed={seed}" for rate in ("0.01", "0.001") for seed in (0, 1)}
    runs = {
        key: [line for line in lines_of(tmp_path / name / "metrics.jsonl") if line["kind"] != "step"]
        for key, name in {**names, "stopped": "stopped"}.items()
    }
    stopped = runs["stopped"]
    assert [line["kind"] for line in stopped] == ["epoch"] * 8 + ["test"]
    for line, other in zip(stopped, runs["0.01", 0], strict=True):
        numbers = [key for key in line if key == "loss" or key.startswith(("val_", "test_"))]
        assert numbers
        assert [line[key] for key in numbers] == pytest.approx([other[key] for key in numbers], rel=1e-4)
    for rate in ("0.01", "0.001"):
        tests = [runs[rate, seed][-1]["test_accuracy"] for seed in (0, 1)]
        (row,) = re.findall(rf"^{rate} .*$", printed, re.MULTILINE)
        assert f"{np.mean(tests):.4f} ± {np.std(tests, ddof=1):.4f}" in row
    assert "stopped with exit code 75" in printed
    assert (tmp_path / "tuned/finished").exists()


def test_pyg_data(tmp_path, monkeypatch):
    """The accuracy, from the classes; a row of probabilities and of the embedding for each node, in the order of x."""
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    monkeypatch.syspath_prepend(EXAMPLES / "further")
    import pyg_data

    data, metrics, rows, vectors = pyg_data.main(str(tmp_path))
    probability = rows[[f"probability_{number}" for number in range(4)]].to_numpy()
    np.testing.assert_allclose(probability.sum(1), 1, atol=1e-6)
    assert rows["node"].tolist() == vectors["node"].tolist() == list(range(400))
    assert (probability.argmax(1) == rows["class"]).all()
    right = (rows["class"].to_numpy() == data.y.numpy())[data.test_mask.numpy()]
    assert metrics["test_accuracy"] == pytest.approx(right.mean(), abs=1e-12)
    assert right.mean() > 0.8
    assert vectors["embedding"].shape == (400, 32)


def test_jobs_without_a_batch_system(tmp_path):
    """The scripts that an installed package writes, started by bash."""
    environment = environment_of(2)
    for command in ("hpcgnn jobs my-jobs", "bash my-jobs/train.slurm gcn --train.epochs 2 --data.synthetic_nodes 300"):
        ended = subprocess.run(
            command.split(), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert "--resume" not in ended.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my-jobs", "runs"]
    (finished,) = tmp_path.glob("runs/*/finished")
    assert re.search(r"^# ranks: 2$", (finished.parent / "config.yaml").read_text(), re.MULTILINE)
    assert lines_of(finished.parent / "metrics.jsonl")[-1]["kind"] == "test"


@pytest.mark.parametrize(
    ("data", "name", "chance"), [("products", "own_sampler", 0.2), ("taobao", "taobao", 0.5)], ids=["DGL", "PyG"]
)
def test_loops_of_ports(tmp_path, monkeypatch, data, name, chance):
    """Losses fall, and test scores are better than chance."""
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    folder = EXAMPLES / "ports"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    options = {
        "products": ["ogb-node", "folder=products", "split=sales_ranking"],
        "taobao": ["taobao", "behavior=UserBehavior.csv"],
    }
    subprocess.run([sys.executable, str(folder / "ports_data.py"), data], check=True)
    preset, *sets = options[data]
    assert convert([f"--preset={preset}", *(f"--set={value}" for value in sets), "graph.h5"]) == 0
    if data == "taobao":
        assert split_main(["graph.h5", "graph.h5", "--relation", "user.to.item"]) == 0
        assert derive_main(["graph.h5", "graph.h5", "--relation", "user.to.item"]) == 0
    hpcgnn.partition(tmp_path / "graph.h5", tmp_path / "parts", 4)
    losses, share = importlib.import_module(name).train(tmp_path / "parts")
    third = len(losses) // 3
    assert np.mean(losses[-third:]) < np.mean(losses[:third])
    assert share > chance + 0.15
