"""Presets of static graphs: counts of the public sets."""

import gzip
import json
import tarfile

import h5py
import numpy as np
import pytest
from convert_sources import counts
from places import REPOSITORY

from data_tools.source.spec_file import preset_names
from hpcgnn.graph.files import relations

pytestmark = pytest.mark.serial


def split_counts(group: h5py.Group) -> list[int]:
    """Rows of train, val and test."""
    return [int((group["split"][...] == split).sum()) for split in (0, 1, 2)]


def is_symmetric(file: h5py.File, relation: str) -> bool:
    src, dst = (file[f"edges/{relation}/{end}"][...] for end in ("src", "dst"))
    forward, backward = np.lexsort((src, dst)), np.lexsort((dst, src))
    return np.array_equal(src[forward], dst[backward]) and np.array_equal(dst[forward], src[backward])


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "width", "classes", "sizes"),
    [("cora", 2708, 5278, 1433, 7, [140, 500, 1000]), ("citeseer", 3327, 4552, 3703, 6, [120, 500, 1000])],
)
def test_planetoid(convert, shared_data, name, nodes, edges, width, classes, sizes):
    file = convert("planetoid", graph=shared_data(f"{name}/{name}_planetoid.npz"))
    assert counts(file) == {"node": nodes, "node.to.node": 2 * edges}
    table = file["nodes/node"]
    assert (table["feat"].dtype, table["feat"].shape) == (np.float32, (nodes, width))
    assert split_counts(table) == sizes
    assert table["label"][...].max() + 1 == classes
    assert is_symmetric(file, "node.to.node")
    with np.load(shared_data(f"{name}/{name}_planetoid.npz")) as source:
        assert table["feat"][...].sum() == source["x_data"].sum()
        assert np.array_equal(np.flatnonzero(table["split"][...] == 0), np.sort(source["train_idx"]))


def test_pubmed_without_features(convert, shared_data):
    file = convert("planetoid-labels", graph=shared_data("pubmed-nofeatures/pubmed_planetoid.npz"))
    assert counts(file) == {"node": 19717, "node.to.node": 88648}
    assert sorted(file["nodes/node"]) == ["label", "split"]


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "width"),
    [
        ("minesweeper", 10000, 39402, 7),
        ("squirrel_filtered", 2223, 46998, 2089),
        ("chameleon_filtered", 890, 8854, 2325),
        ("actor", 7600, 26659, 932),
    ],
)
def test_heterophilous(convert, shared_data, name, nodes, edges, width):
    path = shared_data(f"heterophilous/{name}.npz")
    files = [convert("heterophilous", graph=path), convert("heterophilous", graph=path, fold=3)]
    assert counts(files[0]) == {"node": nodes, "node.to.node": 2 * edges}
    assert files[0]["nodes/node/feat"].shape == (nodes, width)
    with np.load(path) as source:
        for fold, file in ((0, files[0]), (3, files[1])):
            for split, mask in enumerate(("train_masks", "val_masks", "test_masks")):
                assert np.array_equal(file["nodes/node/split"][...] == split, source[mask][fold])


@pytest.mark.parametrize(
    ("name", "prefix", "entity", "label", "nodes", "triples", "predicates", "sizes", "classes"),
    [
        ("aifb", "aifb_stripped", "person", "label_affiliation", 8285, 29043, 45, [140, 0, 36], 4),
        ("mutag", "mutag_stripped", "bond", "label_mutagenic", 23644, 74227, 23, [272, 0, 68], 2),
    ],
)
def test_rdf_is_the_graph_of_rgcn(
    convert, shared_data, name, prefix, entity, label, nodes, triples, predicates, sizes, classes
):
    file = convert(
        "rdf",
        triples=shared_data(f"{name}/{prefix}.nt.gz"),
        train=shared_data(f"{name}/trainingSet.tsv.gz"),
        test=shared_data(f"{name}/testSet.tsv.gz"),
        id=entity,
        label=label,
    )
    names = relations(file)
    assert len(names) == 2 * predicates
    assert file["nodes/entity"].attrs["num_nodes"] == nodes
    assert sum(int(file["edges"][name].attrs["num_edges"]) for name in names) == 2 * triples
    assert len({file["edges"][name].attrs["source_name"] for name in names}) == predicates
    for forward, backward in zip(names[::2], names[1::2], strict=True):
        assert backward.split(".")[1] == forward.split(".")[1] + "_of"
        assert np.array_equal(file["edges"][forward]["src"][...], file["edges"][backward]["dst"][...])
        assert np.array_equal(file["edges"][forward]["dst"][...], file["edges"][backward]["src"][...])
    table = file["nodes/entity"]
    assert split_counts(table) == sizes
    labels = table["label"][...]
    assert np.array_equal(labels >= 0, table["split"][...] >= 0)
    assert labels.max() + 1 == len(json.loads(table["label"].attrs["names"])) == classes
    # No fact gives a label away: the label's word is not an object of any triple about a labeled entity.
    given_away = {"affiliation", "employs", "isMutagenic"}
    assert not given_away & {name.split(".")[1] for name in names}


def test_rdf_labels_are_those_of_the_table(convert, shared_data):
    train, test = (shared_data(f"aifb/{name}Set.tsv.gz") for name in ("training", "test"))
    triples = shared_data("aifb/aifb_stripped.nt.gz")
    table = convert("rdf", triples=triples, train=train, test=test, id="person", label="label_affiliation")["nodes"][
        "entity"
    ]
    words = json.loads(table["label"].attrs["names"])
    row = {name.decode(): row for row, name in enumerate(table["id"][...])}
    lines = gzip.decompress(test.read_bytes()).decode().split()[3:]
    for person, label in zip(lines[::3], lines[2::3], strict=True):
        assert words[table["label"][row[person]]] == label
        assert table["split"][row[person]] == 2


