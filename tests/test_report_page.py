"""The HTML page as text: what it says, that names are escaped, that nothing is loaded."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from refused import refused

import kvsim
import workloads
from kvsim.catalog import get_model
from kvsim.cli import main
from kvsim.evidence import UNCHECKED, evidence_of
from kvsim.kv.paged import PagedManager
from kvsim.report.colours import CAUSES, LINES
from kvsim.report.page.compose import MOST_CHARACTERS, comparison_page, run_page, sweep_page
from kvsim.report.page.document import Document, Table
from kvsim.report.page.explorer import Scope, explorer
from kvsim.report.page.marks import linear_ticks, log_ticks
from kvsim.report.page.pack import pack
from kvsim.report.page.prefix_tree import largest, prefix_tree
from kvsim.results.block_events import BlockEvent

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "l4",
    "max_model_len": 1024,
    "num_gpu_blocks_override": 80,
    "record_block_events": True,
    "record_memory_map": True,
}


@pytest.fixture(scope="module")
def comparison() -> kvsim.Comparison:
    trace = workloads.sharegpt(num_requests=30, request_rate=4.0, seed=1)
    return kvsim.compare(trace, ["contiguous-max", "paged"], **OPTIONS)


@pytest.mark.long
@pytest.mark.parametrize("from_folder", [False, True])
def test_a_page_of_engines_names_them_and_what_checks_each(
    from_folder: bool, tmp_path: Path
) -> None:
    asked = "compare --engines vllm,sglang --model llama-3-8b --gpu l40s --num-requests 20"
    page, folder = tmp_path / "e.html", tmp_path / "e"
    if from_folder:
        main([*shlex.split(asked), "--out", str(folder)])
        main(["report", str(folder), "-o", str(page)])
    else:
        main([*shlex.split(asked), "--report", str(page)])
    text = page.read_text()
    tables = Reader(text).tables
    assert [row[0] for row in tables["comparison"]] == ["engine", "vllm", "sglang"]
    assert "2 engines on llama-3-8b" in text
    assert ("were not recorded" in text) == from_folder
    sglang = "scheduler sglang: recorded schedules of SGLang 0.5.23 come out"
    assert (
        text.count(sglang)
        == text.count("scheduler vllm: schedules are identical to recorded ones of vLLM 0.33")
        == 1
    )


def test_a_run_that_was_saved_before_pages_said_as_much_has_one(tmp_path: Path) -> None:
    trace = workloads.fixed(prompt=20, output=4, num_requests=3, request_rate=1.0)
    kvsim.simulate(trace, **OPTIONS).save(tmp_path / "run")
    for name in ("summary.json", "provenance.json"):
        told = json.loads((tmp_path / "run" / name).read_text())
        told.pop("rules", None)
        told.get("kv_cache", {}).pop("num_usable_blocks", None)
        (tmp_path / "run" / name).write_text(json.dumps(told))
    main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "old.html")])
    text = (tmp_path / "old.html").read_text()
    assert '"numBlocks":80,' in text
    assert "Rules:" not in text


def test_what_nothing_checks_claims_nothing() -> None:
    trace = workloads.fixed(prompt=20, output=4, num_requests=3, request_rate=1.0)
    own = {"allocator": "contiguous-max", "scheduler": "orca"}
    text = run_page(kvsim.simulate(trace, **OPTIONS, **own))
    assert text.count("no recorded run of a real server checks it") == 2
    assert "come out identical" not in text

    class Mine(PagedManager):
        """Inherits rules, not what checks them."""

    assert evidence_of(PagedManager) != evidence_of(Mine) == UNCHECKED


class Reader(HTMLParser):
    """Collects tags, attributes that load something, and tables."""

    LOADS = ("src", "href", "xlink:href", "action", "data", "poster", "srcset")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.styles: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._table: list[list[str]] | None = None
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        known = dict(attrs)
        self.loads += [str(v) for k, v in attrs if k in self.LOADS and str(v)[0] != "#"]
        self.styles += [str(v) for k, v in attrs if k == "style" or k.startswith("on")]
        if tag == "table":
            self._table = self.tables.setdefault(str(known.get("id")), [])
        elif tag == "tr" and self._table is not None:
            self._table.append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._table is not None:
            self._table[-1].append("".join(self._cell or []))
            self._cell = None
        elif tag == "table":
            self._table = None


def test_a_page_says_what_the_tables_say(comparison: kvsim.Comparison) -> None:
    text = comparison_page(comparison)
    page = Reader(text)
    (_, worst, best) = page.tables["comparison"]
    assert (worst[0], best[0]) == ("contiguous-max", "paged")
    tokens = comparison["paged"].summary["kv_cache"]["token_states"]
    assert best[2] == f"{100 * tokens:.1f}"
    assert f"paged wastes {100 * (1 - tokens):.1f} %" in text
    assert "How far to trust it" in text
    assert comparison["paged"].provenance["trace_digest"] in text
    assert text.index("paged wastes") < text.index("<table") < text.index("<svg")


def test_a_page_loads_nothing_and_runs_nothing_but_its_own(comparison: kvsim.Comparison) -> None:
    text = comparison_page(comparison)
    page = Reader(text)
    assert not page.loads
    assert not page.styles
    assert not {"link", "iframe", "object", "embed", "img"} & set(page.tags)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert len(text) < MOST_CHARACTERS


@pytest.mark.long
def test_every_name_is_escaped() -> None:
    evil = "<script>alert(1)</script>&\"'"
    trace = workloads.fixed(prompt=20, output=4, num_requests=3, request_rate=1.0)
    model = replace(get_model("llama-3-8b"), name=evil)
    text = run_page(kvsim.simulate(trace, **{**OPTIONS, "model": model}))
    assert "<script>alert" not in text
    assert Reader(text).tags.count("script") == 2  # the data and the page's own
    rows = [{evil: 1, "output_throughput": 2.0, "error": None}]
    assert "<script>alert" not in sweep_page(rows, [evil])
    page = Document(evil, evil, data=None)
    page.words(evil)
    page.table(Table("t", (evil,), [[evil, (evil, evil)]]))
    assert "<script>alert" not in page.html()


def unpacked(text: str) -> list[int]:
    """Read what the page's script reads, in Python."""
    import base64
    import zlib

    found, value, shift, folded = [], 0, 0, 0
    for byte in zlib.decompress(base64.b64decode(text)):
        folded |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            value += (folded >> 1) ^ -(folded & 1)
            found.append(value)
            shift = folded = 0
    return found


