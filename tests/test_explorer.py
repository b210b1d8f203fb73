"""The page in a real browser: from a file, without a network, by pointer and by keyboard."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.report.page.compose import comparison_page, looks, run_page
from kvsim.report.page.document import Document
from kvsim.report.page.explorer import Scope, explorer
from kvsim.results.block_events import BLOCK_EVENTS, BlockEvent, block_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.long

Open = Any


@pytest.fixture(scope="module")
def runs() -> kvsim.Comparison:
    at = np.arange(40) * 0.2
    segments = [[(1 + k % 2, 0, 64), (100 + k, 0, 20 + k)] for k in range(40)]
    prompts = np.array([84 + k for k in range(40)])
    trace = kvsim.Trace.from_arrays(at, prompts, np.full(40, 60), segments=segments)
    return kvsim.compare(
        trace,
        ["contiguous-max", "paged"],
        model="llama-3-8b",
        gpu="l4",
        max_model_len=512,
        num_gpu_blocks_override=70,
        record_block_events=True,
        record_memory_map=True,
    )


@pytest.fixture
def opened(browser: Any, runs: kvsim.Comparison, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a page from a file with the network off; nothing may be said on its console."""
    said: list[str] = []
    contexts = []

    def show(text: str | None = None, **options: Any) -> Any:
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: said.append(asked.url) if loads(asked.url) else None)
        file = tmp_path / "report.html"
        file.write_text(text or comparison_page(runs))
        page.goto(file.as_uri())
        page.wait_for_selector("#explorer[data-ready=yes]")
        return page

    yield show
    for context in contexts:
        context.close()
    assert not said


def loads(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))


def shown(page: Any, part: str) -> str:
    text: str = page.text_content(f'[data-part="{part}"]')
    return text


def test_counts_shown_are_those_of_the_tables(opened: Open, runs: kvsim.Comparison) -> None:
    page = opened()
    events = runs["paged"].block_events
    counted = {kind: int((events["kind"] == kind).sum()) for kind in BlockEvent}
    assert shown(page, "totals") == (
        f"{counted[BlockEvent.ALLOC]:,} blocks allocated, {counted[BlockEvent.HIT]:,} hits, "
        f"{counted[BlockEvent.EVICT]:,} evictions, {counted[BlockEvent.PREEMPT]:,} preemptions"
    )
    assert counted[BlockEvent.PREEMPT] == runs["paged"].summary["num_preemptions"] > 0


def test_blocks_in_use_are_those_of_the_record(opened: Open, runs: kvsim.Comparison) -> None:
    page = opened()
    result = runs["paged"]
    virtual_ranges = block_runs(result.block_events, float(result.block_events["time"][-1]))
    for time in (1.0, 3.0, 6.5):
        now = virtual_ranges[(virtual_ranges["start"] <= time) & (virtual_ranges["end"] > time)]
        used = int((now["num_refs"] > 0).sum())
        page.evaluate("time => kvsim.explorer.moveTo(time)", time * 1e6)
        page.wait_for_function("time => kvsim.explorer.time === time", arg=time * 1e6)
        found = page.evaluate("kvsim.explorer.view.history.counts(kvsim.explorer.time)")
        assert found == {
            "used": used,
            "cached": len(now) - used,
            "free": result.summary["kv_cache"]["num_gpu_blocks"] - 1 - len(now),
        }


def test_a_click_on_a_request_shows_its_blocks(opened: Open, runs: kvsim.Comparison) -> None:
    page = opened()
    result = runs["paged"]
    virtual_ranges = block_runs(result.block_events, 1e9)
    mine = virtual_ranges[(virtual_ranges["request"] == 20) & (virtual_ranges["num_refs"] == 1)][0]
    box = page.locator('[data-part="map"]').bounding_box()
    seen = page.evaluate("kvsim.explorer.window")
    x = (mine["start"] + mine["end"]) / 2 * 1e6 / seen["t1"]
    y = 1 - (mine["block"] + 0.5) / seen["b1"]
    page.locator('[data-part="map"]').scroll_into_view_if_needed()
    box = page.locator('[data-part="map"]').bounding_box()
    page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
    assert page.evaluate("kvsim.explorer.chosen") == 20
    events = result.block_events
    takes = events[(events["request"] == 20) & np.isin(events["kind"], (0, 1, 2))]
    held = set(takes["block"].tolist())
    assert f"{len(held)} blocks over its lifetime" in shown(page, "said")
    assert set(page.evaluate("[...kvsim.explorer.request_blocks().keys()]")) == held
    rows = page.locator("#block-table tbody tr").all_text_contents()
    time = page.evaluate("kvsim.explorer.time") / 1e6
    assert len(rows) == holds_at(events, 20, time)
    marked = page.evaluate(MARKED)
    assert marked > 0


