"""Reads pickles, and files of torch.save, of arrays, numbers, text and built-in containers, and runs no code in them.

Unpickling calls the functions that a pickle names. Here it finds the few of ADMITTED, which build arrays and
dictionaries, and those that a caller adds; any other name is refused. torch.load finds its tensors and the same names.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

Admitted = Mapping[tuple[str, str], Callable[..., Any]]


class _Dtype:
    """Takes the place of NumPy's dtype while a pickle is read, for numbers and text alone."""

    def __init__(self, code: str, align: bool = False, copy: bool = False):
        if not isinstance(code, str) or not re.fullmatch(r"[biuf][1-8]|[SU][0-9]{1,9}", code):
            raise pickle.UnpicklingError(f"it holds an array of type {str(code)[:20]!r}, not of numbers or text")
        self._code = code
        self._order: Literal["<", ">", "="] = "="

    def __setstate__(self, state: tuple) -> None:
        self._order = state[1] if state[1] in ("<", ">") else "="

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self._code).newbyteorder(self._order)


class PickledArray:
    """Takes the place of an array while a pickle is read: NumPy's own can be made of addresses and of any size."""

    array: np.ndarray = np.empty(0)  # a pickle may leave the state out

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, is_fortran, data = state
        self._fill(data, dtype, shape, "F" if is_fortran else "C")

    def _fill(self, data: bytes, dtype: _Dtype, shape: tuple[int, ...], order: Literal["C", "F"]) -> PickledArray:
        self.array = np.frombuffer(data, dtype.dtype).reshape(shape, order=order)
        return self


def _reconstruct(kind: type, shape: tuple, code: bytes) -> PickledArray:
    return PickledArray()


def _from_buffer(data: bytes, dtype: _Dtype, shape: tuple[int, ...], order: Literal["C", "F"]) -> PickledArray:
    return PickledArray()._fill(data, dtype, shape, order)


def _scalar(dtype: _Dtype, data: bytes) -> Any:
    return np.frombuffer(data, dtype.dtype, 1)[0]


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin1")  # as protocols before 3 write bytes


def _dictionary(*factory: Any) -> dict:
    return {}  # torch fills no defaultdict


ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): PickledArray, ("numpy", "dtype"): _Dtype, ("_codecs", "encode"): _encode,
    ("collections", "defaultdict"): _dictionary, ("builtins", "dict"): dict, ("builtins", "set"): set,
    ("__builtin__", "set"): set,
}  # fmt: skip
ADMITTED |= {
    (f"numpy.{core}.{module}", name): function
    for core in ("core", "_core")
    for module, name, function in (
        ("multiarray", "scalar", _scalar),
        ("multiarray", "_reconstruct", _reconstruct),
        ("numeric", "_frombuffer", _from_buffer),
    )
}


class Attributes:
    """Takes the place of an object of another package: its attributes alone, in ``__dict__``."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


class NotAdmitted(pickle.UnpicklingError):
    """A file names a function or class that is not admitted."""


class _Unpickler(pickle.Unpickler):
    """Reads what ADMITTED, and ``further``, have."""

    def __init__(self, file: Any, further: Admitted):
        super().__init__(file)
        self._further = further

    def find_class(self, module: str, name: str) -> Any:
        """Find what a name stands for."""
        return _find_class(self._further, module, name)


class _SlowUnpickler(pickle._Unpickler):
    """Reads what ``_Unpickler`` reads, in Python: a large number of a memo takes no memory for all numbers below."""

    def __init__(self, file: Any, further: Admitted):
        super().__init__(file)
        self._further = further

    def find_class(self, module: str, name: str) -> Any:
        """Find what a name stands for."""
        return _find_class(self._further, module, name)


def _find_class(further: Admitted, module: str, name: str) -> Any:
    admitted = {**ADMITTED, **further}
    if (module, name) not in admitted:
        raise NotAdmitted(f"it holds {module}.{name}, and only arrays, dicts, tuples, lists and sets are admitted")
    return admitted[module, name]


LARGE_MEMO = re.compile(rb"r...[^\0]", re.DOTALL)  # may be LONG_BINPUT with a number from 2^24 on, or data


def load_pickle(file: Any) -> Any:
    """Read the pickle in an open file. Arrays are `PickledArray`. May raise anything for a damaged file, and
    pickle.UnpicklingError for one that names other functions."""
    return next(load_pickles(file))


def load_pickles(file: Any, further: Admitted | None = None) -> Iterator[Any]:
    """Yield the pickles that follow each other in an open file; ``further``: functions that they may name, by module
    and name. Raises as `load_pickle` does."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        # A map reads no more than there is, a file takes memory for it.
        yield from _each(mapped, mapped, further or {})


def load_pickled_bytes(data: bytes) -> Any:
    """Read a pickle in memory, with NumPy arrays in place of `PickledArray`. Raises as `load_pickle` does."""
    return plain(next(_each(io.BytesIO(data), data, {})))


def load_torch(file: str | os.PathLike | io.BytesIO, packages: tuple[str, ...] = ()) -> Any:
    """Read a file of torch.save. It finds what torch's reader of weights does, and the names of ADMITTED, even where an
    imported package has registered others. Arrays are `PickledArray`. packages: beginnings of names of classes, of
    which `Attributes` are made. Raises NotAdmitted for further names where there are ``packages``, and may raise
    anything else for a damaged file or other names."""
    import torch  # only here: other files of arrays are read without it

    registered = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    allowed: list[Any] = [(function, f"{module}.{name}") for (module, name), function in ADMITTED.items()]
    try:
        torch.serialization.add_safe_globals(allowed)
        if packages:
            names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
            if strange := [name for name in names if not name.startswith(packages)]:
                raise NotAdmitted(f"holds {strange[0]}, which is not read, as that would run code")
            torch.serialization.add_safe_globals([(Attributes, name) for name in names])
        return torch.load(file, map_location="cpu", weights_only=True)
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(registered)


def plain(content: Any) -> Any:
    """Put NumPy arrays in place of each `PickledArray` in dictionaries, lists and tuples."""
    if isinstance(content, PickledArray):
        return content.array
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    return type(content)(map(plain, content)) if type(content) in (list, tuple) else content


def _each(file: Any, data: Any, further: Admitted) -> Iterator[Any]:
    kind = _SlowUnpickler if LARGE_MEMO.search(data) else _Unpickler
    while file.tell() < len(data):
        yield kind(file, further).load()
