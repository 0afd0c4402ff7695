"""The guide is plain English: short sentences and cells, no turns that stop a reader, one word for one thing."""

from __future__ import annotations

import sys

import pytest
from conftest import REPOSITORY

from hpcgnn.keys import keys
from hpcgnn.kinds import KINDS

sys.path.insert(0, str(REPOSITORY / "docs" / "_tools"))
import messages
import words
from words import IDIOMS, LONG_CELL, Count, Piece

pytestmark = pytest.mark.serial
MOST_LONG, MOST_IDIOMS = 0.03, 0.3  # share of sentences above 30 words; idioms per 1,000 words, each


@pytest.fixture(scope="module")
def pieces() -> list[Piece]:
    """Of all pages but records of measurements."""
    found = {str(page.relative_to(REPOSITORY)): page.read_text() for page in words.pages()}
    return [piece for name, text in found.items() if not words.is_measured(name) for piece in words.pieces(name, text)]


def test_sentences_and_cells_are_short(pieces):
    assert Count.of(pieces).long_share <= MOST_LONG
    assert [f"{p.file}:{p.line}" for p in pieces if p.cell and p.words > LONG_CELL] == []


@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms_are_rare(pieces, idiom):
    places = [f"{p.file}:{p.line}" for p in pieces if idiom in words.idioms(p)]
    assert Count.of(pieces).per_thousand(idiom) <= MOST_IDIOMS, places
    assert [place for place in places if sum(place.split(":")[0] in other for other in places) > 1] == []


def test_the_glossarys_words_are_used(pieces):
    """And words of the same meaning are not."""
    assert [(f"{p.file}:{p.line}", found) for p in pieces for found in words.twins(p)] == []
    glossary = next(text for name, text in ((p.name, p.read_text()) for p in words.pages()) if name == "glossary.md")
    rows = [line.split(" | ")[0].strip("| ") for line in glossary.splitlines() if line.startswith("| ")][1:]
    rest = " ".join(p.text.lower() for p in pieces if p.file != "docs/glossary.md")
    rest += " ".join(page.read_text().lower() for page in words.pages() if page.name != "glossary.md")
    unused = [row for row in rows if not any(word.strip().lower() in rest for word in row.split(","))]
    assert unused == []


def test_help_and_messages_are_plain():
    """Of every key, and of every error that the program raises."""
    texts = {key.name: key.text for kind in KINDS for key in keys(kind)}
    texts |= {f"message of {message.module}: {message.text}": message.text for message in messages.messages()}
    found = [Piece(name, 0, sentence) for name, text in texts.items() for sentence in text.split(". ")]
    count = Count.of(found)
    assert {idiom: count.per_thousand(idiom) for idiom in IDIOMS if count.per_thousand(idiom) > MOST_IDIOMS} == {}


def test_docstrings_are_plain():
    """Of modules, and of public classes and functions."""
    files = [file for package in ("hpcgnn", "data_tools") for file in sorted((REPOSITORY / package).rglob("*.py"))]
    found = [piece for file in files for piece in words.docstrings(file)]
    count = Count.of(found)
    assert len(found) > 5000
    assert count.long_share <= MOST_LONG
    assert {idiom: count.per_thousand(idiom) for idiom in IDIOMS if count.per_thousand(idiom) > MOST_IDIOMS} == {}
    assert [(piece.file, twins) for piece in found if (twins := words.twins(piece))] == []


@pytest.mark.parametrize(
    ("text", "idiom"),
    [
        ("What is read is checked.", "clause as a subject"), ("A model of your own is a class.", "own"),
        ("The rows are those of the owner.", "those as a noun"), ("All methods but `random` do.", "but for except"),
        ("It holds so many rows.", "so many"), ("| of links: how many |", "telegram"),
        ("The log says it.", "software that speaks"), ("It ends by itself.", "by itself"),
    ],
)  # fmt: skip
def test_idioms_are_found(text, idiom):
    assert [name for piece in words.pieces("page.md", text) for name in words.idioms(piece)] == [idiom]


def test_pieces_of_a_page():
    page = "# Title\n\nOne `code word` here. A [link](x.md) is\nread on.\n\n* entry\n\n"
    page += "| a | b c |\n|---|---|\n\n    code says\n"
    found = [(piece.line, piece.text, piece.cell) for piece in words.pieces("page.md", page)]
    assert found == [
        (1, "Title", False), (3, "One `code` here.", False), (3, "A link is read on.", False), (6, "entry", False),
        (8, "a", True), (8, "b c", True),
    ]  # fmt: skip
    assert [piece.words for piece in words.pieces("page.md", "one two `a b c` three-four.")] == [4]
