"""SGLang's models with states: sizes of both pools, recorded schedules, what the tree keeps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recorded import name_of, smallest

import kvsim
from kvsim.budget.budget import GIB
from kvsim.catalog.state import StateLayer
from kvsim.cli import main
from kvsim.config import Config
from kvsim.engine.setup import resolve
from kvsim.engines.sglang.budget import most_running
from kvsim.engines.sglang.states import slots_per_request, state_bytes, state_pool

CASES = Path(__file__).parent / "data" / "sglang_cases2"
RECORDED = sorted([*CASES.glob("mamba/*.json.gz"), *CASES.glob("states/*.json.gz")])
HYBRID = ["--model", "qwen3-next-80b-a3b", "--gpu", "h100-sxm", "-tp", "4", "--engine", "sglang"]


def rows() -> list[dict[str, Any]]:
    return json.loads(gzip.decompress((CASES / "sizes.json.gz").read_bytes()))["rows"]


def layer_of(state: dict[str, Any]) -> StateLayer:
    if state["kind"] == "gdn":
        form, names = "gdn", ("v_heads", "v_dim", "k_heads", "k_dim", "conv")
    else:
        form, names = "mamba2", ("heads", "head_dim", "groups", "state", "conv")
    return StateLayer(form, *(state[name] for name in names))


@pytest.mark.parametrize("row", rows())
def test_recorded_sizes(row: dict[str, Any]) -> None:
    model: Any = SimpleNamespace(mixers=[layer_of(row["state"])] * row["state"]["layers"])
    size = state_bytes(model, row["ssm_dtype"], row["tp"])
    ratio = slots_per_request(row["strategy"], has_tree=row["radix"], overlap=row["overlap"])
    rest, asked = int(row["rest_gib"] * GIB), row["max_running_requests"]
    given = row["mamba_full_memory_ratio"]
    pool = state_pool(
        rest,
        size,
        ratio,
        **({} if given is None else {"ratio": given}),
        slots=row["max_mamba_cache_size"],
        max_running=asked,
        num_drafts=row["draft_tokens"],
    )
    assert (size, ratio, pool.slots) == (row["state_bytes"], row["ratio"], row["slots"])
    assert (rest - pool.num_bytes) / GIB == pytest.approx(row["kv_gib"], abs=1e-8)
    running = most_running(row["pool_tokens"], 4096, asked)
    assert min(running, pool.slots // ratio) == row["max_running"]


def test_capacity_has_both_pools() -> None:
    """The KV pool is what states leave, and bounds requests together with their slots."""
    options: dict[str, Any] = {"gpu": "h100-sxm", "tensor_parallel_size": 4, "engine": "sglang"}
    found = kvsim.capacity(model="qwen3-next-80b-a3b", **options)
    states = found.states
    assert states is not None
    # a row of the recorded sizes has this model on 4 GPUs: 19,316,736 bytes, 5 slots a request
    assert (states["bytes_per_state"], states["blocks_per_request"]) == (19_316_736, 5)
    assert max(found.max_concurrency.values()) == states["slots"] // 5
    budget = found.budget_bytes
    assert budget["states"] == (states["slots"] + 1) * 19_316_736
    unused = budget["total"] - budget["weights"] - budget["kv_cache"] - budget["states"]
    assert 0 <= unused < found.bytes_per_token + 2  # rounded down to a token
    fewer = kvsim.capacity(
        model="qwen3-next-80b-a3b", **options, mamba_radix_cache_strategy="no_buffer"
    )
    assert fewer.states is not None
    assert fewer.states["blocks_per_request"] == 3


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--max-mamba-cache-size", "4"], "4 state slots, and a request needs 5"),
        (
            ["--mamba-radix-cache-strategy", "no_buffer", "--page-size", "16"],
            "needs page_size 1, not 16",
        ),
        (
            ["--mamba-radix-cache-strategy", "extra_buffer_lazy", "--disable-overlap-schedule"],
            "needs the overlap schedule",
        ),
    ],
)
def test_wrong_pools_are_refused(
    more: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["capacity", *HYBRID, *more])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("path", smallest(RECORDED))
def test_recorded_states_come_out_identical(path: Path) -> None:
    assert kvsim.replay(path, check_invariants=path.stat().st_size < 8000) is None


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_recorded_states_come_out_identical_compiled(path: Path) -> None:
    assert kvsim.replay(path, backend="compiled") is None


@pytest.mark.long
def test_a_prefix_that_two_prompts_share_is_found_by_the_third() -> None:
    """The first leaves the state at its prompt's last 64, the second tracks where they part."""
    segments = [[(1, 0, 1000), (2 + row, 0, 300)] for row in range(3)]
    trace = kvsim.Trace.from_arrays([0.0, 20.0, 40.0], [1300] * 3, [8] * 3, segments=segments)
    options: dict[str, Any] = {
        "model": "qwen3-next-80b-a3b",
        "gpu": "h100-sxm",
        "tensor_parallel_size": 4,
        "engine": "sglang",
        "max_total_tokens": 8000,
        "max_mamba_cache_size": 40,
        "backend": "python",
        "check_invariants": True,
    }
    cached = [
        kvsim.simulate(trace, **options, **more).requests["num_cached_tokens"].tolist()
        for more in ({}, {"page_size": 16}, {"mamba_radix_cache_strategy": "no_buffer"})
    ]
    assert cached == [[0, 0, 960], [0, 0, 960], [0, 0, 0]]  # 960 = 15 x 64


def test_states_refuse_a_host_tier_and_switch_overlap_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *HYBRID, "--enable-hierarchical-cache", "--num-requests", "2"])
    assert ended.value.code == 2
    assert "host tier is not modelled with pools of states" in capsys.readouterr().err
    setups = [
        resolve(Config(model="qwen3-next-80b-a3b", gpu="h100-sxm", tensor_parallel_size=4, **more))
        for more in (
            {"engine": "sglang"},
            {"engine": "sglang", "mamba_radix_cache_strategy": "no_buffer"},
        )
    ]
    assert [setup.num_steps_in_flight for setup in setups] == [2, 1]
