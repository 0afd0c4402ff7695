"""Parts of PyTorch Geometric, graphlearn-for-pytorch and ParMETIS are joined to the graph that was partitioned.

The first are written by PyTorch Geometric itself, and graphlearn_parts.tar.xz holds what graphlearn 0.2.4 wrote. The
others are written here in the layouts of their sources: graphlearn_torch/python/partition/base.py (save_meta,
save_node_pb, save_graph_partition, append_tensor_to_file) and programs/dglpart.c (DistDGL_WriteGraphs).
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from convert_sources import refused
from places import TESTS

from data_tools.convert import main
from data_tools.partition.__main__ import main as partition
from data_tools.snapshots.text import unpack_tar

pytestmark = pytest.mark.serial
KEY, ONLY = ("user", "buys", "item"), ("node", "to", "node")


def converted(folder: Path) -> dict[str, np.ndarray]:
    """All columns of the graph file of a folder."""
    output = folder.with_suffix(".h5")
    assert main(["--chunks", str(folder), "--overwrite", str(output)]) == 0
    found: dict[str, np.ndarray] = {}
    with h5py.File(output) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def random_edges(rng, num_edges: int, src: int, dst: int) -> np.ndarray:
    return np.stack([rng.integers(0, src, num_edges), rng.integers(0, dst, num_edges)])


# --------------------------------------------------------------------------------------------------- PyTorch Geometric


def partition_by_pyg(data, folder: Path) -> None:
    """METIS is of a package that may be missing, so the cut goes by the row; PyTorch Geometric writes the files."""
    partitioner = pytest.importorskip("torch_geometric.distributed.partition")
    cluster = pytest.importorskip("torch_geometric.loader.cluster")

    def stripes(self, edge_index, num_nodes):
        return torch.arange(num_nodes) % self.num_parts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster.ClusterData, "_metis", stripes)
        partitioner.Partitioner(data, 2, str(folder)).generate_partition()


def test_parts_of_pyg(tmp_path):
    data = pytest.importorskip("torch_geometric.data")
    rng = np.random.default_rng(0)
    edges, feat, of_edges = random_edges(rng, 40, 9, 9), rng.random((9, 3), np.float32), rng.random((40, 2), np.float32)
    graph = data.Data(
        x=torch.from_numpy(feat), edge_index=torch.from_numpy(edges), edge_attr=torch.from_numpy(of_edges)
    )
    partition_by_pyg(graph, tmp_path / "parts")
    found = converted(tmp_path / "parts")
    assert np.array_equal([found["edges/node.to.node/src"], found["edges/node.to.node/dst"]], edges)
    assert np.array_equal(found["edges/node.to.node/feat"], of_edges)
    assert np.array_equal(found["nodes/node/feat"], feat)
    assert found["nodes/node/part"].tolist() == [row % 2 for row in range(9)]


def test_typed_parts_of_pyg(tmp_path):
    data = pytest.importorskip("torch_geometric.data")
    rng = np.random.default_rng(1)
    graph, edges, feats = data.HeteroData(), {}, {}
    for kind, count in (("user", 5), ("item", 7)):
        feats[kind] = rng.random((count, 4), np.float32)
        graph[kind].x = torch.from_numpy(feats[kind])
    for key, counts in ((KEY, (5, 7)), (("item", "in", "item"), (7, 7)), (("item", "of", "user"), (7, 5))):
        edges[".".join(key)] = random_edges(rng, 20, *counts)
        graph[key].edge_index = torch.from_numpy(edges[".".join(key)])
        graph[key].edge_attr = torch.from_numpy(edges[".".join(key)].T.astype(np.float32))
    partition_by_pyg(graph, tmp_path / "parts")
    found = converted(tmp_path / "parts")
    for name, ends in edges.items():
        assert np.array_equal([found[f"edges/{name}/src"], found[f"edges/{name}/dst"]], ends)
        assert np.array_equal(found[f"edges/{name}/feat"], ends.T)
    for kind, feat in feats.items():
        assert np.array_equal(found[f"nodes/{kind}/feat"], feat)
    assert found["nodes/item/part"].tolist() == [(5 + row) % 2 for row in range(7)]


def test_times_of_parts_of_pyg(tmp_path):
    """Every part has the times of all nodes."""
    data = pytest.importorskip("torch_geometric.data")
    edges = random_edges(np.random.default_rng(2), 30, 8, 8)
    graph = data.Data(x=torch.ones(8, 1), edge_index=torch.from_numpy(edges), time=100 + torch.arange(8))
    partition_by_pyg(graph, tmp_path / "nodes")
    assert converted(tmp_path / "nodes")["nodes/node/time_"].tolist() == list(range(100, 108))
    graph = data.Data(x=torch.ones(8, 1), edge_index=torch.from_numpy(edges), edge_time=200 + torch.arange(30))
    partition_by_pyg(graph, tmp_path / "edges")
    found = converted(tmp_path / "edges")
    assert np.array_equal([found["edges/node.to.node/src"], found["edges/node.to.node/dst"]], edges)
    assert found["edges/node.to.node/time_"].tolist() == list(range(200, 230))


def test_refused_parts_of_pyg(tmp_path, capsys):
    data = pytest.importorskip("torch_geometric.data")
    edges = torch.from_numpy(random_edges(np.random.default_rng(3), 30, 8, 8))
    partition_by_pyg(data.Data(x=torch.ones(8, 1), edge_index=edges), folder := tmp_path / "parts")
    capsys.readouterr()  # PyTorch Geometric reports its progress
    meta = json.loads((folder / "META.json").read_text())
    (folder / "META.json").write_text(json.dumps(meta | {"num_parts": 1}))
    message = refused(tmp_path, capsys, "--chunks", str(folder))
    assert (
        "ends of node.to.node: no part has it for id" in message or "x of node: no part has it for id 1 (4" in message
    )
    (folder / "META.json").write_text(json.dumps(meta | {"num_parts": 3}))
    assert "part_2/graph.pt: no such file" in refused(tmp_path, capsys, "--chunks", str(folder))
    (folder / "META.json").write_text(json.dumps(meta))
    nodes = torch.load(folder / "part_1" / "node_feats.pt")
    torch.save(nodes | {"global_id": nodes["global_id"] - 1}, folder / "part_1" / "node_feats.pt")
    message = refused(tmp_path, capsys, "--chunks", str(folder))
    assert "part_1/node_feats.pt: x of node: id 0 has two rows" in message
    torch.save(nodes | {"global_id": nodes["global_id"] + 1}, folder / "part_1" / "node_feats.pt")
    assert "x of node: id 8 is not one of 8" in refused(tmp_path, capsys, "--chunks", str(folder))
    (folder / "META.json").write_text("{}")
    assert "a value of its files is of a wrong type (KeyError('node_types'))" in refused(
        tmp_path, capsys, "--chunks", str(folder)
    )


# --------------------------------------------------------------------------------------------------------- graphlearn


def save(value, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)


def append(tensor: torch.Tensor, path: Path) -> None:
    """As append_tensor_to_file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        pickle.dump(tensor, file)


