"""Several tasks over one model of a static graph: steps are those of dense matrices in plain torch, one answer on any
number of ranks, exact resume, no task sees what another holds out, answers by task, refusals."""

from __future__ import annotations

import csv
import json

import h5py
import numpy as np
import pytest
import torch
from link_graphs import SETS, pair_split
from random_graphs import write_graph
from run_commands import run_caught
from selection import long_but
from sklearn.metrics import accuracy_score
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, static_config, whole_and_stopped
from test_graph_links import block_pairs, check_blocks, pairs_of, relation_rows, rows_to_hide
from test_graph_training import assert_same_records, records, run_both
from torch.nn import functional
from training_runs import on_rank_0

from hpcgnn.comm.world import DistributedError
from hpcgnn.static.config import StaticConfig
from hpcgnn.static.model.models import GraphSizes, LayeredModel
from hpcgnn.task.labels import Head

CITES, WRITES, WRITTEN = "paper.cites.paper", "author.writes.paper", "paper.written_by.author"
PAPERS, AUTHORS, FIELDS, KINDS = 48, 30, ["art", "law", "sea"], ["for", "con"]


def library(path, held_out: bool = True, fields=FIELDS, kinds=KINDS):
    """Papers with features and a field, authors with an age alone; citations of two kinds, and authors of papers, which
    lead back in a relation without a split."""
    rng = np.random.default_rng(3)
    field, feat = rng.integers(0, 3, PAPERS), rng.standard_normal((PAPERS, 4)).astype(np.float32)
    feat[:, 0] += field
    src, dst = rng.integers(0, PAPERS, (2, 150)) // (1 + rng.integers(0, 2, (2, 150)))
    author, paper = rng.integers(0, AUTHORS, 110), rng.integers(0, PAPERS, 110)
    split = rng.choice([0, 0, 1, 2, -1], PAPERS + AUTHORS).astype(np.int8)
    label = np.array([fields.index(FIELDS[number]) for number in field])
    kind = np.array([kinds.index(KINDS[number]) for number in (feat[src, 1] > 0).astype(int)])
    nodes = {
        "paper": {"feat": feat, "label": label, "split": split[:PAPERS],
                  "id": np.array([b"p%d" % (5 * row) for row in range(PAPERS)])},
        "author": {"id": 100 + np.arange(AUTHORS), "label": rng.standard_normal(AUTHORS), "split": split[PAPERS:]},
    }  # fmt: skip
    cited, written = rng.choice(SETS, 150), pair_split(author, 100 + paper)
    order = rng.permutation(110)
    edges = {
        ("paper", "cites", "paper"): {"src": src, "dst": dst, "split": cited if held_out else 0 * cited, "label": kind},
        ("author", "writes", "paper"): {"src": author, "dst": paper, "split": written if held_out else 0 * written},
        ("paper", "written_by", "author"): {"src": paper[order], "dst": author[order]},
    }
    write_graph(path, nodes, edges, "static")
    with h5py.File(path, "r+") as file:
        file["nodes/paper/label"].attrs["names"] = json.dumps(fields)
        file[f"edges/{CITES}/label"].attrs["names"] = json.dumps(kinds)


MORE = {
    "cites": {"kind": "link", "relation": CITES, "weight": 0.5, "negative_sharing": "batch", "batch_size": 20},
    "wrote": {"kind": "link", "relation": WRITES, "batch_size": 9, "negative_ends": "both"},
    "age": {"kind": "regression", "node_type": "author", "weight": 2.0, "batch_size": 5},
    "kind": {"kind": "edge", "relation": CITES, "reverse": "none"},
}


def tasks_config(more=MORE, **changes) -> StaticConfig:
    """A small run on the fields of papers and further tasks."""
    usual = {"task__node_type": "paper", "task__more": more, "train__batch_size": 8}
    return static_config(**(usual | changes))


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    "changes", long_but([{"eval__exact": True, "train__accumulate_steps": 2, "sampling__prefetch": 0}, {}], bool)
)
def test_several_tasks_give_one_answer(comm, mpi_tmp_path, changes):
    config = tasks_config(**changes)
    run_both(comm, make_static_parts(comm, library, mpi_tmp_path), mpi_tmp_path, config)


