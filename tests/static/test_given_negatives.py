"""Given negatives and the edges that carry messages in evaluation: metrics are those of the formulas of Hu et al. (Open
graph benchmark, 2020) over dense matrices, in NumPy and plain torch, on any number of ranks."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from link_graphs import shop
from run_commands import run_caught
from sklearn.metrics import average_precision_score, roc_auc_score
from static_runs import make_static_parts, open_graph_session
from test_graph_links import BUYS, link_config, relation_rows
from test_link_predict import named
from training_runs import on_rank_0

from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph import files, negative_file
from hpcgnn.loop.session import split_metrics
from hpcgnn.static import given_negatives
from hpcgnn.static.inference import infer
from hpcgnn.task.metrics import PoolScores

USERS, ITEMS, POOL, LISTED = 40, 30, 130, 25
SPLITS = ("train", "val", "test")


@pytest.fixture(autouse=True)
def in_pieces(monkeypatch):
    """Files are read, and names looked up, in several pieces."""
    monkeypatch.setattr(given_negatives, "AT_ONCE", 4 * LISTED)


def name_of(kind: str, rows, size: int) -> np.ndarray:
    """Names that ``named`` gives to nodes."""
    return np.array([f"{kind} {7 * row % size}" for row in np.ravel(rows)]).reshape(np.shape(rows))


def pairs_of(split: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SPLITS.index(split))
    return rng.integers(0, USERS, POOL), rng.integers(0, ITEMS, POOL)


def write_pairs(path, split: str) -> None:
    src, dst = pairs_of(split)
    np.savez(path, src=name_of("user", src, USERS), dst=name_of("item", dst, ITEMS))


def write_table(path, split: str) -> None:
    """The pairs as a CSV file, packed or not, or as Parquet, with a column that is not read."""
    src, dst = pairs_of(split)
    table = pd.DataFrame({"note": 1, "dst": name_of("item", dst, ITEMS), "src": name_of("user", src, USERS)})
    table.to_parquet(path) if path.suffix == ".parquet" else table.to_csv(path, index=False)


def lines_of(edges: dict, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a split's edges, in no order, and their negatives."""
    rng = np.random.default_rng(9)
    rows = rng.permutation(np.flatnonzero(edges["split"] == SPLITS.index(split)))
    return rows, rng.integers(0, ITEMS, (len(rows), LISTED))


def write_lines(path, edges: dict, split: str) -> None:
    rows, negatives = lines_of(edges, split)
    with h5py.File(path, "w") as file:
        file["row"] = rows
        file["negatives"] = np.char.encode(name_of("item", negatives, ITEMS))


def write_beside(path, edges: dict) -> str:
    """The pairs and the lines of both splits, as convert writes them beside a graph file: by row."""
    with files.writing(path, files.NEGATIVES, source_name="graph.h5") as file:
        for split in SPLITS[1:]:
            group = file.create_group(f"edges/{BUYS}/{split}")
            group["row"], group["negatives"] = lines_of(edges, split)
            group["pairs"] = np.column_stack(pairs_of(split))
        file[f"edges/{BUYS}"].attrs["sizes"] = [USERS, ITEMS, len(edges["src"])]
    return str(path)


@pytest.mark.parametrize(("change", "reason"), [
    (lambda file: file[f"edges/{BUYS}"].attrs.modify("sizes", [1, 2, 3]), r"beside another graph: .*\(1, 2, 3\)"),
    (lambda file: file.attrs.modify("format_version", 99), "version 99"),
])  # fmt: skip
def test_negatives_of_another_graph_or_version_are_refused(comm, mpi_tmp_path, change, reason):
    parts = make_static_parts(comm, named(shop), mpi_tmp_path)

    def make() -> str:
        given = write_beside(mpi_tmp_path / "graph.negatives.h5", relation_rows(parts, BUYS))
        with h5py.File(given, "r+") as file:
            change(file)
        return given

    config = link_config(eval__ranking="pooled", eval__negatives_file=on_rank_0(comm, make), task__relation=BUYS)
    with pytest.raises(DistributedError, match=reason):
        open_graph_session(comm, parts, config)


