"""An engine that no file of kvsim names runs, and is asked where the others are."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from toy_engine import Toy

import kvsim
from kvsim.calibration.read_log import read_startup
from kvsim.cli import main
from kvsim.engines.engine import Engine
from kvsim.engines.registry import ENGINES
from kvsim.testing import check_result

TOY = "toy_engine:Toy"
SMALL = {"model": "llama-3-8b", "gpu": "a100-80gb", "max_model_len": 2048, "record_steps": True}


def trace(lengths: list[int]) -> kvsim.Trace:
    """Return requests of 100 prompt tokens that all arrive at once."""
    number = len(lengths)
    return kvsim.Trace.from_arrays([0.0] * number, [100] * number, lengths)


def test_a_batch_runs_to_its_end_before_the_next_one_starts() -> None:
    result = kvsim.simulate(trace([3, 5, 2, 4]), engine=f"{TOY}+batch=2", **SMALL)
    check_result(result)
    # A prefill and four decodes of the first two, then one and three of the others.
    assert list(result.steps["num_scheduled_tokens"]) == [200, 2, 2, 1, 1, 200, 2, 1, 1]
    first, last = result.requests[:2], result.requests[2:]
    assert set(last["first_scheduled_time"]) == {max(first["finish_time"])}
    assert result.provenance["engine"] == "python"


def test_memory_is_equal_blocks_whatever_a_request_needs() -> None:
    result = kvsim.simulate(trace([3, 5, 2, 4]), engine=f"{TOY}+batch=4", **SMALL)
    kv = result.summary["kv_cache"]
    assert kv["block_size"] == 2048
    assert kv["peak_usage"] == pytest.approx(4 / kv["num_gpu_blocks"])
    assert kv["token_states"] + kv["reservation"] == pytest.approx(1.0)
    assert kv["reservation"] > 0.9


@pytest.mark.long
def test_it_is_compared_with_the_others() -> None:
    rows = kvsim.compare(trace([3, 5]), engines=["vllm", TOY], backend="python", **SMALL).rows
    assert [row["engine"] for row in rows] == ["vllm", TOY]
    assert rows[0]["kv_cache"]["block_size"] == 16


def test_it_says_what_it_has_not() -> None:
    with pytest.raises(ValueError, match="engine toy: a batch has 3 requests"):
        kvsim.capacity(engine=f"{TOY}+batch=3", model="llama-3-8b", gpu="l4")
    with pytest.raises(ValueError, match="scheduler 'vllm' is another engine's"):
        kvsim.simulate(trace([2]), engine=TOY, scheduler="vllm", **SMALL)
    with pytest.raises(ValueError, match="page_size"):
        kvsim.simulate(trace([2]), engine=TOY, page_size=4, **SMALL)
    with pytest.raises(ValueError, match="max_model_len"):
        kvsim.simulate(trace([2]), engine=TOY, **SMALL | {"max_model_len": "auto"})
    with pytest.raises(ValueError, match="has no parameter 'size'"):
        kvsim.simulate(trace([2]), engine=f"{TOY}+size=4", **SMALL)
    with pytest.raises(ValueError, match="unknown engine 'vlm'"):
        kvsim.simulate(trace([2]), engine="vlm", **SMALL)


def test_its_log_and_its_cases_are_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("toy engine starts with 6")
    case = {"toy": "1", "num_requests": 12, "steps": [{"s": 0, "batch": list(range(8))}]}
    case["steps"].append({"s": 1, "batch": [8, 9, 10]})  # type: ignore[attr-defined]
    (tmp_path / "case.json").write_text(json.dumps(case))
    with ENGINES.lend(Toy):
        assert read_startup(tmp_path / "log").args == {"max_num_seqs": 6}
        difference = kvsim.replay(tmp_path / "case.json")
    assert str(difference) == "step 1: batch: expected [8, 9, 10], got [8, 9, 10, 11]"


def test_its_server_line_is_a_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--engine", TOY, "--num-requests", "9", "--json", "-", "--model", "llama-3-8b"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["completed"] == 9
    assert math.isfinite(summary["duration"])


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("with_store", (None, None, None)),
        ("store_reads", (None, None, None)),
        ("startup_of", ("a log",)),
        ("parts_of", (None,)),
    ],
)
def test_an_engine_that_promises_what_it_has_not_is_named(method: str, arguments: tuple) -> None:
    with pytest.raises(ValueError, match=rf"^engine Engine: has no method {method}, which \w+"):
        getattr(Engine(), method)(*arguments)
    with pytest.raises(ValueError, match="has no method play"):
        Engine().play(None, check=False, compiled=False)