@pytest.mark.parametrize("topology", long_but(["sharded", "replicated"], "sharded".__eq__))
def test_a_stopped_run_resumes_exactly(comm, mpi_tmp_path, topology):
    """In the middle of an epoch of each task."""
    parts = make_static_parts(comm, library, mpi_tmp_path)
    config = tasks_config(sampling__topology=topology, train__batch_size=4)
    trainer, whole, broken = whole_and_stopped(comm, parts, mpi_tmp_path, config, 2)
    again = open_graph_trainer(comm, parts, broken, config)
    again.resume()
    assert 0 < again.progress.step < again.session.batches["train"].num_steps
    again.run()
    assert torch.equal(again.flat.parameter, trainer.flat.parameter)
    if comm.rank == 0:
        assert_same_records(broken, whole)


class Dense:
    """The model of three tasks as matrices [nodes, nodes] in plain torch, over copies of its parameters."""

    def __init__(self, session, parts):
        self.p = {name: value.detach().clone().requires_grad_() for name, value in session.model.named_parameters()}
        with h5py.File(parts.parent / "graph.h5") as file:
            self.feat = torch.from_numpy(file["nodes/paper/feat"][()]).double()
            self.field = torch.from_numpy(file["nodes/paper/label"][()])
        self.edges = relation_rows(parts, CITES)

    def rows(self, seeds: np.ndarray) -> torch.Tensor:
        """Outputs of all papers from training edges, but for seeds, their copies, and reverses of these and of held-out
        edges."""
        edges, held = self.edges, np.flatnonzero(self.edges["split"] != 0)
        hidden = [held, *rows_to_hide(edges, edges, seeds), rows_to_hide(edges, edges, held)[1]]
        seen = np.setdiff1d(np.arange(len(edges["src"])), np.concatenate(hidden))
        matrix = torch.zeros(PAPERS, PAPERS, dtype=torch.float64)
        ends = torch.from_numpy(edges["dst"][seen]), torch.from_numpy(edges["src"][seen])
        matrix.index_put_(ends, torch.ones(len(seen), dtype=torch.float64), accumulate=True)
        mean, rows = matrix / matrix.sum(1, keepdim=True).clamp(min=1), self.feat
        for number in range(2):
            weight, bias = (self.p[f"layers.{number}.product.{part}"] for part in ("weight", "bias"))
            rows = functional.linear(torch.cat([rows, mean @ rows], 1), weight, bias)
            rows = torch.relu(rows) if number == 0 else rows
        return rows

    def head(self, number: int, rows: torch.Tensor) -> torch.Tensor:
        p = {
            part: self.p[f"heads.{number}.{part}"]
            for part in ("hidden.weight", "hidden.bias", "out.weight", "out.bias")
        }
        hidden = torch.relu(functional.linear(rows, p["hidden.weight"], p["hidden.bias"]))
        return functional.linear(hidden, p["out.weight"], p["out.bias"])

    def loss(self, papers: np.ndarray, links: np.ndarray, negatives: np.ndarray, labeled: np.ndarray) -> torch.Tensor:
        """The sum of the tasks' losses: rows of papers, of links with the negatives [s, k], of labeled edges."""
        src, dst = self.edges["src"], self.edges["dst"]
        loss = functional.cross_entropy(self.head(0, self.rows(links[:0])[papers]), self.field[papers])
        rows = self.rows(links)
        positive = (rows[src[links]] * rows[dst[links]]).sum(1)
        negative = (rows[src[links]][:, None] * rows[negatives]).sum(2)
        loss = loss + 0.5 * (functional.softplus(-positive) + functional.softplus(negative).mean(1)).mean()
        rows = self.rows(labeled)
        output = self.head(2, torch.cat([rows[src[labeled]], rows[dst[labeled]]], 1))
        return loss + 3 * functional.cross_entropy(output, torch.from_numpy(self.edges["label"][labeled]))


