"""Input that cannot be converted is refused by file, column, row, value and remedy."""

import gzip

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from convert_sources import EDGE, SPEC_BY_NAME, random_table, refused, refused_text, run_spec, spec_for, write_text

from data_tools.convert import main
from data_tools.source.formats.values import Raw, parse_times
from hpcgnn.graph.files import FileFormatError, create_column

pytestmark = pytest.mark.serial


def test_unsorted_times_name_row_values_and_remedy(tmp_path, capsys):
    text = "src,dst,time\n" + "".join(f"1,2,{t}\n" for t in [1, 5, 5, 7, 4, 9])
    message = refused_text(tmp_path, capsys, text)
    for part in ("events.csv", "'time'", "row 5", "from 7 to 4", "--sort"):
        assert part in message


def test_time_order_is_checked_across_batches(tmp_path, capsys):
    times = [*range(10**6), 3]
    text = "1 2 " + "\n1 2 ".join(map(str, times)) + "\n"
    assert "row 1000001" in refused_text(tmp_path, capsys, text, "snap-temporal")


BAD_ROWS = {
    "negative id": ("1,2,3\n1,-2,4\n", ["'dst'", "row 2", "-2", "negative"]),
    "text id": ("1,2,3\n1,x7,4\n", ["'dst'", "row 2", "'x7'", "ids: string"]),
    "fraction of an id": ("1.5,2,3\n", ["'src'", "row 1", "1.5"]),
    "empty id": ("1,,1\n2,3,2\n", ["column 'dst', row 1: the id is missing", "missing_ids: drop", "(line 2)"]),
    "nan id": ("1,nan,1\n2,3,2\n", ["column 'dst', row 1: the id is missing", "(line 2)"]),
    "empty time": ("1,2,3\n1,2,\n", ["column 'time', row 2: '' is not a time", "(line 3)"]),
    "time of 2^63": ("1,2,9223372036854775808\n", ["column 'time', row 1: the time 9.223372036854776e+18", "(line 2)"]),
    "date": ("1,2,2024-01-01\n", ["column 'time', row 1: '2024-01-01' is not a time", "--set dates=iso", "(line 2)"]),
    "NaN time": ("1,2,3\n1,2,nan\n", ["'time'", "row 2", "nan"]),
    "fraction of a time": ("1,2,3\n1,2,3.5\n", ["'time'", "row 2", "3.5", "time_scale"]),
    "short row": ("1,2,3\n1,2\n", ["row 2", "2 fields instead of 3"]),
    "long row": ("1,2,3\n1,2,3\n1,2,3,4\n", ["row 3", "4 fields instead of 3"]),
    "no rows": ("", ["no edges", "empty"]),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_refused_by_name(tmp_path, capsys, case):
    text, parts = BAD_ROWS[case]
    message = refused_text(tmp_path, capsys, "src,dst,time\n" + text)
    for part in ["events.csv", *parts]:
        assert part in message


def test_missing_column_names_the_available_ones(tmp_path, capsys):
    message = refused_text(tmp_path, capsys, "from,to,time\n1,2,3\n")
    for part in ("events.csv", "no column 'src'", "'from', 'to', 'time'"):
        assert part in message


def test_header_that_does_not_fit_the_rows(tmp_path, capsys):
    message = refused_text(tmp_path, capsys, "src,dst\n1,2,3\n")
    assert "names 2 columns" in message
    assert "header: skip" in message


def test_truncated_gz_is_refused(tmp_path, capsys):
    write_text(tmp_path / "e.csv.gz", random_table(0), ",")
    (tmp_path / "e.csv.gz").write_bytes((tmp_path / "e.csv.gz").read_bytes()[:-200])
    message = refused(tmp_path, capsys, "--preset", "csv-temporal", "--set", f"events={tmp_path / 'e.csv.gz'}")
    assert "e.csv.gz" in message
    assert "truncated" in message


def test_missing_file_and_missing_assignment(tmp_path, capsys):
    assert "no such file" in refused(tmp_path, capsys, "--preset", "jodie", "--set", f"events={tmp_path / 'none.csv'}")
    assert "--set events=PATH" in refused(tmp_path, capsys, "--preset", "jodie")
    assert "not one of events" in refused(tmp_path, capsys, "--preset", "jodie", "--set", "event=x")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"edgez": []}, ["unknown key 'edgez'", "edges"]),
        ({"edges": [{**EDGE, "tyme": 1}]}, ["edges[0]", "unknown key 'tyme'", "time_scale"]),
        ({"edges": [{key: EDGE[key] for key in ("relation", "file", "src")}]}, ["edges[0]", "'dst' is missing"]),
        ({"edges": [{**EDGE, "sort": "yes"}]}, ["edges[0]", "sort", "expected bool"]),
        ({"edges": [{**EDGE, "relation": "user.rates.film"}]}, ["'film'", "user, item"]),
        ({"edges": [{**EDGE, "columns": {"score": 3}}]}, ["edges[0].columns.score", "dtype"]),
        ({"edges": [{**EDGE, "reverse": "by"}]}, ["reverse", "history of both ends"]),
        ({"edges": [{**EDGE, "duplicates": "merge"}]}, ["duplicates", "keep, drop, error"]),
        ({"edges": [EDGE, EDGE]}, ["a name is used twice"]),
        ({"nodes": [{"type": "user", "ids": "uuid"}]}, ["nodes[0]", "'uuid'", "int, string, row"]),
        ({"files": {"events": {"delimiter": "||"}}}, ["files.events", "delimiter"]),
    ],
)
def test_bad_specs_are_refused_by_name(tmp_path, capsys, change, parts):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC_BY_NAME | change))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"), "--set", "events=x.csv")
    for part in ["spec.yaml", *parts]:
        assert part in message


