"""Fetch public data sets by name, with their checksums.

    hpcgnn fetch --list
    hpcgnn fetch wikipedia sx-mathoverflow --to data/

The names are in catalog.yaml. A download that broke off is resumed (pooch, the library for this, cannot do that); a
file whose content is not the expected one is not put in place. For a set whose checksum the catalog does not know, the
checksum of the first download is printed, kept in ``<file>.sha256`` beside the file, and enforced from then on. Exit
code 2 when a set cannot be had.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import pathlib
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from data_tools.cli import ToolParser, run_alone, with_exit_code
from data_tools.source.formats.text_stream import open_binary
from data_tools.source.schema import build, items
from hpcgnn.graph.decode import decode_yaml
from hpcgnn.graph.durable import FULL, commit, naming_disk
from hpcgnn.graph.files import FileFormatError

CATALOG = pathlib.Path(__file__).parent / "catalog.yaml"
BLOCK_BYTES = 1 << 20
RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
TIMEOUT = 30.0  # seconds without a byte


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


class Download:
    """One file over HTTP into ``<target>.part``: resumed where it broke off, retried with growing pauses.

    It gives up after ``attempts`` in a row without a new byte; pauses of ``pause`` seconds double up to a minute.
    """

    def __init__(self, url: str, target: pathlib.Path, attempts: int, pause: float):
        self._url, self._target, self._attempts, self._pause = url, target, attempts, pause
        self.part = target.with_name(target.name + ".part")
        self.version = target.with_name(target.name + ".part-version")  # the server's mark of the file's version

    def run(self) -> None:
        """Download the file, or its missing end. Raises ValueError, with the remedy, when the server refuses, is
        unreachable, or keeps breaking off, and OSError for a full disk."""
        if urllib.parse.urlsplit(self._url).scheme not in ("http", "https"):
            raise ValueError(f"{self._url}: only http and https are fetched")
        fruitless = 0
        while True:
            before = self._size()
            try:
                with naming_disk(self.part):
                    return self._transfer(before)
            except urllib.error.HTTPError as error:
                reason = f"the server answered {error.code} {error.reason}"
                if error.code not in RETRY_STATUS:
                    raise self._failure(reason) from None
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and error.errno in FULL:
                    raise
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            fruitless = 1 if self._size() > before else fruitless + 1
            if fruitless >= self._attempts:
                raise self._failure(f"{reason}, {fruitless} times in a row")
            time.sleep(min(60.0, self._pause * 2 ** (fruitless - 1)))

    def discard(self) -> None:
        """Remove the part that was downloaded."""
        self.part.unlink(missing_ok=True)
        self.version.unlink(missing_ok=True)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _failure(self, reason: str) -> ValueError:
        host = urllib.parse.urlsplit(self._url).netloc
        return ValueError(
            f"cannot fetch from {host} ({reason}); on a machine without internet download {self._url} elsewhere, put "
            f"the file at {self._target} and run the same command again to check it"
        )

    def _transfer(self, start: int) -> None:
        """Append the missing bytes, over one connection, or start anew when the server cannot resume or its file has
        changed."""
        headers = {"User-Agent": "hpcgnn-data-tools"}
        if start:
            headers["Range"] = f"bytes={start}-"
            if self.version.exists():
                headers["If-Range"] = self.version.read_text().strip()
        request = urllib.request.Request(self._url, headers=headers)
        try:
            response = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            if error.headers.get("Content-Range", "") == f"bytes */{start}":
                return
            self.part.unlink()
            raise ConnectionError("the server's file is shorter than the part here; starting anew") from None
        with response:
            first = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            is_resumed = response.status == 206 and first is not None and int(first[1]) == start
            length = response.headers.get("Content-Length", "")
            tag = response.headers.get("ETag", "")
            version = tag if tag.startswith('"') else response.headers.get("Last-Modified")  # a weak tag is no mark
            if version:
                self.version.write_text(version + "\n")
            else:
                self.version.unlink(missing_ok=True)
            with open(self.part, "ab" if is_resumed else "wb") as file:
                while block := response.read(BLOCK_BYTES):
                    file.write(block)
        total = (start if is_resumed else 0) + int(length) if length.isdigit() else None
        if total is not None and self._size() < total:
            raise ConnectionError(f"the connection ended after {self._size():,} of {total:,} bytes")


def load_catalog(path: pathlib.Path = CATALOG) -> dict[str, Entry]:
    """Read all data sets by name. Raises ValueError naming the entry for a catalog with errors."""
    try:
        data = decode_yaml(path.read_text())
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"{path}: not a readable catalog ({' '.join(str(error).split())})") from None
    return {name: build(Entry, value, f"{path.name}: {name}") for name, value in items(path.name, data)}


def fetch(entry: Entry, folder: pathlib.Path, base: str | None, attempts: int, pause: float) -> str:
    """Get the file of a data set into ``folder`` and check it; returns a line on what was done. ``base``: a mirror's
    folder.

    Raises ValueError, with the remedy, when it cannot be downloaded or its content is not the expected one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / entry.file_name
    if target.exists():
        return f"{target}: already there, {check(entry, target, content_hash(target, target.suffix))}"
    url = entry.url if base is None else f"{base.rstrip('/')}/{entry.file_name}"
    download = Download(url, target, attempts, pause)
    download.run()
    try:
        note = check(entry, target, content_hash(download.part, target.suffix), url)
    except ValueError:
        # Kept, it would be resumed and refused for ever.
        download.discard()
        raise
    commit(download.part, target)
    download.discard()
    return f"{target}: {target.stat().st_size:,} bytes from {url}; {note}"


