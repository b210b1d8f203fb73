"""What is said of a run is said by every command and every page, once."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING

import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.report.page.compose import comparison_page
from kvsim.results.notes import merged, notes_of, shared

if TYPE_CHECKING:
    from pathlib import Path

#: Four notes: a KV dtype and a number of GPUs that nobody measured, an assumed acceptance, a rate
#: that sessions do not reach; and a policy in plain Python.
NOTED = (
    *("--model", "llama-3.1-8b", "--gpu", "a100-80gb", "--kv-cache-dtype", "fp8"),
    *("--tensor-parallel-size", "16", "--workload", "multi-turn", "--num-requests", "12"),
    *("--num-gpu-blocks-override", "600", "--max-model-len", "8192"),  # a small memory map
    *("--speculative-config", '{"method":"ngram","num_speculative_tokens":3}'),
)
RATE = ("--request-rate", "40")
SAID = (
    "attention over fp8 KV was never measured on a100-80gb",
    "tensor_parallel_size 16 is more than the 8 GPUs of one server",
    "acceptance of drafts: published means",
    "runs in plain Python, 23 to 434 times slower (measured): eviction policy "
    "test_eviction:HitsStay",
)
SESSIONS = "40 requests/s requested"
STAYS = ("--allocator", "paged+eviction=test_eviction:HitsStay")


def count(text: str, note: str) -> int:
    return len(re.findall(re.escape(note), text))


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ("run", *RATE, *STAYS),
        ("compare", *RATE, "--allocators", STAYS[1]),
        ("compare", "stays.toml", *RATE, "--vary", "max-num-seqs=4,8", "--replications", "2"),
        ("sweep", *RATE, *STAYS, "--max-num-seqs", "4,8", "--workers", "1", "--out", "cells"),
    ],
)
def test_every_command_and_its_page_say_all_notes_once(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stays.toml").write_text(f'allocator = "{STAYS[1]}"\n')
    main([command[0], *NOTED, *command[1:], "--report", "page.html"])
    printed = capsys.readouterr().err
    notes = [line for line in printed.splitlines() if line.startswith("note: ")]
    page = unescape((tmp_path / "page.html").read_text())
    page = page[page.index("How far to trust it") :]
    for said in (*SAID, SESSIONS):
        assert sum(said in note for note in notes) == 1, (said, notes)
        assert count(page, said) == 1, said


@pytest.mark.long
def test_a_search_says_the_notes_of_its_configurations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("search", *NOTED, "--slo", "mean_tpot_ms<=500", "--replications", "1")
    page = tmp_path / "page.html"
    main([*asked, *STAYS, "--over", "max-num-seqs=4,8", "--report", str(page)])
    notes = capsys.readouterr().err
    for said in SAID:
        assert count(notes, said) == count(page.read_text(), said) == 1, said


def test_a_note_of_some_runs_names_them() -> None:
    assert shared({"a": ["x"], "b": ["x"]}) == ["x"]
    assert shared({"a": ["x"], "b": [], "c": ["x"]}) == ["a; c: x"]
    many = {str(k): ["x"] for k in range(5)} | {"calm": []}
    assert shared(many) == ["5 of 6, the first 0: x"]
    gpus = {f"gpu={gpu}, seqs={n}": ["x"] * (gpu == "l4") for gpu in ["l4", "l40s"] for n in "123"}
    assert shared(gpus) == ["gpu=l4: x"]
    assert shared({"a": ["a: has none"], "b": ["b: has none"]}) == ["a: has none", "b: has none"]


def test_seeds_differ_in_numbers_and_say_a_note_once() -> None:
    assert merged([["3 times"], ["4 times", "other"], []]) == ["3 times", "other"]
    asked = {"notes": ["x"], "reason": "asked for"}
    assert notes_of(asked) == ["x"]
    assert (
        notes_of({**asked, "reason": "y"})[1]
        == "runs in plain Python, 23 to 434 times slower (measured): y"
    )


@pytest.mark.long
def test_a_page_says_nothing_of_records_that_nobody_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("compare", "--num-requests", "20", "--backend", "python")
    main([*asked, "--report", str(tmp_path / "page.html")])
    assert "record_block_events" not in capsys.readouterr().err
    main(["run", *asked[1:], "--allocator", "contiguous-max", "--record-block-events"])
    assert "record_block_events has no effect" in capsys.readouterr().err


@pytest.mark.long
def test_a_page_of_several_runs_says_how_to_run_all_of_them(tmp_path: Path) -> None:
    trace = workloads.sharegpt(num_requests=10, request_rate=4.0, seed=0)
    options = {"model": "llama-3-8b", "gpu": "a100-80gb", "backend": "python", "max_num_seqs": 7}
    compared = kvsim.compare(trace, ["contiguous-max", "paged"], **options)
    page = unescape(comparison_page(compared))
    assert "kvsim compare CONFIG.toml --allocators contiguous-max,paged runs them again" in page
    told = re.search(r'id="configuration">(.*?)</code>', page, re.DOTALL)
    assert told is not None
    assert "allocator" not in told[1]
    assert "max_num_seqs = 7" in told[1]
    file = tmp_path / "config.toml"
    file.write_text(f'{told[1]}num_requests = 10\nrequest_rate = 4.0\nworkload = "sharegpt"\n')
    json_file = tmp_path / "again.json"
    main(["compare", str(file), "--allocators", "contiguous-max,paged", "--json", str(json_file)])
    rows = json.loads(json_file.read_text())["rows"]
    assert [row["mean_ttft_ms"] for row in rows] == [r["mean_ttft_ms"] for r in compared.rows]
    engines = kvsim.compare(trace, engines=["vllm", "sglang"], **options)
    page = unescape(comparison_page(engines))
    assert "kvsim compare CONFIG.toml --engines vllm,sglang runs them again" in page
