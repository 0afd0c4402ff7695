"""Arrays of npz files are what np.load gives, mapped or not; a flipped bit is found in both."""

import zipfile

import numpy as np
import pytest

from data_tools.source.formats import npz_arrays
from data_tools.source.formats.arrays import NpzTable
from data_tools.source.formats.text_stream import TextSource
from hpcgnn.graph.files import FileFormatError

pytestmark = pytest.mark.serial


@pytest.fixture(params=[0, 1 << 30], ids=["mapped", "read"])
def limit(request, monkeypatch):
    monkeypatch.setattr(npz_arrays, "MAPPED_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_of_numpy(tmp_path, limit, save):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.standard_normal((50, 3)),
        "fortran": np.asfortranarray(rng.integers(0, 9, (4, 6))),
        "number": np.array(7),
        "a" * 300: np.arange(5, dtype=np.int16),
    }
    save(tmp_path / "g.npz", **arrays)
    found = NpzTable(TextSource(tmp_path / "g.npz")).arrays
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        assert found.header(name) == (array.shape, array.dtype)
        assert isinstance(found[name], np.memmap) == (limit == 0 and save is np.savez)


def test_damage_is_found(tmp_path, limit):
    np.savez(tmp_path / "g.npz", x=np.arange(1000.0))
    data = bytearray((tmp_path / "g.npz").read_bytes())
    data[4000] ^= 1
    (tmp_path / "g.npz").write_bytes(data)
    with pytest.raises(FileFormatError, match=r"g.npz: array 'x' cannot be read \(Bad CRC-32"):
        NpzTable(TextSource(tmp_path / "g.npz")).array("x")
    (tmp_path / "g.npz").write_bytes(data[:2000])
    with pytest.raises(FileFormatError, match=r"g.npz: not a readable npz file"):
        NpzTable(TextSource(tmp_path / "g.npz")).array("x")


def test_objects_are_refused(tmp_path, limit):
    np.savez(tmp_path / "g.npz", x=np.array([{}], object))
    with pytest.raises(FileFormatError, match=r"array 'x' cannot be read"):
        NpzTable(TextSource(tmp_path / "g.npz")).array("x")
    assert zipfile.is_zipfile(tmp_path / "g.npz")