def test_time_scale(tmp_path, capsys):
    spec = spec_for(tmp_path / "e.csv")
    spec["edges"][0] |= {"time_scale": 1000, "columns": {}}
    (tmp_path / "e.csv").write_text("u,i,t\n0,0,1.001\n0,0,2.5\n0,0,1289241911.728\n")
    with h5py.File(run_spec(tmp_path, spec)) as file:
        assert file["edges/user.rates.item/time"][...].tolist() == [1001, 2500, 1289241911728]
        assert file["edges/user.rates.item"].attrs["time_scale"] == 1000
    (tmp_path / "e.csv").write_text("u,i,t\n0,0,1.001\n0,0,2.0005\n")
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    for part in ("'t'", "row 2", "2.0005", "time_scale 1000"):
        assert part in message


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_decimal_times_are_scaled_exactly(seed):
    """Times of up to six decimals come back as the integers they were written from."""
    rng = np.random.default_rng(seed)
    decimals = int(rng.integers(1, 7))
    stored = rng.integers(-(10**14), 10**14, 1000)
    text = [
        f"{'-' if x < 0 else ''}{abs(x) // 10**decimals}.{abs(x) % 10**decimals:0{decimals}d}" for x in stored.tolist()
    ]
    raw = Raw([pa.array(text)], ["t"], True, len(text))
    assert np.array_equal(parse_times(raw, "e.csv", 0, 10**decimals), stored)


@pytest.mark.parametrize(
    "value", ["1.5", "1700000000000000.25", "inf", "-1e300", "99999999999999999999", "9007199254740993.0"]
)
def test_times_that_would_be_rounded_are_refused(value):
    raw = Raw([pa.array(["1", value])], ["t"], True, 2)
    with pytest.raises(FileFormatError, match=r"e\.csv: column t, row 12"):
        parse_times(raw, "e.csv", 10, 1)


