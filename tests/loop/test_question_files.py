"""Files of questions: the same rows whatever their format, their blocks and the number of ranks; what is refused names
file and row."""

from __future__ import annotations

import csv
import datetime
import gzip
import zoneinfo
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_runs import on_rank_0

from hpcgnn.comm.world import DistributedError
from hpcgnn.graph import text_table
from hpcgnn.loop.answer_file import AnswerColumns, write_answers
from hpcgnn.loop.question_file import Named, finite_numbers, id_column, read_edges, read_questions, read_times
from hpcgnn.loop.source_times import TimeUnit, date_texts

COUNT = 40  # nodes
WORDS = ["1", "likes", "hates"]


@dataclass
class Ids:
    """Stands for OriginalIds: node n has the integer 10 + n, or the name é<n>."""

    are_integers: bool = True

    def find(self, ids):
        names = [10 + n if self.are_integers else f"é{n}".encode() for n in range(COUNT)]
        return np.array([names.index(name) if name in names else -1 for name in ids.tolist()], np.int64)


def named(are_integers: bool = True) -> dict[str, Named]:
    return {column: Named([kind], lambda _: Ids(are_integers)) for column, kind in (("src", "user"), ("dst", "item"))}


def rows(number: int) -> list[tuple[str, str, str]]:
    rng = np.random.default_rng(4)
    return [(f"é{a}", f"é{b}", WORDS[c]) for a, b, c in rng.integers(0, (COUNT, COUNT, 3), (number, 3)).tolist()]


def write_csv(path, rows) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["rel", "src", "unread", "dst"])
        writer.writerows((rel, f" {src}", "1\n2", dst) for src, dst, rel in rows)


def write_marked(path, rows) -> None:
    write_csv(path, rows)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


def write_gzip(path, rows) -> None:
    """Of several members, as `cat a.gz b.gz` leaves them."""
    write_csv(path, rows)
    text = path.read_bytes()
    path.write_bytes(b"".join(gzip.compress(part) for part in (text[:50], text[50:])))


def write_parquet(path, rows) -> None:
    src, dst, rel = zip(*rows, strict=True) if rows else ((), (), ())
    table = pa.table({"src": pa.array(src, pa.large_string()), "rel": pa.array(rel, pa.string()).dictionary_encode(),
                      "dst": pa.array(dst, pa.string())})  # fmt: skip
    pq.write_table(table, path, row_group_size=11)


