"""Folders of the Open Graph Benchmark: csv and binary form, one type and several, nodes and links."""

import gzip
import shutil

import h5py
import numpy as np
import pytest
import torch
from convert_sources import assignments, contents, refused

from data_tools.convert import main

pytestmark = pytest.mark.serial

SPLIT = {"train": [0, 2, 3], "valid": [1], "test": [5, 4]}
WANTED = [0, 1, 0, 0, 2, 2]


def write(path, array) -> None:
    """A csv.gz without a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.asarray(array)
    with gzip.open(path, "wt") as file:
        for row in array.reshape(len(array), -1).tolist():
            file.write(",".join(map(str, row)) + "\n")


def random_graph() -> dict[str, np.ndarray]:
    """Six nodes, nine edges."""
    rng = np.random.default_rng(0)
    return {
        "edges": rng.integers(0, 6, (9, 2)),
        "feat": rng.standard_normal((6, 3)).astype(np.float32),
        "label": np.array([[2.0], [np.nan], [0], [1], [1], [0]]),
        "year": rng.integers(1990, 2020, (6, 1)),
        "weight": rng.random((9, 1)).astype(np.float32),
    }


def write_csv(folder, graph) -> None:
    write(folder / "raw" / "edge.csv.gz", graph["edges"])
    write(folder / "raw" / "num-node-list.csv.gz", [6])
    write(folder / "raw" / "num-edge-list.csv.gz", [9])
    write(folder / "raw" / "node-feat.csv.gz", graph["feat"])
    write(folder / "raw" / "node-label.csv.gz", graph["label"])
    write(folder / "raw" / "node_year.csv.gz", graph["year"])
    write(folder / "raw" / "edge_weight.csv.gz", graph["weight"])


def write_binary(folder, graph) -> None:
    (folder / "raw").mkdir(parents=True)
    counts = {"num_nodes_list": np.array([6]), "num_edges_list": np.array([9])}
    nodes = {"node_feat": graph["feat"], "node_year": graph["year"]}
    edges = {"edge_index": graph["edges"].T, "edge_weight": graph["weight"]}
    np.savez(folder / "raw" / "data.npz", **counts, **nodes, **edges)
    np.savez(folder / "raw" / "node-label.npz", node_label=graph["label"])


def write_split(folder, name="time") -> None:
    for part, rows in SPLIT.items():
        write(folder / "split" / name / f"{part}.csv.gz", rows)


def converted(folder, preset, **sources) -> dict:
    """What the graph file of a folder has."""
    output = folder.with_name(f"{folder.name}.h5")
    assert main(["--preset", preset, *assignments({"folder": folder, **sources}), str(output)]) == 0
    return contents(output)


@pytest.mark.parametrize("write_raw", [write_csv, write_binary])
def test_nodes_of_one_type(tmp_path, write_raw):
    graph = random_graph()
    write_raw(tmp_path / "ogb", graph)
    write_split(tmp_path / "ogb")
    found = converted(tmp_path / "ogb", "ogb-nodeprop")
    ends = [found[f"edges/node.to.node/{end}"]["values"][1] for end in ("src", "dst")]
    assert np.array_equal(np.transpose(ends), graph["edges"])
    assert found["edges/node.to.node/weight"]["values"] == ("<f4", graph["weight"][:, 0].tolist())
    assert found["nodes/node/feat"]["values"] == ("<f4", graph["feat"].tolist())
    assert found["nodes/node/label"]["values"] == ("<i8", [2, -1, 0, 1, 1, 0])
    assert found["nodes/node/year"]["values"] == ("<i8", graph["year"][:, 0].tolist())
    assert found["nodes/node/split"]["values"] == ("|i1", WANTED)


def test_both_directions(tmp_path):
    graph = random_graph()
    write_csv(tmp_path / "ogb", graph)
    write_split(tmp_path / "ogb")
    found = converted(tmp_path / "ogb", "ogb-nodeprop", split="time", undirected="true")
    loops = int((graph["edges"][:, 0] == graph["edges"][:, 1]).sum())
    assert found["edges/node.to.node"]["num_edges"] == 2 * 9 - loops


@pytest.mark.parametrize(
    ("name", "both"),
    [
        ("ogbn_products", True), ("products", True), ("ogbn_proteins_pyg", True), ("ogbl_ppa", True),
        ("ppassoc", True), ("ogbl-collab", True), ("ogbl_ddi_dgl", True), ("ogbn_arxiv", False), ("mag", False),
        ("papers100M-bin", False), ("ogbl_citation2", False), ("ogbl_vessel", False), ("mine", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("preset", ["ogb-node", "ogb-nodeprop"])
def test_reverses_are_added_where_the_loader_of_ogb_adds_them(tmp_path, capsys, name, both, preset):
    graph, folder = random_graph(), tmp_path / name
    write_csv(folder, graph)
    write_split(folder)
    loops = int((graph["edges"][:, 0] == graph["edges"][:, 1]).sum())
    found = converted(folder, preset, split="time")
    assert found["edges/node.to.node"]["num_edges"] == (2 * 9 - loops if both else 9)
    said = capsys.readouterr().out
    assert (f"{name}: both directions of every edge, as OGB's loader has them" in said) == bool(both)
    assert (f"{name}: edges stored as in the file, in one direction, as OGB's loader has" in said) == (both is False)
    assert (f"{name}: not the name of a set of OGB, so edges are stored in one direction" in said) == (both is None)
    folder.with_name(f"{name}.h5").unlink()
    asked = converted(folder, preset, split="time", undirected="false" if both else "true")
    assert asked["edges/node.to.node"]["num_edges"] == (9 if both else 2 * 9 - loops)


def test_reverses_of_a_set_of_links(tmp_path):
    """They are in the set of the link itself."""
    write_csv(tmp_path / "ogbl_collab", random_graph())
    folder = tmp_path / "ogbl_collab" / "split" / "time"
    folder.mkdir(parents=True)
    for name, row in zip(SPLIT, [[0, 1], [1, 2], [2, 3]], strict=True):
        torch.save({"edge": torch.tensor([row])}, folder / f"{name}.pt")
    found = converted(tmp_path / "ogbl_collab", "ogb-linkprop")
    columns = [found[f"edges/node.to.node/{name}"]["values"][1] for name in ("src", "dst", "split")]
    assert columns == [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2], [0, 0, 1, 1, 2, 2]]


WRITES = np.array([[0, 5], [3, 0], [2, 2]])


def write_typed(folder, graph) -> None:
    """Authors who write papers that cite papers, as ogbn-mag has them."""
    raw = folder / "raw"
    write(raw / "num-node-dict.csv.gz", [["author", "paper"], ["4", "6"]])
    write(raw / "triplet-type-list.csv.gz", [["author", "writes", "paper"], ["paper", "cites", "paper"]])
    write(raw / "relations" / "author___writes___paper" / "edge.csv.gz", WRITES)
    write(raw / "relations" / "paper___cites___paper" / "edge.csv.gz", graph["edges"])
    write(raw / "relations" / "paper___cites___paper" / "edge_reltype.csv.gz", np.full((9, 1), 3))
    write(raw / "node-feat" / "paper" / "node-feat.csv.gz", graph["feat"])
    write(raw / "node-feat" / "paper" / "node_year.csv.gz", graph["year"])
    write(raw / "node-label" / "paper" / "node-label.csv.gz", [[0], [1], [2], [0], [1], [2]])
    write_split(folder, "time/paper")


def test_several_types(tmp_path):
    graph = random_graph()
    write_typed(tmp_path / "ogb", graph)
    found = converted(tmp_path / "ogb", "ogb-nodeprop")
    assert found["nodes/author"] == {"num_nodes": 4, "type_id": 0}
    assert found["edges/author.writes.paper/src"]["values"][1] == WRITES[:, 0].tolist()
    assert found["edges/paper.cites.paper/dst"]["values"][1] == graph["edges"][:, 1].tolist()
    assert found["edges/paper.cites.paper/reltype"]["values"][1] == [3] * 9
    assert found["nodes/paper/feat"]["values"][1] == graph["feat"].tolist()
    assert found["nodes/paper/label"]["values"][1] == [0, 1, 2, 0, 1, 2]
    assert found["nodes/paper/split"]["values"][1] == WANTED


def test_mag_has_a_reverse_of_every_relation(tmp_path):
    graph = random_graph()
    write_typed(tmp_path / "mag", graph)
    found = converted(tmp_path / "mag", "ogbn-mag")
    names = [name for name in found if name.startswith("edges/") and name.count("/") == 1]
    forward = {"author.writes.paper": WRITES, "paper.cites.paper": graph["edges"]}
    backward = {"paper.rev_writes.author": WRITES[:, ::-1], "paper.rev_cites.paper": graph["edges"][:, ::-1]}
    assert set(names) == {f"edges/{name}" for name in [*forward, *backward]}
    for name, ends in (forward | backward).items():
        columns = [found[f"edges/{name}/{end}"]["values"][1] for end in ("src", "dst")]
        assert np.array_equal(np.transpose(columns), ends)
    assert "edges/paper.cites.paper/reltype" not in found
    assert found["nodes/paper/label"]["values"][1] == [0, 1, 2, 0, 1, 2]
    (tmp_path / "mag.h5").unlink()
    both = converted(tmp_path / "mag", "ogb-nodeprop", reverse="true")
    assert both["edges/paper.rev_cites.paper/src"]["values"][1] == graph["edges"][:, 1].tolist()


def test_mag_has_reverses_already(tmp_path, capsys):
    write_typed(tmp_path / "mag", random_graph())
    arguments = ["--preset", "ogbn-mag", "--set", f"folder={tmp_path / 'mag'}", "--set", "undirected=true"]
    assert "a reverse of every relation is added already" in refused(tmp_path, capsys, *arguments)
    converted(tmp_path / "mag", "ogbn-mag")
    assert "in one direction" not in capsys.readouterr().out


def split_of_rows(hetero: bool) -> dict:
    sets = {name: torch.tensor(rows) for name, rows in SPLIT.items()}
    return {name: {"paper": rows} if hetero else rows for name, rows in sets.items()}


@pytest.mark.parametrize("hetero", [False, True])
def test_sets_in_one_file(tmp_path, hetero):
    """split_dict.pt in the place of csv files."""
    (write_typed if hetero else write_csv)(tmp_path / "ogb", random_graph())
    shutil.rmtree(tmp_path / "ogb" / "split", ignore_errors=True)
    (tmp_path / "ogb" / "split" / "time").mkdir(parents=True)
    torch.save(split_of_rows(hetero), tmp_path / "ogb" / "split" / "time" / "split_dict.pt")
    found = converted(tmp_path / "ogb", "ogb-nodeprop")
    assert found[f"nodes/{'paper' if hetero else 'node'}/split"]["values"][1] == WANTED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train": torch.tensor([0])}, "split_dict.pt: expected train, valid, test, got train"),
        ({name: {"../../out": torch.tensor([0])} for name in SPLIT}, "'../../out' is no name of a type of nodes"),
        (None, "split_dict.pt: not a readable pt file"),
    ],
)
def test_refused_sets_in_one_file(tmp_path, capsys, content, message):
    write_csv(tmp_path / "ogb", random_graph())
    (tmp_path / "ogb" / "split" / "time").mkdir(parents=True)
    path = tmp_path / "ogb" / "split" / "time" / "split_dict.pt"
    torch.save(content, path)
    if content is None:
        path.write_bytes(path.read_bytes()[:-200])
    assert message in refused(tmp_path, capsys, "--preset", "ogb-nodeprop", "--set", f"folder={tmp_path / 'ogb'}")


def test_processed_files_of_one_type(tmp_path):
    """As ogb/nodeproppred/dataset.py and dataset_pyg.py save them, with reverses that the files have already."""
    data = pytest.importorskip("torch_geometric.data")
    graph = random_graph()
    ends = np.repeat(graph["edges"].T, 2, axis=1)
    ends[:, 1::2] = ends[::-1, ::2]
    stored = {
        "edge_index": ends,
        "edge_feat": None,
        "node_feat": graph["feat"],
        "num_nodes": 6,
        "node_year": graph["year"],
        "edge_weight": np.repeat(graph["weight"], 2, axis=0),
    }
    for name in ("plain", "pyg"):
        folder = tmp_path / f"{name}_products"
        write_split(folder)
        (folder / "processed").mkdir()
        if name == "plain":
            content = {"graph": stored, "labels": graph["label"]}
            torch.save(content, folder / "processed" / "data_processed", pickle_protocol=4)
        else:
            tensors = {key: torch.from_numpy(value) for key, value in stored.items() if isinstance(value, np.ndarray)}
            made = data.Data(x=tensors.pop("node_feat"), y=torch.from_numpy(graph["label"]), num_nodes=6, **tensors)
            torch.save((made, None), folder / "processed" / "geometric_data_processed.pt")
        found = converted(folder, "ogb-nodeprop", undirected="true")
        columns = [found[f"edges/node.to.node/{end}"]["values"][1] for end in ("src", "dst")]
        assert np.array_equal(columns, ends)
        assert found["edges/node.to.node/weight"]["values"][1] == stored["edge_weight"][:, 0].tolist()
        assert found["nodes/node/feat"]["values"] == ("<f4", graph["feat"].tolist())
        assert found["nodes/node/label"]["values"] == ("<i8", [2, -1, 0, 1, 1, 0])
        assert found["nodes/node/year"]["values"][1] == graph["year"][:, 0].tolist()
        assert found["nodes/node/split"]["values"][1] == WANTED


@pytest.mark.parametrize(
    ("label", "stored"),
    [([0.7, 1.9, np.nan, 0, 1, 2], "<f8"), ([1.5, 2, 3, 4, 5, 6], "<f8"), ([3.0, np.nan, 0, 1, 1, 0], "<i8")],
)
@pytest.mark.parametrize("form", ["processed", "csv", "csv by ogb-node", "binary"])
def test_numbers_to_predict_are_no_classes(tmp_path, label, stored, form):
    graph, folder = random_graph(), tmp_path / "ogb"
    write_split(folder)
    column, preset = np.array(label)[:, None], "ogb-node" if form.endswith("ogb-node") else "ogb-nodeprop"
    if form == "processed":
        (folder / "processed").mkdir()
        content = {"edge_index": graph["edges"].T, "node_feat": graph["feat"], "num_nodes": 6}
        torch.save({"graph": content, "labels": column}, folder / "processed" / "data_processed")
    else:
        (write_binary if form == "binary" else write_csv)(folder, graph | {"label": column})
    dtype, values = converted(folder, preset, split="time")["nodes/node/label"]["values"]
    assert dtype == stored
    assert np.array_equal(values, label if stored == "<f8" else np.nan_to_num(label, nan=-1), equal_nan=True)


def test_processed_files_of_several_types(tmp_path):
    graph = random_graph()
    key = ("author", "writes", "paper")
    stored = {
        "edge_index_dict": {key: WRITES.T}, "edge_feat_dict": {}, "node_feat_dict": {"paper": graph["feat"]},
        "num_nodes_dict": {"author": 4, "paper": 6}, "node_year": {"paper": graph["year"]},
        "edge_reltype": {key: np.full((3, 1), 1)},
    }  # fmt: skip
    (tmp_path / "mag" / "processed").mkdir(parents=True)
    write_split(tmp_path / "mag", "time/paper")
    torch.save(
        {"graph": stored, "labels": {"paper": graph["label"]}}, tmp_path / "mag" / "processed" / "data_processed"
    )
    found = converted(tmp_path / "mag", "ogbn-mag")
    assert found["edges/author.writes.paper/dst"]["values"][1] == WRITES[:, 1].tolist()
    assert found["edges/paper.rev_writes.author/dst"]["values"][1] == WRITES[:, 0].tolist()
    assert found["nodes/author"]["num_nodes"] == 4
    assert found["nodes/paper/label"]["values"][1] == [2, -1, 0, 1, 1, 0]
    assert found["nodes/paper/split"]["values"][1] == WANTED


LINKS = {
    "edge": lambda rows: {"edge": rows, "weight": np.arange(len(rows)), "edge_neg": np.zeros((7, 2), np.int64)},
    "ends": lambda rows: {"source_node": rows[:, 0], "target_node": rows[:, 1]},
    "triples": lambda rows: {"head": rows[:, 0], "relation": rows[:, 0] % 2, "tail": rows[:, 1]},
}


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("tensors", [False, True])
def test_links(tmp_path, kind, tensors):
    graph = random_graph()
    write_csv(tmp_path / "ogb", graph)
    folder = tmp_path / "ogb" / "split" / "time"
    folder.mkdir(parents=True)
    for name, rows in zip(SPLIT, np.split(graph["edges"], [5, 7]), strict=True):
        arrays = LINKS[kind](rows)
        if kind == "edge" and name == "train":
            del arrays["edge_neg"]
        torch.save(
            {key: torch.from_numpy(np.array(a)) if tensors else a for key, a in arrays.items()}, folder / f"{name}.pt"
        )
    found = converted(tmp_path / "ogb", "ogb-linkprop")
    ends = [found[f"edges/node.to.node/{end}"]["values"][1] for end in ("src", "dst")]
    assert np.array_equal(np.transpose(ends), graph["edges"])
    assert found["edges/node.to.node/split"]["values"][1] == [0] * 5 + [1] * 2 + [2] * 2
    assert found["nodes/node/feat"]["values"][1] == graph["feat"].tolist()
    if kind == "edge":
        assert found["edges/node.to.node/weight"]["values"] == ("<f4", [0, 1, 2, 3, 4, 0, 1, 0, 1])
    if kind == "triples":
        assert found["edges/node.to.node/rel"]["values"][1] == (graph["edges"][:, 0] % 2).tolist()


def negatives(path) -> dict[str, np.ndarray]:
    """All arrays of the file of negatives."""
    with h5py.File(path) as file:
        assert file.attrs["format"] == "hpcgnn-negatives"
        found: dict[str, np.ndarray] = {}
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return {name.removeprefix("edges/"): array for name, array in found.items()}


def write_links(folder, sets) -> None:
    (folder / "split" / "time").mkdir(parents=True)
    for name, arrays in sets.items():
        torch.save(arrays, folder / "split" / "time" / f"{name}.pt")


@pytest.mark.parametrize("undirected", [False, True])
def test_negative_links_of_a_set_are_kept(tmp_path, capsys, undirected):
    write_csv(tmp_path / "ogb", random_graph())
    pairs = {"valid": torch.tensor([[5, 0], [1, 4]]), "test": torch.tensor([[0, 5]])}
    sets = {name: {"edge": torch.tensor([[0, 1], [2, 2]])} for name in SPLIT}
    write_links(tmp_path / "ogb", {name: arrays | ({"edge_neg": pairs[name]} if name in pairs else {})
                                   for name, arrays in sets.items()})  # fmt: skip
    converted(tmp_path / "ogb", "ogb-linkprop", undirected=str(undirected).lower())
    found = negatives(tmp_path / "ogb.negatives.h5")
    assert {name: array.tolist() for name, array in found.items()} == {
        "node.to.node/val/pairs": [[5, 0], [1, 4]], "node.to.node/test/pairs": [[0, 5]],
    }  # fmt: skip
    assert "node.to.node/val/pairs 2, node.to.node/test/pairs 1" in capsys.readouterr().out


def test_negatives_of_a_link_name_its_row(tmp_path, capsys):
    """Behind three links of training. The reverse of a link would have no list, so both directions are refused."""
    write_csv(tmp_path / "ogb", random_graph())
    ends = {"train": [[0, 1], [2, 2], [3, 4]], "valid": [[1, 1], [0, 5]], "test": [[4, 5]]}
    sets = {
        name: dict(zip(("source_node", "target_node"), np.array(rows).T, strict=True)) for name, rows in ends.items()
    }
    sets["valid"]["target_node_neg"] = np.array([[0, 1, 2], [3, 4, 5]])
    sets["test"]["target_node_neg"] = np.array([[2, 2, 2]])
    write_links(tmp_path / "ogb", sets)
    arguments = ["--preset", "ogb-linkprop", *assignments({"folder": tmp_path / "ogb", "undirected": "true"})]
    message = refused(tmp_path, capsys, *arguments)
    assert "valid.pt: target_node_neg are negatives of each link in one direction: --set undirected=false" in message
    graph = converted(tmp_path / "ogb", "ogb-linkprop")
    src = np.array(graph["edges/node.to.node/src"]["values"][1])
    dst = np.array(graph["edges/node.to.node/dst"]["values"][1])
    found = negatives(tmp_path / "ogb.negatives.h5")
    for name, role in (("valid", "val"), ("test", "test")):
        rows = found[f"node.to.node/{role}/row"]
        assert np.array_equal(np.stack([src[rows], dst[rows]], axis=1), ends[name])
        assert np.array_equal(found[f"node.to.node/{role}/negatives"], sets[name]["target_node_neg"])


def typed_sets(rng) -> dict[str, dict]:
    """Links of two relations in turn, with negatives of both ends, as ogbl-biokg has them."""
    sets = {}
    for name, count in (("train", 6), ("valid", 4), ("test", 2)):
        number = np.arange(count) % 2
        head, tail = (
            rng.integers(0, 4, count),
            np.where(number == 0, rng.integers(0, 6, count), rng.integers(0, 4, count)),
        )
        sets[name] = {
            "head_type": ["author"] * count, "head": head, "relation": number,
            "tail_type": [["paper", "author"][kind] for kind in number], "tail": tail,
        }  # fmt: skip
        if name != "train":
            sets[name] |= {"head_neg": rng.integers(0, 4, (count, 5)), "tail_neg": rng.integers(0, 4, (count, 5))}
    return sets


def write_kinds(folder) -> None:
    raw = folder / "raw"
    write(raw / "num-node-dict.csv.gz", [["author", "paper"], ["4", "6"]])
    write(raw / "triplet-type-list.csv.gz", [["author", "writes", "paper"], ["author", "knows-well", "author"]])
    for number, name in enumerate(("author___writes___paper", "author___knows-well___author")):
        write(raw / "relations" / name / "edge.csv.gz", [[0, 1]])
        write(raw / "relations" / name / "edge_reltype.csv.gz", [number])


@pytest.mark.parametrize("one_file", [False, True])
def test_links_of_several_types(tmp_path, one_file):
    sets = typed_sets(np.random.default_rng(1))
    write_kinds(tmp_path / "biokg")
    write_links(tmp_path / "biokg", {"split_dict": sets} if one_file else sets)
    graph = converted(tmp_path / "biokg", "ogb-linkprop")
    found = negatives(tmp_path / "biokg.negatives.h5")
    for number, relation in enumerate(("author.writes.paper", "author.knows-well.author")):
        chosen = {
            name: {key: np.array(values)[number::2] for key, values in arrays.items()} for name, arrays in sets.items()
        }
        links = [np.stack([arrays["head"], arrays["tail"]], axis=1) for arrays in chosen.values()]
        columns = [graph[f"edges/{relation}/{name}"]["values"][1] for name in ("src", "dst", "split")]
        assert np.array_equal(np.transpose(columns[:2]), np.concatenate(links))
        assert columns[2] == [0] * 3 + [1] * 2 + [2]
        assert found[f"{relation}/val/row"].tolist() == [3, 4]
        assert found[f"{relation}/test/row"].tolist() == [5]
        for name, role in (("valid", "val"), ("test", "test")):
            assert np.array_equal(found[f"{relation}/{role}/negatives"], chosen[name]["tail_neg"])
            assert np.array_equal(found[f"{relation}/{role}/source_negatives"], chosen[name]["head_neg"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"edge_neg": np.array([[0, 6]])}, "negatives of val: row 1: node 6 is none of the 6 of type node"),
        ({"edge_neg": np.zeros((1, 3), int)}, "negatives of val: int64 of shape (1, 3), expected rows of nodes"),
        ({"tail_neg": np.zeros((2, 3), int)}, "negatives of shape (2, 3), expected 1 lines, one a link"),
    ],
)
def test_refused_negatives(tmp_path, capsys, given, message):
    write_csv(tmp_path / "ogb", random_graph())
    sets = {name: {"edge": np.array([[0, 1]])} for name in SPLIT}
    write_links(tmp_path / "ogb", sets | {"valid": sets["valid"] | given})
    arguments = ["--preset", "ogb-linkprop", "--set", f"folder={tmp_path / 'ogb'}", str(tmp_path / "g.h5")]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "g.negatives.h5").exists()


def test_negatives_are_not_replaced(tmp_path, capsys):
    write_csv(tmp_path / "ogb", random_graph())
    write_links(
        tmp_path / "ogb", {name: {"edge": np.array([[0, 1]]), "edge_neg": np.array([[1, 0]])} for name in SPLIT}
    )
    (tmp_path / "g.negatives.h5").write_text("mine")
    arguments = ["--preset", "ogb-linkprop", "--set", f"folder={tmp_path / 'ogb'}", str(tmp_path / "g.h5")]
    assert main(arguments) == 2
    assert "g.negatives.h5: exists already" in capsys.readouterr().err
    assert (tmp_path / "g.negatives.h5").read_text() == "mine"


class Evil:
    """Pickled, it would run a command."""

    def __reduce__(self):
        return (print, ("this ran",))


def test_loading_runs_no_code(tmp_path, capsys):
    write_csv(tmp_path / "ogb", random_graph())
    (tmp_path / "ogb" / "split" / "time").mkdir(parents=True)
    torch.save({"edge": Evil()}, tmp_path / "ogb" / "split" / "time" / "train.pt")
    message = refused(tmp_path, capsys, "--preset", "ogb-linkprop", "--set", f"folder={tmp_path / 'ogb'}")
    assert "train.pt: holds objects other than tensors" in message
    assert "this ran" not in capsys.readouterr().out


def test_refused_folders(tmp_path, capsys):
    arguments = ["--preset", "ogb-nodeprop", "--set", f"folder={tmp_path / 'ogb'}"]
    assert "no folder raw/" in refused(tmp_path, capsys, *arguments)
    write_csv(tmp_path / "ogb", random_graph())
    assert "split None is not one of" in refused(tmp_path, capsys, *arguments)
    write_split(tmp_path / "ogb")
    assert "'sales' is not one of time" in refused(tmp_path, capsys, *arguments, "--set", "split=sales")
    (tmp_path / "ogb" / "raw" / "num-node-list.csv.gz").unlink()
    assert "num-node-list.csv.gz: no such file" in refused(tmp_path, capsys, *arguments)
