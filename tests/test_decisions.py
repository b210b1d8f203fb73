"""Decisions are numbered without holes, and every number that is cited stands for one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DECISIONS = ROOT / "DECISIONS.md"

RECORD = re.compile(r"^## D(\d+)\. .+\n(.*)\n((?:- |  ).*\n)+", re.MULTILINE)
STATUS = re.compile(r"\d{4}-\d{2}-\d{2}, (?:accepted|superseded by D(\d+))")
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


def test_numbers_have_no_holes() -> None:
    headings = re.findall(r"^## D(\d+)\.", DECISIONS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(n) for n in headings] == list(range(1, len(headings) + 1))
    assert len(records()) == len(headings) >= 60


def test_every_record_has_a_date_a_status_and_three_parts() -> None:
    for record in records():
        status = STATUS.fullmatch(record[2])
        assert status, record[0]
        parts = re.findall(r"^- (\w+): ", record[0], re.MULTILINE)
        assert parts == ["Context", "Decision", "Consequence"], record[0]
        if status[1]:
            assert int(record[1]) < int(status[1]) <= len(records()), record[0]


def test_every_number_that_is_cited_exists() -> None:
    cited: dict[int, list[str]] = {}
    for path in texts():
        for number in CITED.findall(LINTED.sub("", path.read_text(encoding="utf-8"))):
            cited.setdefault(int(number), []).append(path.name)
    assert not {n: where for n, where in cited.items() if n > len(records())}
    outside = {n for n, where in cited.items() if set(where) - {DECISIONS.name}}
    assert len(outside) >= 8  # where the code does what looks odd
