"""Counts of the guide's English: `python docs/_tools/words.py [FILE.md ...]`, by default of all pages, and of pages,
pictures, examples and keys; `--show` prints each sentence and cell that is too long, and each idiom, with its line.

A sentence ends at ``.``, ``?`` or ``!`` before white space, and at the end of a list entry, a heading or a cell of a
table. Code in backticks counts as one word; blocks of code are left out."""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEASURED = ("docs/measurements/", "docs/faults.md", "docs/hygiene.md", "CHANGELOG.md")
LONG_SENTENCE, LONG_CELL = 30, 35

# Turns that stop a reader, each with what is written instead.
IDIOMS = {
    "clause as a subject": (r"^(What|Whatever|Whoever|Who|How (?:many|much|long|often|far))\b(?!.*\?$)", "a noun"),
    "own": (r"\b(one's|your|its|their|his) own\b(?= *[,.;:)]|$| (?:is|are|have|has)\b)|\bof (?:one's|your) own\b",
            "your X, a custom X"),
    "those as a noun": (r"\b(?:[Tt]hose|[Tt]hese)\b(?= (?:of|that|which|who|with|in|whose|where|without|on|from|by|for|"
                        r"are|is|have|has|do|does|were|was|may|can|need|come|take|hold|at|after|before|as)\b|[,.;:)]|$)",
                        "the noun"),
    "but for except": (r"(?i)\bbesides\b|\b(?:(?:all|any|no|every)(?: \w+)?|anything|nothing|everything|none) but\b",
                       "except"),
    "so many": (r"\b[Ss]o (?:many|much|few)\b(?! (?:that|as))", "that number of"),
    "telegram": (r"^(?:of|for|in|with|if|where|without) [^,]{1,40}: |^(?:of|likewise)\b", "a full sentence"),
    "software that speaks": (r"\b(?:says|tells|told|asks|wants|knows|is said|are said)\b", "prints, requests, has"),
    "by itself": (r"\b(?:by itself|of itself|by themselves|likewise|as it is|as they are)\b", "automatically"),
}  # fmt: skip

# A word of the glossary, and words of the same meaning that are not used for it.
TWINS = {
    "heterogeneous graph": r"\btyped graphs?\b",
    "learnable node embeddings": r"\blearn(?:able|t|ed) rows\b",
    "remote node": r"\bghosts?\b(?! node)",
    "sampling server": r"\bsampler ranks?\b|\brank that draws\b",
    "skipped": r"\bpass(?:ed|es|ing)? over\b",
    "resumes": r"\b(?:go|goes|went|going) on\b",
    "neighbor": r"\b[Nn]eighbour",
    "normalize": r"\b(?:normalis|initialis|serialis|generalis|recognis|organis|optimis|minimis|maximis|relabell)",
    "behavior": r"\b(?:[Bb]ehaviour|[Cc]olour|[Ff]avour|[Cc]entre\b|[Ll]abell|[Mm]odell|[Aa]rtefact|learnt\b)",
    "early stopping": r"\bpatience\b",
}


@dataclass(frozen=True)
class Piece:
    """A sentence or a cell of a table. text: with code in backticks as one word."""

    file: str
    line: int
    text: str
    cell: bool = False

    @property
    def words(self) -> int:
        """Its number of words."""
        return len(re.findall(r"[\w'`][\w'`.+/-]*", self.text))


