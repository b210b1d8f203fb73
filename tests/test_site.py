"""The site is true: it builds without a warning, its links lead somewhere, what it shows runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import DOCS, PAGES, README, ROOT, anchors, blocks, links, run_page, target

WHOLE = [README, *PAGES, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"))]
NOTES = [ROOT / "DECISIONS.md", ROOT / "CHANGELOG.md"]
SHOWN = [path for path in PAGES if any(b.language in ("bash", "python") for b in blocks(path))]
SHOWN.remove(
    DOCS / "data.md"
)  # its commands want public files; test_sample.py runs them on samples
#: Pages that take more than two seconds: plain Python, figures, both engines.
SLOW = ("own-allocator", "own-parts", "results", "record-and-replay", "tutorial", "waste", "index")
#: Few are enough to see that a command runs; plain Python serves some of them.
NUM_REQUESTS = 20
#: Of a paragraph, table or block.
MOST_CHARACTERS = 900


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_readme_is_a_page_and_not_a_book() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    assert len(text.split()) < 800


#: The terms that README, `kvsim run --help` and the output of a run use without an explanation, in
#: the glossary's words.
TERMS = (
    *("KV cache", "block", "block table", "prefix cache", "radix tree", "allocator", "scheduler"),
    *("running", "token states", "reservation", "internal fragmentation", "hit", "preemption"),
    *("external fragmentation", "paged", "contiguous", "TTFT", "TPOT", "trace", "replica"),
    *("router", "disaggregated prefill", "KV store", "autoscaler", "live migration", "tenant"),
    *("adapter", "offloading", "speculative decoding", "tensor parallelism (TP)", "cost model"),
    *("backend", "batch", "beam", "block events", "bottleneck", "catalogue", "chunked prefill"),
    *(
        "cold start",
        "completed",
        "connector",
        "CUDA graphs",
        "disaggregated prefill",
        "DLPM",
        "E2E",
    ),
    *(
        "attention",
        "context parallelism (DCP)",
        "drafter",
        "encoder cache",
        "engine",
        "EOS",
        "FCFS",
    ),
    *("asynchronous scheduling", "expert parallelism", "fabric", "flow control", "goodput", "GiB"),
    *("front-end latency", "handoff", "hit rate", "horizon", "host tier", "in flight", "invariant"),
    *("ISL", "ITL", "KV-cache manager", "KV usage", "lookahead", "memory budget", "memory map"),
    *("OpenMetrics", "overlap schedule", "page", "pipeline parallelism (PP)", "pool", "VTC"),
    *("prefill worker", "decode worker", "quantization", "recomputed", "replication", "retraction"),
    *("request rate", "retention interval", "roofline", "session", "sliding window", "slot", "SLO"),
    *("state", "step", "swap", "sweep", "think time", "throughput", "turn", "waiting", "waste"),
    *("watermark", "workload"),
)


def test_the_glossary_has_the_terms_of_the_first_minutes() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    headings = re.findall(r"^(\S.*)\n  \S", text, re.M)
    known = {term.strip() for heading in headings for term in [heading, *heading.split(",")]}
    assert set(TERMS) <= known


def test_every_link_leads_somewhere() -> None:
    for path in [*WHOLE, *NOTES]:
        for file, anchor in links(path):
            found = target(path, file)
            assert found.exists(), f"{name(path)}: {file}"
            if anchor:
                assert anchor in anchors(found), f"{name(path)}: {file}#{anchor}"


@pytest.mark.long
def test_every_generated_part_of_the_reference_can_be_made() -> None:
    # In a process of its own: other tests register parts.
    check = [sys.executable, str(DOCS / "generate.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_site_shows_every_table_of_meanings() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    shown = re.findall(r"^<!-- generated: fields (\S+) -->$", text, re.M)
    written = [path.stem for path in sorted((DOCS / "reference" / "fields").iterdir())]
    assert sorted(shown) == written
    assert "<!-- end -->" not in text


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ("time,seconds\nold,gone\n", r"unknown \['old'\]"),
        ("time,\n", r"no meaning \['time'\]"),
        ("time,seconds, ascending\n", r"need quotes: \['time'\]"),
    ],
)
def test_meanings_are_those_of_the_names_in_the_code(
    rows: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import names  # type: ignore[import-not-found]

    monkeypatch.setattr(names, "FIELDS", tmp_path)
    (tmp_path / "memory.csv").write_text("name,meaning\n" + rows, encoding="utf-8")
    with pytest.raises(ValueError, match=wrong):
        names.table("memory", {"time": "float64"})


def test_a_mark_of_an_unknown_kind_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "_ext")
    from generated_parts import filled  # type: ignore[import-not-found]

    with pytest.raises(ValueError, match="must be table, fields, api or commands"):
        filled("<!-- generated: picture -->\n")


#: Commands in blocks that `run_page` does not run, and the reason.
NOT_RUN = {
    "docs/howto/calibrate.md": "files of the user's own server",
    "docs/howto/live.md": "servers, which run until they are stopped: tests/test_serve.py",
    "docs/howto/questions.md": "minutes: tests/test_questions.py runs each",
    "CONTRIBUTING.md": "set-up and tests, which .ci/run runs",
}


def test_every_command_that_a_page_shows_is_run() -> None:
    """Blocks in a language that nothing runs hold no command, except on the listed pages."""
    loose = {}
    for path in WHOLE:
        text = path.read_text(encoding="utf-8")
        loose[name(path)] = [
            line
            for language, block in re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.M | re.S)
            if language not in ("bash", "python")
            for line in block.splitlines()
            if re.match(r"(\$ )?(kvsim|python|\.venv/bin/\S+) ", line)
        ]
    assert {page for page, lines in loose.items() if lines} == set(NOT_RUN)


def test_no_paragraph_of_a_document_is_too_long() -> None:
    for path in [*WHOLE, ROOT / "DECISIONS.md", ROOT / "SECURITY.md"]:
        for text in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
            assert len(text) <= MOST_CHARACTERS, f"{name(path)}: {text[:80]}"


def page(path: Path) -> Any:
    marks = [pytest.mark.slow] if path.stem in SLOW else []
    return pytest.param(path, marks=marks, id=name(path))


@pytest.mark.long
@pytest.mark.parametrize("path", [page(path) for path in SHOWN])
def test_what_a_page_shows_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_page(path, tmp_path, monkeypatch, NUM_REQUESTS)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    done = subprocess.run(
        [*build, str(DOCS), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
