"""SGLang's models with states: both pools, sized as the real server sizes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvsim
from kvsim.budget.budget import GIB
from kvsim.catalog.state import StateLayer
from kvsim.cli import main
from kvsim.engines.sglang.budget import most_running
from kvsim.engines.sglang.states import slots_per_request, state_bytes, state_pool

CASES = Path(__file__).parent / "data" / "sglang_cases2"
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
        (["--max-mamba-cache-size", "4"], "4 slots for states, and a request takes 5"),
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
