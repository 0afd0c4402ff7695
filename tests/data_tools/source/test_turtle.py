"""Turtle as a source of triples: its shorthands, the public AIFB in both forms, and where a file is not Turtle."""

import h5py
import numpy as np
import pytest
from convert_sources import refused

from data_tools.convert import main
from data_tools.source.file_spec import FileSpec
from hpcgnn.graph.files import FileFormatError, relations

pytestmark = pytest.mark.serial

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
XSD = "http://www.w3.org/2001/XMLSchema#"


def triples_of(path, **options) -> list[tuple[str, str, str]]:
    found = []
    for batch in FileSpec(str(path), **options).open().batches({"s": "subject", "p": "predicate", "o": "object"}):
        found += zip(*(batch[name].parts[0].to_pylist() for name in "spo"), strict=True)
    return found


def parse(folder, text: str) -> list[tuple[str, str, str]]:
    (folder / "g.ttl").write_text(text)
    return triples_of(folder / "g.ttl")


TURTLE = """@prefix : <http://x/> . # a comment
PREFIX q: <http://q#>
@base <http://base/dir/> .
:a a q:Kind ; q:knows :b , _:c, <there> ;; q:label "one # \\"two\\"\\u00e9"@en-GB, 'three' .
:b q:age 3 ; q:size -1.5, 2e3; q:good true; q:typed "x"^^q:t, "y"^^<http://t> .
:d.e q:text \"\"\"long "quoted"
line\"\"\", '''it's''' .
[ q:knows [ a :z ] ; q:name "n" ] q:age 4 .
[] q:knows () .
:l q:list (1 :b) .
"""


def test_iris_end_as_they_are_written(tmp_path):
    """Absolute ones stay as they are below a base, and an empty fragment is one."""
    text = "@base <http://b/d> . @prefix q: <HTTP://q#> . @prefix : <#> . q:a :b <urn:x?> . <#> q:c <e?> ."
    assert parse(tmp_path, text) == [
        ("HTTP://q#a", "http://b/d#b", "urn:x?"),
        ("http://b/d#", "HTTP://q#c", "http://b/e?"),
    ]


def test_shorthands(tmp_path):
    found = parse(tmp_path, TURTLE)
    x, q = "http://x/", "http://q#"
    assert found[:6] == [
        (x + "a", RDF + "type", q + "Kind"),
        (x + "a", q + "knows", x + "b"),
        (x + "a", q + "knows", "_:c"),
        (x + "a", q + "knows", "http://base/dir/there"),
        (x + "a", q + "label", '"one # \\"two\\"é"@en-GB'),
        (x + "a", q + "label", '"three"'),
    ]
    assert [o for s, _, o in found if s == x + "b"] == [
        f'"3"^^<{XSD}integer>',
        f'"-1.5"^^<{XSD}decimal>',
        f'"2e3"^^<{XSD}double>',
        f'"true"^^<{XSD}boolean>',
        '"x"^^<http://q#t>',
        '"y"^^<http://t>',
    ]
    assert [o for s, _, o in found if s == x + "d.e"] == ['"long \\"quoted\\"\\nline"', '"it\'s"']
    rest = [triple for triple in found if triple[0].startswith("_:") or triple[0] == x + "l"]
    outer, inner = rest[1][0], rest[0][0]
    assert rest[:4] == [
        (inner, RDF + "type", x + "z"),
        (outer, q + "knows", inner),
        (outer, q + "name", '"n"'),
        (outer, q + "age", f'"4"^^<{XSD}integer>'),
    ]
    assert rest[4][1:] == (q + "knows", RDF + "nil")
    heads = {s: (p, o) for s, p, o in rest if p == RDF + "first"}
    assert sorted(o for _, o in heads.values()) == [f'"1"^^<{XSD}integer>', x + "b"]
    assert len({s for s, _, _ in rest}) == 6, "every bracket is a node of its own"