@pytest.mark.parametrize(("name", "row"), [("y", "row 1"), ("f", "row 2")])
def test_missing_values_are_refused_without_fill(tmp_path, capsys, name, row):
    table = {"u": [0, 0], "i": [0, 0], "t": [1, 2], "y": [None, 5], "f": [float("nan"), None]}
    pyarrow.parquet.write_table(pa.table(table), tmp_path / "e.parquet")
    spec = spec_for(tmp_path / "e.parquet")
    spec["edges"][0]["columns"] = {"label": {"column": name, "dtype": "int64"}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    for part in ("e.parquet", repr(name), row, "fill"):
        assert part in message


def test_snapshots_have_a_command_of_their_own(tmp_path, capsys):
    spec = {
        "kind": "snapshots",
        "files": {"e": {"path": "e.csv"}},
        "nodes": [{"type": "n"}],
        "edges": [{"relation": "n.to.n", "file": "e", "time": 0, "src": 1, "dst": 2}],
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    assert "hpcgnn snapshots makes such graphs" in message


@pytest.mark.parametrize("name", ["", ".", "a/b", "a\0b"])
def test_columns_that_hdf5_cannot_name(tmp_path, name):
    with (
        h5py.File(tmp_path / "graph.h5", "w") as file,
        pytest.raises(FileFormatError, match="a column cannot be called"),
    ):
        create_column(file, name, 3, (), np.int64)


def test_columns_of_nothing(tmp_path):
    with (
        h5py.File(tmp_path / "graph.h5", "w") as file,
        pytest.raises(FileFormatError, match=r"/feat: rows of shape \[2, 0\] have no values: leave the column out"),
    ):
        create_column(file, "feat", 3, (2, 0), np.float32)


QUOTED = "src,dst,time\n" + "1,2,3\n" * 5


@pytest.mark.parametrize(
    "text",
    [QUOTED + '"1\n4",2,3\n', QUOTED + '1,"2\n1,4,5\n1",3\n1,2,3\n', QUOTED + '1,2,"3\n' + "1,2,3\n" * 90_000],
    ids=["value", "lines", "open"],
)
def test_a_value_in_quotes_over_several_lines_is_refused(tmp_path, capsys, text):
    message = refused_text(tmp_path, capsys, text)
    assert "events.csv: row 6: a value in quotes goes over several lines" in message
    assert "quote: none" in message


@pytest.mark.parametrize("delimiter", ["\t", ",", ";"])
def test_quotes_that_are_part_of_values(tmp_path, delimiter):
    """By default with tabs: a quote at the begin of a field swallowed all lines to the next such."""
    rows = [('b"', "z"), ('"a', "x"), ("foo", "y"), ('"c', "w"), ("d", '"e"')]
    (tmp_path / "e.txt").write_text("".join(delimiter.join(row) + "\n" for row in rows))
    file = {"path": "e.txt", "delimiter": delimiter, "header": "none"}
    file |= {} if delimiter == "\t" else {"quote": "none"}
    edge = {"relation": "n.to.n", "file": "e", "src": 0, "dst": 1}
    spec = {"files": {"e": file}, "nodes": [{"type": "n", "ids": "string"}], "edges": [edge]}
    with h5py.File(run_spec(tmp_path, spec)) as graph:
        ids, ends = graph["nodes/n/id"][:], [graph[f"edges/n.to.n/{end}"][:] for end in ("src", "dst")]
        assert [tuple(ids[row].decode() for row in pair) for pair in zip(*ends, strict=True)] == rows
    if delimiter == "\t":
        file |= {"quote": '"'}
        (tmp_path / "e.txt").write_text('"a\tb"\tc\n')
        with h5py.File(run_spec(tmp_path, spec)) as graph:
            assert graph["nodes/n/id"][:].tolist() == [b"a\tb", b"c"]


def test_a_first_row_of_numbers_is_no_header(tmp_path, capsys):
    """It was taken for one, and its edge was lost; a column with a number for a name can be had by that name."""
    (tmp_path / "e.csv").write_text("0,1\n1,2\n2,3\n")
    edge = {"relation": "n.to.n", "file": "e", "src": 0, "dst": 1}
    spec = {"files": {"e": {"path": "e.csv"}}, "nodes": [{"type": "n"}], "edges": [edge]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    assert "e.csv: the first line, 0, 1, is all numbers" in message
    assert "header: none" in message
    for change, count in [({"header": "none"}, 3), ({"header": "skip"}, 2)]:
        with h5py.File(run_spec(tmp_path, spec | {"files": {"e": {"path": "e.csv", **change}}})) as graph:
            assert graph["edges/n.to.n"].attrs["num_edges"] == count
    with h5py.File(run_spec(tmp_path, spec | {"edges": [edge | {"src": "0", "dst": "1"}]})) as graph:
        assert graph["edges/n.to.n"].attrs["num_edges"] == 2


def test_lists_have_no_header_of_names(tmp_path, capsys):
    """The first line was left out."""
    file = {"path": "l.txt", "format": "lists", "delimiter": "whitespace"}
    edge = {"relation": "n.to.n", "file": "l", "src": 0, "dst": 1}
    spec = {"files": {"l": file}, "nodes": [{"type": "n"}], "edges": [edge]}
    (tmp_path / "l.txt").write_text("0 1 2\n1 2 3\n")
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    assert "set header: none" in refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    file["header"] = "none"
    with h5py.File(run_spec(tmp_path, spec)) as graph:
        assert graph["edges/n.to.n"].attrs["num_edges"] == 4


@pytest.mark.parametrize("name", ["first", "last", "indptr"])
def test_columns_of_edges_that_later_steps_need(tmp_path, capsys, name):
    """Windows took a column `first` for their own, and partitions stopped at a column `indptr`."""
    edge = EDGE | {"columns": {name: {"column": "y", "dtype": "int64"}}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC_BY_NAME | {"edges": [edge]}))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"), "--set", "events=e.csv")
    assert f"the name {name!r} is taken" in message
    assert f"such as {name}_" in message


def test_numbers_too_large_for_float32_are_refused(tmp_path, capsys):
    """They became infinite after the check."""
    (tmp_path / "e.csv").write_text("u,i,t,w\n1,2,3,0.5\n1,2,3,1e39\n")
    for dtype in ("float64", "float32"):
        edge = EDGE | {"columns": {"weight": {"column": "w", "dtype": dtype}}}
        spec = SPEC_BY_NAME | {"files": {"events": {"path": "e.csv"}}, "edges": [edge]}
        if dtype == "float64":
            run_spec(tmp_path, spec)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    assert "e.csv: column 'w', row 2: the value 1e+39 does not fit into float32; set dtype: float64" in message


def test_a_weight_is_one_number(tmp_path, capsys):
    (tmp_path / "e.csv").write_text("u,i,t,w,x\n1,2,3,0.5,1\n")
    edge = EDGE | {"columns": {"weight": ["w", "x"]}}
    spec = SPEC_BY_NAME | {"files": {"events": {"path": "e.csv"}}, "edges": [edge]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    assert "e.csv: column 'w', 'x': a weight is one number, not 2; choose one" in message


@pytest.mark.parametrize("compress", [False, True])
def test_a_line_without_end_is_refused(tmp_path, capsys, compress):
    """A small gz file of one line of a gigabyte took all memory."""
    path = tmp_path / ("e.csv.gz" if compress else "e.csv")
    with (gzip.open if compress else open)(path, "wb") as file:
        file.write(b"src,dst,time\n1,2,3\n")
        for _ in range(70):
            file.write(b"7" * (1 << 20))
    for more in ([], ["--memory", "400MiB"]):
        message = refused(tmp_path, capsys, "--preset", "csv-temporal", "--set", f"events={path}", *more)
        assert "e.csv" in message
        assert "a line is longer than 64 MiB" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("src;dst;time\n1;2;3\n", "is ';' the delimiter? --set delimiter=\";\" with csv presets says so, or a spec"),
        ("src dst time\n1 2 3\n", "is ' ' the delimiter? --set delimiter=\"whitespace\" with csv presets"),
        ("user_id,item_id,timestamp\n1,2,3\n", "a spec (--spec) says which column is what"),
        ("src,dst,time\n1,2,2024-01-01T00:00:00\n", "--set dates=iso"),
    ],
)
def test_what_is_often_wrong_has_its_remedy(tmp_path, capsys, text, words):
    assert words in refused_text(tmp_path, capsys, text)


def test_a_row_is_named_with_its_line(tmp_path, capsys):
    """Blank lines and comments are no rows."""
    message = refused_text(tmp_path, capsys, "src,dst,time\n1,2,3\n\n\n1,x,4\n")
    assert "row 2: 'x' is not an integer id" in message
    assert message.endswith("(line 5)\n")
    message = refused_text(tmp_path, capsys, "% a\r\n\r\n1 2 3\r\n \t\r\n# b\r\n4 -5 6\r\n", "snap-temporal")
    assert "row 2: the id -5 is negative; ids are 0 or more, or text: --ids string (line 6)" in message
    assert "row 2 has 2 fields instead of 3 (line 4); mend" in refused_text(
        tmp_path, capsys, "src,dst,time\n1,2,3\n\n1,2\n"
    )


@pytest.mark.parametrize("text", ["src,dst,time\n1,2,3\n1,é,3\n", "src,dst,time,é\n1,2,3,4\n"])
def test_another_encoding_is_named(tmp_path, capsys, text):
    (tmp_path / "e.csv").write_bytes(text.encode("latin-1"))
    message = refused(tmp_path, capsys, "--preset", "csv-temporal", "--set", f"events={tmp_path / 'e.csv'}")
    assert "e.csv: not UTF-8 text" in message
    assert "--set encoding=latin-1 with csv presets" in message
    assert "encoding: latin-1; iconv -f latin1 -t utf-8 makes it UTF-8" in message


@pytest.mark.parametrize("value", [7, -2])
def test_a_split_is_one_of_three_sets_or_none(tmp_path, capsys, value):
    (tmp_path / "n.csv").write_text(f"id,set\n0,-1\n1,2\n2,{value}\n")
    (tmp_path / "e.csv").write_text("u,v\n0,1\n1,2\n")
    node = {"type": "n", "file": "n", "id": "id", "columns": {"split": "set"}}
    edge = {"relation": "n.to.n", "file": "e", "src": "u", "dst": "v"}
    spec = {"files": {"n": {"path": "n.csv"}, "e": {"path": "e.csv"}}, "nodes": [node], "edges": [edge]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    assert f"n.csv: column 'set', row 3: split {value} is not 0 (train), 1 (val), 2 (test) or -1 (none)" in message
    assert "(line 4)" in message


def test_a_delimiter_at_the_end_of_lines_makes_no_column(tmp_path, capsys):
    (tmp_path / "e.csv").write_text("src,dst,time,\n1,2,3,\n")
    assert main(["--preset", "csv-temporal", "--set", f"events={tmp_path / 'e.csv'}", str(tmp_path / "g.h5")]) == 0
    assert "not read" not in capsys.readouterr().out


def test_carriage_returns_alone_are_no_line_ends(tmp_path, capsys):
    assert r"tr '\r' '\n' < FILE > NEW" in refused_text(tmp_path, capsys, "src,dst,time\r1,2,3\r")


def test_a_compressed_file_of_the_name_is_named(tmp_path, capsys):
    with gzip.open(tmp_path / "e.csv.gz", "wt") as file:
        file.write("src,dst,time\n1,2,3\n")
    for more in ([], ["--memory", "8GiB"]):
        message = refused(tmp_path, capsys, "--preset", "csv-temporal", "--set", f"events={tmp_path / 'e.csv'}", *more)
        assert "e.csv: no such file; e.csv.gz is there" in message


def test_a_damaged_page_of_parquet_is_named(tmp_path, capsys):
    path = tmp_path / "e.parquet"
    pyarrow.parquet.write_table(pa.table({"u": range(50_000), "i": range(50_000), "t": range(50_000)}), path)
    content = bytearray(path.read_bytes())
    content[1_000:1_040] = bytes(range(40))
    path.write_bytes(content)
    spec = SPEC_BY_NAME | {"files": {"events": {"path": "e.parquet"}}, "edges": [EDGE]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    assert "e.parquet: not a readable parquet file" in message
    assert "write it anew" in message


def test_an_unknown_preset_lists_the_others_once(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--preset", "nonsense", str(tmp_path / "g.h5")])
    assert capsys.readouterr().err.count("csv-temporal") == 1


@pytest.mark.parametrize("ids", ["int", "string"])
@pytest.mark.parametrize("name", ["u", "t"])
def test_an_id_or_a_time_is_one_value(tmp_path, capsys, name, ids):
    """Not a list, as parquet may have."""
    columns = {"u": [1, 2], "i": [3, 4], "t": [5, 6]} | {name: [[1, 2], [3, 4]]}
    pa.parquet.write_table(pa.table(columns), tmp_path / "e.parquet")
    nodes = [{"type": "user", "ids": ids}, {"type": "item"}]
    spec = {"files": {"events": {"path": "e.parquet"}}, "nodes": nodes, "edges": [EDGE]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    assert f"e.parquet: column {name!r}: an id or a time is one value, not a list" in message