@pytest.mark.parametrize("write", [write_csv, write_marked, write_gzip, write_parquet])
@pytest.mark.parametrize("number", [0, 1, 100])
def test_all_formats_are_the_same_questions(world, comm, mpi_tmp_path, monkeypatch, write, number):
    monkeypatch.setattr(text_table, "CSV_BYTES", 300)
    monkeypatch.setattr(text_table, "ROWS", 7)
    path, expected = mpi_tmp_path / "questions", rows(number)
    on_rank_0(comm, lambda: write(path, expected))
    questions = read_edges(str(path), named(False), world, 3, WORDS)
    assert questions.total == number
    found = {"src": questions.node["src"], "dst": questions.node["dst"], "rel": questions.value["rel"]}
    shown = AnswerColumns(questions.row, number, questions.shown)
    names = {name: shown.slab(name, 0, world) for name in ("src", "dst", "rel")}
    order = world.gather_rows(questions.row)
    found = {name: world.gather_rows(column) for name, column in found.items()}
    assert np.all(np.diff(questions.row) > 0)
    assert len(questions.row) <= -(-number // world.size)
    if world.rank == 0:
        assert sorted(order.tolist()) == list(range(number))
        numbers = [(int(src[1:]), int(dst[1:]), WORDS.index(rel)) for src, dst, rel in expected]
        mine = zip(*(column[np.argsort(order)].tolist() for column in found.values()), strict=True)
        assert list(mine) == numbers
        assert list(zip(*(column.tolist() for column in names.values()), strict=True)) == expected


def test_integers_are_read_as_convert_reads_them(world, comm, mpi_tmp_path):
    path = mpi_tmp_path / "questions.csv"
    on_rank_0(comm, lambda: path.write_text("src,dst\n 017,+12\n13.0,49.\n11,10\n") and None)
    questions = read_edges(str(path), named(), world)
    nodes = [world.gather_rows(questions.node[name]) for name in ("src", "dst")]
    order = world.gather_rows(questions.row)
    if world.rank == 0:
        assert [column[np.argsort(order)].tolist() for column in nodes] == [[7, 3, 1], [2, 39, 0]]


REFUSED = {
    "semicolons": ("src;dst\n10;20\n", "no column src, dst, rel; it has src;dst: its fields .* by ';': use commas"),
    "no column": ("src,rel\n10,0\n", "no column dst; it has src, rel"),
    "twice": ("src,dst,src,rel\n10,11,10,0\n", "column src is there 2 times: leave one"),
    "short row": ("src,dst,rel\n10,11,0\n\n10,11\n", "row 2: 3 fields expected, as in the header"),
    "long row": ("src,dst,rel\n" + "10,11,0\n" * 150 + "10,11,1,2\n", "row 151: 3 fields expected"),
    "another encoding": ("src,dst,rel\né,2,0\n".encode("latin-1"), "not a CSV in UTF-8"),
    "nothing": ("", "not a CSV in UTF-8: Empty CSV file"),
    "half a file": (gzip.compress(b"src,dst,rel\n" + b"10,11,0\n" * 99)[:-10], "not a CSV in UTF-8: Truncated"),
    "another type": ("src,dst,rel\n10,11,likes\n", "row 1: rel 'likes' is no edge type: the graph numbers them from 0"),
    "a late type": ("src,dst,rel\n" + "10,11,0\n" * 150 + "10,11,4\n", "row 151: rel '4' is no edge type"),
    "unknown nodes": ("src,dst,rel\n" + "10,11,0\n" * 150 + "10,9,0\n10,x,1\n10,99999999999999999999,1\n",
                      r"row 151: dst '9' is no item of this graph \(3 such rows\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_files_are_refused_by_row(world, comm, mpi_tmp_path, monkeypatch, case):
    monkeypatch.setattr(text_table, "CSV_BYTES", 400)
    content, message = REFUSED[case]
    path = mpi_tmp_path / "questions.csv"
    on_rank_0(comm, lambda: path.write_bytes(content if isinstance(content, bytes) else content.encode()) and None)
    with pytest.raises(DistributedError, match=rf"questions\.csv: {message}"):
        read_edges(str(path), named(), world, 4)


def test_edge_types_have_names(world, comm, mpi_tmp_path):
    """A word comes before a number that is spelled the same."""
    path = mpi_tmp_path / "questions.csv"
    on_rank_0(comm, lambda: path.write_text("src,dst,rel\n10,11,likes\n10,11,0\n10,11,1\n") and None)
    rel = world.gather_rows(read_edges(str(path), named(), world, 3, WORDS).value["rel"])
    assert rel is None or sorted(rel.tolist()) == [0, 0, 1]
    with pytest.raises(DistributedError, match=r"rel 'likes' is no edge type: .* from 0 to 2, or by name, such as a"):
        read_edges(str(path), named(), world, 3, ["a", "b", "c"])


@pytest.mark.parametrize("missing", ["src", "rel"])
def test_nulls_are_refused_by_row(world, comm, mpi_tmp_path, missing):
    path = mpi_tmp_path / "questions.parquet"
    columns = {"src": [10, 11, 12], "dst": [10, 11, 12], "rel": [0, 1, 2]}
    columns[missing] = [*columns[missing][:2], None]
    on_rank_0(comm, lambda: pq.write_table(pa.table(columns), path))
    with pytest.raises(DistributedError, match=rf"row 3: {missing} is null"):
        read_edges(str(path), named(), world, 3)
    on_rank_0(comm, lambda: pq.write_table(pa.table({"src": [[1]], "dst": [2]}), path))
    with pytest.raises(DistributedError, match="not a Parquet file with columns of text or numbers"):
        read_edges(str(path), named(), world)


@pytest.mark.parametrize("names", [["1", "007"], ["1", "+2"], ["1", "x"], ["1", str(1 << 70)], ["1", str(1 << 63)]])
def test_ids_stay_as_they_are_spelt(world, names):
    """One odd name of one rank makes all columns text."""
    own = names if world.rank == world.size - 1 else ["1", "2"]
    assert id_column([pa.array(own)], world)[:].tolist() == own
    whole = id_column([pa.array(["1"]), pa.array(["-2", str((1 << 63) - 1)])], world)
    assert whole.tolist() == [1, -2, (1 << 63) - 1]


@pytest.mark.parametrize("word", ["many", "nan", "inf", ""])
def test_numbers_are_finite(world, comm, mpi_tmp_path, word):
    path = mpi_tmp_path / "questions.csv"
    on_rank_0(comm, lambda: path.write_text(f"src,dst,x\n10,12,0.5\n13,14,{word}\n15,16,1e3\n") and None)

    def parse(path, first, text):
        return {"x": finite_numbers(path, first, "x", text["x"])}

    with pytest.raises(DistributedError, match=rf"row 2: x '{word}' is not a finite number"):
        read_questions(str(path), named(), world, ["x"], parse=parse)
    on_rank_0(comm, lambda: path.write_text("src,dst,x\n10,12,0.5\n15,16,1e3\n") and None)
    numbers = world.gather_rows(read_questions(str(path), named(), world, ["x"], parse=parse).value["x"])
    assert numbers is None or sorted(numbers.tolist()) == [0.5, 1000]
    with pytest.raises(DistributedError, match=r"none\.csv: no such file"):
        read_questions(str(mpi_tmp_path / "none.csv"), named(), world)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_names_are_written_as_they_were_read(world, comm, mpi_tmp_path, monkeypatch, suffix):
    """In slabs that hold a few rows, and texts of any length."""
    monkeypatch.setattr("hpcgnn.loop.answer_file.SLAB", 16)
    path, out = mpi_tmp_path / "questions.csv", mpi_tmp_path / f"out.{suffix}"
    expected = rows(100)
    on_rank_0(comm, partial(write_csv, path, expected))
    questions = read_edges(str(path), named(False), world, 3, WORDS)
    write_answers(str(out), AnswerColumns(questions.row, 100, questions.shown), world)
    if world.rank:
        return
    if suffix == "npz":
        with np.load(out) as file:
            found = zip(*(file[name].tolist() for name in ("src", "dst", "rel")), strict=True)
    elif suffix == "parquet":
        found = zip(*pq.read_table(out).to_pydict().values(), strict=True)
    else:
        with open(out, newline="") as file:
            found = map(tuple, list(csv.reader(file))[1:])
    assert list(found) == expected


# ---------------------------------------------------------------------------------------------------------------- dates

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Africa/Monrovia"]
UTC = datetime.timezone.utc
# Times of the graph in a second, and the decimals of dates.
SCALES = {1: "seconds", 1000.0: "milliseconds", 1e5: "microseconds", 1e6: "microseconds", 1 / 60: "seconds",
          1 / 86400: "seconds"}  # fmt: skip


def python_date(seconds: Fraction, zone: str) -> datetime.datetime:
    """The date of seconds since 1970, by the standard library."""
    moment = datetime.datetime(1970, 1, 1, tzinfo=UTC) + datetime.timedelta(microseconds=int(seconds * 10**6))
    return moment.astimezone(zoneinfo.ZoneInfo(zone))


@pytest.mark.serial
@given(
    seconds=st.lists(st.integers(-9_000_000_000, 9_000_000_000), min_size=1, max_size=20),
    scale=st.sampled_from(list(SCALES)), zone=st.sampled_from(ZONES),
)  # fmt: skip
def test_dates_of_answers_are_exact_and_read_back(seconds, scale, zone):
    """From 1684 to 2255; offsets that are no whole number of minutes are rare, and are written in UTC."""
    rate, unit = Fraction(scale).limit_denominator(10**6), TimeUnit(scale, zone)
    times = np.array([int(second * rate) for second in seconds])
    dates = [python_date(time / rate, zone) for time in times.tolist()]
    texts = date_texts(unit.shown(times), zone)
    for text, date in zip(texts.tolist(), dates, strict=True):
        assert datetime.datetime.fromisoformat(text) == date
        is_whole = date.utcoffset() % datetime.timedelta(minutes=1) == datetime.timedelta(0)
        assert text == (date if is_whole else date.astimezone(UTC)).isoformat(timespec=SCALES[scale])
    assert read_times("answers.csv", 1, pa.array(texts), 0, unit).tolist() == times.tolist()


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_dates_are_written_in_every_format(world, mpi_tmp_path, monkeypatch, suffix):
    """Over the hour in March that does not exist in Berlin; a date that is not known is empty."""
    monkeypatch.setattr("hpcgnn.loop.answer_file.SLAB", 16)
    total, zone, out = 50, "Europe/Berlin", mpi_tmp_path / f"out.{suffix}"
    seconds = 1711840500 + 900 * np.arange(total)
    dates = [python_date(Fraction(second), zone).isoformat() for second in seconds.tolist()]
    dates[7] = ""
    assert {date[-6:] for date in dates} == {"+01:00", "+02:00", ""}
    seconds[7] = np.iinfo(np.int64).min
    row = np.arange(world.rank, total, world.size)
    write_answers(str(out), AnswerColumns(row, total, {"time": seconds[row].view("M8[s]")}, zone=zone), world)
    if world.rank:
        return
    if suffix == "npz":
        with np.load(out) as file:
            found = file["time"].tolist()
    elif suffix == "parquet":
        column = pq.read_table(out)["time"]
        assert column.type.tz == zone
        found = ["" if date is None else date.isoformat() for date in column.to_pylist()]
    else:
        with open(out, newline="") as file:
            found = [line["time"] for line in csv.DictReader(file)]
    assert found == dates


@pytest.mark.serial
def test_times_beyond_all_dates_are_refused():
    with pytest.raises(ValueError, match=r"row 2: time 1e10 is no date from 1678 to 2262"):
        read_times("pairs.csv", 1, pa.array(["5", "1e10"]), 0, TimeUnit(1, "UTC"))
    assert read_times("pairs.csv", 1, pa.array(["1e10"]), 0, TimeUnit()).tolist() == [10**10]