def write_graphlearn(folder: Path, nodes: dict, edges: dict, suffix: str = "pkl", caching: bool = False) -> None:
    """Write parts by src; nodes: feat by type; edges: (ends, feat or None, weight or None) by (source, name,
    destination). The type "node" alone is a graph without types."""
    is_typed = set(nodes) != {"node"}
    folder.mkdir()
    types = {"node_types": list(nodes), "edge_types": list(edges)} if is_typed else {}
    meta = {"num_parts": 2, "data_cls": "hetero" if is_typed else "homo", **types}
    (folder / "META").write_bytes(pickle.dumps(meta, pickle.HIGHEST_PROTOCOL))

    def write_feat(place: Path, ids: torch.Tensor, feat: torch.Tensor) -> None:
        if suffix == "pt":
            save(feat[ids], place / "feats.pt")
            save(ids, place / "ids.pt")
            return
        for chunk in torch.chunk(ids, 2):
            append(feat[chunk], place / "feats.pkl")
            append(chunk.clone(), place / "ids.pkl")

    books = {}
    for kind, feat in nodes.items():
        books[kind] = torch.arange(len(feat)) % 2
        save(books[kind], folder / (f"node_pb/{kind}.pt" if is_typed else "node_pb.pt"))
        for part in range(2):
            place = folder / f"part{part}" / "node_feat" / (kind if is_typed else "")
            write_feat(
                place,
                torch.nonzero(books[kind] == part)[:, 0],
                feat,
            )
            save(feat[:1], place / "cache_feats.pt")
            save(torch.tensor([0]), place / "cache_ids.pt")
    for key, (ends, feat, weight) in edges.items():
        name = "__".join(key) if is_typed else ""
        book = books[key[0]][ends[0]]
        save(book, folder / (f"edge_pb/{name}.pt" if is_typed else "edge_pb.pt"))
        order = torch.argsort(book, stable=True)
        for part in range(2):
            ids = torch.nonzero(book == part)[:, 0]
            place = folder / f"part{part}" / "graph" / name
            if not caching:
                save(ends[0][ids], place / "rows.pt")
                save(ends[1][ids], place / "cols.pt")
                save(ids, place / "eids.pt")
                if weight is not None:
                    save(weight[ids], place / "weights.pt")
            if feat is not None:
                write_feat(folder / f"part{part}" / "edge_feat" / name, ids, feat)
        if caching:
            for column, values in (("rows", ends[0]), ("cols", ends[1]), ("eids", torch.arange(len(book)))):
                save(values[order], folder / "graph" / name / f"{column}.pt")


