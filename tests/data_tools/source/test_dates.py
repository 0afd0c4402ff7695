"""Dates become seconds since 1970, as Python's datetime has them, in any form, type and zone."""

from __future__ import annotations

import datetime
import zoneinfo

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools.convert import main
from data_tools.source.formats.dates import Dates
from data_tools.source.formats.values import Place
from hpcgnn.graph.files import FileFormatError

pytestmark = pytest.mark.serial
PLACE = Place("events.csv", "time", 0)
UTC = datetime.timezone.utc
MOMENTS = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
UNITS = {"s": 10**6, "ms": 10**3, "us": 1}  # microseconds of each


@given(moments=st.lists(MOMENTS, min_size=1, max_size=5))
def test_dates_are_those_of_datetime(moments):
    """ISO text with and without a zone, another form, and Arrow's types, in microseconds."""
    first, micro = datetime.datetime(1970, 1, 1), datetime.timedelta(microseconds=1)
    expected = [(moment - first) // micro for moment in moments]
    text = {
        "iso": [m.isoformat() for m in moments], "zoned": [m.replace(tzinfo=UTC).isoformat() for m in moments],
        "%d.%m.%Y %H:%M:%S.%f": [m.strftime("%d.%m.%Y %H:%M:%S.%f") for m in moments],
    }  # fmt: skip
    for form, words in text.items():
        found = Dates("iso" if form == "zoned" else form).parse(pa.array(words), PLACE, 10**6)
        assert found.tolist() == expected, form
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("us", "America/New_York")):
        assert Dates().parse(pa.array(moments, kind), PLACE, 10**6).tolist() == expected


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "UTC"])
def test_the_zone_of_dates_that_name_none(zone):
    moment = datetime.datetime(2026, 7, 1, 12)
    expected = int(moment.replace(tzinfo=zoneinfo.ZoneInfo(zone)).timestamp())
    for form, column in (("iso", ["2026-07-01T12:00:00"]), ("%d.%m.%Y %Hh", ["01.07.2026 12h"])):
        assert Dates(form, zone).parse(pa.array(column), PLACE, 1).tolist() == [expected]
    assert Dates(zone=zone).parse(pa.array([moment]), PLACE, 1).tolist() == [expected]


@pytest.mark.parametrize("unit", UNITS)
def test_dates_in_parquet(tmp_path, unit):
    moments = [datetime.datetime(2024, 1, 1, tzinfo=UTC), datetime.datetime(2024, 1, 1, 0, 0, 1, tzinfo=UTC)]
    table = {"src": [1, 2], "dst": [2, 3], "time": pa.array(moments, pa.timestamp(unit, "Asia/Tokyo"))}
    pa.parquet.write_table(pa.table(table), tmp_path / "events.parquet")
    command = ["--preset", "csv-temporal", "--set", f"events={tmp_path}/events.parquet", str(tmp_path / "graph.h5")]
    assert main(command) == 0
    with h5py.File(tmp_path / "graph.h5") as file:
        assert file["edges/node.to.node/time"][:].tolist() == [1704067200, 1704067201]
        assert file["edges/node.to.node"].attrs["zone"] == "Asia/Tokyo"


@pytest.mark.parametrize(("form", "ticks"), [("unix", 1), ("unix_ms", 10**3), ("unix_us", 10**6), ("unix_ns", 10**9)])
def test_integers_since_1970_are_dates_of_their_unit(tmp_path, form, ticks):
    """Stored by the scale, whatever the unit of the source; as numbers, and as text of a file."""
    seconds = np.array([-1, 1704067200, 1704067201])
    for scale in (1, 1000, 10**9):
        for column in (seconds * ticks, pa.array((seconds * ticks).astype(str))):
            assert Dates(form).parse(column, PLACE, scale).tolist() == (seconds * scale).tolist()
    table = {"src": [1, 2, 3], "dst": [2, 3, 4], "time": seconds * ticks}
    pa.parquet.write_table(pa.table(table), tmp_path / "events.parquet")
    command = ["--preset", "csv-temporal", "--set", f"events={tmp_path}/events.parquet", str(tmp_path / "graph.h5")]
    assert main([*command, "--set", f"dates={form}", "--set", "zone=Asia/Tokyo"]) == 0
    with h5py.File(tmp_path / "graph.h5") as file:
        assert file["edges/node.to.node/time"][:].tolist() == seconds.tolist()
        assert file["edges/node.to.node"].attrs["zone"] == "Asia/Tokyo"


def test_dates_in_csv(tmp_path):
    """With another delimiter and encoding."""
    text = "src;dst;größe;time\n1;2;0;2024-01-01\n2;3;0;2024-01-01 00:00:00.25\n"
    (tmp_path / "events.csv").write_bytes(text.encode("latin-1"))
    command = ["--preset", "csv-temporal", "--set", f"events={tmp_path}/events.csv", "--set", "dates=iso"]
    command += ["--set", "delimiter=;", "--set", "encoding=latin-1"]
    assert main([*command, str(tmp_path / "graph.h5")]) == 2  # a quarter of a second
    assert main([*command, "--set", "time_scale=1000", str(tmp_path / "graph.h5")]) == 0
    with h5py.File(tmp_path / "graph.h5") as file:
        assert file["edges/node.to.node/time"][:].tolist() == [1704067200000, 1704067200250]


