"""What fuzzing does to a valid file: to its bytes, to its lines, to the tree of JSON and YAML, to the objects of HDF5,
to the header of npy. Every choice is the generator's, so a case can be made again."""

from __future__ import annotations

import json
import random
import tokenize
from pathlib import Path

import h5py
import numpy as np
import yaml

SIZES = (0, 1, -1, 7, 255, 2**15, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1)
WORDS = (
    "", "0", "-1", "nan", "inf", "-inf", "1e400", "9223372036854775808", "99999999999999999999", "0x10", "1_000",
    "true", "null", "é", "\x00", "\ufeff", '"', "'", ",", ";", "\t", "[", "{", "*", "&",
    "../../x", "/dev/null", "a" * 3000,
)  # fmt: skip
VALUES = (None, True, -1, 0, 3, 2**31, 2**63, 1e300, float("nan"), "", "a", "1:", "::", "$fold", [], {}, [[]], {"a": 1})
TEXT = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".yaml", ".nt", ".ttl")
TREES = (".json", ".yaml")
HDF5 = (".h5",)


def change(path: Path, rng: random.Random) -> None:
    """Change a file in place, once or a few times."""
    kinds = [change_bytes, change_bytes]
    if path.suffix in TEXT:
        kinds += [change_lines] * 2
    if path.suffix in TREES:
        kinds += [change_tree] * 4
    if path.suffix in HDF5:
        kinds += [change_objects] * 6
    if path.suffix == ".npy":
        kinds.append(change_header)
    kind = rng.choice(kinds)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind(path, rng)


