"""Narrow forms of features: their numbers, their error, what they lack, and the commands that store them."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import torch
from static_runs import narrow, plain, typed
from training_runs import bipartite

from data_tools import convert, derive, inspect, synthesize
from data_tools.export.tables import graph_tables, part_tables
from data_tools.graph.narrow import narrow_features
from data_tools.partition.command import partition
from data_tools.snapshots import command as snapshots
from data_tools.verify.command import verify
from hpcgnn.graph import files
from hpcgnn.graph.columns import Piece, StoredColumn, Widening
from hpcgnn.graph.narrow import FEATURE_DTYPES, UINT8, Encoding, LostRow, find_range, make_steps, read_encoding

pytestmark = pytest.mark.serial
FEAT = "nodes/node/feat"


def columns(count: int = 300) -> np.ndarray:
    """Columns of many ranges, one of them constant, one tiny, one far from 0."""
    rng = np.random.default_rng(2)
    scale, offset = np.array([1, 1e-3, 1e6, 0, 1e-40, 1]), np.array([0, 5, -1e5, 0.1, 0, 1e4])
    return rng.uniform(-1, 1, (count, 6)) * scale + offset


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_8_bits_err_by_half_a_step_of_each_column(dtype):
    """Besides the rounding of float32; half a step is reached, so that no smaller bound holds. The ends of a column and
    constants have no error but that."""
    rows = columns().astype(dtype)
    encoding = make_steps(*find_range([rows[:7], rows[7:]], 6))
    wide = encoding.decode(encoding.encode(rows))
    error, half = np.abs(wide - rows.astype(np.float64)), np.array(encoding.scale) / 2
    rounding = np.spacing(np.abs(rows).max(axis=0).astype(np.float32)).astype(np.float64)
    assert (error <= half + rounding).all()
    assert (error.max(axis=0)[[0, 2]] > 0.98 * half[[0, 2]]).all()
    assert (np.ptp(rows, axis=0) / 255 <= np.array(encoding.scale)).all()
    assert (np.array(encoding.scale)[[0, 2]] < np.ptp(rows, axis=0)[[0, 2]] / 255 * (1 + 2**-14)).all()
    assert len(np.unique(encoding.encode(rows)[:, 0])) > 150


def test_float_forms_round_to_the_nearest_number():
    """Ties to even, as PyTorch does."""
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, np.uint32).view(np.float32)
    values = np.concatenate([bits[np.isfinite(bits) & (np.abs(bits) < 3e38)], [0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8]])
    values = values.astype(np.float32).reshape(-1, 1)
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        kept = values[np.abs(values[:, 0]) < 65504] if name == "float16" else values
        expected = torch.from_numpy(kept).to(dtype).float().numpy()
        encoding = Encoding(name)
        assert np.array_equal(encoding.decode(encoding.encode(kept)), expected)


@pytest.mark.parametrize("name", FEATURE_DTYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_are_widened_to_the_same_bits(name, dtype):
    rows = columns().astype(np.float32) / 100
    encoding = make_steps(*find_range([rows], 6)) if name == UINT8 else Encoding(name)
    codes = encoding.encode(rows)
    widening = Widening(encoding, dtype, normalize=False)
    assert torch.equal(widening(widening.stored(codes)), torch.from_numpy(encoding.decode(codes)).to(dtype))
    assert widening.stored(codes).element_size() == (1 if name == UINT8 else 2)


def test_a_step_times_a_level_is_exact_in_float32():
    """So that a fused product and sum gives the same number."""
    rng = np.random.default_rng(1)
    high = np.exp(rng.uniform(-80, 80, 1000))
    scale = np.array(make_steps(np.zeros(1000), high).scale)
    exact = scale * np.arange(256)[:, None]
    assert np.array_equal((scale.astype(np.float32) * np.arange(256, dtype=np.float32)[:, None]).astype(float), exact)
    assert np.array_equal(scale, scale.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("uint8", np.nan, "nodes/node/feat, row 17, column 2: nan has no level in uint8: mend or fill the value"),
        ("uint8", -np.inf, "row 17, column 2: -inf has no level in uint8"),
        ("float16", 65520.0, "row 17, column 2: 65520 is beyond float16: choose another --feature_dtype"),
        ("bfloat16", 3.4e38, r"row 17, column 2: 3.4e\+38 is beyond bfloat16"),
    ],
)
def test_numbers_that_a_form_lacks_are_refused_by_name(tmp_path, name, value, message):
    """By the commands too, and the graph file stays as it was."""
    path = plain(tmp_path / "graph.h5")
    with h5py.File(path, "r+") as file:
        file[FEAT][17, 2] = value
    before = path.read_bytes()
    with pytest.raises(files.FileFormatError, match=message):
        narrow_features(path, path, name)
    assert path.read_bytes() == before
    if np.isfinite(value):
        with pytest.raises(files.FileFormatError, match=message):
            partition(path, tmp_path / "parts", 2, feature_dtype=name)


def test_other_numbers_have_no_level():
    encoding = make_steps(np.array([0.0]), np.array([255.0]))
    assert encoding.encode(np.array([[255.4], [-0.4]])).ravel().tolist() == [255, 0]
    for value in (255.6, -0.6, np.nan, np.inf):
        with pytest.raises(LostRow, match="row 1"):
            encoding.encode(np.array([[1.0], [value]]))
    with pytest.raises(LostRow):
        make_steps(np.array([-3e38]), np.array([3e38]))


@pytest.mark.parametrize("name", FEATURE_DTYPES)
@pytest.mark.parametrize("make", [plain, typed])
def test_parts_are_verified_against_the_wide_graph(tmp_path, make, name):
    """Narrowed by the partitioner they are those of the narrowed graph file; a changed step or number is found."""
    path, stored = make(tmp_path / "graph.h5"), narrow(make, name)(tmp_path / "narrow.h5")
    for graph, folder, options in ((path, "a", {"feature_dtype": name}), (stored, "b", {})):
        partition(graph, tmp_path / folder, 3, seed=1, **options)
        assert verify(tmp_path / folder, graph) == []
        assert verify(tmp_path / folder) == []
    for part in range(3):
        one, other = (h5py.File(files.part_path(tmp_path / folder, part)) for folder in "ab")
        for kind in one["nodes"]:
            if "feat" in one["nodes"][kind]:
                feat = one["nodes"][kind]["feat"]
                assert read_encoding(feat) == read_encoding(other["nodes"][kind]["feat"])
                assert np.array_equal(feat[()], other["nodes"][kind]["feat"][()])
        one.close()
        other.close()


def test_a_damaged_form_is_refused(tmp_path):
    path = narrow(plain, UINT8)(tmp_path / "graph.h5")
    for text in ("{}", "no json", '{"dtype": "int4"}', '{"dtype": "uint8", "scale": [1], "offset": [0]}',
                 '{"dtype": "bfloat16"}'):  # fmt: skip
        with h5py.File(path, "r+") as file:
            file[FEAT].attrs["stored_as"] = text
            with pytest.raises(files.FileFormatError, match=r"feat: attribute stored_as is .* write the file anew"):
                read_encoding(file[FEAT])


def test_pieces_of_other_forms_do_not_fit(tmp_path):
    found = []
    for number, low in enumerate((0.0, 1.0)):
        rows = np.linspace(low, 9, 10)[:, None]
        encoding = make_steps(*find_range([rows], 1))
        with files.writing(tmp_path / f"{number}.h5", files.PART) as file:
            file["rows"] = encoding.encode(rows)
            file["rows"].attrs.update(encoding.attributes())
        with files.open_checked(tmp_path / f"{number}.h5", files.PART) as file:
            found.append(Piece.of(file["rows"]))
    with pytest.raises(ValueError, match=r"1.h5: /rows is stored as .*0.h5 does not store it"):
        StoredColumn(found)


def run_convert(folder, *options: str) -> int:
    rows = columns(5)[:, :2]
    np.savez(folder / "g.npz", x=rows, edges=np.array([[0, 1], [1, 2]]))
    (folder / "spec.yaml").write_text(
        "files: {g: {format: npz, path: g.npz}}\nnodes: [{type: node, ids: row, file: g, columns: {feat: x}}]\n"
        "edges: [{relation: node.to.node, file: g, src: 'edges[:,0]', dst: 'edges[:,1]'}]\n"
    )
    return convert.main(["--spec", str(folder / "spec.yaml"), *options, str(folder / "graph.h5")])


def test_commands_store_and_show_narrow_features(tmp_path, capsys):
    assert run_convert(tmp_path, "--feature_dtype", "bfloat16") == 0
    with h5py.File(tmp_path / "graph.h5") as file:
        assert json.loads(file[FEAT].attrs["stored_as"]) == {"dtype": "bfloat16"}
    capsys.readouterr()
    assert inspect.main([str(tmp_path / "graph.h5")]) == 0
    assert "feat bfloat16 [5, 2] (narrow, 20 bytes, 40 as float32)" in capsys.readouterr().out
    static = ["--static", "--num_nodes", "50", "--features", "4", "--classes", "3", "--edge_features", "2"]
    assert synthesize.main([str(tmp_path / "s.h5"), *static, "--feature_dtype", "uint8"]) == 0
    with h5py.File(tmp_path / "s.h5") as file:
        assert read_encoding(file[FEAT]).name == "uint8"
        assert {read_encoding(group["feat"]).name for group in file["edges"].values()} == {"uint8"}


def test_a_derived_graph_keeps_or_gets_narrow_features(tmp_path):
    path, graph = typed(tmp_path / "wide.h5"), tmp_path / "narrow.h5"
    options = ["--relation", "author.writes.paper", "--all_edges", "--threshold", "1"]
    assert derive.main([str(path), str(graph), *options, "--feature_dtype", "float16"]) == 0
    again = [option if option != "author.writes.paper" else "paper.written_by.author" for option in options]
    assert derive.main([str(graph), str(graph), *again]) == 0
    with h5py.File(graph) as file:
        assert file["nodes/paper/feat"].dtype == np.float16
        assert len(file["edges"]) == 7


@pytest.mark.parametrize("name", FEATURE_DTYPES)
def test_exports_have_wide_features(tmp_path, name):
    path = narrow(typed, name)(tmp_path / "graph.h5")
    with h5py.File(path) as file:
        feat = file["nodes/paper/feat"]
        expected = read_encoding(feat).decode(feat[()])
        table = {item.name: item for item in graph_tables(file).nodes}["paper"]
        assert np.array_equal(table.columns["feat"][:], expected)
        assert table.columns["feat"].dtype == np.float32
        assert "feat.stored_as" not in table.attributes
    partition(path, tmp_path / "parts", 2)
    table = {item.name: item for item in part_tables(tmp_path / "parts", 0).nodes}["paper"]
    assert np.array_equal(table.columns["feat"], expected[table.columns["row"]])


def test_windows_of_narrow_events_are_wide(tmp_path):
    path = narrow(lambda place: bipartite(place, 100, edge_width=2, node_width=2), UINT8)(tmp_path / "graph.h5")
    assert snapshots.main(["windows", str(path), str(tmp_path / "s.h5"), "--windows", "4"]) == 0
    with h5py.File(path) as file, h5py.File(tmp_path / "s.h5") as made:
        user, item = (file[f"nodes/{kind}/feat"] for kind in ("user", "item"))
        (group,) = made["nodes"].values()
        wide = np.concatenate([read_encoding(column).decode(column[()]) for column in (user, item)])
        assert np.array_equal(group["feat"][()], wide)


def test_snapshot_graphs_have_no_narrow_features(tmp_path):
    command = [str(tmp_path / "s.h5"), "--snapshots", "4", "--feature_dtype", "uint8"]
    with pytest.raises(files.FileFormatError, match="is for static and temporal graphs, this one is snapshots"):
        synthesize.main(command)
    assert not (tmp_path / "s.h5").exists()


def test_a_narrow_graph_is_not_narrowed_to_another_form(tmp_path, capsys):
    path = narrow(plain, UINT8)(tmp_path / "graph.h5")
    narrow_features(path, path, UINT8)
    with pytest.raises(files.FileFormatError, match="feat is stored as uint8 already: start from wide features"):
        narrow_features(path, path, "float16")
