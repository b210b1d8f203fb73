"""The figure of what is switched on beside the cache, and the counts that only it shows."""

from __future__ import annotations

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.report import plot
from kvsim.report.files import save_with_figures
from kvsim.trace import Trace

LLAMA = {"model": "llama-3-8b", "gpu": "h100-sxm", "max_model_len": 4096}


def labels(figure):
    """What each panel's bars say, by its unit."""
    return {
        axes.get_xlabel(): [text.get_text().strip() for text in axes.texts] for axes in figure.axes
    }


def test_a_panel_for_each_thing_that_any_run_has_and_no_other():
    trace = workloads.sharegpt(num_requests=30, request_rate=20)
    drafting = {"method": "eagle3", "num_speculative_tokens": 3, "synthetic_acceptance_length": 2.0}
    plain = kvsim.simulate(trace, **LLAMA)
    drafts = kvsim.simulate(trace, speculative_config=drafting, **LLAMA)
    assert not plot.has_features(plain)
    found = labels(plot.features({"plain": plain, "drafts": drafts}))
    assert list(found) == ["tokens per verification", "% of drafts"]
    length, accepted = (drafts.summary[k] for k in ("mean_acceptance_length", "acceptance_rate"))
    assert found["tokens per verification"] == ["", f"{length:.3g}"]
    assert found["% of drafts"] == ["", f"{100 * accepted:.3g}"]


def test_copies_to_the_host_are_told_each_way():
    trace = workloads.multi_turn(num_requests=60, request_rate=5)
    options = {"num_gpu_blocks_override": 300, "kv_offloading_size": 8}
    result = kvsim.simulate(trace, kv_offloading_backend="native", **options, **LLAMA)
    cache, found = result.summary["kv_cache"], labels(plot.features(result))
    both = [f"{cache[way] / 2**30:.3g}" for way in ("fetched_bytes", "stored_bytes")]
    assert found["GiB over the host's link"] == both
    assert float(both[0]) > 0
    rate, wait = (result.summary[k] for k in ("external_prefix_cache_hit_rate", "mean_kv_load_ms"))
    assert found["% of requested tokens"] == [f"{100 * rate:.3g}"]
    assert found["ms of waiting per load"] == [f"{wait:.3g}"]
    apart = kvsim.simulate(trace, num_prefill_workers=1, num_decode_workers=1, **LLAMA)
    assert "% of requested tokens" not in labels(plot.features(apart))  # half is prefill's


@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_an_adapter_joins_a_batch_where_nobody_has_it(backend):
    """Adapters 1, 1, 2 beside each other, then 1 again when all have gone, and one without."""
    trace = Trace.from_arrays(
        [0, 0, 0, 100, 100], [10] * 5, [20] * 5, lora_id=np.array([1, 1, 2, 1, 0])
    )
    options = {"enable_lora": True, "max_loras": 2, "backend": backend}
    found = kvsim.simulate(trace, **options, **LLAMA)
    assert found.summary["num_adapter_switches"] == 3
    assert labels(plot.features(found)) == {"adapters that join a batch": ["3"]}
    without = trace[4:]
    assert kvsim.simulate(without, **options, **LLAMA).summary["num_adapter_switches"] is None


@pytest.mark.long
def test_a_run_directory_holds_the_figure_where_there_is_anything_to_see(tmp_path):
    trace = workloads.random_mm(num_requests=5, input_len=50, output_len=4, num_images=2)
    model = {"model": "gemma-3-4b", "gpu": "l4", "max_model_len": 4096, "record_memory_map": True}
    save_with_figures(kvsim.simulate(trace, **model), tmp_path / "images")
    text = kvsim.simulate(workloads.sharegpt(num_requests=5), record_memory_map=True, **LLAMA)
    save_with_figures(text, tmp_path / "text")
    assert (tmp_path / "images" / "features.png").stat().st_size > 5_000
    assert not (tmp_path / "text" / "features.png").exists()