#: Colours of the pool under the ends of the arrows, and whether each row in sight has one.
ENDS = """() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
    const { explorer } = kvsim, { pool } = explorer.rasters;
    const frame = explorer.find('arrows').getBoundingClientRect();
    const box = pool.canvas.getBoundingClientRect(), scale = pool.canvas.width / box.width;
    const paths = [...document.querySelectorAll('.arrows path')];
    done(paths.map(path => {
        const [x, y] = path.getAttribute('d').split('L')[1].split('M')[0].split(' ').map(Number);
        const at = [x + frame.left - box.left, y + frame.top - box.top];
        const [left, top] = at.map(one => Math.floor(one * scale));
        return [Number(path.dataset.block), pool.pixels[top * pool.canvas.width + left]];
    }).concat([[-1, explorer.mark]]));
})))"""


def test_arrows_lead_from_logical_blocks_to_the_squares_of_physical_ones(opened: Open) -> None:
    page = opened()
    page.evaluate("kvsim.explorer.choose(20)")
    first, last = page.evaluate("kvsim.explorer.view.history.span(20)")
    page.evaluate("time => kvsim.explorer.moveTo(time)", (first + last) / 2)
    ends = page.evaluate(ENDS)
    _, mark = ends.pop()
    blocks = [int(text) for text in page.locator("#block-table td:nth-child(2)").all_inner_texts()]
    assert [block for block, _ in ends] == blocks
    assert len(blocks) > 3
    assert {colour for _, colour in ends} == {mark}  # the chosen request's squares
    page.keyboard.press("Escape")
    page.evaluate("kvsim.explorer.choose(-1)")
    assert len(page.evaluate(ENDS)) == 1


def test_pages_of_a_radix_tree_are_numbered_from_one(opened: Open) -> None:
    trace = workloads.multi_turn(num_requests=20, request_rate=2.0, seed=1)
    options = {"model": "llama-3-8b", "gpu": "l40s", "max_total_tokens": 20000, "page_size": 4}
    result = kvsim.simulate(trace, engine="sglang", record_block_events=True, **options)
    page = opened(run_page(result))
    usable = result.summary["kv_cache"]["num_usable_blocks"]
    assert page.evaluate("kvsim.explorer.view.history.blocks.length") == usable + 1
    end = float(result.block_events["time"][-1])
    virtual_ranges = block_runs(result.block_events, end)
    time = 5.0 + float(result.requests["arrival_time"].min())
    now = virtual_ranges[(virtual_ranges["start"] <= time) & (virtual_ranges["end"] > time)]
    used = int((now["num_refs"] > 0).sum())
    found = page.evaluate("kvsim.explorer.view.history.counts(5e6)")
    assert found == {"used": used, "cached": len(now) - used, "free": usable - len(now)}
    assert page.locator("[data-part=tree] rect").count() > 5


#: Counts pixels of the colour that marks the chosen request.
MARKED = """() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
    const { rasters, mark } = kvsim.explorer;
    done(rasters.map.pixels.filter(one => one === mark).length);
})))"""


def holds_at(events: Any, request: int, time: float) -> int:
    mine = events[(events["request"] == request) & (events["time"] <= time + 1e-6)]
    takes = int(np.isin(mine["kind"], (0, 1, 2)).sum())
    return takes - int(np.isin(mine["kind"], (3, 4)).sum())


def test_the_keyboard_does_it_all(opened: Open, runs: kvsim.Comparison) -> None:
    page = opened()
    page.keyboard.press("/")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    assert page.evaluate("kvsim.explorer.chosen") == 7
    assert shown(page, "said").startswith("Request 7")
    page.locator('[data-part="map"]').focus()
    before = page.evaluate("kvsim.explorer.time")
    page.keyboard.press("j")
    after = page.evaluate("kvsim.explorer.time")
    assert after > before
    assert "Request 7" in shown(page, "said")
    page.keyboard.press("k")
    assert page.evaluate("kvsim.explorer.time") < after
    page.keyboard.press("0")
    page.keyboard.press("+")
    window = page.evaluate("kvsim.explorer.window")
    assert window["t1"] - window["t0"] == pytest.approx(window["duration"] / 2)
    page.keyboard.press("ArrowRight")
    assert page.evaluate("kvsim.explorer.window")["t0"] > window["t0"]
    page.keyboard.press("Escape")
    assert page.evaluate("kvsim.explorer.chosen") == -1


def test_every_run_and_colour_is_drawn(opened: Open) -> None:
    page = opened()
    pictures = set()
    for mode in ("cause", "state", "request", "age"):
        page.select_option('[data-part="mode"]', mode)
        page.evaluate(MARKED)
        pictures.add(page.evaluate("kvsim.explorer.rasters.map.canvas.toDataURL()"))
    assert len(pictures) == 4
    page.select_option('[data-part="run"]', "0")
    page.wait_for_function("kvsim.explorer.view.name === 'contiguous-max'")
    assert "no blocks to show" in shown(page, "totals")
    assert page.locator('[data-part="pool"]').is_hidden()
    assert page.locator('option[value="state"]').is_disabled()


