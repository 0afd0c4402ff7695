"""The table of docs/use_a_model.md, kind of run by what can be had of it: each cell is a command that runs, and has a
test of its values, of another file or here, by weights that were exported or by what another command wrote."""

from __future__ import annotations

import ast
import json
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import h5py
import link_graphs
import numpy as np
import pandas as pd
import pytest
from kept import partition
from places import REPOSITORY, TESTS
from run_commands import run_caught
from safetensors.numpy import load_file

from data_tools.snapshots.graph import SnapshotGraph, write_snapshots
from data_tools.synthesize import synthesize_events
from data_tools.synthetic.links import synthesize_links
from data_tools.synthetic.snapshots import draw_links, spread
from data_tools.synthetic.static import synthesize_static
from hpcgnn.snapshots.link_goal import GOALS
from hpcgnn.static.config import OneTaskConfig
from hpcgnn.temporal.config import TemporalTaskConfig

pytestmark = pytest.mark.serial
SECTION = "Answers by kind of run"
PAIRS, TOP, LABEL, LIKELY, ROWS, OTHER = (
    "scores of pairs", "top-k", "class or number", "probabilities", "embeddings", "another graph",
)  # fmt: skip
NO_PART, NOT_OFFERED, MOST_NOT_OFFERED = "does not apply: ", "not offered, because ", 3
WORDS = ["low", "mid", "top"]
Table = dict[str, dict[str, str]]


# ---------------------------------------------------------------------------------------------------------------------
# graphs, in the order of their nodes or in another one


def named(path: Path, column: str, words: list[str]) -> None:
    """Give a column the words that its numbers stand for."""
    with h5py.File(path, "r+") as file:
        file[column].attrs["names"] = json.dumps(words)


def events(path: Path) -> None:
    synthesize_events(path, 240, 12, 6, seed=1, feature_dim=2, labels=True)
    named(path, "edges/user.interacts.item/label", WORDS[:2])


def people(path: Path) -> None:
    """Events of users and items, with a class of every user."""
    events(path)
    rng = np.random.default_rng(5)
    with h5py.File(path, "r+") as file:
        group = file["nodes/user"]
        count = int(group.attrs["num_nodes"])
        group["label"], group["split"] = rng.integers(0, 3, count), np.arange(count) % 3
    named(path, "nodes/user/label", WORDS)


def papers(path: Path) -> None:
    synthesize_static(path, 80, 320, seed=1, width=4, num_classes=3)
    named(path, "nodes/node/label", WORDS)


def likes(path: Path) -> None:
    synthesize_links(path, 30, 20, 200, seed=1)
    with h5py.File(path, "r+") as file:
        group = file["edges/user.likes.item"]
        group.move("rel", "label")
    named(path, "edges/user.likes.item/label", WORDS)


def facts(path: Path) -> None:
    link_graphs.facts(path)
    named(path, "edges/entity.fact.entity/rel", ["likes", "knows", "owns", "is"])


def meetings(path: Path) -> None:
    """Links of snapshots, with a number and a class of every node, and a class of every edge."""
    columns = draw_links(24, 14, 1)
    graph, rng = SnapshotGraph(24, 14, *columns), np.random.default_rng(2)
    graph.id, graph.series["target"] = 1000 + 3 * np.arange(24), spread(graph, 1)
    graph.series["mood"] = np.digitize(graph.series["target"], [-0.3, 0.3]).astype(np.int8)
    graph.edges["tone"] = rng.integers(0, 2, len(graph.src)).astype(np.int8)
    graph.attributes["mood"] = {"names": json.dumps(WORDS)}
    graph.edge_attributes["tone"] = {"names": json.dumps(WORDS[:2])}
    write_snapshots(path, graph, ["test"], "test")


