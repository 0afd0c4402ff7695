"""One file over HTTP into ``<file>.part``: resumed where it broke off, retried with growing pauses, never for ever."""

from __future__ import annotations

import contextlib
import http.client
import pathlib
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

BLOCK_BYTES = 1 << 20
RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try: ``attempts`` in a row without a new byte, pauses of ``pause`` seconds doubling up to a
    minute."""

    attempts: int = 5
    pause: float = 1.0
    timeout: float = 30.0


class Incomplete(OSError):
    """The connection ended before the file did."""


def part_path(target: pathlib.Path) -> pathlib.Path:
    """Where the bytes of an unfinished download are."""
    return target.with_name(target.name + ".part")


def download(url: str, target: pathlib.Path, patience: Patience) -> pathlib.Path:
    """Download into ``<target>.part``, going on from what is there; returns its path when complete.

    Raises ValueError, with the remedy, when the server refuses, is unreachable, or keeps breaking off.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url}: only http and https are fetched")
    part = part_path(target)
    fruitless = 0
    while True:
        before = size_of(part)
        try:
            transfer(url, part, patience.timeout)
            return part
        except urllib.error.HTTPError as error:
            if error.code not in RETRY_STATUS:
                raise ValueError(by_hand(url, target, f"the server says {error.code} {error.reason}")) from None
            reason = f"the server says {error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        fruitless = 1 if size_of(part) > before else fruitless + 1
        if fruitless >= patience.attempts:
            raise ValueError(by_hand(url, target, f"{reason}, {fruitless} times in a row"))
        time.sleep(min(60.0, patience.pause * 2 ** (fruitless - 1)))


def by_hand(url: str, target: pathlib.Path, reason: str) -> str:
    """The message for a download that does not work, with what to do instead."""
    host = urllib.parse.urlsplit(url).netloc
    return (
        f"cannot fetch from {host} ({reason}); on a machine without internet download {url} elsewhere, put the file at "
        f"{target} and run the same command again to check it"
    )


def transfer(url: str, part: pathlib.Path, timeout: float) -> None:
    """One connection: append what is missing, or start anew when the server cannot resume or its file has changed."""
    start = size_of(part)
    request = urllib.request.Request(url, headers={"User-Agent": "hpcgnn-data-tools", **resume_headers(part, start)})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range", "") == f"bytes */{start}":
            return
        part.unlink()
        raise Incomplete("the server's file is shorter than the part here; starting anew") from None
    with response:
        resumed = response.status == 206 and content_start(response) == start
        length = content_length(response)
        total = (start if resumed else 0) + length if length is not None else None
        remember_version(part, response)
        with open(part, "ab" if resumed else "wb") as file:
            while block := response.read(BLOCK_BYTES):
                file.write(block)
        if total is not None and size_of(part) < total:
            raise Incomplete(f"the connection ended after {size_of(part):,} of {total:,} bytes")


def resume_headers(part: pathlib.Path, start: int) -> dict[str, str]:
    """Ask for the bytes from ``start`` on, provided that the server's file is still the one the part came from."""
    if not start:
        return {}
    headers = {"Range": f"bytes={start}-"}
    with contextlib.suppress(FileNotFoundError):
        headers["If-Range"] = version_path(part).read_text().strip()
    return headers


def version_path(part: pathlib.Path) -> pathlib.Path:
    """Where the server's mark of the file's version is kept until the download is complete."""
    return part.with_name(part.name + "-version")


def remember_version(part: pathlib.Path, response: http.client.HTTPResponse) -> None:
    """Keep the strong ETag or the date of the server's file for resuming."""
    tag = response.headers.get("ETag", "")
    version = tag if tag.startswith('"') else response.headers.get("Last-Modified")
    if version:
        version_path(part).write_text(version + "\n")
    else:
        version_path(part).unlink(missing_ok=True)


def content_start(response: http.client.HTTPResponse) -> int | None:
    """First byte position of a partial answer."""
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def content_length(response: http.client.HTTPResponse) -> int | None:
    """Bytes that the answer announces."""
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdigit() else None


def size_of(path: pathlib.Path) -> int:
    """Size of a file, 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def discard(part: pathlib.Path) -> None:
    """Remove what is left of a download."""
    part.unlink(missing_ok=True)
    version_path(part).unlink(missing_ok=True)