def content_hash(path: pathlib.Path, suffix: str) -> str:
    """Compute the sha256 of the decompressed content, hex; ``suffix``: of the file's compression."""
    digest = hashlib.sha256()
    with open_binary(path, suffix) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check(entry: Entry, target: pathlib.Path, sha256: str, url: str | None = None) -> str:
    """Compare a checksum with the catalog, or with the one that the first download left; returns the result in words.

    Raises FileFormatError for a difference. Without anything to compare with, the checksum is kept for the next time.
    """
    noted = target.with_name(target.name + ".sha256")
    expected, origin = entry.content_sha256, "the catalog"
    if expected is None and noted.exists() and (words := noted.read_text().split()):  # a killed run may leave none
        expected, origin = words[0], str(noted)
    if expected is None:
        noted.write_text(f"{sha256}  {target.name.removesuffix('.gz')}\n")
        return f"sha256 of the content {sha256}, not in the catalog: kept in {noted.name} and enforced from now on"
    if sha256 == expected:
        return "checksum right"
    where = f"{url}: the content is not put in place, its" if url else f"{target}: the content's"
    remedy = "fetch again later or from a mirror (--url_base)" if url else "delete the file and fetch it again"
    raise FileFormatError(
        f"{where} sha256 is {sha256}, expected {expected} (from {origin}); {remedy}"
        + ("" if entry.content_sha256 else f"; if the set was changed on purpose, delete {noted}")
    )


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = ToolParser("fetch", description="Fetch public data sets by name.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of data sets (see --list)")
    parser.add_argument(
        "--to", type=pathlib.Path, default=pathlib.Path("data"), help="folder of the files (default: data)"
    )
    parser.add_argument("--list", action="store_true", help="print the catalog of data sets")
    parser.add_argument(
        "--url_base", metavar="URL", help="mirror: download <URL>/<file name> instead of the catalog's URL"
    )
    parser.add_argument(
        "--catalog", type=pathlib.Path, default=CATALOG, help="catalog file (default: the built-in catalog)"
    )
    parser.add_argument(
        "--attempts", type=int, default=5, help="number of consecutive failures before giving up (default: 5)"
    )
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds before the first retry; each retry doubles them (default: 1)"
    )
    return parser


@with_exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Fetch with the options of the command line; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    catalog = load_catalog(arguments.catalog)
    if arguments.list:
        width = max(map(len, catalog))
        for name, entry in catalog.items():
            checksum = "known checksum" if entry.content_sha256 else "no checksum yet"
            print(f"{name:<{width}}  {entry.preset:<13}  {checksum:<15}  {entry.about}\n{'':<{width}}  {entry.url}")
        return 0
    unknown = [name for name in arguments.names if name not in catalog]
    if unknown or not arguments.names:
        raise ValueError(f"{', '.join(unknown) or 'no name'}: not a data set of the catalog: {', '.join(catalog)}")
    for name in arguments.names:
        entry, folder = catalog[name], arguments.to
        print(fetch(entry, folder, arguments.url_base, arguments.attempts, arguments.pause))
        sort = " --sort" if entry.sort else ""
        print(
            f"next: hpcgnn convert --preset {entry.preset}{sort} --set events={folder / entry.file_name} "
            f"{folder / name}.h5"
        )
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(main))