def pages() -> list[Path]:
    """List the guide's pages: README, CONTRIBUTING and all of docs/."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if "_tools" not in page.parts]


def is_measured(name: str) -> bool:
    """Whether a page is a record of measurements or tests, read by developers."""
    return name.startswith(MEASURED)


def pieces(name: str, text: str) -> Iterator[Piece]:
    """Cut a page of Markdown into sentences and cells of tables."""
    paragraph: list[str] = []
    first, code = 0, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith(("```", "~~~")):
            code = not code
            line = ""
        elif code or (line.startswith(("    ", "<", "!!!")) and not paragraph):
            continue
        starts = re.match(r"\s*(?:[-*+]|\d+\.|#+)\s", line)
        if (not line.strip() or starts or line.lstrip().startswith("|")) and paragraph:
            yield from _sentences(name, first, " ".join(paragraph))
            paragraph = []
        if line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", _plain(line.strip().strip("|"))):
                if re.search(r"\w", cell):
                    yield Piece(name, number, cell.strip(), cell=True)
        elif line.strip():
            first = first if paragraph else number
            paragraph.append(line[starts.end() :] if starts else line.strip())
            if line.startswith("#"):
                yield from _sentences(name, first, paragraph.pop())


def _plain(text: str) -> str:
    """Make code one word, and of a link its text."""
    text = re.sub(r"`[^`]*`", "`code`", text)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "")


def _sentences(name: str, line: int, text: str) -> Iterator[Piece]:
    for sentence in re.split(r"(?<=[.?!])\)?\s+", _plain(text)):
        if re.search(r"\w", sentence):
            yield Piece(name, line, sentence.strip())


def docstrings(file: Path) -> Iterator[Piece]:
    """Cut the docstrings of a module and of its public classes and functions into sentences."""

    def walk(node: ast.AST, public: bool) -> Iterator[tuple[str, int, str]]:
        for child in getattr(node, "body", []):
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and public and not child.name.startswith("_"):
                yield child.name, child.lineno, ast.get_docstring(child) or ""
                yield from walk(child, isinstance(child, ast.ClassDef))

    tree = ast.parse(file.read_text())
    for name, line, text in [("module", 1, ast.get_docstring(tree) or ""), *walk(tree, True)]:
        place = f"{file.relative_to(ROOT)}:{line}: {name}"
        yield from pieces(place, text.replace("``", "`"))


def sentences_of(piece: Piece) -> list[str]:
    """Cut a cell of a table into its sentences."""
    return re.split(r"(?<=[.?!:])\s+", piece.text) if piece.cell else [piece.text]


def idioms(piece: Piece) -> list[str]:
    """List the idioms of a piece, each as often as it is in it."""
    found = []
    for name, (pattern, _) in IDIOMS.items():
        for sentence in sentences_of(piece):
            found += [name] * len(re.findall(pattern, sentence))
    return found


def twins(piece: Piece) -> list[str]:
    """List the words of a piece for which the glossary has another one."""
    return [
        f"{match[0]} (write {word})" for word, pattern in TWINS.items() for match in re.finditer(pattern, piece.text)
    ]


@dataclass
class Count:
    """Counts over some pieces."""

    words: int
    prose_words: int
    sentences: int
    long: int
    long_cells: int
    idioms: Counter[str]

    @classmethod
    def of(cls, found: list[Piece]) -> Count:
        """Count some pieces."""
        prose = [piece for piece in found if not piece.cell]
        return cls(
            sum(piece.words for piece in found),
            sum(piece.words for piece in prose),
            len(prose),
            sum(piece.words > LONG_SENTENCE for piece in prose),
            sum(piece.cell and piece.words > LONG_CELL for piece in found),
            Counter(name for piece in found for name in idioms(piece)),
        )

    @property
    def words_a_sentence(self) -> float:
        """Mean length of the sentences."""
        return self.prose_words / max(self.sentences, 1)

    @property
    def long_share(self) -> float:
        """Share of sentences above ``LONG_SENTENCE`` words."""
        return self.long / max(self.sentences, 1)

    def per_thousand(self, idiom: str) -> float:
        """How often an idiom stands in 1,000 words."""
        return 1000 * self.idioms[idiom] / max(self.words, 1)

    def row(self) -> str:
        """Write a line of the table."""
        found = " ".join(f"{self.per_thousand(name):5.2f}" for name in IDIOMS)
        return f"{self.words:7}{self.sentences:7}{100 * self.long_share:7.1f}%{self.long_cells:7}  {found}"


def show(piece: Piece) -> None:
    """Print what is to be changed in a piece."""
    place = f"{piece.file}:{piece.line}"
    limit = LONG_CELL if piece.cell else LONG_SENTENCE
    if piece.words > limit:
        print(f"{place}: {piece.words} words: {piece.text[:90]} ...")
    for name in idioms(piece):
        print(f"{place}: {name} (write {IDIOMS[name][1]}): {piece.text[:90]}")
    for word in twins(piece):
        print(f"{place}: {word}")


def totals() -> dict[str, int]:
    """Count pages, pictures, files of examples, and the keys of run files, which all have a row of options.md."""
    help_file = ROOT / "hpcgnn" / "train_help.json"
    documents = json.loads(help_file.read_text()).values() if help_file.exists() else ()
    entries = {(line.split()[0], bool(text.strip())) for document in documents for _, line, text in document["keys"]}
    return {
        "pages": len(pages()),
        "pictures": sum(path.suffix in (".png", ".svg") for path in (ROOT / "docs" / "assets").glob("*")),
        "examples": sum(path.suffix in (".py", ".sh") for path in (ROOT / "examples").rglob("*")),
        "keys": len({name for name, _ in entries}), "keys without help": sum(not has_text for _, has_text in entries),
    }  # fmt: skip


def main() -> int:
    """Print the counts of the pages that the command line names, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--show", action="store_true", help="print each place that is too long or an idiom")
    options = parser.parse_args()
    total: list[Piece] = []
    print(f"{'page':34}{'words':>7}{'sent.':>7}{'>30':>8}{'cells':>7}  per 1,000 words: {', '.join(IDIOMS)}")
    for page in [file.resolve() for file in options.files] or pages():
        name = str(page.relative_to(ROOT))
        found = list(pieces(name, page.read_text(encoding="utf-8")))
        print(f"{name:34}{Count.of(found).row()}")
        if options.show:
            for piece in found:
                show(piece)
        if not is_measured(name):
            total += found
    count = Count.of(total)
    print(f"{'all but measurements':34}{count.row()}")
    if not options.files:
        numbers = [f"words a sentence {count.words_a_sentence:.1f}", *(f"{name} {n}" for name, n in totals().items())]
        print(", ".join(numbers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