def test_a_form_of_dates_is_set_as_it_is(tmp_path):
    """A value of --set is YAML, where no text begins with %."""
    (tmp_path / "events.csv").write_text("src,dst,time\n1,2,31.12.2023 23:30\n2,3,01.01.2024 08:00\n")
    command = ["--preset", "csv-temporal", "--set", f"events={tmp_path}/events.csv", "--set", "zone=Europe/Berlin"]
    for number, form in enumerate(("%d.%m.%Y %H:%M", '"%d.%m.%Y %H:%M"')):
        graph = tmp_path / f"{number}.h5"
        assert main([*command, "--set", f"dates={form}", str(graph)]) == 0
        with h5py.File(graph) as file:
            assert file["edges/node.to.node/time"][:].tolist() == [1704061800, 1704092400]


OFFSETS = {
    "all with one": ["2024-01-01T12:00:00+02:00", "2024-01-01T12:00:00Z", "2024-01-01 12:00:00.250-0530",
                     "2024-01-01T12:00+02"],
    "some without": ["2024-01-01T12:00:00+02:00", "2024-01-01", "2024-01-01 12:00:00.250-05:30",
                     "2024-01-01T12:00+02:00"],
}  # fmt: skip


@pytest.mark.parametrize("case", OFFSETS)
@pytest.mark.parametrize(
    ("zone", "kept"),
    [("UTC", "stored and answered in UTC"), ("Asia/Tokyo", "stored in UTC and answered in Asia/Tokyo")],
)
def test_offsets_in_text_are_noted_once(tmp_path, capsys, case, zone, kept):
    """Dates are those of datetime, and the note counts each offset; Z is none."""
    rows = "".join(f"{row},{row + 1},{date}\n" for row, date in enumerate(OFFSETS[case]))
    (tmp_path / "events.csv").write_text("src,dst,time\n" + rows)
    command = ["--preset", "csv-temporal", "--set", f"events={tmp_path}/events.csv", "--set", "dates=iso", "--sort"]
    command += ["--set", "time_scale=1000", "--set", f"zone={zone}", str(tmp_path / "graph.h5")]
    assert main(command) == 0
    note = f"node.to.node: time: 3 dates have offsets from UTC (+02:00 in 2, -05:30 in 1); times are {kept}"
    assert capsys.readouterr().out.count(note) == 1
    plain = datetime.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo(zone)).timestamp() if case != "all with one" else 0
    expected = [1704103200, 1704103200, plain or 1704110400, 1704130200.25]
    with h5py.File(tmp_path / "graph.h5") as file:
        assert file["edges/node.to.node/time"][:].tolist() == sorted(1000 * time for time in expected)
        assert file["edges/node.to.node"].attrs["zone"] == zone


def test_dates_in_utc_have_no_note(tmp_path, capsys):
    (tmp_path / "events.csv").write_text("src,dst,time\n1,2,2024-01-01T00:00:00Z\n2,3,2024-01-01T00:00:00+00:00\n")
    command = ["--preset", "csv-temporal", "--set", f"events={tmp_path}/events.csv", "--set", "dates=iso"]
    assert main([*command, str(tmp_path / "graph.h5")]) == 0
    assert "offset" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dates", "column", "message"),
    [
        (Dates("iso"), ["2024-01-01", "soon"], "row 2: 'soon' is no date in ISO 8601"),
        (Dates("iso"), ["2024-01-01", ""], "row 2: '' is no date"),
        (Dates("%d.%m.%Y"), ["1.1.2024", "2024-01-01"], "row 2: .* of the form %d.%m.%Y"),
        (Dates("iso"), ["2024-01-01T00:00:00.5"], "row 1: .* falls between two times; declare a time_scale"),
        (Dates(), [datetime.datetime(2024, 1, 1), None], "row 2: the date is missing"),
        (Dates("unix"), [1, 1704067200123], "row 2: 1704067200123 is no date from 1677-09-21 .*unix_ms"),
        (Dates("unix_ms"), [1704067200123], "row 1: .*00.123.* falls between two times; declare a time_scale"),
        (Dates("unix_ms"), [-1, 2**62], "row 2: .* is no date from 1677-09-21 to 2262-04-11.*unix_ns"),
        (Dates(zone="Europe/Berlin"), [datetime.datetime(2024, 3, 31, 2, 30)], "does not exist in Europe/Berlin"),
    ],
)
def test_what_is_no_date_is_refused(dates, column, message):
    with pytest.raises(FileFormatError, match=message):
        dates.parse(pa.array(column), PLACE, 1)


@pytest.mark.parametrize(("form", "zone"), [("day", "UTC"), ("unix_day", "UTC"), ("iso", "Mars/Olympus")])
def test_forms_and_zones_that_are_none(form, zone):
    with pytest.raises(ValueError, match=r"neither iso nor a format|no time zone"):
        Dates(form, zone)


def test_times_of_other_columns_stay_numbers():
    assert not Dates().covers(np.array([1, 2]))
    assert not Dates().covers(pa.array(["1", "2"]))