def test_kgbench(convert, shared_data):
    names = {"triples": "triples", "train": "training", "val": "validation", "test": "testing"}
    sources = {name: shared_data(f"kgbench-am-whitelist/{file}.int.csv.gz") for name, file in names.items()}
    file = convert("kgbench", **sources)
    assert file["nodes/entity"].attrs["num_nodes"] == 1080876
    assert len(relations(file)) == 24
    assert sum(int(group.attrs["num_edges"]) for group in file["edges"].values()) == 2 * 1360749
    assert split_counts(file["nodes/entity"]) == [13423, 20000, 20000]
    assert file["nodes/entity/label"][...].max() == 7


@pytest.mark.parametrize(
    ("archive", "nodes", "sizes", "kinds"),
    [
        ("fb15k-237/FB15k-237.tar.gz", 14541, [272115, 17535, 20466], 237),
        ("wn18rr/WN18RR.tar.gz", 40943, [86835, 3034, 3134], 11),
    ],
)
def test_knowledge_graph_links(convert, shared_data, archive, nodes, sizes, kinds):
    file = convert("kg-links", facts=shared_data(archive))
    assert counts(file) == {"entity": nodes, "entity.fact.entity": sum(sizes)}
    facts = file["edges/entity.fact.entity"]
    assert split_counts(facts) == sizes
    assert facts["rel"].dtype == np.int32
    words = json.loads(facts["rel"].attrs["names"])
    assert len(words) == facts["rel"][...].max() + 1 == kinds
    assert words == sorted(words)
    with tarfile.open(shared_data(archive)) as tar:
        first = tar.extractfile("test.txt").readline().decode().strip().split("\t")
    row = int(np.flatnonzero(facts["split"][...] == 2)[0])
    ids = file["nodes/entity/id"]
    assert [ids[facts["src"][row]].decode(), words[facts["rel"][row]], ids[facts["dst"][row]].decode()] == first


def test_gowalla(convert, shared_data):
    file = convert("user-items", train=shared_data("gowalla/train.txt.gz"), test=shared_data("gowalla/test.txt.gz"))
    likes, liked = file["edges/user.likes.item"], file["edges/item.liked_by.user"]
    assert counts(file) == {
        "user": 29858,
        "item": 40981,
        "user.likes.item": 1027370,
        "item.liked_by.user": 1027370,
    }
    assert split_counts(likes) == split_counts(liked) == [810128, 0, 217242]
    assert np.array_equal(likes["src"][...], liked["dst"][...])


def test_facebook_pages(convert, shared_data, tmp_path):
    folder = shared_data("facebook-pages")
    lists = json.loads(gzip.decompress((folder / "facebook.json.gz").read_bytes()))
    assert max(feature for features in lists.values() for feature in features) == 4713
    # All 4,714 features as a dense matrix take a few hundred MB; some show the same.
    few = {page: [feature for feature in features if feature < 300] for page, features in lists.items()}
    (tmp_path / "few.json.gz").write_bytes(gzip.compress(json.dumps(few).encode(), 1))
    file = convert(
        "musae-pages",
        edges=folder / "facebook_edges.csv.gz",
        features=tmp_path / "few.json.gz",
        target=folder / "facebook_target.csv.gz",
    )
    # 171,002 links, 179 of them from a page to itself.
    assert counts(file) == {"page": 22470, "page.to.page": 2 * 171002 - 179}
    feat = file["nodes/page/feat"][...]
    assert feat.shape == (22470, 300)
    for page in ("0", "554", "22469"):
        assert np.flatnonzero(feat[int(page)]).tolist() == sorted(few[page])
    assert json.loads(file["nodes/page/label"].attrs["names"]) == ["company", "government", "politician", "tvshow"]


def test_blogcatalog(convert, shared_data):
    file = convert("matlab-attributed", graph=shared_data("blogcatalog-attr/BlogCatalog.mat"))
    assert counts(file) == {"node": 5196, "node.to.node": 2 * 171743}
    assert file["nodes/node/feat"].shape == (5196, 8189)
    assert np.array_equal(np.unique(file["nodes/node/label"][...]), np.arange(6))
    assert is_symmetric(file, "node.to.node")


def test_blogcatalog_with_several_labels(convert, shared_data):
    file = convert("matlab-multilabel", graph=shared_data("blogcatalog3/blogcatalog.mat"))
    assert counts(file) == {"node": 10312, "node.to.node": 2 * 333983}
    assert file["nodes/node/label"].shape == (10312, 39)


def test_heco_acm(convert, shared_data):
    file = convert("heco-acm", folder=shared_data("heco-acm"), labeled=40)
    found = counts(file)
    assert {name: found[name] for name in ("paper", "author", "subject")} == {
        "paper": 4019,
        "author": 7167,
        "subject": 60,
    }
    assert found["paper.written_by.author"] == found["author.wrote.paper"] == 13407
    assert found["paper.about.subject"] == found["subject.has.paper"] == 4019
    assert split_counts(file["nodes/paper"]) == [120, 1000, 1000]


def test_heco_freebase(convert, shared_data):
    """Relations lead both ways, as the metapaths of the source do."""
    file = convert("heco-freebase", folder=shared_data("heco-freebase"), labeled=60)
    relations = {"movie.actor.movie": 254702, "movie.director.movie": 8404, "movie.writer.movie": 10706}
    assert counts(file) == {"movie": 3492} | relations
    assert split_counts(file["nodes/movie"]) == [180, 1000, 1000]
    assert all(is_symmetric(file, name) for name in relations)


def test_every_preset_is_documented():
    page = (REPOSITORY / "docs" / "data.md").read_text()
    assert [name for name in preset_names() if f"`{name}`" not in page] == []