def embeddings(session) -> tuple[torch.Tensor, torch.Tensor]:
    """Of users and items, by row, on all ranks."""
    world, partition = session.world, session.partition
    outputs, base = infer(session).numpy(), partition.book.type_base()
    pieces = world.allgather((partition.flat_row, outputs))
    rows = np.empty((base[-1], outputs.shape[1]))
    for flat_row, piece in pieces:
        rows[flat_row] = piece
    kinds = [partition.type_of(name) for name in ("user", "item")]
    return tuple(torch.from_numpy(rows[base[kind] : base[kind + 1]]) for kind in kinds)


def hits(positive: np.ndarray, negative: np.ndarray, most: int) -> float:
    """The formula of ogb's evaluator."""
    if len(negative) < most:
        return 1.0
    return float(np.mean(positive > np.sort(negative)[-most]))


@pytest.mark.parametrize(
    ("decoder", "form"),
    [("dot", "npz"), ("dot", "beside"), ("mlp", "npz"), ("dot", "csv"), ("dot", "csv.gz"), ("dot", "parquet")],
)
def test_hits_in_a_pool_are_those_of_the_formula(comm, mpi_tmp_path, decoder, form):
    parts = make_static_parts(comm, named(shop), mpi_tmp_path)
    edges, given = relation_rows(parts, BUYS), str(mpi_tmp_path / f"{{split}}.{form}")
    write = write_pairs if form == "npz" else write_table
    if form == "beside":
        given = on_rank_0(comm, lambda: write_beside(mpi_tmp_path / "graph.negatives.h5", edges))
    else:
        on_rank_0(comm, lambda: [write(mpi_tmp_path / f"{split}.{form}", split) for split in SPLITS[1:]] and None)
    config = link_config(
        eval__ranking="pooled", eval__negatives_file=given, eval__nodes_per_pass=7, task__relation=BUYS,
        task__decoder=decoder,
    )  # fmt: skip
    session = open_graph_session(comm, parts, config)
    users, items = embeddings(session)
    for split in SPLITS[1:]:
        found = split_metrics(session, split, session.scores(split))
        chosen, (src, dst) = edges["split"] == SPLITS.index(split), pairs_of(split)
        with torch.no_grad():
            positive, negative = (
                session.model.decoder(users[one], items[other]).numpy().astype(np.float32)
                for one, other in ((edges["src"][chosen], edges["dst"][chosen]), (src, dst))
            )
        expected = {f"hits@{most}": hits(positive, negative, most) for most in (20, 50, 100)}
        label, score = np.arange(len(positive) + POOL) < len(positive), np.concatenate([positive, negative])
        expected |= {"ap": average_precision_score(label, score), "auc": roc_auc_score(label, score)}
        assert found == pytest.approx(expected, rel=1e-9)
        assert list(found) == list(session.goal.metric_names())