def papers_alone(path):
    """The papers of the library and their citations."""
    library(path)
    with h5py.File(path, "r+") as file:
        for name in (WRITES, WRITTEN):
            del file["edges"][name]
        del file["nodes/author"]


def test_steps_are_those_of_dense_matrices(comm, mpi_tmp_path):
    """Losses and weights of three steps of SGD; each task goes through its epochs, each seed once in each."""
    parts = make_static_parts(comm, papers_alone, mpi_tmp_path)
    more = {
        "cites": {"kind": "link", "relation": CITES, "weight": 0.5, "batch_size": 25, "negatives": 3},
        "kind": {"kind": "edge", "relation": CITES, "weight": 3.0, "batch_size": 40},
    }
    sgd = {"train__optimizer": "sgd", "train__lr": 0.05, "model__dropout": 1e-300}  # drops nothing, and names the nodes
    config = tasks_config(more, sampling__fanouts=[-1, -1], **sgd)
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, config)
    session, base = trainer.session, trainer.session.partition.book.type_base()[0]
    dense, seeds = Dense(session, parts), {"cites": [], "kind": []}
    optimizer = torch.optim.SGD(dense.p.values(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        trainer.start_epoch(epoch)
        with session.plans("train", epoch) as plans:
            for number, plan in enumerate(plans):
                main, links, labeled = plan.parts
                papers = main.batch.identity[0].numpy()[main.roots[0].numpy()] - base
                drawn = links.batch.identity[0].numpy()[links.roots[2].numpy()] - base
                own = papers, links.columns["row"].numpy(), drawn, labeled.columns["row"].numpy()
                joined = [np.concatenate(column) for column in zip(*comm.allgather(own), strict=True)]
                seeds["cites"].append(joined[1])
                seeds["kind"].append(joined[3])
                loss, *_ = trainer.train_step(plan)
                if epoch == 0 and number < 3:
                    expected = dense.loss(*joined)
                    optimizer.zero_grad()
                    expected.backward()
                    optimizer.step()
                    assert loss == pytest.approx(expected.item(), rel=1e-10)
                    for name, value in session.model.named_parameters():
                        torch.testing.assert_close(value.detach(), dense.p[name].detach(), rtol=1e-9, atol=1e-12)
    training = np.flatnonzero(dense.edges["split"] == 0)
    for name, size in (("cites", 25), ("kind", 40)):
        steps = -(-len(training) // size)
        first_steps = range(0, len(seeds[name]), steps)
        passes = [np.concatenate(seeds[name][first : first + steps]) for first in first_steps]
        assert len(passes) > 1
        assert not np.array_equal(passes[0][: len(passes[-1])], passes[-1])
        for rows in passes[:-1]:
            assert sorted(rows) == training.tolist()
        assert len(set(passes[-1])) == len(passes[-1])
    first = seeds["cites"][0], seeds["kind"][0]
    assert set(first[0]) - set(first[1]), "two tasks on the same edges draw in the same order"


@pytest.mark.parametrize(("mode", "direction"), [("full", "in"), ("full", "out"), ("uniform", "in")])
def test_no_task_sees_what_another_holds_out(comm, mpi_tmp_path, mode, direction):
    """In no split; and in a step of training a task sees neither its seeds nor their copies and reverses."""
    parts = make_static_parts(comm, library, mpi_tmp_path, out_edges=True)
    fanouts = [-1, -1] if mode == "full" else [2, 2]
    session = open_graph_session(comm, parts, tasks_config(sampling__fanouts=fanouts, sampling__direction=direction))
    edges = {name: relation_rows(parts, name) for name in (CITES, WRITES, WRITTEN)}
    held = {name: np.flatnonzero(edges[name]["split"] != 0) for name in (CITES, WRITES)}
    hidden = {
        CITES: np.union1d(held[CITES], rows_to_hide(edges[CITES], edges[CITES], held[CITES])[1]),
        WRITES: held[WRITES], WRITTEN: rows_to_hide(edges[WRITES], edges[WRITTEN], held[WRITES])[1],
    }  # fmt: skip
    learned = {"cites": (CITES, CITES), "kind": (CITES, CITES), "wrote": (WRITES, WRITTEN)}
    for split in ("train", "val", "test"):
        seen = set()
        with session.plans(split, 0) as plans:
            for plan in plans:
                for name, part in zip(session.goal.by_task, plan.parts, strict=True):
                    if part is None:
                        continue
                    seen.add(name)
                    away = dict(hidden)
                    if name in learned and split == "train":
                        there, back = learned[name]
                        seeds = np.concatenate(comm.allgather(part.columns["row"].numpy()))
                        copies, reverses = rows_to_hide(edges[there], edges[back], seeds)
                        away[there] = np.union1d(away[there], copies)
                        if MORE[name].get("reverse") != "none":
                            away[back] = np.union1d(away[back], reverses)
                    for relation, columns in edges.items():
                        rows = np.setdiff1d(np.arange(len(columns["src"])), away[relation])
                        number = session.partition.relation_of(relation)
                        visible = pairs_of(columns, rows, direction == "out")
                        check_blocks(block_pairs(session, part, number), visible, mode)
        assert seen == {"", *MORE}


class WithHead(LayeredModel):
    """A model of the fields of papers as it is beside further tasks: layers, then a head."""

    def __init__(self, config, sizes):
        super().__init__(config, GraphSizes(sizes.inputs, sizes.relations, config.hidden, sizes.edges))
        self.head = Head(config.hidden, config.hidden, sizes.outputs)

    def last(self, rows):
        return self.head(rows)


def test_a_task_of_weight_0_leaves_the_main_one_alone(comm, mpi_tmp_path):
    """Without held-out edges, the main task's numbers are those of a run on it alone; with another weight they are
    not. Authors have learnable embeddings, which no gradient of 0 moves either."""
    parts = make_static_parts(comm, lambda path: library(path, held_out=False), mpi_tmp_path)
    alone = static_config(
        task__node_type="paper",
        train__batch_size=8,
        train__train_metrics=True,
        model__class_path=f"{__name__}.WithHead",
    )
    runs = {"alone": alone}
    for weight in (0.0, 0.5):
        more = {"cites": {"kind": "link", "relation": CITES, "weight": weight}}
        runs[str(weight)] = tasks_config(more, train__train_metrics=True, train__monitor="accuracy")
    found = {}
    for name, config in runs.items():
        folder = mpi_tmp_path / name
        on_rank_0(comm, lambda folder=folder: folder.mkdir())
        trainer = open_graph_trainer(comm, parts, folder, config)
        trainer.start()
        trainer.run()
        if comm.rank == 0:
            found[name] = [
                {key: value for key, value in line.items() if "cites" not in key and key not in ("monitor", "step")}
                for line in records(folder)
            ]
    if comm.rank == 0:
        assert found["alone"] == found["0.0"]
        assert found["alone"] != found["0.5"]


def answers(path) -> list[dict]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_each_task_answers_as_it_was_scored(comm, mpi_tmp_path):
    """From files to files, by the commands: outputs and scores give by hand what evaluate reports, also on a graph that
    numbers its words otherwise."""
    parts, run = make_static_parts(comm, library, mpi_tmp_path), mpi_tmp_path / "run"
    turned = make_static_parts(
        comm, lambda path: library(path, fields=FIELDS[::-1], kinds=KINDS[::-1]), mpi_tmp_path / "turned"
    )
    pairs, names = mpi_tmp_path / "pairs.csv", [f"p{5 * row}" for row in range(PAPERS)]
    text = "\n".join(["src,dst", *(f"{src},{dst}" for src in names for dst in names)])
    on_rank_0(comm, lambda: pairs.write_text(text) and None)
    more = MORE | {"again": {"kind": "edge", "relation": CITES, "weight": 0.1}}
    out = {name: mpi_tmp_path / f"{name}.csv" for name in ("main", "rows", "cites", "kind", "age")}
    commands = [
        ["train", "--kind=static", "--task.node_type=paper", f"--task.more={json.dumps(more)}", "--train.epochs=2",
         "--model.layers=1", "--sampling.fanouts=[3]", "--model.hidden=4", "--eval.ranking=filtered",
         "--train.precision=float64", "--train.monitor=age_mse", "--comm.threads=1", f"--data.path={parts}",
         f"--output.dir={run}"],
        ["predict", str(run), f"--out={out['main']}"],
        ["predict", str(run), "--embeddings", f"--out={out['rows']}"],
        ["predict", str(run), "--task=age", f"--out={out['age']}"],
        ["predict", str(run), "--task=cites", f"--pairs={pairs}", f"--out={out['cites']}"],
        ["predict", str(run), "--task=kind", f"--pairs={pairs}", f"--out={out['kind']}"],
        ["export_model", str(run), str(mpi_tmp_path / "exported")], ["evaluate", str(run)],
        ["evaluate", str(run), f"--data.path={turned}"], ["info", str(run)],
    ]  # fmt: skip
    ended = [run_caught(*command) for command in commands]
    if comm.rank:
        return
    assert [each.returncode for each in ended] == [0] * len(commands), [each.stderr for each in ended]
    reported, elsewhere = (json.loads(each.stdout.splitlines()[-1]) for each in ended[7:9])
    last = records(run)[-1]
    numbers = {name for name in reported if name.startswith(("val_", "test_"))}
    assert {name: last[name] for name in numbers} == pytest.approx({n: reported[n] for n in numbers}, rel=1e-9)
    assert {name: elsewhere[name] for name in numbers} == pytest.approx({n: reported[n] for n in numbers}, rel=1e-9)
    assert (last["monitor"], last["best"]) == ("age_mse", "lowest")
    epochs = [line["val_age_mse"] for line in records(run) if line["kind"] == "epoch"]
    assert last["epoch"] == int(np.argmin(epochs))
    with h5py.File(parts.parent / "graph.h5") as file:
        label, split = (file[f"nodes/paper/{name}"][()] for name in ("label", "split"))
        age, tested = (file[f"nodes/author/{name}"][()] for name in ("label", "split"))
    main, rows = answers(out["main"]), answers(out["rows"])
    found = np.array([FIELDS.index(row["class"]) for row in main])
    assert reported["test_accuracy"] == pytest.approx(accuracy_score(label[split == 2], found[split == 2]))
    output = np.array([float(row["output"]) for row in answers(out["age"])])
    assert reported["test_age_mse"] == pytest.approx(np.mean((output - age)[tested == 2] ** 2), rel=1e-6)
    check_head(mpi_tmp_path / "exported", main, rows)
    edges = relation_rows(parts, CITES)
    known = np.zeros((PAPERS, PAPERS), bool)
    known[edges["src"], edges["dst"]] = True
    score = np.array([float(row["score"]) for row in answers(out["cites"])]).reshape(PAPERS, PAPERS)
    ranks = []
    for row in np.flatnonzero(edges["split"] == 2):
        src, dst = edges["src"][row], edges["dst"][row]
        for line, open_ in ((score[src], ~known[src]), (score[:, dst], ~known[:, dst])):
            others = line[open_]
            ranks.append(1 + (others > score[src, dst]).sum() + (others == score[src, dst]).sum() / 2)
    assert reported["test_cites_mrr"] == pytest.approx(np.mean(1 / np.array(ranks)), rel=1e-6)
    kinds = np.array([KINDS.index(row["class"]) for row in answers(out["kind"])]).reshape(PAPERS, PAPERS)
    test = edges["split"] == 2
    right = kinds[edges["src"], edges["dst"]][test] == edges["label"][test]
    assert reported["test_kind_accuracy"] == pytest.approx(right.mean())


@pytest.mark.parametrize("main", long_but(["", "cites"], "cites".__eq__))
def test_answers_on_a_graph_without_labels_and_splits(comm, mpi_tmp_path, main):
    """Of all tasks, where the main one has no seeds there, and where edges without a split are its seeds. The answers
    are those on the graph of the run, whose edges all carry messages."""

    def bare(path):
        library(path, held_out=False)
        with h5py.File(path, "r+") as file:
            for table in [*file["nodes"].values(), *file["edges"].values()]:
                for name in {"label", "split"} & table.keys():
                    del table[name]

    parts = make_static_parts(comm, lambda path: library(path, held_out=False), mpi_tmp_path)
    others = make_static_parts(comm, bare, mpi_tmp_path / "bare")
    pairs, run = mpi_tmp_path / "pairs.csv", mpi_tmp_path / "run"
    on_rank_0(comm, lambda: pairs.write_text("src,dst\np0,p5\np10,p20\n") and None)
    tasks = {"": {"kind": "node", "node_type": "paper"}, **MORE}
    own, more = tasks[main], {name or "field": task for name, task in tasks.items() if name != main}
    own = [f"--task.{key}={value}" for key, value in own.items() if key not in ("weight", "batch_size")]
    train = [
        "train", "--kind=static", *own, f"--task.more={json.dumps(more)}", "--train.epochs=1", "--model.layers=1",
        "--sampling.fanouts=[3]", "--model.hidden=4", "--train.precision=float64", "--comm.threads=1",
        f"--data.path={parts}", f"--output.dir={run}",
    ]  # fmt: skip
    ended, questions = [run_caught(*train)], {}
    for name in ("", "age", "kind", "cites"):
        asked = [f"--pairs={pairs}"] if name in ("kind", "cites") else []
        questions[name or "field"] = [*asked, *([] if name == main else [f"--task={name or 'field'}"])]
    for name, asked in questions.items():
        for graph in (parts, others):
            out = f"--out={mpi_tmp_path}/{name}-{graph.parent.name}.csv"
            ended.append(run_caught("predict", str(run), f"--data.path={graph}", *asked, out))
    if comm.rank == 0:
        assert [each.returncode for each in ended] == [0] * len(ended), [each.stderr for each in ended]
        for name in questions:
            here, there = (answers(mpi_tmp_path / f"{name}-{graph.parent.name}.csv") for graph in (parts, others))
            assert [list(row) for row in here] == [list(row) for row in there]
            numbers = (
                [[row[key] for key in row if key.startswith(("output", "score"))] for row in rows]
                for rows in (here, there)
            )
            np.testing.assert_allclose(*(np.array(rows, float) for rows in numbers), rtol=1e-9, atol=1e-12)


def check_head(folder, main: list[dict], rows: list[dict]) -> None:
    """The exported head makes the outputs of the embeddings."""
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    embedding = torch.tensor([[float(row[f"embedding_{place}"]) for place in range(4)] for row in rows]).double()
    hidden = torch.relu(embedding @ weights["heads.0.hidden.weight"].T + weights["heads.0.hidden.bias"])
    output = hidden @ weights["heads.0.out.weight"].T + weights["heads.0.out.bias"]
    expected = [[float(row[f"output_{place}"]) for place in range(3)] for row in main]
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-5, atol=1e-6)


LINK = {"cites": {"kind": "link", "relation": CITES}}
REFUSED = {
    "whole graph": ({"train__full_graph": True}, "task.more: .* does not go with train.full_graph"),
    "cuda graphs": ({"train__cuda_graphs": "on"}, "does not go with train.cuda_graphs"),
    "servers": ({"comm__sampling_servers": 1}, "does not go with comm.sampling_servers"),
    "name": ({"task__more": {"a b": {"kind": "link"}}}, "'a b' is no name of a task: use letters"),
    "no section": ({"task__more": {"cites": None}}, "task.more.cites: expected a section"),
    "no key": ({"task__more": {"cites": {"wait": 1}}}, "task.more.cites: .*'wait'"),
    "weight": ({"task__more": {"cites": {"weight": -1}}}, r"task.more.cites: weight must be at least 0, got -1"),
    "batch": ({"task__more": {"cites": {"batch_size": -1}}}, "task.more.cites: batch_size must be at least 0"),
    "typed": ({"task__more": {"cites": {"kind": "link", "message_edges": "typed"}}}, "task.message_edges typed"),
    "given": ({"eval__ranking": "listed", "eval__negatives_file": "no", "task__more": LINK | {"two": LINK["cites"]}},
              "ranking listed of several tasks of kind link"),
    "no links": ({"eval__ranking": "filtered", "task__more": {"age": {"kind": "regression"}}}, "needs task.kind link"),
    "of a task": ({"task__more": {"cites": {"kind": "link", "negatives": -1}}}, "task.more.cites: task.negatives must"),
    "with others": ({"sampling__edge_columns": ["label"]}, "task.more.cites: sampling.edge_columns: label is no input"),
}  # fmt: skip


@pytest.mark.serial
def test_no_plans_are_padded_for_steps_that_take_turns():
    """They are no CUDA graphs, whatever the graph: the library's is typed, which alone would hinder them."""
    config = tasks_config(train__cuda_graphs="auto")
    assert config.task.further
    assert {config.of_task(name).train.cuda_graphs for name in MORE} == {"off"}


@pytest.mark.serial
@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_go_together(case):
    changes, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        tasks_config(**({"more": LINK} | changes))


def without_training(path):
    library(path)
    with h5py.File(path, "r+") as file:
        file["nodes/author/split"][:] = 2


@pytest.mark.serial
@pytest.mark.parametrize(
    ("make", "more", "message"),
    [
        (library, {"x": {"kind": "link", "relation": "a.b.c"}}, r"^task\.more\.x: task\.relation: no relation a\.b\.c"),
        (library, {"x": {"kind": "node", "node_type": "venue"}}, r"^task\.more\.x: .*venue"),
        (without_training, {"age": MORE["age"]}, r"^task\.more\.age: there are no seeds to train on"),
    ],
)
def test_what_does_not_fit_the_graph_is_refused(comm, mpi_tmp_path, make, more, message):
    parts = make_static_parts(comm, make, mpi_tmp_path)
    with pytest.raises(DistributedError, match=message):
        open_graph_session(comm, parts, tasks_config(more))


def test_answers_of_no_task(comm, mpi_tmp_path):
    parts, run = make_static_parts(comm, library, mpi_tmp_path), mpi_tmp_path / "run"
    line = [f"--task.more.cites.relation={CITES}", "--task.more.cites.kind=link", "--train.epochs=1"]
    shape = ["--model.layers=1", "--sampling.fanouts=[2]", "--model.hidden=4", "--comm.threads=1"]
    where = [f"--data.path={parts}", f"--output.dir={run}"]
    assert_ended(run_caught("train", "--kind=static", "--task.node_type=paper", *line, *shape, *where), 0, "")
    out = f"--out={mpi_tmp_path / 'out.csv'}"
    assert_ended(run_caught("predict", str(run), "--task=cite", out), 2, "--task must be cites or empty, got 'cite'")
    ended = run_caught("predict", str(run), "--task=cites", out)
    assert_ended(ended, 2, "this run learned links: give one of --pairs")


def assert_ended(ended, code: int, message: str) -> None:
    """On rank 0."""
    if ended is not None:
        assert ended.returncode == code, ended.stderr
        assert message in ended.stderr