def test_triples_are_turtle_too(tmp_path):
    text = '<http://x/a> <http://p> "e\\u00e9\\\\u00e9 \\n \\"" .\n_:b <http://p> <http://x/a> .\n'
    (tmp_path / "g.nt").write_text(text)
    assert triples_of(tmp_path / "g.nt") == parse(tmp_path, text)
    assert parse(tmp_path, text)[0][2] == '"eé\\\\u00e9 \\n \\""'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("<a> <b> <c>", 1),
        ("<a> <b> <c> .\n\n# fine\n<a> <b .\n", 4),
        ("<a> <b> <c> .\nx:a <b> <c> .", 2),
        ('<a> <b> "open .', 1),
        ("<a> <b> <c> .\n{ <a> <b> <c> } => { } .", 2),
        ("<a> <b> [ <c> <d> .", 1),
        ("<a>\n\n'literal' <c> .", 3),
        ("@prefix a <b> .", 1),
        ("<a> <b> <c> , .", 1),
        ("@prefix <a> <b> .", 1),
        ("<a> <b> '3'^^'x' .", 1),
    ],
)
def test_what_is_not_turtle_names_its_line(tmp_path, text, line):
    with pytest.raises(FileFormatError, match=rf"g.ttl: line {line}: not Turtle"):
        parse(tmp_path, text)


def test_text_of_another_encoding_is_named(tmp_path):
    (tmp_path / "g.ttl").write_bytes("<a> <b> 'é' .".encode("latin1"))
    with pytest.raises(FileFormatError, match=r"g\.ttl: not UTF-8 text .*; is it compressed or binary\?"):
        list(FileSpec(path=str(tmp_path / "g.ttl")).open().batches({"s": 0}))


def test_bad_turtle_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "g.ttl").write_text("<a> <b> <c>")
    for name in ("train", "test"):
        (tmp_path / f"{name}.tsv").write_text(f"e\tl\n{name}\t1\n")
    sources = {"triples": "g.ttl", "train": "train.tsv", "test": "test.tsv"}
    arguments = [text for name, file in sources.items() for text in ("--set", f"{name}={tmp_path / file}")]
    message = refused(tmp_path, capsys, "--preset", "rdf", *arguments, "--set", "id=e", "--set", "label=l")
    assert "g.ttl: line 1" in message


def test_aifb_in_n3_without_its_label_facts_is_the_stripped_graph(tmp_path, shared_data):
    swrc = "http://swrc.ontoware.org/ontology#"
    tables = [f"{name}={shared_data(f'aifb/{name}ingSet.tsv.gz')}" for name in ("train",)]
    tables.append(f"test={shared_data('aifb/testSet.tsv.gz')}")
    options = [text for item in [*tables, "id=person", "label=label_affiliation"] for text in ("--set", item)]
    sources = {
        "nt": [f"triples={shared_data('aifb/aifb_stripped.nt.gz')}"],
        "n3": [
            f"triples={shared_data('aifb/aifb_fixed_complete.n3.gz')}",
            f'left_out=["{swrc}affiliation", "{swrc}employs"]',
        ],
    }
    counts, names, labels = {}, {}, {}
    for kind, given in sources.items():
        more = [text for item in given for text in ("--set", item)]
        assert main(["--preset", "rdf", *options, *more, str(tmp_path / f"{kind}.h5")]) == 0
        with h5py.File(tmp_path / f"{kind}.h5") as file:
            counts[kind] = {name: int(file["edges"][name].attrs["num_edges"]) for name in relations(file)}
            ids, table = file["nodes/entity/id"][...], file["nodes/entity/label"][...]
            names[kind] = {name for name in ids.tolist() if not name.startswith((b'"', b"_:"))}
            labels[kind] = {name: label for name, label in zip(ids.tolist(), table.tolist(), strict=True) if label >= 0}
            assert len(ids) == 8285
    assert counts["nt"] == counts["n3"]
    assert labels["nt"] == labels["n3"]
    # The one file has the document itself as <>, the other by name.
    assert len(names["nt"] ^ names["n3"]) <= 2
    assert np.sum(list(counts["n3"].values())) == 2 * 29043
