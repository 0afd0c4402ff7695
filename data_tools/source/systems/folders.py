"""Reads a folder of chunks, or of parts of another system, which it recognizes by the names of the files."""

from __future__ import annotations

import pathlib

from data_tools.source.formats.chunk_folder import load_chunks
from data_tools.source.spec_file import build_spec
from data_tools.source.systems.content import FolderContent
from data_tools.source.systems.graphlearn_parts import is_graphlearn, unpack_graphlearn
from data_tools.source.systems.parmetis_parts import is_parmetis, unpack_parmetis
from data_tools.source.systems.pyg_parts import META, unpack_pyg


def read_folder(folder: pathlib.Path, unpacked: pathlib.Path) -> FolderContent:
    """Make the spec of a folder. Arrays of parts go to the folder ``unpacked``, which must exist for as long as the
    spec is used. Raises ValueError naming the file and the place."""
    notes: list[str] = []
    try:
        if (folder / META).is_file():
            spec = unpack_pyg(folder, unpacked)
        elif is_graphlearn(folder):
            spec = unpack_graphlearn(folder, unpacked)
        elif is_parmetis(folder):
            spec, notes = unpack_parmetis(folder, unpacked)
        else:
            return FolderContent(load_chunks(folder, unpacked))
    except (TypeError, AttributeError, LookupError) as error:  # a value of another type than the format has there
        raise ValueError(f"{folder}: a value of its files is of a wrong type ({error!r})") from error
    return FolderContent(build_spec(spec, unpacked, {}), notes)