def change_bytes(path: Path, rng: random.Random) -> None:
    """Flip, overwrite, insert, drop or repeat bytes, or cut the file short."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content) + 1)
    length = rng.choice((1, 1, 2, 4, 8, 64, 512))
    kind = rng.choice(("flip", "flip", "byte", "number", "number", "insert", "drop", "repeat", "cut", "zero"))
    if kind == "flip" and at < len(content):
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        content[at : at + length] = rng.randbytes(len(content[at : at + length]))
    elif kind == "number":
        width = rng.choice((2, 4, 8))
        content[at : at + width] = (rng.choice(SIZES) % (1 << 8 * width)).to_bytes(width, rng.choice(("little", "big")))
    elif kind == "insert":
        content[at:at] = rng.randbytes(length)
    elif kind == "drop":
        del content[at : at + length]
    elif kind == "repeat":
        content[at:at] = content[at : at + length] * rng.choice((1, 2, 50))
    elif kind == "cut":
        del content[at:]
    else:
        content[at : at + length] = bytes(len(content[at : at + length]))
    path.write_bytes(content)


def change_lines(path: Path, rng: random.Random) -> None:
    """Drop, repeat or swap lines, or put another word in place of one."""
    lines = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.choice(("drop", "repeat", "swap", "word", "word", "word", "word"))
    if kind == "drop":
        del lines[at]
    elif kind == "repeat":
        lines[at:at] = [lines[at]] * rng.choice((1, 3, 1000))
    elif kind == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    else:
        mark = rng.choice((",", " ", ":", "\t"))
        words = lines[at].split(mark)
        words[rng.randrange(len(words))] = rng.choice(WORDS)
        lines[at] = mark.join(words)
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))


def change_tree(path: Path, rng: random.Random) -> None:
    """Put another value in place of a branch of JSON or YAML, drop it, or give it to another key; or nest deeply."""
    read, write = (json.loads, json.dumps) if path.suffix == ".json" else (yaml.safe_load, yaml.safe_dump)
    text = path.read_text(errors="replace")
    if rng.random() < 0.05:
        path.write_text(rng.choice(("[" * 100_000, bomb(), "&a [*a]", text + "\nx: &x {y: *x}\n")))
        return
    try:
        if "&a" in text:
            raise ValueError("aliases stand for more than can be listed")
        tree = read(text)
        branches = list(find_branches(tree))
    except (ValueError, TypeError, yaml.YAMLError, RecursionError):
        change_bytes(path, rng)
        return
    if not branches:
        path.write_text(write(rng.choice(VALUES)))
        return
    parent, key = rng.choice(branches)
    kind = rng.choice(("value", "value", "value", "drop", "key", "wrap", "copy"))
    if kind == "drop":
        del parent[key]
    elif kind == "key" and isinstance(parent, dict):
        parent[rng.choice(("strange", "", "kind", "file", "0"))] = parent.pop(key)
    elif kind == "wrap":
        parent[key] = [parent[key]]
    elif kind == "copy":
        source, name = rng.choice(branches)
        parent[key] = json.loads(json.dumps(source[name], default=str)) if name in range_of(source) else None
    else:
        parent[key] = rng.choice((*VALUES, *SIZES, *WORDS))
    path.write_text(write(tree))


def range_of(parent):
    """Keys of a mapping or positions of a list."""
    return parent if isinstance(parent, dict) else range(len(parent))


def bomb() -> str:
    """YAML whose aliases stand for 10^12 values."""
    return "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 13))])


def find_branches(tree):
    """(parent, key) of everything in a tree."""
    for key in list(range_of(tree)) if isinstance(tree, dict | list) else ():
        yield tree, key
        yield from find_branches(tree[key])


def change_objects(path: Path, rng: random.Random) -> None:
    """Change an attribute, or a dataset or group, of an HDF5 file; where it is damaged already, its bytes."""
    try:
        with h5py.File(path, "r+", locking=False) as file:
            names = []
            file.visit(names.append)
            if rng.random() < 0.35:
                change_attribute(file[rng.choice(names)] if rng.random() < 0.7 else file, rng)
            else:
                change_object(file, rng.choice(names), rng)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, IndexError):
        change_bytes(path, rng)


def change_attribute(item, rng: random.Random) -> None:
    """Give an attribute another value or type, or drop it."""
    names = list(item.attrs)
    if not names:
        item.attrs["strange"] = 1
        return
    name = rng.choice(names)
    value = rng.choice(
        (
            *SIZES[:-1],
            *WORDS[:15],
            0.5,
            float("nan"),
            True,
            np.arange(3),
            np.zeros(0),
            "[]",
            "{}",
            "[" * 5000,
            h5py.Empty("i8"),
        )
    )
    if rng.random() < 0.2:
        del item.attrs[name]
    else:
        item.attrs[name] = value


def change_object(file: h5py.File, name: str, rng: random.Random) -> None:
    """Put a dataset of another shape, type or size in place of an object, or a link that leads nowhere or astray."""
    item = file[name]
    old = item[()] if isinstance(item, h5py.Dataset) and 0 < item.size < 10_000 else np.arange(4)
    attributes, keep = dict(item.attrs), rng.random() < 0.7
    kind = rng.choice(
        ("values", "values", "values", "longer", "shorter", "type", "shape", "huge", "huge packed", "drop", "group",
         "scalar", "empty", "lengths", "dangling", "loop", "outside", "compound")
    )  # fmt: skip
    if kind == "values" and isinstance(item, h5py.Dataset) and 0 < item.size < 10_000 and item.dtype.kind in "iuf":
        flat = np.array(item[()]).reshape(-1)
        for _ in range(rng.choice((1, 1, 3))):
            value = rng.choice((*SIZES, 5, 50))
            fits = -(2**7) <= value < 2**7 or flat.itemsize == 8
            flat[rng.randrange(len(flat))] = value if fits and item.dtype.kind != "u" else value % 2**7
        item[...] = flat.reshape(item.shape)
        return
    del file[name]
    if kind in ("drop", "values"):
        return
    if kind == "group":
        file.create_group(name)
    elif kind == "dangling":
        file[name] = h5py.SoftLink("/nowhere")
    elif kind == "loop":
        file[name] = h5py.SoftLink(rng.choice(("/", f"/{name}")))
    elif kind == "outside":
        file[name] = h5py.ExternalLink("/dev/zero", "/")
    else:
        new = create(file, name, kind, np.atleast_1d(old), rng)
        for key, value in attributes.items() if keep else ():
            new.attrs[key] = value


def create(file: h5py.File, name: str, kind: str, old: np.ndarray, rng: random.Random) -> h5py.Dataset:
    """A dataset that is not what ``old`` was."""
    if kind.startswith("huge"):
        shape = (rng.choice((2**28, 2**34, 2**45)), *old.shape[1:])
        packed = {"compression": "gzip"} if kind == "huge packed" else {}
        return file.create_dataset(name, shape, old.dtype, chunks=(1024, *old.shape[1:]), **packed)
    if kind == "lengths":
        return file.create_dataset(name, data=["ab", "c"], dtype=h5py.string_dtype())
    changed = {
        "longer": lambda: np.concatenate([old, old]),
        "shorter": lambda: old[: len(old) // 2],
        "type": lambda: np.zeros(old.shape, rng.choice(("f2", "f8", "S3", "i1", "u8", "c16", "?"))),
        "shape": lambda: old[..., None] if rng.random() < 0.5 else np.repeat(old[..., None], 3, -1),
        "scalar": lambda: old.reshape(-1)[0],
        "empty": lambda: old[:0],
        "compound": lambda: np.zeros(len(old), [("a", "i4"), ("b", "f8")]),
    }[kind]()
    return file.create_dataset(name, data=changed)


def change_header(path: Path, rng: random.Random) -> None:
    """Give an npy file a header of another shape, type or order."""
    try:
        array = np.load(path)
    except (ValueError, OSError, EOFError, MemoryError, tokenize.TokenError):
        change_bytes(path, rng)
        return
    shape = rng.choice(((2**40,), (2**62, 4), (-1,), (0,), (), (3, 0), (1,) * 60, (*array.shape, 1)))
    descr = rng.choice((array.dtype.str, array.dtype.str, "|O", "<U9", "<c16", "|V0", "<M8[s]"))
    header = {"descr": descr, "fortran_order": rng.random() < 0.5, "shape": shape}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array.tobytes())