def reorder(path: Path) -> None:
    """Put the nodes of each type of a graph file in another order."""
    rng, place = np.random.default_rng(3), {}
    with h5py.File(path, "r+") as file:
        for kind, group in file["nodes"].items():
            order = rng.permutation(int(group.attrs["num_nodes"]))
            place[kind] = np.argsort(order)
            for column in group.values():
                column[...] = column[()][order]
        for name, group in file["edges"].items():
            source, _, destination = name.split(".")
            for end, kind in (("src", source), ("dst", destination)):
                group[end][...] = place[kind][group[end][()]]


# ---------------------------------------------------------------------------------------------------------------------
# scores and outputs of embeddings, by exported weights: docs/runs.md has them, too


def linear(weights: dict, name: str, rows: np.ndarray) -> np.ndarray:
    return rows @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)


def perceptron(name: str) -> Callable[..., np.ndarray]:
    """A head: two layers over rows side by side."""
    return lambda weights, *rows: linear(
        weights, f"{name}.out", np.maximum(linear(weights, f"{name}.hidden", np.concatenate(rows, 1)), 0)
    )


def probability_of_link(weights: dict, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
    """The logistic function of a network of both ends."""
    both = linear(weights, "decoder.source", source) + linear(weights, "decoder.destination", destination)
    return 1 / (1 + np.exp(-linear(weights, "decoder.out", np.maximum(both, 0))))


def dot(weights: dict, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
    return (source * destination).sum(1, keepdims=True)


def distmult(weights: dict, source: np.ndarray, destination: np.ndarray, relation: np.ndarray) -> np.ndarray:
    return (source * weights["decoder.relation.weight"][relation[:, 0].astype(int)] * destination).sum(1, keepdims=True)


def last_layer(weights: dict, rows: np.ndarray) -> np.ndarray:
    return linear(weights, "output", rows)


# ---------------------------------------------------------------------------------------------------------------------
# runs


@dataclass
class Row:
    """A row of the table. make: writes its graph; options: of training; asked: questions by name of file; types: of the
    nodes of an answer's columns; words: of the classes; decode: makes outputs of embeddings, and of ``further``
    columns [m, F] of the pairs."""

    make: Callable[[Path], None]
    options: list[str]
    decode: Callable[..., np.ndarray] | None = None
    asked: dict[str, dict] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    further: np.ndarray | None = None


SMALL = ["--train.epochs=1", "--train.precision=float64", "--comm.threads=1", "--comm.device=cpu",
         "--train.progress=off"]  # fmt: skip
# Weights hardly change, so that memory is formed by the weights of the answers; on another graph it is formed anew.
EVENTS = [*SMALL, "--kind=temporal", "--train.lr=1e-30", "--train.batch_size=60", "--sampling.fanouts=[4]",
          "--memory.dim=8", "--model.hidden=8", "--model.time_dim=4"]  # fmt: skip
NODES = [*SMALL, "--kind=static", "--model.layers=2", "--sampling.fanouts=[3, 3]", "--model.hidden=4"]
EDGES = [*SMALL, "--kind=static", "--model.layers=1", "--sampling.fanouts=[3]", "--model.hidden=4",
         "--task.relation=user.likes.item"]  # fmt: skip
FACTS = [*SMALL, "--kind=static", "--task.kind=link", "--task.decoder=distmult", "--model.kind=none",
         "--model.layers=0", "--sampling.fanouts=[]", "--model.hidden=4"]  # fmt: skip
SNAPSHOTS = [*SMALL, "--kind=snapshots", "--inputs.degrees=log", "--model.hidden=4"]
SOME = np.arange(12)
USERS_ITEMS = {"src": 1000 + 3 * SOME, "dst": 1000 + 3 * (SOME % 6)}
MEETING = {"src": 1000 + 3 * SOME, "dst": 1000 + 3 * (23 - SOME)}
FEATURES = np.random.default_rng(4).standard_normal((12, 2)).astype(np.float32)
RELATIONS = SOME[:, None] % 4
BOTH = {"src": "user", "dst": "item"}
SHOP = {"pairs.csv": USERS_ITEMS}
RUNS = {
    "temporal, `link`": Row(events, EVENTS, probability_of_link, SHOP, BOTH),
    "temporal, `node`": Row(
        events, [*EVENTS, "--task.kind=node"], perceptron("decoder"),
        {"nodes.csv": {"node": 1000 + 3 * SOME, "type": ["user"] * 12}}, {"node": "user"}, WORDS[:2],
    ),
    "temporal, `node_class`": Row(
        people, [*EVENTS, "--task.kind=node_class"], perceptron("decoder"),
        {"nodes.csv": {"node": 1000 + 3 * SOME, "type": ["user"] * 12}}, {"node": "user"}, WORDS,
    ),
    "temporal, `edge`": Row(
        events, [*EVENTS, "--task.kind=edge"], perceptron("decoder"),
        {"pairs.csv": USERS_ITEMS | {"feat_0": FEATURES[:, 0], "feat_1": FEATURES[:, 1]}}, BOTH, WORDS[:2], FEATURES,
    ),
    "static, `link`": Row(likes, [*EDGES, "--task.kind=link"], dot, SHOP, BOTH),
    "static, `link` with edge types (knowledge graph)": Row(
        facts, FACTS, distmult,
        {"pairs.csv": {"src": SOME, "rel": RELATIONS[:, 0], "dst": 49 - SOME},
         "queries.csv": {"src": SOME, "rel": RELATIONS[:, 0]}},
        further=RELATIONS,
    ),
    "static, `node`": Row(papers, NODES, words=WORDS),
    "static, `edge`": Row(likes, [*EDGES, "--task.kind=edge"], perceptron("decoder"), SHOP, BOTH, WORDS),
    "snapshots, `link`": Row(meetings, [*SNAPSHOTS, "--task.kind=link"], dot, {"pairs.csv": MEETING}),
    "snapshots, `node`": Row(
        meetings, [*SNAPSHOTS, "--task.kind=node", "--task.target=mood"], last_layer, words=WORDS
    ),
    "snapshots, `edge`": Row(
        meetings, [*SNAPSHOTS, "--task.kind=edge", "--task.target=tone"], perceptron("head"), {"pairs.csv": MEETING},
        words=WORDS[:2],
    ),
    "snapshots, `regression` (forecast)": Row(meetings, SNAPSHOTS, last_layer),
}  # fmt: skip


def succeed(*command: str) -> None:
    ended = run_caught(*command)
    assert ended.returncode == 0, ended.stderr


class Made:
    """The run of a row, in a folder with its questions and the same graph in another order; answers are kept."""

    def __init__(self, name: str, folder: Path):
        self.row, self.folder = RUNS[name], folder
        for graph in ("home", "other"):
            path = folder / f"{graph}.h5"
            self.row.make(path)
            if graph == "other":
                reorder(path)
            partition(path, folder / f"{graph}-parts", 4, "random")
        for file, columns in self.row.asked.items():
            pd.DataFrame(columns).to_csv(folder / file, index=False)
        self.run = str(folder / "run")
        succeed("train", *self.row.options, f"--data.path={folder / 'home-parts'}", f"--output.dir={self.run}")
        self._kept: dict[str, pd.DataFrame] = {}

    def answers(self, command: str) -> pd.DataFrame:
        """What a command of the table writes."""
        if command not in self._kept:
            out = self.folder / f"answers-{len(self._kept)}.csv"
            succeed("predict", self.run, f"--out={out}", *command.split()[1:])
            self._kept[command] = pd.read_csv(out)
        return self._kept[command]

    def weights(self) -> dict[str, np.ndarray]:
        succeed("export_model", self.run, str(self.folder / "exported"))
        return load_file(self.folder / "exported" / "model.safetensors")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Callable[[str], Made]:
    """The runs of the rows, each made once, when it is asked for."""
    made: dict[str, Made] = {}

    def find(name: str) -> Made:
        if name not in made:
            made[name] = Made(name, tmp_path_factory.mktemp("run"))
        return made[name]

    return find


# ---------------------------------------------------------------------------------------------------------------------
# checks of the values of a cell


def numbers(frame: pd.DataFrame, begin: str) -> np.ndarray:
    """The columns whose names begin so [m, C]."""
    return frame[[name for name in frame if name.startswith(begin)]].to_numpy()


def written(frame: pd.DataFrame) -> np.ndarray:
    """The scores or outputs [m, C]."""
    return next(found for begin in ("score", "output", "snapshot_") if (found := numbers(frame, begin)).size)


def the_classes(frame: pd.DataFrame) -> list[str]:
    (name,) = (name for name in frame if re.fullmatch(r"class(_\d+)?", name))
    return frame[name].tolist()


def sums_to_one(made: Made, cells: dict[str, str]) -> None:
    """The softmax of the outputs, whose largest is the class; of a link, the logistic function of its score."""
    frame, plain = made.answers(cells[LIKELY]), made.answers(cells[LIKELY].replace(" --probabilities", ""))
    share = numbers(frame, "probability")
    if share.shape[1] == 1:
        score = plain["score"].to_numpy()
        expected = score if made.row.make is events else 1 / (1 + np.exp(-score))
        np.testing.assert_allclose(share[:, 0], expected, rtol=1e-9)
        return
    np.testing.assert_allclose(share.sum(1), 1, rtol=1e-12)
    assert the_classes(frame) == [made.row.words[number] for number in share.argmax(1)]
    output = written(plain)
    likely = np.exp(output - output.max(1, keepdims=True))
    np.testing.assert_allclose(share, likely / likely.sum(1, keepdims=True), rtol=1e-9)


def in_order(made: Made, cells: dict[str, str]) -> None:
    """The first classes of the probabilities, sorted by hand."""
    frame, likely = made.answers(cells[TOP]), made.answers(cells[LIKELY])
    share, count = numbers(likely, "probability"), int(cells[TOP].split()[-1])
    order = np.argsort(-share, axis=1)[:, :count]
    assert frame["place"].tolist() == [*range(1, count + 1)] * len(likely)
    assert the_classes(frame) == [made.row.words[number] for number in order.ravel()]
    np.testing.assert_array_equal(numbers(frame, "probability")[:, 0], np.take_along_axis(share, order, 1).ravel())
    asked = [name for name in ("node", "src", "dst") if name in likely]
    assert asked
    for name in asked:
        assert frame[name].tolist() == likely[name].repeat(count).tolist()


def decoded(made: Made, cells: dict[str, str]) -> None:
    """Embeddings times weights are the scores or outputs that the run writes."""
    frame, row = made.answers(cells[ROWS]), made.row
    plain = made.answers(cells[LABEL] if cells[LABEL].startswith("predict") else cells[PAIRS])
    kinds = frame["type"] if "type" in frame else [""] * len(frame)
    place = {key: number for number, key in enumerate(zip(kinds, frame["node"], strict=True))}
    rows = numbers(frame, "embedding")
    ends = [
        rows[[place[row.types.get(end, ""), node] for node in plain[end]]]
        for end in ("node", "src", "dst") if end in plain
    ]  # fmt: skip
    found = row.decode(made.weights(), *ends, *([] if row.further is None else [row.further]))
    assert np.ptp(written(plain)) > 0
    np.testing.assert_allclose(found, written(plain), rtol=1e-6, atol=1e-9)


def as_at_home(made: Made, cells: dict[str, str]) -> None:
    """The same graph in another order gives the same answers by original id."""
    there, home = made.answers(cells[OTHER]), made.answers(cells[OTHER].replace(" --data.path other-parts/", ""))
    keys = [name for name in ("type", "node", "src", "rel", "place") if name in home]
    frames = [frame.sort_values(keys, kind="stable", ignore_index=True) for frame in (there, home)]
    assert len(home) > 10
    pd.testing.assert_frame_equal(*frames, rtol=1e-6, atol=1e-9)


# Of each row, the check of each column: one of the above, or the test of another file that has it.
ANY_CLASS = {TOP: in_order, LIKELY: sums_to_one, ROWS: decoded, OTHER: as_at_home}
ANY_LINK = {LIKELY: sums_to_one, ROWS: decoded, OTHER: as_at_home}
OF_EVENTS = "temporal/test_past_questions.py::test_labels_of_events_are_those_of_evaluation"
OF_EDGES = "static/test_edge_labels.py::test_pairs_get_the_labels_that_evaluation_saw"
OF_MEETINGS = "snapshots/test_snapshot_predict.py::test_pairs_have_the_labels_that_the_test_scored"
CHECKS: dict[str, dict[str, Callable | str]] = {
    "temporal, `link`": ANY_LINK | {
        PAIRS: "temporal/test_past_questions.py::test_ranks_of_events_are_those_of_evaluation",
        TOP: "temporal/test_replay.py::test_best_answers_are_those_of_all_pairs",
    },
    "temporal, `node`": ANY_CLASS | {LABEL: OF_EVENTS},
    "temporal, `node_class`": ANY_CLASS | {
        LABEL: "temporal/test_node_classes.py::test_predictions_by_name_give_the_metrics",
    },
    "temporal, `edge`": ANY_CLASS | {PAIRS: OF_EVENTS, LABEL: OF_EVENTS},
    "static, `link`": ANY_LINK | {
        PAIRS: "static/test_link_predict.py::test_scores_are_those_of_evaluation_on_any_number_of_ranks",
        TOP: "static/test_link_predict.py::test_recall_of_the_answers_is_that_of_evaluation",
    },
    "static, `link` with edge types (knowledge graph)": ANY_LINK | {
        PAIRS: "repository/test_stories.py::test_knowledge_graph",
        TOP: "static/test_link_predict.py::test_the_best_are_those_of_all_scores",
    },
    "static, `node`": ANY_CLASS | {
        LABEL: "static/test_graph_predict.py::test_commands_agree_with_the_run_and_with_each_other",
        ROWS: "static/test_graph_predict.py::test_embeddings_are_what_the_output_layer_takes",
    },
    "static, `edge`": ANY_CLASS | {PAIRS: OF_EDGES, LABEL: OF_EDGES},
    "snapshots, `link`": ANY_LINK | {
        PAIRS: "repository/test_stories.py::test_next_meetings",
        TOP: "snapshots/test_snapshot_predict.py::test_best_links_are_those_of_all_pairs",
    },
    "snapshots, `node`": ANY_CLASS | {
        LABEL: "snapshots/test_snapshot_predict.py::test_runs_on_parts_of_the_nodes_predict_all_snapshots",
    },
    "snapshots, `edge`": ANY_CLASS | {PAIRS: OF_MEETINGS, LABEL: OF_MEETINGS},
    "snapshots, `regression` (forecast)": {
        LABEL: "snapshots/test_snapshot_predict.py::test_outputs_are_those_that_were_scored",
        ROWS: decoded, OTHER: as_at_home,
    },
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# the table


def read_table(text: str) -> Table:
    """Cells by row and column of the table in the section."""
    section = text.partition(f"## {SECTION}\n")[2].partition("\n## ")[0]
    lines = [line.split("|") for line in re.findall(r"^\|(.*)\|$", section, re.MULTILINE)]
    (_, *columns), _, *rows = [[cell.strip() for cell in line] for line in lines]
    return {name: dict(zip(columns, cells, strict=True)) for name, *cells in rows}


@cache
def names_of_tests(path: Path) -> set[str]:
    """The tests of a file that a suite of every change runs."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    marks = {node.name: " ".join(map(ast.unparse, node.decorator_list)) for node in functions}
    return {name for name, text in marks.items() if "nightly" not in text and "skip" not in text}


def has_test(check: Callable | str) -> bool:
    """Whether a check is a function here, or a test that is there."""
    if callable(check):
        return True
    file, _, name = check.partition("::")
    return name in names_of_tests(TESTS / file)


def problems(table: Table, checks: dict[str, dict[str, Callable | str]]) -> list[str]:
    """What the cells lack."""
    found = [f"{name}: no such row" for name in checks.keys() ^ table.keys()]
    not_offered = 0
    for name, cells in table.items():
        for column, cell in cells.items():
            check = checks.get(name, {}).get(column)
            if re.fullmatch(r"`predict[^`]*`", cell):
                if check is None or not has_test(check):
                    found.append(f"{name}, {column}: no test of {cell}")
                continue
            not_offered += cell.startswith(NOT_OFFERED)
            if not re.fullmatch(rf"({NO_PART}|{NOT_OFFERED})\w.*", cell):
                found.append(f"{name}, {column}: neither a command nor a reason")
            elif check is not None:
                found.append(f"{name}, {column}: a test of no command")
    return found + ["more is not offered than may be"] * (not_offered > MOST_NOT_OFFERED)


TABLE = read_table((REPOSITORY / "docs" / "use_a_model.md").read_text())
COMMANDS = [(name, column) for name, cells in TABLE.items() for column, cell in cells.items() if cell.startswith("`")]


def test_each_cell_has_a_command_and_its_test_or_a_reason():
    assert problems(TABLE, CHECKS) == []
    assert list(TABLE) == list(RUNS)
    assert {column for cells in TABLE.values() for column in cells} == {PAIRS, TOP, LABEL, LIKELY, ROWS, OTHER}


@pytest.mark.parametrize(("column", "cell", "message"), [
    (TOP, "", "temporal, `link`, top-k: neither a command nor a reason"),
    (TOP, "does not apply: ", "temporal, `link`, top-k: neither a command nor a reason"),
    (TOP, "does not apply: no order", "temporal, `link`, top-k: a test of no command"),
    (LABEL, "`predict --labels`", "temporal, `link`, class or number: no test of `predict --labels`"),
])  # fmt: skip
def test_a_cell_without_either_is_found(column, cell, message):
    planted = {name: dict(cells) for name, cells in TABLE.items()}
    planted["temporal, `link`"][column] = cell
    assert problems(planted, CHECKS) == [message]


def test_tests_that_are_not_there_and_rows_too_few_are_found():
    checks = {name: dict(columns) for name, columns in CHECKS.items()}
    checks["temporal, `link`"][PAIRS] = "temporal/test_past_questions.py::test_nothing"
    missing = "temporal, `link`, scores of pairs: no test of `predict --pairs pairs.csv`"
    assert problems(TABLE, checks) == [missing]
    assert problems({name: cells for name, cells in TABLE.items() if "forecast" not in name}, CHECKS) == [
        "snapshots, `regression` (forecast): no such row"
    ]
    refused = {name: {column: f"{NOT_OFFERED}reasons" for column in cells} for name, cells in TABLE.items()}
    assert problems(refused, {name: {} for name in TABLE}) == ["more is not offered than may be"]


def test_rows_are_the_tasks_of_all_kinds():
    """Tasks with numbers have the commands of another row, as the text below the table says. Labels of nodes at many
    times have tests in tests/temporal/test_node_property.py."""
    kinds = {kind: typing.get_args(typing.get_type_hints(task)["kind"])
             for kind, task in (("temporal", TemporalTaskConfig), ("static", OneTaskConfig))}  # fmt: skip
    tasks = {(kind, task) for kind, names in (kinds | {"snapshots": tuple(GOALS)}).items() for task in names}
    rows = {tuple(re.match(r"(\w+), `(\w+)`", name).groups()) for name in TABLE}
    as_others = {(kind, "edge_regression") for kind in ("temporal", "static", "snapshots")} | {("static", "regression")}
    assert tasks == rows | as_others | {("temporal", "node_property")}


@pytest.mark.parametrize(("name", "column"), COMMANDS)
def test_a_command_runs_and_its_values_are_right(runs, monkeypatch, name, column):
    made, cells = runs(name), {key: cell.strip("`") for key, cell in TABLE[name].items()}
    monkeypatch.chdir(made.folder)
    assert len(made.answers(cells[column])) >= 12
    check = CHECKS[name][column]
    if callable(check):
        check(made, cells)
