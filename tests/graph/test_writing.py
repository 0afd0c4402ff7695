"""Files are written under a name of their own and appear whole."""

import os
import pathlib
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

from hpcgnn.graph import durable, files

pytestmark = pytest.mark.serial


def test_writers_of_one_file_do_not_meet(tmp_path):
    """They shared a temporary file: the published one had holes."""
    path, values = tmp_path / "g.h5", np.arange(1 << 16)
    with files.writing(path, files.GRAPH, kind="static") as first:
        first["values"] = values
        with files.writing(path, files.GRAPH, kind="static") as second:
            second["values"] = -values
        with files.open_checked(path, files.GRAPH) as file:
            assert np.array_equal(file["values"][:], -values)
    with files.open_checked(path, files.GRAPH) as file:
        assert np.array_equal(file["values"][:], values)
    assert os.listdir(tmp_path) == ["g.h5"]


@pytest.mark.parametrize("name", ["g.h5", "two.dots.h5", "[a]", ".hidden"])
def test_leftovers_of_a_killed_writer_are_removed(tmp_path, name):
    """Those of one that is at work, and of other files, stay."""
    path, other = tmp_path / name, tmp_path / durable.temporary_name("x" + name)
    code = (
        "import os, sys; from hpcgnn.graph import files\n"
        "with files.writing(sys.argv[1], files.GRAPH): os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=100)
    assert killed.returncode == -signal.SIGKILL
    (leftover,) = tmp_path.iterdir()
    other.touch()
    with files.writing(path, files.GRAPH, kind="static"):
        assert not leftover.exists()
        with files.writing(path, files.GRAPH, kind="static"):
            assert len(list(tmp_path.iterdir())) == 3
    assert set(tmp_path.iterdir()) == {path, other}


def test_permissions_are_those_of_the_umask(tmp_path):
    with files.writing(tmp_path / "g.h5", files.GRAPH, kind="static"):
        pass
    (tmp_path / "plain").touch()
    assert pathlib.Path(tmp_path / "g.h5").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_columns_that_a_small_file_cannot_hold_together_are_refused(tmp_path):
    """40 columns of 254 MiB in 36 KB became 9.9 GB when they were copied: each alone was below the limit."""
    for count in (1, 40):
        path = tmp_path / f"{count}.h5"
        with files.writing(path, files.GRAPH, kind="static") as file:
            for column in range(count):
                file.create_dataset(f"nodes/n/c{column}", (254 << 20,), np.int8, chunks=True, compression="gzip")
        if count == 1:
            files.open_checked(path, files.GRAPH).close()
        else:
            with pytest.raises(files.FileFormatError, match=r"40\.h5: 10,653,532,160 bytes of columns do not"):
                files.open_checked(path, files.GRAPH)


@pytest.mark.parametrize(("num_rows", "tail", "rows"), [(9_000_000, (), 262_144), (7, (3,), 7), (90, (200, 4000), 1)])
def test_chunks_of_a_column_are_of_a_mebibyte(tmp_path, num_rows, tail, rows):
    """Or of all rows, or of one."""
    with h5py.File(tmp_path / "c.h5", "w") as file:
        assert files.create_column(file, "x", num_rows, tail, np.float32).chunks == (rows, *tail)


def test_a_file_that_exists_is_not_written_over(tmp_path):
    """Names of files that are being written are drawn: one that exists is another's."""
    path = tmp_path / "part"
    path.write_text("another's")
    with pytest.raises(FileExistsError):
        durable.OutputFile(path)
    assert path.read_text() == "another's"