def test_tenants_have_colours_where_there_are_any(opened: Open) -> None:
    trace = kvsim.Trace.from_arrays(
        np.arange(6) * 0.1, np.full(6, 60), np.full(6, 30), tenant=["a", "b", "a", "b", "c", None]
    )
    result = kvsim.simulate(trace, model="llama-3-8b", gpu="l4", record_block_events=True)
    page = opened(run_page(result))
    assert page.evaluate("[...kvsim.explorer.view.facts.tenant]") == [0, 1, 0, 1, 2, -1]
    page.select_option('[data-part="mode"]', "tenant")
    colours = page.evaluate(
        """() => new Set([0, 1, 2].map(tenant => {
            const line = { request: [[0, 1, 4][tenant]] };
            return kvsim.explorer.painter()(line, 0);
        })).size"""
    )
    assert colours == 3


def test_the_prefix_tree_leads_to_blocks(opened: Open) -> None:
    page = opened()
    node = page.locator("rect.node").first
    assert "hits" in str(node.get_attribute("aria-label"))
    node.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("kvsim.explorer.node") == 0
    assert page.evaluate(MARKED) > 0


def test_who_does_not_see_it_hears_it(opened: Open) -> None:
    page = opened(viewport={"width": 390, "height": 800}, color_scheme="dark")
    label = page.locator('[data-part="map"]').get_attribute("aria-label")
    assert "blocks in use" in label
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    said = page.locator('[data-part="said"]')
    assert said.get_attribute("aria-live") == "polite"


def test_a_table_is_saved_as_csv(opened: Open, runs: kvsim.Comparison) -> None:
    page = opened()
    with page.expect_download() as saved:
        page.click('button.csv[data-table="summary"]')
    lines = saved.value.path().read_text().splitlines()
    exact = {row.split(",")[0]: row.split(",")[1:] for row in lines}
    duration = [float(one) for one in exact["duration"]]
    assert duration == [result.summary["duration"] for result in runs.results.values()]


def test_a_fleet_is_drawn_and_opened_by_replica(opened: Open) -> None:
    trace = workloads.sharegpt(num_requests=30, request_rate=8.0, seed=1)
    result = kvsim.simulate(
        trace,
        model="llama-3-8b",
        gpu="l4",
        max_model_len=1024,
        data_parallel_size=3,
        record_block_events=True,
        record_memory_map=True,
    )
    page = opened(run_page(result))
    strip = page.locator('[data-part="fleet"]')
    box = strip.bounding_box()
    strip.click(position={"x": 20, "y": box["height"] - 5})
    page.wait_for_function("kvsim.explorer.view.replica === 2")


def large(num_blocks: int, num_steps: int) -> str:
    """Return a page of a pool in which blocks come and go at every step."""
    rng = np.random.default_rng(0)
    trace = workloads.fixed(prompt=20, output=4, num_requests=3, request_rate=1.0)
    result = kvsim.simulate(trace, model="llama-3-8b", gpu="l4", num_gpu_blocks_override=num_blocks)
    steps = np.arange(num_steps)
    rows = np.zeros(num_steps * 40, BLOCK_EVENTS)
    rows["time"] = np.repeat(steps * result.summary["duration"] / num_steps, 40)
    rows["block"] = 1 + np.arange(len(rows)) % (num_blocks - 1)
    rows["request"] = rng.integers(0, 3, len(rows))
    ends = rows.copy()
    ends["time"] += result.summary["duration"] / 50
    ends["kind"] = BlockEvent.FREE
    both = np.concatenate([rows, ends])
    both = both[np.argsort(both["time"], kind="stable")]
    page = Document("large", "")
    named = {"paged": replace(result, block_events=both)}
    page.explorer(explorer(named, Scope()) | looks())
    return page.html()


@pytest.mark.slow
def test_ten_thousand_blocks_by_ten_thousand_steps_fit_and_pan(
    opened: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frames per second are printed, not asserted: they are the machine's."""
    text = large(10_000, 10_000)
    assert len(text) < 5_000_000
    page = opened(text, viewport={"width": 1280, "height": 900})
    page.select_option('[data-part="mode"]', "request")
    page.evaluate("kvsim.explorer.zoom(0.5)")
    milliseconds = page.evaluate(
        """async () => {
            const { explorer } = kvsim;
            const took = [];
            for (let k = 0; k < 60; k++) {
                explorer.pan(k % 2 ? 0.05 : -0.04);
                await new Promise((done) => requestAnimationFrame(done));
                const begun = performance.now();
                explorer.paint();
                took.push(performance.now() - begun);
            }
            return took.sort((a, b) => a - b)[30];
        }"""
    )
    assert milliseconds > 0
    with capsys.disabled():
        print(f"\n{len(text):,} characters; {milliseconds:.1f} ms")  # noqa: T201
