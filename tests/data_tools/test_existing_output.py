"""A command that writes a file does not replace one that is there unless it is told to, and looks before it works."""

import pytest

from data_tools import convert, derive, export_metis, split, synthesize
from data_tools.snapshots import command as snapshots

pytestmark = pytest.mark.serial

COMMANDS = {
    "convert": (convert.main, ["--preset", "csv-temporal", "--set", "events=missing.csv"]),
    "split": (split.main, ["missing.h5", "--nodes", "page"]),
    "derive": (derive.main, ["missing.h5", "--relation", "user.likes.item"]),
    "export_metis": (export_metis.main, ["missing.h5"]),
    "lists": (snapshots.main, ["lists", "missing.csv"]),
    "windows": (snapshots.main, ["windows", "missing.h5", "--windows", "3"]),
    "synthesize": (synthesize.main, ["--events", "20"]),
    "synthesize static": (synthesize.main, ["--static", "--num_nodes", "20"]),
}


def run(main, arguments: list[str], capsys) -> tuple[int, str]:
    """Exit code and message of a command."""
    try:
        return main(arguments), capsys.readouterr().err
    except ValueError as error:
        return 2, str(error)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_that_is_there_stays(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out.h5").write_text("dear")
    main, arguments = COMMANDS[name]
    code, message = run(main, [*arguments, "out.h5"], capsys)
    assert code == 2
    assert "out.h5: exists already; choose another name or pass --overwrite" in message
    assert (tmp_path / "out.h5").read_text() == "dear"
    code, message = run(main, [*arguments, "--overwrite", "out.h5"], capsys)
    if name.startswith("synthesize"):
        assert code == 0
        assert (tmp_path / "out.h5").read_bytes()[1:4] == b"HDF"
    else:
        assert "missing" in message, "the output was looked at first"
        assert (tmp_path / "out.h5").read_text() == "dear"