@pytest.mark.parametrize(
    "numbers", [[], [0], [-1, 5, 5, 2**40, -(2**40)], list(range(300)), [127, 128, 16383, 16384]]
)
def test_packed_numbers_come_out_again(numbers: list[int]) -> None:
    assert unpacked(pack(np.array(numbers, np.int64))) == numbers


def test_the_explorer_holds_the_events_of_the_run(comparison: kvsim.Comparison) -> None:
    data = explorer(dict(comparison.results), Scope())
    view = next(one for one in data["views"] if one["events"])
    events = comparison["paged"].block_events
    assert view["events"]["count"] == len(events)
    assert unpacked(view["events"]["block"]) == events["block"].tolist()
    evicted = int((events["kind"] == BlockEvent.EVICT).sum())
    assert view["counts"]["evict"] == evicted > 0
    assert json.loads(json.dumps(data)) == data


def test_what_does_not_fit_is_left_out_and_told(comparison: kvsim.Comparison) -> None:
    data = explorer(dict(comparison.results), Scope(most_events=100, most_requests=5))
    view = next(one for one in data["views"] if one["events"])
    assert view["events"]["count"] <= 100
    assert any("the first" in note and "events" in note for note in data["notes"])
    assert any("facts of the first 5" in note for note in data["notes"])


