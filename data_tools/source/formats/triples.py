"""Reads N-Triples (RDF) as a table: subject, predicate, object.

A term is its text: an IRI without its angle brackets, a blank node ``_:x``, a literal as it stands in the file with
quotes, language and type, but numbered characters (``\\u00E9``) are put in. So equal literals are one node, as in R-GCN
(Schlichtkrull et al. 2018). A blank node is one of its file: in the second of several files ``_:x`` is ``_:[file 2]x``.
A term beyond 255 bytes is cut, and a hash distinguishes it from others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

from data_tools.source.formats.selection import pick, select_all
from data_tools.source.formats.table import Table
from data_tools.source.formats.text_stream import CleanText
from data_tools.source.formats.values import Raw, Reference, text_array
from hpcgnn.graph.files import FileFormatError

COLUMNS = ["subject", "predicate", "object"]
NODE = rb"<([^<>\s]+)>|(_:[^\s<>\"]+)"
LITERAL = rb'("(?:[^"\\\n]|\\.)*"(?:\^\^<[^<>\s]*>|@[A-Za-z0-9-]+)?)'
TRIPLE = re.compile(
    rb"^[ \t]*(?:" + NODE + rb")[ \t]*<([^<>\s]+)>[ \t]*(?:" + NODE + rb"|" + LITERAL + rb")[ \t]*\.[ \t]*(?:#.*)?\n",
    re.MULTILINE,
)
LONGEST, KEPT = 255, 190
NUMBERED = re.compile(rb"\\(?:u([0-9A-Fa-f]{4})|U(00(?:0[0-9A-Fa-f]|10)[0-9A-Fa-f]{4})|.)")
WRITTEN = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


class TriplesTable(Table):
    """An N-Triples file; the rows are its triples in order."""

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        """Yield pieces of the requested columns. Raises FileFormatError naming the row of a line that is not a
        triple."""
        chosen, _ = select_all(self.name, references, COLUMNS, len(COLUMNS))
        first_row = 0
        with self.source.open() as raw:
            for block in CleanText(raw, self.spec.comment or "#").blocks():
                triples = TRIPLE.findall(block)
                if len(triples) != block.count(b"\n"):
                    raise self._bad_line(block, first_row)
                first_row += len(triples)
                terms = zip(*((s or b, p, o or c or literal) for s, b, p, o, c, literal in triples), strict=True)
                columns = {
                    i: text_array(self.name, [shorten(of_file(put_in_numbered(term), self.number)) for term in column])
                    for i, column in enumerate(terms)
                }
                yield pick(chosen, columns, len(triples))

    def _bad_line(self, block: bytes, first_row: int) -> FileFormatError:
        lines = block.splitlines(keepends=True)
        row = next(i for i, line in enumerate(lines) if not TRIPLE.fullmatch(line))
        text = lines[row][:100].decode("utf-8", "replace").strip()
        return FileFormatError(
            f"{self.name}: row {first_row + row + 1}: {text!r} is not a triple '<subject> <predicate> object .'; mend "
            "or remove it (for Turtle set format: turtle)"
        )


def put_in_numbered(term: bytes) -> bytes:
    """Put the numbered characters of a term into UTF-8; other escapes stay."""
    if b"\\u" not in term and b"\\U" not in term:
        return term

    def put_in(escape: re.Match[bytes]) -> bytes:
        number = escape[1] or escape[2]
        return chr(int(number, 16)).translate(WRITTEN).encode("utf-8", "surrogatepass") if number else escape[0]

    return NUMBERED.sub(put_in, term)


def of_file(term: bytes, number: int) -> bytes:
    """Put the number of its file, from the second on, into the name of a blank node; other terms stay."""
    return b"_:[file %d]" % number + term[2:] if number > 1 and term.startswith(b"_:") else term


def shorten(term: bytes) -> bytes:
    """Shorten a term beyond 255 bytes to its beginning and the sha256 of the whole."""
    if len(term) <= LONGEST:
        return term
    return (
        term[:KEPT].decode("utf-8", "ignore").encode() + b"... sha256:" + hashlib.sha256(term).hexdigest()[:32].encode()
    )