def tensors(rng, *shape) -> torch.Tensor:
    return torch.from_numpy(rng.random(shape, np.float32))


@pytest.mark.parametrize("suffix", ["pkl", "pt"])
@pytest.mark.parametrize("caching", [False, True])
def test_parts_of_graphlearn(tmp_path, suffix, caching):
    rng = np.random.default_rng(4)
    feat, of_edges = tensors(rng, 9, 3), tensors(rng, 40, 2)
    ends, weight = torch.from_numpy(random_edges(rng, 40, 9, 9)), None if caching else tensors(rng, 40)
    write_graphlearn(tmp_path / "parts", {"node": feat}, {ONLY: (ends, of_edges, weight)}, suffix, caching)
    found = converted(tmp_path / "parts")
    assert np.array_equal([found["edges/node.to.node/src"], found["edges/node.to.node/dst"]], ends)
    assert np.array_equal(found["edges/node.to.node/feat"], of_edges)
    if weight is not None:
        assert np.array_equal(found["edges/node.to.node/weight"], weight)
    assert np.array_equal(found["nodes/node/feat"], feat)
    assert found["nodes/node/part"].tolist() == [row % 2 for row in range(9)]


def test_parts_that_graphlearn_wrote(tmp_path):
    """By its partitioners of random parts and of frequent nodes, whose caches are no nodes of their own."""
    with tarfile.open(TESTS / "graphlearn_parts.tar.xz") as archive:
        unpack_tar(archive, tmp_path / "parts")
    truth = np.load(tmp_path / "parts" / "graphlearn.npz")
    plain, typed = (converted(tmp_path / "parts" / name) for name in ("graphlearn", "typed"))
    assert_edges(plain, "node.to.node", truth["ends"], {"feat": truth["of_edges"], "weight": truth["weight"]})
    assert np.array_equal(plain["nodes/node/feat"], truth["feat"])
    for kind, feat in (("user", truth["users"]), ("item", truth["items"])):
        assert np.array_equal(typed[f"nodes/{kind}/feat"], feat)
    for relation, ends in (("user.buys.item", truth["buys"]), ("user.likes.user", truth["likes"])):
        assert_edges(typed, relation, ends, {})


