"""Fetch public data sets by name, with their checksums.

    python -m data_tools.fetch --list
    python -m data_tools.fetch wikipedia sx-mathoverflow --to data/

The names are in catalog.yaml. A download that broke off is resumed; a file whose content is not the expected one is
not put in place. For a set whose checksum the catalog does not know, the one found on the first download is printed
and kept in ``<file>.sha256`` beside the file, and enforced from then on. Exit code 2 when a set cannot be had.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import sys
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass

from data_tools.cli import with_exit_code
from data_tools.source.download import Patience, discard, download, part_path, version_path
from data_tools.source.formats.text_stream import open_binary
from data_tools.source.schema import build, items
from hpcgnn.graph.decode import decode_yaml
from hpcgnn.graph.files import FileFormatError, commit

CATALOG = pathlib.Path(__file__).parent / "catalog.yaml"


@dataclass(frozen=True, slots=True)
class Entry:
    """One data set: where it is, how it is converted, and the sha256 of its decompressed content if known."""

    url: str
    preset: str
    about: str = ""
    sort: bool = False
    content_sha256: str | None = None

    @property
    def file_name(self) -> str:
        """Name of the file that the url ends in."""
        return pathlib.PurePosixPath(urllib.parse.urlsplit(self.url).path).name

    def url_at(self, base: str | None) -> str:
        """The url, or the file of that name below a mirror."""
        return self.url if base is None else f"{base.rstrip('/')}/{self.file_name}"


def load_catalog(path: pathlib.Path = CATALOG) -> dict[str, Entry]:
    """All data sets by name. Raises ValueError naming the entry for a catalog with errors."""
    try:
        data = decode_yaml(path.read_text())
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"{path}: not a readable catalog ({' '.join(str(error).split())})") from None
    return {name: build(Entry, value, f"{path.name}: {name}") for name, value in items(path.name, data)}


def fetch(entry: Entry, folder: pathlib.Path, base: str | None = None, patience: Patience | None = None) -> str:
    """Have the file of a data set in ``folder``, checked; returns a line on what was done.

    Raises ValueError, with the remedy, when it cannot be downloaded or its content is not the expected one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / entry.file_name
    if target.exists():
        return f"{target}: already there, {check(entry, target, content_hash(target, target.suffix))}"
    url = entry.url_at(base)
    part = download(url, target, patience or Patience())
    try:
        found = content_hash(part, target.suffix)
        note = check(entry, target, found, url)
    except ValueError:
        # Kept, it would be resumed and refused for ever.
        discard(part_path(target))
        raise
    commit(part, target)
    version_path(part).unlink(missing_ok=True)
    return f"{target}: {target.stat().st_size:,} bytes from {url}; {note}"


def content_hash(path: pathlib.Path, suffix: str) -> str:
    """sha256 of the decompressed content, hex; ``suffix`` says how the file is compressed."""
    digest = hashlib.sha256()
    with open_binary(path, suffix) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check(entry: Entry, target: pathlib.Path, found: str, url: str | None = None) -> str:
    """Compare with the catalog, or with what the first download left; returns what was found out.

    Raises FileFormatError for a difference. Without anything to compare with, the checksum is kept for the next time.
    """
    kept = target.with_name(target.name + ".sha256")
    expected, origin = entry.content_sha256, "the catalog"
    if expected is None and kept.exists():
        expected, origin = kept.read_text().split()[0], str(kept)
    if expected is None:
        kept.write_text(f"{found}  {target.name.removesuffix('.gz')}\n")
        return f"sha256 of the content {found}, not in the catalog: kept in {kept.name} and enforced from now on"
    if found == expected:
        return "checksum right"
    where = f"{url}: the content is not put in place, its" if url else f"{target}: the content's"
    remedy = "fetch again later or from a mirror (--url-base)" if url else "delete the file and fetch it again"
    raise FileFormatError(
        f"{where} sha256 is {found}, expected {expected} (from {origin}); {remedy}"
        + ("" if entry.content_sha256 else f"; if the set was changed on purpose, delete {kept}")
    )


def describe(catalog: dict[str, Entry]) -> str:
    """The catalog as a table."""
    width = max(map(len, catalog))
    lines = []
    for name, entry in catalog.items():
        known = "known checksum" if entry.content_sha256 else "no checksum yet"
        lines.append(f"{name:<{width}}  {entry.preset:<13}  {known:<15}  {entry.about}\n{'':<{width}}  {entry.url}")
    return "\n".join(lines)


def convert_command(name: str, entry: Entry, folder: pathlib.Path) -> str:
    """The command that comes next."""
    sort = " --sort" if entry.sort else ""
    return (
        f"python -m data_tools.convert --preset {entry.preset}{sort} --set events={folder / entry.file_name} "
        f"{folder / name}.h5"
    )


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m data_tools.fetch", description="Fetch public data sets by name.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets (see --list)")
    parser.add_argument("--to", type=pathlib.Path, default=pathlib.Path("data"), help="folder of the files (data)")
    parser.add_argument("--list", action="store_true", help="print the catalog")
    parser.add_argument(
        "--url-base", metavar="URL", help="take <URL>/<file name> instead of the catalog's url (a mirror)"
    )
    parser.add_argument("--catalog", type=pathlib.Path, default=CATALOG, help="a catalog of your own")
    parser.add_argument("--attempts", type=int, default=5, help="failures in a row before giving up (5)")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before the first retry; doubles (1)")
    return parser


@with_exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Fetch as the command line says; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    catalog = load_catalog(arguments.catalog)
    if arguments.list:
        print(describe(catalog))
        return 0
    unknown = [name for name in arguments.names if name not in catalog]
    if unknown or not arguments.names:
        raise ValueError(f"{', '.join(unknown) or 'no name'}: not a data set of the catalog: {', '.join(catalog)}")
    patience = Patience(arguments.attempts, arguments.pause)
    for name in arguments.names:
        print(fetch(catalog[name], arguments.to, arguments.url_base, patience))
        print(f"next: {convert_command(name, catalog[name], arguments.to)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
