"""Fetching from a local server that resumes, breaks off, changes its mind and lies; never from the network."""

import gzip
import hashlib
import http.server
import re
import socket
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
import yaml

from data_tools.fetch import load_catalog, main
from data_tools.source.spec_file import preset_names

pytestmark = pytest.mark.serial

CONTENT = b"".join(b"%d,%d,%d,0\n" % (n % 97, n % 31, n) for n in range(40_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Behavior:
    """What the server serves and how it misbehaves."""

    content: bytes = CONTENT
    version: str = '"1"'
    ranges: bool = True
    break_after: int = 0  # bytes after which a connection is dropped (0: never)
    breaks: int = 0  # how many connections are dropped
    failures: list[int] = field(default_factory=list)  # statuses to answer with first
    requests: list[str] = field(default_factory=list)  # Range headers seen


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves one file to every path."""

    def do_GET(self):
        behavior = self.server.behavior
        wanted = self.headers.get("Range", "")
        behavior.requests.append(wanted)
        if behavior.failures:
            self.send_error(behavior.failures.pop(0))
            return
        same = self.headers.get("If-Range", behavior.version) == behavior.version
        start = int(re.match(r"bytes=(\d+)-", wanted)[1]) if wanted and behavior.ranges and same else 0
        if start and start >= len(behavior.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(behavior.content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_body(behavior, start)

    def send_body(self, behavior, start):
        body = behavior.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(behavior.content) - 1}/{len(behavior.content)}")
        self.send_header("ETag", behavior.version)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if behavior.breaks:
            behavior.breaks -= 1
            body = body[: behavior.break_after]
        self.wfile.write(body)

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture
def server():
    """A server on a free local port; `behavior` steers it, `base` is its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.behavior = Behavior()
    server.base = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def catalog(tmp_path):
    """A catalog with one set of each kind: checksum known, unknown, and compressed."""
    entry = {"url": "http://example.invalid/data/known.csv", "preset": "jodie"}
    entries = {
        "known": {**entry, "content_sha256": SHA256},
        "unknown": {**entry, "url": "http://example.invalid/data/unknown.csv"},
        "packed": {**entry, "url": "http://example.invalid/data/packed.csv.gz", "content_sha256": SHA256},
    }
    path = tmp_path / "catalog.yaml"
    path.write_text(yaml.safe_dump(entries))
    return path


@pytest.fixture
def fetch(tmp_path, server, catalog, monkeypatch):
    """Run the command for one set; returns the exit code. Files go to <tmp_path>/data."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def run(name, base=None, attempts=3):
        options = ["--catalog", str(catalog), "--to", str(tmp_path / "data"), "--attempts", str(attempts)]
        return main([name, *options, "--url_base", base or server.base, "--pause", "0.01"])

    return run


def files(tmp_path):
    """Names of the files in the data folder."""
    return sorted(path.name for path in (tmp_path / "data").iterdir())


def test_a_full_disk_is_not_the_networks_fault(fetch, server, tmp_path, capsys):
    """It is told at once; what was downloaded stays."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "known.csv.part").symlink_to("/dev/full")
    assert fetch("known") == 1
    told = capsys.readouterr().err
    assert "known.csv.part" in told
    assert "make room there" in told
    assert len(server.behavior.requests) == 1


def test_catalog_is_complete():
    catalog = load_catalog()
    assert {"wikipedia", "reddit", "mooc", "lastfm", "sx-mathoverflow", "wiki-talk-temporal"} <= set(catalog)
    for entry in catalog.values():
        assert entry.preset in preset_names()
        assert entry.content_sha256 is None or re.fullmatch(r"[0-9a-f]{64}", entry.content_sha256)
        assert entry.url.startswith("https://snap.stanford.edu/")


def test_list_prints_every_set(capsys):
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ["wikipedia", "bitcoin-otc", "https://snap.stanford.edu/jodie"])


def test_fetch_puts_the_file_in_place(tmp_path, fetch, server, capsys):
    assert fetch("known") == 0
    assert (tmp_path / "data" / "known.csv").read_bytes() == CONTENT
    assert files(tmp_path) == ["known.csv"]
    assert "hpcgnn convert --preset jodie" in capsys.readouterr().out
    assert fetch("known") == 0
    assert len(server.behavior.requests) == 1, "a file that is there is checked, not fetched again"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dropped_connections_are_resumed(tmp_path, fetch, server, seed):
    """However often it breaks off, every byte comes once and in its place."""
    server.behavior.break_after = int(np.random.default_rng(seed).integers(1, len(CONTENT) // 3))
    server.behavior.breaks = 2
    assert fetch("known") == 0
    assert (tmp_path / "data" / "known.csv").read_bytes() == CONTENT
    step = server.behavior.break_after
    assert server.behavior.requests == ["", f"bytes={step}-", f"bytes={2 * step}-"]


def test_part_of_an_earlier_run_is_resumed(tmp_path, fetch, server):
    server.behavior.break_after, server.behavior.breaks = 1000, 1
    assert fetch("known", attempts=1) == 2
    assert files(tmp_path) == ["known.csv.part", "known.csv.part-version"]
    assert fetch("known") == 0
    assert server.behavior.requests[-1] == "bytes=1000-"
    assert files(tmp_path) == ["known.csv"]


def test_complete_part_is_not_fetched_again(tmp_path, fetch, server):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "known.csv.part").write_bytes(CONTENT)
    assert fetch("known") == 0
    assert server.behavior.requests == [f"bytes={len(CONTENT)}-"]
    assert (tmp_path / "data" / "known.csv").read_bytes() == CONTENT


@pytest.mark.parametrize("change", [{"ranges": False}, {"version": '"2"'}])
def test_starts_anew_when_it_cannot_resume(tmp_path, fetch, server, change):
    """The server ignores ranges, or its file is no longer the one the part came from."""
    server.behavior.break_after, server.behavior.breaks = 1000, 1
    server.behavior.content = bytes(len(CONTENT))
    assert fetch("known", attempts=1) == 2
    server.behavior.content = CONTENT
    for name, value in change.items():
        setattr(server.behavior, name, value)
    assert fetch("known") == 0
    assert (tmp_path / "data" / "known.csv").read_bytes() == CONTENT


def test_busy_server_is_asked_again(fetch, server):
    server.behavior.failures = [503, 429]
    assert fetch("known") == 0
    assert len(server.behavior.requests) == 3


def test_retries_are_bounded(fetch, server, capsys):
    server.behavior.failures = [503] * 100
    assert fetch("known", attempts=3) == 2
    assert len(server.behavior.requests) == 3
    assert "503" in capsys.readouterr().err


def test_not_found_is_final(fetch, server, capsys):
    server.behavior.failures = [404]
    assert fetch("known") == 2
    assert len(server.behavior.requests) == 1
    assert "404" in capsys.readouterr().err


def test_wrong_content_is_not_put_in_place(tmp_path, fetch, server, capsys):
    server.behavior.content = CONTENT[:-2]
    assert fetch("known") == 2
    message = capsys.readouterr().err
    for part in (SHA256, hashlib.sha256(CONTENT[:-2]).hexdigest(), "not put in place", "--url_base"):
        assert part in message
    assert files(tmp_path) == []
    server.behavior.content = CONTENT
    assert fetch("known") == 0


def test_unknown_checksum_is_kept_and_enforced(tmp_path, fetch, server, capsys):
    assert fetch("unknown") == 0
    assert SHA256 in capsys.readouterr().out
    assert (tmp_path / "data" / "unknown.csv.sha256").read_text() == f"{SHA256}  unknown.csv\n"
    (tmp_path / "data" / "unknown.csv").unlink()
    server.behavior.content = b"another content\n"
    assert fetch("unknown") == 2
    assert "unknown.csv.sha256" in capsys.readouterr().err
    assert files(tmp_path) == ["unknown.csv.sha256"]


def test_a_checksum_that_a_killed_run_left_empty_is_written_anew(tmp_path, fetch):
    (tmp_path / "data").mkdir(exist_ok=True)
    noted = tmp_path / "data" / "unknown.csv.sha256"
    noted.touch()
    assert fetch("unknown") == 0
    assert noted.read_text() == f"{SHA256}  unknown.csv\n"


def test_damaged_file_that_is_there_is_named(tmp_path, fetch, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "known.csv").write_bytes(b"x")
    assert fetch("known") == 2
    assert "delete the file" in capsys.readouterr().err


@pytest.mark.parametrize("level", [1, 9])
def test_checksum_is_that_of_the_decompressed_content(tmp_path, fetch, server, level):
    server.behavior.content = gzip.compress(CONTENT, level)
    assert fetch("packed") == 0
    assert gzip.decompress((tmp_path / "data" / "packed.csv.gz").read_bytes()) == CONTENT


def test_damaged_archive_is_refused(tmp_path, fetch, server, capsys):
    server.behavior.content = gzip.compress(CONTENT)[:-100]
    assert fetch("packed") == 2
    assert "truncated" in capsys.readouterr().err
    assert files(tmp_path) == []


def test_offline_names_host_url_and_remedy(tmp_path, fetch, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert fetch("known", base) == 2
    message = capsys.readouterr().err
    for part in (base.removeprefix("http://"), f"{base}/known.csv", str(tmp_path / "data" / "known.csv"), "download"):
        assert part in message
    assert message.count("\n") == 1


def test_unknown_name_lists_the_catalog(fetch, capsys):
    assert fetch("nothing") == 2
    assert "known, packed, unknown" in capsys.readouterr().err


def test_shared_files_have_the_checksums_of_the_catalog(tmp_path, shared_data, capsys):
    source = shared_data("bitcoin-otc/soc-sign-bitcoinotc.csv.gz")
    (tmp_path / source.name).write_bytes(source.read_bytes())
    assert main(["bitcoin-otc", "--to", str(tmp_path)]) == 0
    assert "already there, checksum right" in capsys.readouterr().out
