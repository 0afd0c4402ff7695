"""Labels of edges on static graphs: outputs and metrics are those of dense matrices in plain torch, on any number of
ranks; which edges a step sees; exact resume; answers for pairs; refusals."""

from __future__ import annotations

import csv
import json
from functools import partial

import h5py
import numpy as np
import pytest
import torch
from link_graphs import pair_split
from random_graphs import write_graph
from run_commands import asked, run_caught
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, mean_squared_error, roc_auc_score
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, static_config, whole_and_stopped
from test_graph_links import block_pairs, check_blocks, pairs_of, relation_rows, rows_to_hide
from test_graph_training import assert_same_records, run_both
from torch.nn import functional
from training_runs import on_rank_0

from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.kinds import open_session
from hpcgnn.loop.session import split_metrics
from hpcgnn.static.config import StaticConfig
from hpcgnn.static.predict import embed_ends, read_pairs, score_pairs

PAYS, PEOPLE, PAYMENTS = "person.pays.person", 60, 400
WORDS = ["rent", "food", "travel"]
EXACT = {"eval__exact": True, "task__edge_columns": ["amount", "tags"]}


def payments(path, classes: int = 3, numbers: bool = False, labels: bool = True, **changes):
    """People, and payments between them with an amount and two tags; the label follows from both ends and the amount,
    and is unknown for a tenth. Some payments are repeated, some have no split."""
    rng = np.random.default_rng(5)
    feat = rng.standard_normal((PEOPLE, 4)).astype(np.float32)
    src, dst = rng.integers(0, PEOPLE, (2, PAYMENTS)) // (1 + rng.integers(0, 2, (2, PAYMENTS)))
    amount = rng.standard_normal(PAYMENTS)
    value = feat[src, 0] + feat[dst, 1] - amount
    unknown = rng.random(PAYMENTS) < 0.1
    label = np.where(unknown, np.nan, value) if numbers else np.digitize(value, np.linspace(-1, 1, classes - 1))
    columns = {
        "src": src, "dst": dst, "amount": amount, "tags": rng.integers(0, 2, (PAYMENTS, 2)).astype(np.int8),
        "rel": rng.integers(0, 2, PAYMENTS), "split": pair_split(src, dst),
    }  # fmt: skip
    if labels:
        columns["label"] = label if numbers else np.where(unknown, -1, label)
    ids = np.array([b"p%d" % (7 * row % PEOPLE) for row in range(PEOPLE)])
    write_graph(
        path, {"person": {"feat": feat, "id": ids}}, {("person", "pays", "person"): columns | changes}, "static"
    )
    if labels and classes == len(WORDS) and not numbers:
        with h5py.File(path, "r+") as file:
            file[f"edges/{PAYS}/label"].attrs["names"] = json.dumps(WORDS)


def two_classes(path):
    payments(path, classes=2)


def numbers(path):
    payments(path, numbers=True)


def edge_config(**changes) -> StaticConfig:
    """A small run on labels of edges."""
    return static_config(**{"task__kind": "edge", "train__batch_size": 24, "model__dropout": 0.0, **changes})


