"""Readers of static graphs: small files of every format, refusals."""

import gzip
import io
import json
import sys
import tarfile
import zipfile

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from convert_sources import assignments, contents, counts, refused, run_spec

from data_tools.convert import main
from hpcgnn.graph.files import relations

pytestmark = pytest.mark.serial


def write_ogb(folder) -> None:
    """A graph of four nodes in the folders of OGB."""
    rows = {
        "raw/edge": "0,1\n1,2\n3,0\n",
        "raw/num-node-list": "4\n",
        "raw/node-feat": "0.5,1\n2,3\n4,5\n6,7\n",
        "raw/node-label": "1\n0\nnan\n2\n",
        "split/time/train": "0\n3\n",
        "split/time/valid": "2\n",
        "split/time/test": "1\n",
    }
    for name, text in rows.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))


def archive_of(folder, kind: str):
    """The folder as a zip or tar archive below a name of its own."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [f"arxiv/{path.relative_to(folder)}" for path in files]
    output = folder.with_name(f"ogb.{kind}")
    if kind == "zip":
        with zipfile.ZipFile(output, "w") as archive:
            for path, name in zip(files, names, strict=True):
                archive.write(path, name)
    else:
        with tarfile.open(output, "w:gz") as archive:
            for path, name in zip(files, names, strict=True):
                archive.add(path, name)
    return output


def test_ogb_folders_and_archives(convert, tmp_path):
    write_ogb(tmp_path / "ogb")
    file = convert("ogb-node", folder=tmp_path / "ogb", split="time")
    assert counts(file) == {"node": 4, "node.to.node": 3}
    assert file["nodes/node/feat"][...].tolist() == [[0.5, 1], [2, 3], [4, 5], [6, 7]]
    assert file["nodes/node/label"][...].tolist() == [1, 0, -1, 2]
    assert file["nodes/node/split"][...].tolist() == [0, 2, 1, 0]
    for kind in ("zip", "tgz"):
        other = convert("ogb-node", folder=archive_of(tmp_path / "ogb", kind), split="time")
        assert contents(other.filename) == contents(file.filename)
    assert counts(convert("ogb-node", folder=tmp_path / "ogb", split="time", undirected="true"))["node.to.node"] == 6


def test_ogb_counts_must_agree(tmp_path, capsys):
    write_ogb(tmp_path / "ogb")
    arguments = ["--preset", "ogb-node", *assignments({"folder": tmp_path / "ogb", "split": "time"})]
    (tmp_path / "ogb/raw/num-node-list.csv.gz").write_bytes(gzip.compress(b"5\n"))
    assert "one number of rows, got [4, 5]" in refused(tmp_path, capsys, *arguments)
    (tmp_path / "ogb/raw/num-node-list.csv.gz").write_bytes(gzip.compress(b"4\n4\n"))
    assert "expected one number of nodes, got 2" in refused(tmp_path, capsys, *arguments)


def write_rdf(folder, triples: str) -> dict:
    (folder / "t.nt").write_bytes(triples.encode())
    (folder / "train.tsv").write_text("person\tkind\nhttp://x/a\tred\n")
    (folder / "test.tsv").write_text("person\tkind\nhttp://x/b\tblue\n")
    sources = {"triples": "t.nt", "train": "train.tsv", "test": "test.tsv"}
    return {name: folder / file for name, file in sources.items()} | {"id": "person", "label": "kind"}


TRIPLES = r"""# a comment
<http://x/a> <http://p#knows> <http://x/b> .
<http://x/b> <http://q/knows> _:c .
_:c <http://p#name> "say \"hi\" . # <not> a comment"@en .
<http://x/a> <http://p#name> "say \"hi\" . # <not> a comment"@en .
<http://x/a> <http://p#age> "3"^^<http://www.w3.org/2001/XMLSchema#integer>.
<http://x/a> <http://p#knows> <http://x/b> .
"""


def test_triples(convert, tmp_path):
    long = "".join(f'<http://x/{end}> <http://p#text> "{"é" * 200}{end}" .\n' for end in "ab")
    file = convert("rdf", **write_rdf(tmp_path, TRIPLES + long))
    ids = [name.decode() for name in file["nodes/entity/id"][...]]
    named = [name for name in ids if "é" not in name]
    assert named == [
        r'"3"^^<http://www.w3.org/2001/XMLSchema#integer>',
        r'"say \"hi\" . # <not> a comment"@en',
        "_:c",
        "http://x/a",
        "http://x/b",
    ]
    assert len(ids) == 7, "long literals that differ at their end stay two"
    assert max(len(name.encode()) for name in ids) <= 255
    found = {name: int(group.attrs["num_edges"]) for name, group in file["edges"].items()}
    assert found["entity.knows.entity"] == found["entity.knows_2.entity"] == 1, "the same fact twice is one edge"
    assert found["entity.name.entity"] == found["entity.name_of.entity"] == 2
    assert file["edges/entity.knows_2.entity"].attrs["source_name"] == "http://q/knows"
    split = dict(zip(ids, file["nodes/entity/split"][...].tolist(), strict=True))
    assert (split["http://x/a"], split["http://x/b"], split["_:c"]) == (0, 2, -1)
    assert json.loads(file["nodes/entity/label"].attrs["names"]) == ["blue", "red"]


@pytest.mark.parametrize(("suffix", "node"), [("nt", "_:x"), ("ttl", "_:x"), ("ttl", "[]")])
def test_blank_nodes_belong_to_their_file(tmp_path, suffix, node):
    """Those of two files became one node."""
    for number in (1, 2):
        (tmp_path / f"{number}.{suffix}").write_text(f"<http://a/{number}> <http://p> {node} .\n" * 2)
    spec = {
        "files": {"t": {"chunks": [f"1.{suffix}", f"2.{suffix}"]}},
        "nodes": [{"type": "n", "ids": "string"}],
        "edges": [{"relation": "n.to.n", "file": "t", "src": "subject", "dst": "object"}],
    }
    with h5py.File(run_spec(tmp_path, spec)) as file:
        ids, dst = file["nodes/n/id"][:], file["edges/n.to.n/dst"][:]
    names = [ids[row].decode() for row in dst]
    if node == "_:x":
        assert names == ["_:x", "_:x", "_:[file 2]x", "_:[file 2]x"]
    assert set(names[:2]).isdisjoint(names[2:])


@pytest.mark.parametrize(
    "bad", ["<http://x/a> <p> .", '"literal" <p> <o> .', "<a> <b> <c>", '<a> <b> "open .', "@prefix x: <http://x> ."]
)
def test_bad_triples_name_their_row(tmp_path, capsys, bad):
    sources = write_rdf(tmp_path, "<a> <b> <c> .\n\n# comment\n" + bad + "\n<a> <b> <c> .\n")
    message = refused(tmp_path, capsys, "--preset", "rdf", *assignments(sources))
    assert "t.nt: row 2" in message
    assert "mend or remove" in message


def test_an_entity_with_two_labels_is_refused(tmp_path, capsys):
    sources = write_rdf(tmp_path, "<http://x/a> <b> <c> .\n")
    (tmp_path / "test.tsv").write_text("person\tkind\nhttp://x/a\tblue\n")
    message = refused(tmp_path, capsys, "--preset", "rdf", *assignments(sources))
    assert "test.tsv: column 'person', row 1: the id occurs a second time" in message


def typed_spec(**changes) -> dict:
    edge = {"relation": "n.r*.n", "file": "e", "src": "s", "dst": "d", "types": "t", "columns": {"weight": "w"}}
    return {"files": {"e": {"path": "e.csv"}}, "nodes": [{"type": "n"}], "edges": [edge | changes]}


def test_types_make_relations_and_rows_keep_their_order(tmp_path):
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 9, (200, 3))
    rows[:, 2] = rng.choice([2, 10, 30, 7], 200)
    text = "s,d,t,w\n" + "".join(f"{s},{d},{t},{w}\n" for w, (s, d, t) in enumerate(rows))
    (tmp_path / "e.csv").write_text(text)
    with h5py.File(run_spec(tmp_path, typed_spec(left_out=["7"]))) as file:
        assert relations(file) == ["n.r2.n", "n.r10.n", "n.r30.n"]
        for kind in (2, 10, 30):
            group = file[f"edges/n.r{kind}.n"]
            assert np.array_equal(group["weight"][...], np.flatnonzero(rows[:, 2] == kind))
            assert np.array_equal(group["src"][...], rows[rows[:, 2] == kind, 0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"left_out": ["knows"]}, "'knows' does not occur"),
        ({"relation": "n.r.n"}, "types: goes together with a *"),
        ({"reverse": "back"}, "types: goes together with a *"),
        ({"types": None, "relation": "n.r.n", "left_out": ["2"]}, "left_out: holds values of the column"),
        ({"duplicates": "error"}, "types: not with"),
        ({"file": {"train": "e", "dev": "e"}}, "'dev' is not one of train, val, test"),
        ({"file": {"train": "e"}, "columns": {"split": "w"}}, "columns.split: comes from the mapping"),
    ],
)
def test_refused_specs_of_types_and_files(tmp_path, capsys, changes, words):
    (tmp_path / "e.csv").write_text("s,d,t,w\n0,1,2,3\n")
    (tmp_path / "spec.yaml").write_text(json.dumps(typed_spec(**changes)))
    assert words in refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))


def test_settings(tmp_path, capsys, convert):
    masks = np.eye(3, 4, dtype=bool)
    arrays = {f"{name}_masks": np.roll(masks, i, 1) for i, name in enumerate(("train", "val", "test"))}
    np.savez(
        tmp_path / "g.npz", node_features=np.ones((4, 2)), node_labels=np.arange(4), edges=np.array([[0, 1]]), **arrays
    )
    assert convert("heterophilous", graph=tmp_path / "g.npz")["nodes/node/split"][...].tolist() == [0, 1, 2, -1]
    assert convert("heterophilous", graph=tmp_path / "g.npz", fold=2)["nodes/node/split"][...].tolist() == [2, -1, 0, 1]
    base = ["--preset", "heterophilous", *assignments({"graph": tmp_path / "g.npz"})]
    assert "'train_masks[7]' of an array of shape" in refused(tmp_path, capsys, *base, "--set", "fold=7")
    assert "--set fold=[1: not a YAML value" in refused(tmp_path, capsys, *base, "--set", "fold=[1")
    assert "not one of graph, fold" in refused(tmp_path, capsys, *base, "--set", "folds=7")
    assert "settings.label has no value; pass --set label=VALUE" in refused(
        tmp_path, capsys, "--preset", "rdf", "--set", "id=person"
    )


def test_lists_are_pairs(convert, tmp_path):
    (tmp_path / "train.txt").write_text("7 1 2\n\n9\n8  3\n")
    (tmp_path / "test.txt").write_text("7 5 \r\n")
    file = convert("user-items", train=tmp_path / "train.txt", test=tmp_path / "test.txt")
    likes = file["edges/user.likes.item"]
    users, items = file["nodes/user/id"][...], file["nodes/item/id"][...]
    assert users[likes["src"][...]].tolist() == [7, 7, 8, 7]
    assert items[likes["dst"][...]].tolist() == [1, 2, 3, 5]
    assert likes["split"][...].tolist() == [0, 0, 0, 2]


def test_bad_lists(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("7 1 2\n8 3 x\n")
    message = refused(
        tmp_path, capsys, "--preset", "user-items", *assignments(dict.fromkeys(("train", "test"), tmp_path / "a.txt"))
    )
    assert "a.txt: column 'item', row 4: 'x' is not an integer id" in message


def convert_lists(folder, text: str) -> list[str]:
    (folder / "f.json").write_text(text)
    (folder / "e.csv").write_text("id_1,id_2\n0,1\n")
    (folder / "t.csv").write_text("id,page_type\n0,a\n1,b\n2,a\n")
    sources = {"edges": folder / "e.csv", "features": folder / "f.json", "target": folder / "t.csv"}
    return ["--preset", "musae-pages", *assignments(sources)]


def test_id_lists_are_a_matrix(tmp_path):
    assert main([*convert_lists(tmp_path, '{"2": [3, 0, 3], "0": [1], "1": []}'), str(tmp_path / "g.h5")]) == 0
    with h5py.File(tmp_path / "g.h5") as file:
        assert file["nodes/page/feat"][...].tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]]
        assert file["nodes/page/label"][...].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"0": [1]', "not JSON"),
        ("[1]", "expected an object of lists"),
        ('{"a": [1]}', "row 'a': expected a list of numbers"),
        ('{"1": [-1]}', "row '1': expected a list of numbers"),
        ('{"0": [1], "3": [0]}', "differ in length"),
    ],
)
def test_bad_id_lists(tmp_path, capsys, text, words):
    assert words in refused(tmp_path, capsys, *convert_lists(tmp_path, text))


def test_mat_files(convert, tmp_path, capsys):
    rng = np.random.default_rng(0)
    network = scipy.sparse.random(6, 6, 0.4, "csc", random_state=1)
    network = network + network.T
    attributes = scipy.sparse.random(6, 3, 0.5, "csc", random_state=2)
    label = rng.permutation([4, 4, 9, 9, 10, 10])[:, None].astype(np.uint8)
    scipy.io.savemat(tmp_path / "g.mat", {"Network": network, "Attributes": attributes, "Label": label})
    file = convert("matlab-attributed", graph=tmp_path / "g.mat")
    edges = file["edges/node.to.node"]
    dense = np.zeros((6, 6), np.float32)
    dense[edges["src"][...], edges["dst"][...]] = edges["weight"][...]
    np.testing.assert_allclose(dense, network.toarray(), rtol=1e-6)
    np.testing.assert_allclose(file["nodes/node/feat"][...], attributes.toarray(), rtol=1e-6)
    assert json.loads(file["nodes/node/label"].attrs["names"]) == ["4", "9", "10"], "numbers are in their order"
    assert file["nodes/node/label"][...].tolist() == [[4, 9, 10].index(value) for value in label[:, 0]]
    (tmp_path / "bad.mat").write_bytes(b"not a matrix" * 20)
    message = refused(tmp_path, capsys, "--preset", "matlab-attributed", "--set", f"graph={tmp_path / 'bad.mat'}")
    assert "bad.mat: not a readable mat file" in message


def test_mat_files_without_scipy(tmp_path, capsys, monkeypatch):
    (tmp_path / "g.mat").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "scipy", None)
    message = refused(tmp_path, capsys, "--preset", "matlab-attributed", "--set", f"graph={tmp_path / 'g.mat'}")
    assert "g.mat: MATLAB files need SciPy: pip install scipy" in message


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (["train.txt", "valid.txt"], "no members are named 'test.txt'"),
        (["train.txt", "valid.txt", "a/test.txt", "b/test.txt"], "2 members are named 'test.txt'"),
    ],
)
def test_archives_name_what_is_missing(tmp_path, capsys, members, words):
    with tarfile.open(tmp_path / "kg.tar", "w") as archive:
        for name in members:
            entry = tarfile.TarInfo(name)
            entry.size = 6
            archive.addfile(entry, io.BytesIO(b"a\tr\tb\n"))
    message = refused(tmp_path, capsys, "--preset", "kg-links", "--set", f"facts={tmp_path / 'kg.tar'}")
    assert words in message
    (tmp_path / "kg.tar").write_bytes(b"x" * 2000)
    message = refused(tmp_path, capsys, "--preset", "kg-links", "--set", f"facts={tmp_path / 'kg.tar'}")
    assert "damaged or truncated" in message


def test_empty_files_among_several(convert, tmp_path, capsys):
    for name, text in {"train": "", "valid": "a\tr\tb\n", "test": ""}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    facts = convert("kg-links", facts=tmp_path)["edges/entity.fact.entity"]
    assert facts["split"][...].tolist() == [1]
    (tmp_path / "valid.txt").write_text("")
    assert "no edges in train.txt" in refused(tmp_path, capsys, "--preset", "kg-links", "--set", f"facts={tmp_path}")


def test_facts_of_a_folder_with_crlf_are_those_of_an_archive(convert, tmp_path):
    (tmp_path / "kg").mkdir()
    for name, lines in {"train": ["a\tr\tb", "b\tq\tc"], "valid": ["c\tr\ta"], "test": ["a\tq\tc"]}.items():
        (tmp_path / "kg" / f"{name}.txt").write_bytes("\r\n".join([*lines, ""]).encode())
    with zipfile.ZipFile(tmp_path / "kg.zip", "w") as archive:
        for path in (tmp_path / "kg").iterdir():
            archive.write(path, path.name)
    folder, packed = (convert("kg-links", facts=tmp_path / name) for name in ("kg", "kg.zip"))
    assert contents(folder.filename) == contents(packed.filename)
    facts = folder["edges/entity.fact.entity"]
    assert facts["rel"][...].tolist() == [1, 0, 1, 0]
    assert facts["split"][...].tolist() == [0, 0, 1, 2]
    assert folder["nodes/entity/id"][...].tolist() == [b"a", b"b", b"c"]