@pytest.mark.parametrize("beside", [False, True])
def test_ranks_among_listed_negatives_are_those_of_the_formula(comm, mpi_tmp_path, beside):
    parts = make_static_parts(comm, named(shop), mpi_tmp_path)
    edges, given = relation_rows(parts, BUYS), str(mpi_tmp_path / "{split}.h5")
    on_rank_0(comm, lambda: [write_lines(mpi_tmp_path / f"{s}.h5", edges, s) for s in SPLITS[1:]] and None)
    if beside:
        given = on_rank_0(comm, lambda: write_beside(mpi_tmp_path / "graph.negatives.h5", edges))
    config = link_config(
        eval__ranking="listed", eval__negatives_file=given, task__relation=BUYS, task__negative_ends="both"
    )
    session = open_graph_session(comm, parts, config)
    users, items = embeddings(session)
    found = split_metrics(session, "test", session.scores("test"))
    rows, negatives = lines_of(edges, "test")
    source = users[edges["src"][rows]]
    positive = (source * items[edges["dst"][rows]]).sum(1).numpy().astype(np.float32)
    negative = torch.einsum("nz,nkz->nk", source, items[negatives]).numpy().astype(np.float32)
    above, level = ((better > 0).sum(1) for better in (negative > positive[:, None], negative >= positive[:, None]))
    ranks = 0.5 * (above + level) + 1
    expected = {"mrr": np.mean(1 / ranks)} | {f"hits@{most}": np.mean(ranks <= most) for most in (1, 3, 10)}
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("ranking", ["pooled", "listed"])
def test_each_rank_receives_its_share_alone(comm, mpi_tmp_path, monkeypatch, ranking):
    """All ranks receive the different names, never the negatives; shares are nearly equal, and no part of more."""
    sizes, broadcast = [], World.broadcast

    def counted(world, value=None, root=0):
        value = broadcast(world, value, root)
        sizes.append(value.size if isinstance(value, np.ndarray) else 0)
        return value

    parts = make_static_parts(comm, named(shop), mpi_tmp_path)
    given = on_rank_0(comm, lambda: write_beside(mpi_tmp_path / "g.negatives.h5", relation_rows(parts, BUYS)))
    monkeypatch.setattr(World, "broadcast", counted)
    config = link_config(eval__ranking=ranking, eval__negatives_file=given, task__relation=BUYS)
    session = open_graph_session(comm, parts, config)
    assert USERS >= max(sizes) > 0
    if ranking == "pooled":
        pairs = session.goal._pairs["test"]
        begin, end = (rank * POOL // comm.size for rank in (comm.rank, comm.rank + 1))
        assert len(pairs.src) == len(pairs.dst) == end - begin
        assert max(column.base.size for column in (pairs.src, pairs.dst)) == 2 * (end - begin)


def test_a_file_is_read_once_from_its_beginning_to_its_end(comm, mpi_tmp_path, monkeypatch):
    """Although the rows of its lines are in no order."""
    parts, reads = make_static_parts(comm, named(shop), mpi_tmp_path), []
    given = on_rank_0(comm, lambda: write_beside(mpi_tmp_path / "g.negatives.h5", relation_rows(parts, BUYS)))

    def opened(*arguments):
        file = negative_file.open_negatives(*arguments)
        return replace(file, read=lambda *span: reads.append((file, *span)) or file.read(*span))

    monkeypatch.setattr(given_negatives, "open_negatives", opened)
    config = link_config(eval__ranking="listed", eval__negatives_file=given, task__relation=BUYS)
    open_graph_session(comm, parts, config)
    assert bool(reads) == (comm.rank == 0)
    for file in {id(file): file for file, _, _ in reads}.values():
        lines = [line for of, begin, end in reads if of is file for line in range(begin, end)]
        assert lines == list(range(file.num_listed))


def test_a_pool_that_is_small_and_one_that_is_spread(comm):
    """With ties; not a bit depends on the number of ranks."""
    world = World(CommConfig(device="cpu", threads=1), comm)
    rng = np.random.default_rng(3)
    for count in (15, 60, 5000):
        positive, negative = rng.integers(0, 30, 70) / 30, rng.integers(0, 30, count) / 30
        shares = [values[world.rank :: world.size] for values in (positive, negative)]
        pool = PoolScores(*shares, world)
        for most in (20, 50, 100):
            assert pool.hits(most) == hits(positive.astype(np.float32), negative.astype(np.float32), most)
    assert np.isnan(PoolScores(positive[:0], negative, world).hits(20))


@pytest.mark.parametrize(("mode", "kind"), [("train", "link"), ("train_val", "link"), ("train_val", "edge")])
def test_the_test_sees_validation_edges_where_asked(comm, mpi_tmp_path, mode, kind):
    """Outputs for the test are those of a graph whose validation edges, and their reverses, are training edges."""
    given = {"task__relation": BUYS, "eval__exact": True, "task__kind": kind, "model__dropout": 0.0}
    later = mpi_tmp_path / "later"

    def labeled(path):
        shop(path)
        with h5py.File(path, "r+") as file:
            file[f"edges/{BUYS}/label"] = np.arange(160) % 2

    def joined(path):
        labeled(path)
        with h5py.File(path, "r+") as file:
            split = file[f"edges/{BUYS}/split"]
            split[:] = np.where(split[()] == 1, 0, split[()])

    parts = make_static_parts(comm, labeled, mpi_tmp_path)
    others = make_static_parts(comm, joined, later) if mode == "train_val" else parts
    session = open_graph_session(comm, parts, link_config(**given, eval__message_edges=mode))
    reference = open_graph_session(comm, others, link_config(**given))
    for split in ("test",) if mode == "train_val" else ("val", "test"):
        found, expected = (split_metrics(each, split, each.scores(split)) for each in (session, reference))
        assert found == pytest.approx(expected, rel=1e-9)
    if mode == "train_val":
        plain = open_graph_session(comm, parts, link_config(**given))
        val, test = (split_metrics(plain, split, plain.scores(split)) for split in ("val", "test"))
        assert split_metrics(session, "val", session.scores("val")) == pytest.approx(val, rel=1e-9)
        collected = (np.concatenate(list(map(np.ravel, each.scores("test").columns().values()))) for each in
                     (session, plain))  # fmt: skip
        assert not np.allclose(*collected)
        assert list(test) == list(found)
    for each in (session, reference):
        each.close()


def test_commands_read_the_file_and_notice_another_one(comm, mpi_tmp_path):
    parts, run = make_static_parts(comm, named(shop), mpi_tmp_path), mpi_tmp_path / "run"
    path, pairs = mpi_tmp_path / "pool.npz", mpi_tmp_path / "pairs.csv"
    on_rank_0(comm, lambda: write_pairs(path, "test"))
    on_rank_0(comm, lambda: pairs.write_text("src,dst\nuser 3,item 4\n") and None)
    train = ["--kind=static", "--task.kind=link", f"--task.relation={BUYS}", "--train.epochs=2", "--model.layers=1",
             "--sampling.fanouts=[3]", "--model.hidden=4", "--comm.threads=1", "--eval.ranking=pooled",
             f"--eval.negatives_file={path}", "--eval.message_edges=train_val", f"--data.path={parts}",
             f"--output.dir={run}"]  # fmt: skip
    out = mpi_tmp_path / "out.csv"
    for command in (
        ["train", *train],
        ["evaluate", str(run)],
        ["predict", str(run), f"--pairs={pairs}", f"--out={out}"],
    ):
        ended = run_caught(*command)
        assert ended is None or ended.returncode == 0, ended.stderr
        if command[0] == "evaluate" and ended is not None:
            reported = json.loads(ended.stdout.splitlines()[-1])
            final = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
            assert reported["test_hits@20"] == final["test_hits@20"]
            assert "negatives_file" not in reported
    on_rank_0(comm, lambda: write_pairs(path, "val"))
    ended = run_caught("evaluate", str(run), "--eval.ranking=pooled", f"--eval.negatives_file={path}")
    if ended is not None:
        assert ended.returncode == 0, ended.stderr
        reported = json.loads(ended.stdout.splitlines()[-1])
        assert reported["negatives_file"] == str(path)
        assert reported["negatives_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    help = run_caught("evaluate", "--help")
    assert help is None or "--eval.ranking pooled" in " ".join(help.stdout.split())
    ended = run_caught("evaluate", str(run))
    assert ended is None or ended.returncode == 2
    assert ended is None or "is not what it was when the run began" in ended.stderr


def bad_pairs(path, edges):
    np.savez(path, src=np.array(["user 3"]), dst=np.array(["item 30"]))


def uneven_pairs(path, edges):
    np.savez(path, src=np.arange(3), dst=np.arange(4))


def no_table(path, edges):
    np.savez(path, row=np.arange(3))


def few_lines(path, edges):
    rows, negatives = lines_of(edges, "val")
    np.savez(path, row=rows[:-1], negatives=name_of("item", negatives[:-1], ITEMS))


def short_line(path, edges):
    rows, negatives = lines_of(edges, "val")
    names = name_of("item", negatives, ITEMS)
    names[2, -1] = ""
    np.savez(path, row=rows, negatives=names)


def table_without(path, edges):
    path.with_suffix(".csv").write_text("src,to\nuser 3,item 4\n")


def empty_table(path, edges):
    path.with_suffix(".csv").write_text("src,dst\n")


def unknown_in_table(path, edges):
    path.with_suffix(".csv").write_text("src,dst\nuser 3,item 4\nuser 3,item 30\n")


def other_table(path, edges):
    path.with_suffix(".xlsx").write_text("")


REFUSED = {
    "no column": (table_without, "pooled", r"val\.csv: no column dst; it has src, to"),
    "empty": (empty_table, "pooled", r"val\.csv: 'src' and 'dst' must be vectors of one length, got \(0,\)"),
    "unknown in a table": (unknown_in_table, "pooled", r"val\.csv: item 30 is no item of this graph"),
    "another form": (other_table, "pooled", r"val\.xlsx: pairs must be in a file ending in \.npz, \.h5, \.csv, "
                     r"\.csv\.gz, \.parquet, with the columns src and dst, not '\.xlsx'"),
    "listed in a table": (table_without, "listed", r"val\.csv: negatives must be in a file ending in \.npz, \.h5, "
                          r"\.pkl, not '\.csv': write row, row ids of edges or events \[m\], and negatives"),
    "unknown": (bad_pairs, "pooled", "val.npz: item 30 is no item of this graph"),
    "uneven": (uneven_pairs, "pooled", r"val\.npz: 'src' and 'dst' must be vectors of one length"),
    "no pairs": (no_table, "pooled", r"val\.npz: cannot read 'src' \[m\] and 'dst' \[m\]"),
    "no table": (no_table, "listed", r"val\.npz: cannot read 'row' \[m\] and 'negatives'"),
    "edge without": (few_lines, "listed", r"val\.npz: row \d+ of user\.buys\.item has no negatives \(1 such edges"),
    "short line": (short_line, "listed", r"val\.npz: line 2 has fewer negatives"),
    "no file": (lambda path, edges: None, "pooled", r"val\.npz: no such file"),
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.parametrize("case", REFUSED)
def test_files_that_cannot_be_used_are_refused(comm, mpi_tmp_path, case):
    write, ranking, message = REFUSED[case]
    parts = make_static_parts(comm, named(shop), mpi_tmp_path)
    on_rank_0(comm, lambda: write(mpi_tmp_path / "val.npz", relation_rows(parts, BUYS)))
    suffix = re.search(r"val\\?(\.\w+)", message)[1]
    given = {"eval__ranking": ranking, "eval__negatives_file": str(mpi_tmp_path / f"{{split}}{suffix}")}
    with pytest.raises(DistributedError, match=message):
        open_graph_session(comm, parts, link_config(**given, task__relation=BUYS))


@pytest.mark.serial
@pytest.mark.parametrize(("changes", "message"), [
    ({"eval__ranking": "pooled"}, r"need eval\.negatives_file"),
    ({"eval__negatives_file": "x.npz"}, r"eval\.ranking pooled and listed, and no other, need eval\.negatives_file"),
    ({"eval__ranking": "pooled", "eval__negatives_file": "x.npz", "task__decoder": "distmult"}, "have no edge type"),
    ({"eval__message_edges": "train_val"}, r"needs eval\.exact true, or eval\.ranking"),
    ({"eval__message_edges": "train_val", "eval__exact": True, "task__kind": "node"}, r"is for task\.kind link or"),
])  # fmt: skip
def test_settings_that_do_not_go_together(changes, message):
    with pytest.raises(ValueError, match=message):
        link_config(**changes)
