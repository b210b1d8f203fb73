"""Decisions are numbered without holes, and every number that is cited stands for one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DECISIONS = ROOT / "DECISIONS.md"

RECORD = re.compile(r"^## D(\d+)\. .+\n(.*)\n((?:- |  ).*\n)+", re.MULTILINE)
MAX_SENTENCES = 5

FOLDED = re.compile(r"^- D(\d+): ((?:D\d+,?)+)$", re.MULTILINE)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}(, accepted)?")
CITED = re.compile(r"(?<![\w.#/-])D([1-9]\d{0,2})\b")

#: Docstring rules of the linter have such names, too.
LINTED = re.compile(r"# noqa.*")


def records() -> list[re.Match[str]]:
    return list(RECORD.finditer(DECISIONS.read_text(encoding="utf-8")))


def texts() -> list[Path]:
    """Return where a decision may be cited: code and documents that people write."""
    folders = ("kvsim", "workloads", "experiments", "docs")
    found = [path for name in folders for path in sorted((ROOT / name).rglob("*"))]
    made = {"_build", "jupyter_execute"}
    found = [path for path in found if not made & set(path.parts)]
    return [*(p for p in found if p.suffix in (".py", ".md", ".toml")), *sorted(ROOT.glob("*.md"))]


def numbers() -> tuple[list[int], dict[int, int]]:
    """Return the numbers of the records, and the record of each number that is folded."""
    text = DECISIONS.read_text(encoding="utf-8")
    own = [int(n) for n in re.findall(r"^## D(\d+)\.", text, re.MULTILINE)]
    folded = FOLDED.findall(text)
    return own, {int(n): int(into) for into, ns in folded for n in re.findall(r"\d+", ns)}


def test_numbers_have_no_holes() -> None:
    own, folded = numbers()
    assert own == sorted(own)
    assert sorted([*own, *folded]) == list(range(1, max(own) + 1))
    assert len(records()) == len(own) >= 60


def test_a_folded_decision_leads_to_a_record() -> None:
    own, folded = numbers()
    assert set(folded.values()) <= set(own)


def test_every_record_has_a_date_and_three_short_parts() -> None:
    for record in records():
        assert DATE.fullmatch(record[2]), record[0]
        parts = re.findall(r"^- (\w+): (.*)$", record[0], re.MULTILINE)
        assert [name for name, _ in parts] == ["Context", "Decision", "Consequence"], record[0]
        sentences = [len(re.findall(r"\.(?= [A-Z]|$)", text)) for _, text in parts]
        assert sum(sentences) <= MAX_SENTENCES, record[0]


def test_every_number_that_is_cited_exists() -> None:
    own, folded = numbers()
    cited: dict[int, list[str]] = {}
    for path in texts():
        for number in CITED.findall(LINTED.sub("", path.read_text(encoding="utf-8"))):
            cited.setdefault(int(number), []).append(path.name)
    assert set(cited) <= {*own, *folded}
    outside = {n for n, where in cited.items() if set(where) - {DECISIONS.name}}
    assert len(outside) >= 8  # where the code does what looks odd
    assert not outside & set(folded), "cite the record that a decision is folded into"