def test_a_prefix_tree_by_hand() -> None:
    segments = [[(1, 0, 48)], [(1, 0, 32), (2, 0, 32)], [(1, 0, 48)]]
    trace = kvsim.Trace.from_arrays(
        np.array([0.0, 2.0, 4.0]), np.array([48, 64, 48]), np.array([2, 2, 2]), segments=segments
    )
    options = {**OPTIONS, "num_gpu_blocks_override": 300}
    events = kvsim.simulate(trace, **options).block_events
    nodes = prefix_tree(events)
    # Two shared blocks, hit twice; behind them the end of one prompt and of the other.
    assert [(len(node.keys), node.parent, node.hits) for node in nodes] == [
        (2, -1, 2),
        (1, 0, 0),
        (2, 0, 0),
    ]
    assert largest(nodes) == [0]


def test_causes_differ_in_grey_and_lines_in_colour() -> None:
    def lightness(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        return 116 * float(np.cbrt(y)) - 16

    grey = sorted(lightness(colour) for colour, _ in CAUSES.values())
    assert min(np.diff(grey)) > 9
    assert len(set(LINES)) == len(LINES) >= 12
    assert not set(LINES) & {colour for colour, _ in CAUSES.values()}


def test_ticks_are_round() -> None:
    assert log_ticks(0.03, 2) == pytest.approx([0.05, 0.1, 0.2, 0.5, 1, 2])
    assert log_ticks(0.03, 4000) == pytest.approx([0.1, 1, 10, 100, 1000])
    assert linear_ticks(43.0) == [0, 10, 20, 30, 40]
    assert linear_ticks(0.0) == [0]


# -- the command line ------------------------------------------------------------------------------

SMALL = ("--model", "llama-3-8b", "--gpu", "l4", "--num-requests", "6")


@pytest.mark.long
def test_every_command_writes_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = {name: tmp_path / f"{name}.html" for name in ("run", "compare", "sweep", "search")}
    main(["run", *SMALL, "--report", str(pages["run"])])
    main(["compare", *SMALL, "--allocators", "paged", "--report", str(pages["compare"])])
    sweep = ["--request-rate", "2,4", "--workers", "1", "--out", str(tmp_path / "s")]
    main(["sweep", *SMALL, *sweep, "--report", str(pages["sweep"])])
    search = ["--slo", "p99_ttft_ms<=5000", "--replications", "1"]
    main(["search", *SMALL, *search, "--report", str(pages["search"])])
    assert "vllm serve" in pages["search"].read_text()
    assert len(Reader(pages["sweep"].read_text()).tables["cells"]) == 3
    for page in pages.values():
        assert not Reader(page.read_text()).loads
    capsys.readouterr()


@pytest.mark.long
def test_folders_give_the_same_pages(tmp_path: Path) -> None:
    options = ["--record-block-events", "--out", str(tmp_path / "d")]
    direct, later = tmp_path / "a.html", tmp_path / "b.html"
    main(["compare", *SMALL, "--allocators", "paged", *options, "--report", str(direct)])
    main(["report", str(tmp_path / "d"), "-o", str(later)])
    assert later.read_text() == direct.read_text()
    main(["report", str(tmp_path / "d" / "paged"), "-o", str(later)])
    assert "explorer-data" in later.read_text()
    sweep = ["--request-rate", "2,4", "--workers", "1", "--out", str(tmp_path / "s")]
    main(["sweep", *SMALL, *sweep, "--report", str(direct)])
    main(["report", str(tmp_path / "s"), "-o", str(later)])
    assert Reader(later.read_text()).tables == Reader(direct.read_text()).tables


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", *SMALL, "--report", "no/r.html"), "--report no/r.html"),
        (("run", *SMALL, "--report", "r.html", "--replications", "2"), "--report: a page shows"),
        (("report", "nowhere", "-o", "r.html"), "nowhere"),
        (("report", "."), "-o"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, shlex.join(arguments))
    assert not list(tmp_path.iterdir())
