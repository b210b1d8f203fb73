"""Retired names and idioms are refused in help, messages, docstrings and tables of fields."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for room in ("kvsim", "workloads") for path in sorted((ROOT / room).rglob("*.py"))]

#: Private metaphors, pronouns for machines, and quantities without a noun.
IDIOMS = (
    r"who|whom|somebody|nobody|everybody|anybody|so many|in hand|shall|whatever|thereof|"
    r"comes? to|came to|told|desk|rack|shelf|news|belief|prospect"
)
#: What only help and messages refuse: there is room in them for a whole phrase.
PHRASES = r"beside|computed apart|hands? over|handed over|begins? anew|began anew|asked for"
#: Relative clauses and questions at the head of a docstring.
OPENERS = re.compile(r"(Who|Whose|Whom|What|When|Where|Whether|Which|How)\b")

#: Texts that hold a refused word for a reason, by a part of the text.
ALLOWED: dict[str, str] = {}
#: Values of results, which files of earlier versions have, too.
VALUES = ("asked for",)
#: Modules with rules of a language of their own, until they are rewritten.
SKIPPED = (
    *("arrival_loop", "client_loop", "key_table", "live_blocks", "replica_set", "path_set"),
    "sent",
)


class Said(NamedTuple):
    """A text, and where it stands."""

    where: str
    text: str
    is_docstring: bool


def texts(source: str, name: str) -> list[Said]:
    """Return the docstrings and the sentences among the other strings of a module."""
    found: list[Said] = []
    _collect(ast.parse(source), name, found)
    return found


def _collect(node: ast.AST, name: str, found: list[Said]) -> None:
    own = _docstring(node)
    if own is not None:
        text = re.sub(r"``.*?``", "", ast.get_docstring(node) or "")  # type: ignore[arg-type]
        found.append(Said(f"{name}:{own.lineno}", text, is_docstring=True))
    for child in ast.iter_child_nodes(node):
        text = _string(child)
        if child is own or (isinstance(child, ast.Expr) and child.value is own):
            continue
        if text is None:
            _collect(child, name, found)
        elif re.search(r"[a-z]{2,} [a-z(]", text):
            found.append(Said(f"{name}:{child.lineno}", text, is_docstring=False))  # type: ignore[attr-defined]


def _docstring(node: ast.AST) -> ast.Constant | None:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) or not node.body:
        return None
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value if isinstance(first.value.value, str) else None
    return None


def _string(node: ast.AST) -> str | None:
    """Return a literal, without the values of an f-string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(one.value) for one in node.values if isinstance(one, ast.Constant))
    return None


def refused(said: Said) -> list[str]:
    """Return the words of a text that the glossary retires."""
    words = IDIOMS if said.is_docstring else f"{IDIOMS}|{PHRASES}"
    found = re.findall(rf"\b(?:{words})\b", said.text, re.IGNORECASE)
    if said.is_docstring and (opener := OPENERS.match(said.text)):
        found.append(opener[0])
    return [] if any(part in said.text for part in ALLOWED) or said.text in VALUES else found


#: What a source without a refused text has nowhere; most are parsed no further.
ANYWHERE = re.compile(rf"\b(?:{IDIOMS}|{PHRASES})\b|\"\"\"\s*{OPENERS.pattern}", re.IGNORECASE)


def may_be_refused(source: str) -> bool:
    return bool(ANYWHERE.search(re.sub(r'"\s*\n\s*f?"', "", source)))  # parts of a text as one


def test_texts_use_the_words_of_the_glossary() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in FILES if path.stem not in SKIPPED}
    wrong = [
        f"{said.where}: {', '.join(words)}: {said.text[:60]!r}"
        for path, source in sources.items()
        if may_be_refused(source)
        for said in texts(source, str(path.relative_to(ROOT)))
        if (words := refused(said))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_reference_of_fields_uses_them_too() -> None:
    lines = [
        Said(f"{path.name}:{number}", line, is_docstring=False)
        for path in sorted((ROOT / "docs/reference/fields").glob("*.csv"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]
    wrong = [f"{said.where}: {', '.join(words)}" for said in lines if (words := refused(said))]
    assert len(lines) > 100
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""Who drains gets no new work."""', ["Who", "Who"]),
        ('"""Return a number.\n\nNobody asks."""', ["Nobody"]),
        ('x = f"{name}: a second model beside {other}"', ["beside"]),
        (
            'def f():\n    """Whether it fits."""\n    raise ValueError("so many tokens")',
            ["Whether", "so many"],
        ),
        ('"""Return ``told`` and a wholesale figure."""', []),
        ('x = {"who": 1}', []),
    ],
)
def test_what_is_refused(source: str, words: list[str]) -> None:
    assert [word for said in texts(source, "m") for word in refused(said)] == words
    assert may_be_refused(source) or not words