def assert_edges(found: dict[str, np.ndarray], relation: str, ends: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    """The edges of a relation, in any order, are those of the truth."""
    names = ("src", "dst", *columns)
    rows = [np.column_stack([found[f"edges/{relation}/{name}"] for name in names]).tolist()]
    rows.append(np.column_stack([*ends, *columns.values()]).tolist())
    assert sorted(rows[0]) == sorted(rows[1])


def test_typed_parts_of_graphlearn(tmp_path):
    rng = np.random.default_rng(5)
    nodes = {"user": tensors(rng, 5, 2), "item": tensors(rng, 7, 4)}
    other = ("item", "rev_buys", "user")
    edges = {KEY: (torch.from_numpy(random_edges(rng, 20, 5, 7)), tensors(rng, 20, 1), None),
             other: (torch.from_numpy(random_edges(rng, 30, 7, 5)), None, tensors(rng, 30))}  # fmt: skip
    write_graphlearn(tmp_path / "parts", nodes, edges)
    found = converted(tmp_path / "parts")
    for key, (ends, feat, weight) in edges.items():
        name = "edges/" + ".".join(key)
        assert np.array_equal([found[f"{name}/src"], found[f"{name}/dst"]], ends)
        for column, values in (("feat", feat), ("weight", weight)):
            assert (f"{name}/{column}" in found) == (values is not None)
            assert values is None or np.array_equal(found[f"{name}/{column}"], values)
    for kind, feat in nodes.items():
        assert np.array_equal(found[f"nodes/{kind}/feat"], feat)


class Evil:
    """Pickled, it would make a folder."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("place", ["META", "part1/node_feat/feats.pkl", "node_pb.pt", "part0/graph/rows.pt"])
def test_parts_of_graphlearn_run_no_code(tmp_path, capsys, place):
    rng = np.random.default_rng(6)
    ends = torch.from_numpy(random_edges(rng, 20, 6, 6))
    write_graphlearn(folder := tmp_path / "parts", {"node": tensors(rng, 6, 2)}, {ONLY: (ends, None, None)})
    evil = Evil(tmp_path / "ran")
    if place.endswith(".pt"):
        torch.save(evil, folder / place)
    else:
        (folder / place).write_bytes(pickle.dumps(evil))
    if place == "META":  # never opened
        converted(folder)
    else:
        message = refused(tmp_path, capsys, "--chunks", str(folder))
        assert place in message
        assert "holds" in message
    assert not (tmp_path / "ran").exists()


def test_refused_parts_of_graphlearn(tmp_path, capsys):
    rng = np.random.default_rng(7)
    ends = torch.from_numpy(random_edges(rng, 20, 6, 6))
    write_graphlearn(folder := tmp_path / "parts", {"node": tensors(rng, 6, 2)}, {ONLY: (ends, None, None)})
    content = (folder / "part1/node_feat/feats.pkl").read_bytes()
    (folder / "part1/node_feat/feats.pkl").write_bytes(content[:-20])
    assert "part1/node_feat/feats.pkl: not readable pickles of tensors" in refused(
        tmp_path, capsys, "--chunks", str(folder)
    )
    (folder / "part1/node_feat/feats.pkl").unlink()
    message = refused(tmp_path, capsys, "--chunks", str(folder))
    assert "part1/node_feat: ids in 2 pieces, feats in 0: a file is cut short" in message


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("part0", "part0: no such folder, but nodes or edges are in part 0"),
        ("part1", "part1: no such folder, but nodes or edges are in part 1"),
        ("part1/graph", "no part has it for id"),
        ("edge_pb", "edge_pb"),
    ],
)
def test_graphlearn_lacks_a_part(tmp_path, capsys, typed, gone, message):
    """No features that would be missing, too."""
    rng = np.random.default_rng(11)
    key, counts = (KEY, {"user": 5, "item": 7}) if typed else (ONLY, {"node": 6})
    ends = torch.from_numpy(random_edges(rng, 20, counts[key[0]], counts[key[2]]))
    nodes = {kind: tensors(rng, count, 2) for kind, count in counts.items()}
    write_graphlearn(folder := tmp_path / "parts", nodes, {key: (ends, None, None)})
    for part in range(2):
        shutil.rmtree(folder / f"part{part}" / "node_feat")
    assert len(converted(folder)[f"edges/{'.'.join(key)}/src"]) == 20
    if (path := folder / gone).is_dir():
        shutil.rmtree(path)
    else:
        path.with_suffix(".pt").unlink()
    assert message in refused(tmp_path, capsys, "--chunks", str(folder))


# ------------------------------------------------------------------------------------------------------------ ParMETIS


def write_parmetis(
    folder: Path, kinds: list[int], edges: dict, parts: np.ndarray, attributes: bool, owner: int
) -> dict:
    """Write the files of pm_dglpart of a graph with ``kinds`` nodes of each type. edges: number of the relation to
    (type of src, type of dst, ends); parts [N] of nodes; owner: the end that comes first in lines of edges, 0 src,
    1 dst. Self-loops and duplicates go to the file of removed edges."""
    folder.mkdir()
    first = np.cumsum(kinds) - kinds
    kind = np.repeat(np.arange(len(kinds)), kinds)
    row = np.arange(sum(kinds)) - first[kind]
    order = np.lexsort([row, kind, parts])
    new = np.empty(sum(kinds), int)
    new[order] = np.arange(sum(kinds))
    (folder / "g_stats.txt").write_text(
        f"{sum(kinds)} {sum(ends.shape[1] for *_, ends in edges.values())} {len(kinds)}"
    )
    lines, removed = [[] for _ in range(parts.max() + 1)], []
    for relation, (src_kind, dst_kind, ends) in edges.items():
        seen = set()
        for number, (u, v) in enumerate(ends.T.tolist()):
            src, dst = int(first[src_kind] + u), int(first[dst_kind] + v)
            if src == dst or (src, dst) in seen:
                removed.append(f"{src} {dst} {number} {relation}\n")
                continue
            seen.add((src, dst))
            pair = (new[src], new[dst])[:: 1 if owner == 0 else -1]
            end = f" {number / 4}" if attributes else ""
            lines[parts[(src, dst)[owner]]].append(f"{pair[0]} {pair[1]} {src} {dst} {number} {relation}{end}\n")
    (folder / "g_removed_edges.txt").write_text("".join(removed))
    for part, found in enumerate(lines):
        (folder / f"p{part:03}-g_edges.txt").write_text("".join(found))
        nodes = [node for node in order if parts[node] == part]
        weights = ["1" if kind[node] == other else "0" for node in nodes for other in range(len(kinds))]
        weights = np.reshape(weights, (len(nodes), len(kinds)))
        end = [f" {node / 2} 7" if attributes else "" for node in nodes]
        text = [
            f"{new[node]} {kind[node]} {' '.join(w)} {row[node]}{e}\n"
            for node, w, e in zip(nodes, weights, end, strict=True)
        ]
        (folder / f"p{part:03}-g_nodes.txt").write_text("".join(text))
    return {"first": first, "kind": kind}


@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize("attributes", [False, True])
def test_parts_of_parmetis(tmp_path, attributes, owner):
    rng = np.random.default_rng(8)
    edges = {0: (0, 1, random_edges(rng, 30, 5, 7)), 1: (1, 1, random_edges(rng, 40, 7, 7))}
    parts = rng.integers(0, 3, 12)
    parts[:3] = [0, 1, 2]
    write_parmetis(folder := tmp_path / "parts", [5, 7], edges, parts, attributes, owner)
    schema = {"nid": {"item": [[5, 12]], "user": [[0, 5]]}, "eid": {"user:buys:item": [0, 30], "like": [30, 70]}}
    (folder / "g.json").write_text(json.dumps(schema))
    found = converted(folder)
    for name, (_, _, ends) in zip(("user.buys.item", "item.like.item"), edges.values(), strict=True):
        assert np.array_equal([found[f"edges/{name}/src"], found[f"edges/{name}/dst"]], ends)
    assert found["nodes/user/part"].tolist() == parts[:5].tolist()
    assert found["nodes/item/part"].tolist() == parts[5:].tolist()
    if attributes:
        assert np.array_equal(found["nodes/item/feat"], [[node / 2, 7] for node in range(5, 12)])
        assert set(found["edges/item.like.item/feat"][:, 0]) <= {number / 4 for number in range(40)}


def test_parts_of_parmetis_without_names(tmp_path, capsys):
    """One type; without the file of removed edges they are missing, which is said."""
    edges = np.array([[0, 1, 2, 2, 0], [1, 2, 2, 0, 1]])
    write_parmetis(folder := tmp_path / "parts", [3], {0: (0, 0, edges)}, np.array([1, 0, 1]), False, 1)
    (folder / "g_removed_edges.txt").unlink()
    (folder / "g_stats.txt").unlink()
    found = converted(folder)
    assert [found["edges/node.to.node/src"].tolist(), found["edges/node.to.node/dst"].tolist()] == [
        [0, 1, 2],
        [1, 2, 0],
    ]
    assert found["nodes/node/part"].tolist() == [1, 0, 1]
    assert "relation to: 1 of 4 edges are in no part: pm_dglpart takes no self-loops" in capsys.readouterr().out


def test_parts_of_parmetis_are_taken_over(tmp_path):
    """The graph file and the parts of ParMETIS give the partition set with these parts."""
    edges = random_edges(np.random.default_rng(9), 60, 10, 10)
    parts = np.random.default_rng(10).permutation(np.arange(10) % 2)
    write_parmetis(folder := tmp_path / "parts", [10], {0: (0, 0, edges)}, parts, False, 1)
    converted(folder)
    for name, text in (("two.txt", "".join(f"{n} {parts[n]}\n" for n in (3, 1, 0, 2, *range(4, 10)))), ("graph", "")):
        given = folder.with_suffix(".h5")
        if text:
            (given := tmp_path / name).write_text(text)
        output = tmp_path / f"set-{name}"
        graph = str(folder.with_suffix(".h5"))
        assert partition([graph, str(output), "--parts", "2", "--assignment", str(given)]) == 0
        for part in range(2):
            with h5py.File(output / f"part-{part}.h5") as file:
                assert file["nodes/node/row"][:].tolist() == np.flatnonzero(parts == part).tolist()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "p000-g_nodes.txt",
            lambda text: text.split("\n", 1)[1],
            "new ids of nodes are not 0 .. 1",
        ),
        ("p000-g_edges.txt", lambda text: text.replace(" ", " 9", 1), "edges.txt: an edge has the end"),
        ("p001-g_edges.txt", lambda text: "0 2 0 1 0 0\n", "row 1: new and old ids are of different nodes"),
        ("p000-g_nodes.txt", lambda text: text.replace("0", "x", 1), "row 1: 'x' is not a number"),
        ("g_stats.txt", lambda text: "3 4", "g_stats.txt: expected three numbers"),
        ("p001-g_edges.txt", None, "p001-g_edges.txt: no such file"),
        ("p000-g_nodes.txt", None, "part 0 of 2 is missing"),
        ("p000-h_nodes.txt", lambda text: text, "parts of 2 graphs, g, h: keep one"),
        ("p001-g_nodes.txt", lambda text: "", "p001-g_nodes.txt: no nodes"),
        ("p001-g_nodes.txt", lambda text: "2 -1 1 2\n", "p001-g_nodes.txt: row 1: type -1, expected 0 to"),
        (
            "p000-g_nodes.txt",
            lambda text: text.replace("1 0 1 1", f"1 {10**15} 1 1"),
            f"row 2: type {10**15}, expected",
        ),
        ("p001-g_nodes.txt", lambda text: "2 0 1 -1\n", "p001-g_nodes.txt: row 1: id within its type -1, expected"),
        ("p001-g_nodes.txt", lambda text: "2 0 1 2 8.5\n", "p001-g_nodes.txt: row 1 has 1 attribute, but the others"),
        ("p000-g_edges.txt", lambda text: text.replace(" 0\n", " -1\n", 1), "p000-g_edges.txt: row 1: relation -1"),
        (
            "p000-g_edges.txt",
            lambda text: text.replace(" 0\n", f" {10**15}\n", 1),
            f"row 1: relation {10**15}, expected",
        ),
        (
            "p000-g_edges.txt",
            lambda text: text.replace(" 0\n", " 0 .5\n"),
            "p001-g_edges.txt: row 1 has 0 attributes, but",
        ),
    ],
)
def test_refused_parts_of_parmetis(tmp_path, capsys, name, change, message):
    edges = np.array([[0, 1, 2, 2], [1, 2, 1, 0]])
    write_parmetis(folder := tmp_path / "parts", [3], {0: (0, 0, edges)}, np.array([0, 0, 1]), False, 1)
    path = folder / name
    if change is None:
        path.unlink()
    else:
        path.write_text(change(path.read_text() if path.is_file() else ""))
    assert message in refused(tmp_path, capsys, "--chunks", str(folder))


def test_widths_of_parts_of_parmetis_without_stats(tmp_path, capsys):
    write_parmetis(folder := tmp_path / "parts", [3], {0: (0, 0, np.array([[0], [1]]))}, np.array([0, 0, 1]), False, 1)
    (folder / "g_stats.txt").unlink()
    (folder / "p001-g_nodes.txt").write_text("2 0 1 1 2\n")
    message = refused(tmp_path, capsys, "--chunks", str(folder))
    assert "p001-g_nodes.txt: row 1 has 5 fields, but p000-g_nodes.txt has 4" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 0\n1 1\n1 0\n", "lines of node and part: node 2 is missing, or another one is there twice"),
        ("0 0\n1 1\n2 2\n", "node 2 is in part 2, expected 0 to 1"),
        ("", "node type node has no column part"),
    ],
)
def test_refused_assignments(tmp_path, text, message):
    graph, given = tmp_path / "g.h5", tmp_path / "parts.txt"
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n1,2\n")
    assert main(["--preset", "csv-static", "--set", f"edges={tmp_path / 'edges.csv'}", str(graph)]) == 0
    given.write_text(text)
    arguments = [str(graph), str(tmp_path / "set"), "--parts", "2", "--assignment", str(given if text else graph)]
    with pytest.raises(ValueError, match=re.escape(message)):
        partition(arguments)