CASES = {
    "classes": (payments, {"task__class_weights": [1.0, 2.0, 0.5], "train__train_metrics": True}),
    "numbers": (numbers, {"task__kind": "edge_regression", "task__edge_columns": ["tags"], "task__loss": "mae"}),
    "all messages, typed": (payments, {"task__message_splits": "all", "task__message_edges": "both",
                                       "model__kind": "rgcn", **EXACT}),
    "embeddings alone": (two_classes, {"model__kind": "none", "model__layers": 0, "sampling__fanouts": []}),
}  # fmt: skip


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_labels_of_edges_give_one_answer(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    run_both(comm, make_static_parts(comm, make, mpi_tmp_path), mpi_tmp_path, edge_config(**changes))


def dense_outputs(session, parts, config) -> torch.Tensor:
    """Outputs of all edges [E, C], by row: GraphSAGE as products with the mean over visible edges, in plain torch."""
    with h5py.File(parts.parent / "graph.h5") as file:
        rows = torch.from_numpy(file["nodes/person/feat"][()]).double()
    edges = relation_rows(parts, PAYS)
    seen = np.ones(PAYMENTS, bool) if config.task.message_splits == "all" else edges["split"] == 0
    back = config.task.reverse != "none"  # reverses of edges that are held out carry no messages either
    if back and config.task.message_splits != "all":
        held = set(zip(edges["dst"][~seen], edges["src"][~seen], strict=True))
        seen &= np.array([pair not in held for pair in zip(edges["src"], edges["dst"], strict=True)])
    matrix = torch.zeros(PEOPLE, PEOPLE, dtype=torch.float64)
    ends = torch.from_numpy(edges["dst"][seen]), torch.from_numpy(edges["src"][seen])
    matrix.index_put_(ends, torch.ones(int(seen.sum()), dtype=torch.float64), accumulate=True)
    mean = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
    for number, layer in enumerate(session.model.layers):
        product = layer.product
        rows = functional.linear(torch.cat([rows, mean @ rows], 1), product.weight, product.bias)
        rows = torch.relu(rows) if number == 0 else rows
    inputs = [rows[edges["src"]], rows[edges["dst"]]]
    for name in config.task.edge_columns:
        inputs.append(torch.from_numpy(edges[name].reshape(PAYMENTS, -1)).double())
    head = session.model.decoder
    hidden = torch.relu(functional.linear(torch.cat(inputs, 1), head.hidden.weight, head.hidden.bias))
    return functional.linear(hidden, head.out.weight, head.out.bias).detach()


def expected_metrics(output: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """By scikit-learn."""
    if label.dtype.kind == "f":
        square = mean_squared_error(label, output[:, 0])
        return {"mse": square, "mae": np.abs(label - output[:, 0]).mean(), "rmse": np.sqrt(square)}
    chosen = output.argmax(1)
    found = {"accuracy": accuracy_score(label, chosen), "macro_f1": f1_score(label, chosen, average="macro")}
    if output.shape[1] == 2:
        score = (output[:, 1] - output[:, 0]).astype(np.float32)
        found |= {"ap": average_precision_score(label, score), "auc": roc_auc_score(label, score)}
    return found


DENSE = {
    "classes": (payments, {}),
    "two classes, columns": (two_classes, {"task__edge_columns": ["amount", "tags"]}),
    "numbers": (numbers, {"task__kind": "edge_regression", "task__edge_columns": ["amount"]}),
    "all edges": (payments, {"task__message_splits": "all"}),
}


@pytest.mark.parametrize(
    ("case", "exact"), [*((case, True) for case in DENSE), ("two classes, columns", False), ("all edges", False)]
)
def test_metrics_are_those_of_dense_matrices(comm, mpi_tmp_path, case, exact):
    """Held-out edges carry no messages unless asked for; edges without a label are in no split."""
    make, changes = DENSE[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    config = edge_config(**changes, sampling__fanouts=[-1, -1], eval__exact=exact, eval__nodes_per_pass=17)
    session = open_graph_session(comm, parts, config)
    edges, output = relation_rows(parts, PAYS), dense_outputs(session, parts, config).numpy()
    known = ~np.isnan(edges["label"]) if edges["label"].dtype.kind == "f" else edges["label"] >= 0
    for number, split in enumerate(("train", "val", "test")):
        if split == "train" and not exact:
            continue  # sampled steps of training do not see their seeds
        chosen = known & (edges["split"] == number)
        found = split_metrics(session, split, session.scores(split))
        expected = expected_metrics(output[chosen], edges["label"][chosen])
        assert found == pytest.approx(expected, rel=1e-7), split
        assert list(found) == list(session.goal.metric_names())
    unlabeled = int((~known & (edges["split"] >= 0)).sum())
    assert f"{unlabeled} edges without a label are not learned" in session.goal.describe()


@pytest.mark.parametrize("case", ["classes", "numbers"])
def test_the_loss_of_a_step_is_that_of_dense_matrices(comm, mpi_tmp_path, case):
    """All neighbors, but for the step's seeds, their copies and reverses; each class by its weight."""
    make, changes = DENSE[case]
    weights = {"task__class_weights": [1.0, 3.0, 0.5]} if case == "classes" else {}
    parts = make_static_parts(comm, make, mpi_tmp_path)
    config = edge_config(**changes, **weights, model__kind="none", model__layers=0, sampling__fanouts=[])
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, config)
    session, edges = trainer.session, relation_rows(parts, PAYS)
    with session.plans("train", 0) as plans:
        plan = next(iter(plans))
        own, label = plan.columns["row"].numpy(), edges["label"]
        output = session.task.score(plan).output
        if case == "classes":
            weight = torch.tensor(config.task.class_weights, dtype=torch.float64)
            expected = functional.cross_entropy(output, torch.from_numpy(label[own]), weight, reduction="sum")
        else:
            expected = ((output[:, 0] - torch.from_numpy(label[own])) ** 2).sum()
        found = session.task.train(plan)
        assert plan.batch_size == 24
    np.testing.assert_allclose(found, expected.detach() / 24, rtol=1e-12)


@pytest.mark.parametrize(("mode", "direction"), [("train", "in"), ("train", "out"), ("all", "in"), ("all", "out")])
def test_a_step_sees_no_seed_unless_all_edges_carry_messages(comm, mpi_tmp_path, mode, direction):
    parts = make_static_parts(comm, payments, mpi_tmp_path, out_edges=True)
    changes = {
        "sampling__direction": direction,
        "task__message_splits": mode,
        "task__reverse": "none",
        "sampling__fanouts": [-1, -1],
        "model__dropout": 0.2,
    }
    session, columns = open_graph_session(comm, parts, edge_config(**changes)), relation_rows(parts, PAYS)
    for number, split in enumerate(("train", "val")):
        with session.plans(split, 0) as plans:
            for plan in plans:
                seeds = np.concatenate(comm.allgather(plan.columns["row"].numpy()))
                assert set(columns["split"][seeds]) <= {number}
                assert (columns["label"][seeds] >= 0).all()
                hidden = np.flatnonzero(columns["split"] != 0)
                if split == "train":
                    hidden = np.union1d(hidden, rows_to_hide(columns, columns, seeds)[0])
                visible = np.arange(PAYMENTS) if mode == "all" else np.setdiff1d(np.arange(PAYMENTS), hidden)
                check_blocks(block_pairs(session, plan, 0), pairs_of(columns, visible, direction == "out"), "full")


def test_a_stopped_run_resumes_exactly(comm, mpi_tmp_path):
    parts = make_static_parts(comm, payments, mpi_tmp_path)
    config = edge_config(**EXACT, model__dropout=0.2)
    trainer, whole, broken = whole_and_stopped(comm, parts, mpi_tmp_path, config, 3)
    again = open_graph_trainer(comm, parts, broken, config)
    again.resume()
    again.run()
    assert torch.equal(again.flat.parameter, trainer.flat.parameter)
    if comm.rank == 0:
        assert_same_records(broken, whole)


@pytest.mark.several_ranks
def test_sampling_servers_leave_out_the_same_edges(comm, mpi_tmp_path):
    """Labels do not get lost on the way: losses are those without servers."""
    parts = make_static_parts(comm, payments, mpi_tmp_path)
    line = ["--kind=static", "--task.kind=edge", "--train.epochs=1", "--model.layers=1", "--sampling.fanouts=[3]",
            "--model.hidden=4", "--comm.threads=1", "--train.precision=float64", f"--data.path={parts}"]  # fmt: skip
    losses = []
    for servers in (0, 1):
        folder = mpi_tmp_path / f"run-{servers}"
        ended = run_caught("train", *line, f"--comm.sampling_servers={servers}", f"--output.dir={folder}")
        assert ended is None or ended.returncode == 0, ended.stderr
        comm.Barrier()
        records = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
        losses.append([record["loss"] for record in records if "loss" in record])
    assert losses[0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.parametrize("case", ["classes", "numbers"])
def test_pairs_get_the_labels_that_evaluation_saw(comm, mpi_tmp_path, case):
    """From files to a file, by the commands: outputs of the test edges give the metrics of evaluate."""
    regression = case == "numbers"
    parts, run = make_static_parts(comm, numbers if regression else payments, mpi_tmp_path), mpi_tmp_path / "run"
    pairs, out, edges = mpi_tmp_path / "pairs.csv", mpi_tmp_path / "out.csv", relation_rows(parts, PAYS)
    known = ~np.isnan(edges["label"]) if regression else edges["label"] >= 0
    tested = np.flatnonzero(known & (edges["split"] == 2))
    names = [f"p{7 * row % PEOPLE}" for row in range(PEOPLE)]
    lines = [
        ",".join(map(str, (names[edges["src"][row]], names[edges["dst"][row]], edges["amount"][row],
                           *edges["tags"][row]))) for row in tested
    ]  # fmt: skip
    on_rank_0(comm, lambda: pairs.write_text("\n".join(["src,dst,amount,tags_0,tags_1", *lines])) and None)
    train = ["--kind=static", f"--task.kind={'edge_regression' if regression else 'edge'}", "--train.epochs=1",
             "--task.edge_columns=[amount,tags]", "--model.layers=1", "--sampling.fanouts=[3]", "--model.hidden=4",
             "--eval.exact=true", "--comm.threads=1", f"--data.path={parts}", f"--output.dir={run}"]  # fmt: skip
    more = [] if regression else ["--probabilities"]
    for command in (["train", *train], ["predict", str(run), f"--pairs={pairs}", f"--out={out}", *more]):
        ended = run_caught(*command)
        assert ended is None or ended.returncode == 0, ended.stderr
    ended = run_caught("evaluate", str(run))
    if comm.rank:
        return
    reported = json.loads(ended.stdout.splitlines()[-1])
    with open(out, newline="") as file:
        heading, *rows = csv.reader(file)
    assert [row[:2] for row in rows] == [line.split(",")[:2] for line in lines]
    if regression:
        assert heading == ["src", "dst", "output"]
        error = np.array([float(row[2]) for row in rows]) - edges["label"][tested]
        assert reported["test_mse"] == pytest.approx(np.mean(error**2), rel=1e-5)
    else:
        assert heading == ["src", "dst", "class", "class_id", *(f"probability_{word}" for word in WORDS)]
        assert [row[2] for row in rows] == [WORDS[int(row[3])] for row in rows]
        shares = np.array([row[4:] for row in rows], float)
        np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
        right = shares.argmax(axis=1) == edges["label"][tested]
        assert reported["test_accuracy"] == pytest.approx(right.mean(), rel=1e-9)


def test_embeddings_make_the_outputs(comm, mpi_tmp_path):
    """The rows that predict writes of both ends, put through the head by hand, are the outputs of pairs."""
    parts, config = make_static_parts(comm, payments, mpi_tmp_path), edge_config(eval__exact=True)
    session = open_graph_session(comm, parts, config)
    table = embed_ends(session)
    names, rows = (table.slab(name, 0, session.world) for name in ("node", "embedding"))
    src, dst = [f"p{n % PEOPLE}" for n in range(30)], [f"p{(5 * n + 2) % PEOPLE}" for n in range(30)]
    answers = score_pairs(session, asked(partial(read_pairs, session), src=src, dst=dst))
    output = answers.slab("output", 0, session.world)
    if comm.rank:
        return
    place = {name: at for at, name in enumerate(names.tolist())}
    ends = [torch.from_numpy(rows[[place[name] for name in column]]) for column in (src, dst)]
    head = session.model.decoder
    hidden = torch.relu(torch.cat(ends, 1) @ head.hidden.weight.T + head.hidden.bias)
    np.testing.assert_allclose(output, (hidden @ head.out.weight.T + head.out.bias).detach(), rtol=1e-9)


REFUSED = {
    "no labels": (lambda path: payments(path, labels=False), {}, "relation person.pays.person has no column label"),
    "numbers": (numbers, {}, r"label of person\.pays\.person: .* is no class"),
    "infinite": (lambda path: payments(path, numbers=True, label=np.full(PAYMENTS, np.inf)),
                 {"task__kind": "edge_regression"}, "has an infinite number"),
    "rows": (lambda path: payments(path, label=np.ones((PAYMENTS, 2), np.int64)), {}, "must be one class an edge"),
    "few classes": (payments, {"task__classes": 2}, r"below task\.classes = 2"),
    "weights": (payments, {"task__class_weights": [1.0, 2.0]}, "has 2 numbers, the data 3 classes"),
    "no column": (payments, {"task__edge_columns": ["color"]}, "has no column color; it has amount, label, rel, split"),
    "no number": (lambda path: payments(path, amount=np.full(PAYMENTS, np.nan)), {"task__edge_columns": ["amount"]},
                  "column amount of person.pays.person must hold finite numbers"),
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_learned_is_refused(comm, mpi_tmp_path, case):
    make, changes, message = REFUSED[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    with pytest.raises(DistributedError, match=message):
        open_graph_session(comm, parts, edge_config(**changes))


@pytest.mark.serial
@pytest.mark.parametrize(("changes", "message"), [
    ({"task__edge_columns": ["label"]}, "label is no input"),
    ({"task__kind": "link", "task__edge_columns": ["amount"]}, r"task\.edge_columns is for task\.kind edge or"),
    ({"task__kind": "node", "task__message_splits": "all"}, r"task\.message_splits all is for task\.kind edge"),
    ({"task__kind": "edge_regression", "task__classes": 3}, "has no classes"),
    ({"task__node_type": "person"}, r"task\.node_type is for labels of nodes"),
    ({"train__full_graph": True}, r"leave out task\.kind edge"),
    ({"eval__ranking": "filtered"}, r"eval\.ranking needs task\.kind link"),
])  # fmt: skip
def test_settings_that_do_not_go_together(changes, message):
    with pytest.raises(ValueError, match=message):
        edge_config(**changes)


def open_trained(comm, parts, config, trained):
    """Collective. A session as predict opens it on another graph."""
    world = World(CommConfig(device="cpu", threads=1), comm)
    return open_session(config, str(parts), world, Watchdog(world, 0), trained=trained)


def test_a_graph_without_labels_and_splits(comm, mpi_tmp_path):
    """All its edges carry messages; its classes are those of the trained model."""

    def bare(path):
        payments(path, labels=False)
        with h5py.File(path, "r+") as file:
            del file[f"edges/{PAYS}/split"]

    config = edge_config(**EXACT)
    home = open_graph_session(comm, make_static_parts(comm, payments, mpi_tmp_path / "home"), config)
    there = make_static_parts(comm, bare, mpi_tmp_path / "there")
    session = open_trained(comm, there, config, home.schema)
    assert session.goal.classes == 3
    assert session.schema.values["classes"] == WORDS
    assert int(session.world.total(len(session.partition.edges[0].src))) == PAYMENTS
    other = make_static_parts(comm, lambda path: payments(path, tags=np.ones(PAYMENTS)), mpi_tmp_path / "other")
    with pytest.raises(DistributedError, match=r"tags of person\.pays\.person must have 2 numbers an edge"):
        open_trained(comm, other, config, home.schema)
