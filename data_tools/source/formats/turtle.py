"""Reads Turtle, and the part of N3 that is Turtle, as a table: subject, predicate, object.

Terms are written as in `triples`. The whole file is held in memory; for files beyond that convert to N-Triples first.
Parsed by hand, as pyoxigraph (0.5) has two drawbacks. It puts language tags into lower case, so that N-Triples and
Turtle of one graph would not make the same nodes. It names the nodes of brackets at random, so that a file would be
another graph each time.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from data_tools.source.formats.selection import pick, select_all
from data_tools.source.formats.table import Size, Table
from data_tools.source.formats.triples import COLUMNS, WRITTEN, of_file, shorten
from data_tools.source.formats.values import Raw, Reference, not_utf8, text_array
from hpcgnn.graph.files import FileFormatError

BATCH = 1 << 16
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
XSD = "http://www.w3.org/2001/XMLSchema#"
TOKEN = re.compile(
    r'''(?:\s|\#[^\n]*)*(?:
    <(?P<iri>[^<>"{}|^`\s]*)>
    | """(?P<long>(?:"{0,2}(?:[^"\\]|\\.))*)""" | \'\'\'(?P<long2>(?:'{0,2}(?:[^'\\]|\\.))*)\'\'\'
    | "(?P<text>(?:[^"\\\n]|\\.)*)" | '(?P<text2>(?:[^'\\\n]|\\.)*)'
    | @(?P<at>[A-Za-z]+(?:-[A-Za-z0-9]+)*)
    | (?P<blank>_:\w(?:[\w.-]*[\w-])?)
    | (?P<prefix>(?:[^\W\d_](?:[\w.-]*[\w-])?)?):(?P<local>(?:[\w:%-]|\\.|\.(?=[\w:%-]))*)
    | (?P<number>[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<word>[A-Za-z]+)
    | (?P<mark>\^\^|[.;,()\[\]])
    | (?P<end>\Z)
    )''',
    re.VERBOSE | re.DOTALL,
)
ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")  # how an IRI begins that no base changes
ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U(00(?:0[0-9A-Fa-f]|10)[0-9A-Fa-f]{4})|(.))", re.DOTALL)
ESCAPED = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f"}


class TurtleTable(Table):
    """A Turtle file; the rows are its triples in order."""

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        """Yield pieces of the requested columns. Raises FileFormatError naming the line that is not Turtle."""
        chosen, _ = select_all(self.name, references, COLUMNS, len(COLUMNS))
        try:
            with self.source.open() as file:
                text = file.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(self.name, error) from None
        triples = Parser(self.name, text).triples()
        while batch := list(islice(triples, BATCH)):
            terms = zip(*batch, strict=True)
            columns = [[shorten(of_file(term.encode(), self.number)) for term in column] for column in terms]
            yield pick(chosen, {i: text_array(self.name, column) for i, column in enumerate(columns)}, len(batch))

    def memory(self) -> int:
        """Count the bytes of the text in the file and in Python."""
        return self.counted.num_bytes * (1 + self.counted.character_bytes)

    def size(self, reference: Reference) -> Size:
        """Measure the triples, by reading them: one may be much longer than it stands in the file."""
        total = Size()
        for batch in self.batches({name: name for name in COLUMNS}):
            parts = [raw.parts[0] for raw in batch.values()]
            total += Size(len(parts[0]), sum(part.nbytes for part in parts), 1)
        return total


class Parser:
    """Recursive descent over the tokens of a text; triples inside of brackets come before the one that holds them."""

    def __init__(self, name: str, text: str):
        self._name, self._text = name, text
        self._token: Any = None  # the match of the current token, which is of one kind and has a value
        self._kind = self._value = ""
        self._position = 0
        self._base = ""
        self._prefixes: dict[str, str] = {}
        self._blanks = 0
        self._triples: list[tuple[str, str, str]] = []

    def triples(self) -> Iterator[tuple[str, str, str]]:
        """Parse all triples. Raises FileFormatError naming the first line that is not Turtle."""
        self._advance()
        while self._kind != "end":
            if not self._directive():
                bracket = self._is_mark("[")
                subject = self._term(literals=False)
                if not (bracket and self._is_mark(".")):
                    self._properties(subject)
                self._expect(".")
            yield from self._triples
            self._triples = []

    def _advance(self) -> None:
        if self._token is not None:
            self._position = self._token.end()
        self._token = TOKEN.match(self._text, self._position)
        if self._token is None:
            raise self._error()
        group = self._token.lastgroup
        self._kind, self._value = "prefix" if group == "local" else group, self._token[group]

    def _error(self) -> FileFormatError:
        rest = self._text[self._position :]
        start = self._position + len(rest) - len(rest.lstrip()) if self._token is None else self._token.start()
        start += len(self._text[start:]) - len(self._text[start:].lstrip())
        line = self._text.count("\n", 0, start) + 1
        rest = self._text[start : start + 40].split("\n")[0]
        return FileFormatError(
            f"{self._name}: line {line}: not Turtle at {rest!r}; mend it, or convert it to N-Triples"
        )

    def _is_mark(self, mark: str) -> bool:
        return self._kind == "mark" and self._value == mark

    def _expect(self, mark: str) -> None:
        if not self._is_mark(mark):
            raise self._error()
        self._advance()

    def _directive(self) -> bool:
        name = self._value.lower() if self._kind in ("at", "word") else ""
        if name not in ("prefix", "base"):
            return False
        dotted = self._kind == "at"
        self._advance()
        prefix = None
        if name == "prefix":
            if self._kind != "prefix" or self._token["local"]:
                raise self._error()
            prefix = self._token["prefix"]
            self._advance()
        if self._kind != "iri":
            raise self._error()
        iri = self._iri(self._value)
        if prefix is None:
            self._base = iri
        else:
            self._prefixes[prefix] = iri
        self._advance()
        if dotted:
            self._expect(".")
        return True

    def _properties(self, subject: str) -> None:
        while True:
            if self._kind == "word" and self._value == "a":
                predicate = RDF + "type"
                self._advance()
            elif self._kind in ("iri", "prefix"):
                predicate = self._term(literals=False)
            else:
                raise self._error()
            while True:
                self._triples.append((subject, predicate, self._term()))
                if not self._is_mark(","):
                    break
                self._advance()
            if not self._is_mark(";"):
                return
            while self._is_mark(";"):
                self._advance()
            if self._is_mark(".") or self._is_mark("]"):
                return

    def _term(self, literals: bool = True) -> str:
        kind, value = self._kind, self._value
        if self._is_mark("["):
            return self._bracket()
        if self._is_mark("("):
            return self._collection()
        if kind == "iri":
            term = self._iri(value)
        elif kind == "prefix":
            if self._token["prefix"] not in self._prefixes:
                raise self._error()
            term = self._prefixes[self._token["prefix"]] + re.sub(r"\\(.)", r"\1", value)
        elif kind == "blank":
            term = value
        elif literals and kind in ("text", "text2", "long", "long2"):
            return self._literal(unescape(value))
        elif literals and kind == "number":
            number_type = "double" if "e" in value.lower() else "decimal" if "." in value else "integer"
            term = f'"{value}"^^<{XSD}{number_type}>'
        elif literals and kind == "word" and value in ("true", "false"):
            term = f'"{value}"^^<{XSD}boolean>'
        else:
            raise self._error()
        self._advance()
        return term

    def _iri(self, text: str) -> str:
        iri = unescape(text)
        if self._base and not ABSOLUTE.match(iri):
            whole = urllib.parse.urljoin(self._base, iri)
            iri = whole + iri[-1:] if iri.endswith(("#", "?")) and not whole.endswith(iri[-1]) else whole
        return iri or "<>"  # the document itself, of which nothing more is known

    def _literal(self, text: str) -> str:
        self._advance()
        literal = f'"{text.translate(WRITTEN)}"'
        if self._kind == "at":
            literal += "@" + self._value
            self._advance()
        elif self._is_mark("^^"):
            self._advance()
            if self._kind not in ("iri", "prefix"):
                raise self._error()
            literal += f"^^<{self._term(literals=False)}>"
        return literal

    def _blank(self) -> str:
        self._blanks += 1
        return f"_:[{self._blanks}]"  # cannot be a label of the file

    def _bracket(self) -> str:
        node = self._blank()
        self._advance()
        if not self._is_mark("]"):
            self._properties(node)
        self._expect("]")
        return node

    def _collection(self) -> str:
        self._advance()
        terms = []
        while not self._is_mark(")"):
            terms.append(self._term())
        self._advance()
        rest = RDF + "nil"
        for term in reversed(terms):
            node = self._blank()
            self._triples += [(node, RDF + "first", term), (node, RDF + "rest", rest)]
            rest = node
        return rest


def unescape(text: str) -> str:
    """Replace the backslash escapes of a text."""
    if "\\" not in text:
        return text
    return ESCAPE.sub(lambda m: chr(int(m[1] or m[2], 16)) if m[1] or m[2] else ESCAPED.get(m[3], m[3]), text)
