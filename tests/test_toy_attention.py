"""A kind of attention that no file of kvsim names: memory, hits, step cost, events and cases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.attention.spec import AttentionSpec, all_specs, lend
from kvsim.catalog import get_model
from kvsim.kv.attention import attention_spec, group_of
from kvsim.rules.blocks.attention import cdiv
from kvsim.testing import check_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.records.kv import KV
    from kvsim.records.paged import KVGroup, RequestBlocks
    from kvsim.records.request import Request


@dataclass(frozen=True)
class TwoChunks(AttentionSpec):
    """A token sees its own chunk of ``window`` tokens and the one before it."""

    block_size: int
    window: int
    layer = "two-chunks"
    letter = "T"
    has_window = True
    title = "two chunks"
    event_names = ("two_chunks", "two_chunks")

    @staticmethod
    def num_skipped(window: int, num_tokens: int) -> int:
        return max(num_tokens // window - 1, 0) * window

    @staticmethod
    def admission_cap(
        window: int, block_size: int, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        return cdiv(min(2 * window + max_in_flight_tokens, max_model_len), block_size)

    @staticmethod
    def last_quiet_end(
        kv: KV, request: Request, group: KVGroup, own_blocks: RequestBlocks, last: int
    ) -> int:
        return min(last, (own_blocks.num_processed_tokens // group.window + 1) * group.window)

    @staticmethod
    def num_pairs(window: int, num_tokens: int) -> int:
        chunks = num_tokens // window
        rest = num_tokens - chunks * window
        own = chunks * (window * (window + 1) // 2) + rest * (rest + 1) // 2
        return own + (num_tokens - min(num_tokens, window)) * window

    @staticmethod
    def num_keys(window: int, num_computed: int, num_new: int) -> int:
        return num_computed - TwoChunks.num_skipped(window, num_computed) + num_new


@pytest.fixture(autouse=True)
def name() -> Iterator[str]:
    with lend(TwoChunks) as lent:
        yield lent


def run(backend: str, pattern: str = "TF") -> kvsim.Result:
    """Return a run of conversations of a model with layers of the kind."""
    llama = get_model("llama-3-8b")
    model = replace(llama, name="toy", layer_pattern=pattern, window=128)
    trace = workloads.multi_turn(num_requests=10, seed=3)
    given = {"max_model_len": 4096, "num_gpu_blocks_override": 400, "record_steps": True}
    return kvsim.simulate(
        trace,
        model=model,
        gpu="h100-sxm",
        backend=backend,
        enable_prefix_caching=True,
        check_invariants=backend == "python",
        **given,
    )


@pytest.mark.long
def test_both_engines_agree() -> None:
    python, compiled = run("python"), run("compiled")
    check_result(python)
    assert python.requests["num_cached_tokens"].sum() > 1000
    assert compiled.provenance["engine"] == "compiled"
    for table in ("requests", "steps"):
        for column in getattr(python, table).dtype.names:
            both = (getattr(one, table)[column] for one in (python, compiled))
            np.testing.assert_array_equal(*both, err_msg=column)


@pytest.mark.long
def test_it_is_not_another_kind() -> None:
    def seconds(pattern: str) -> float:
        return float(run("compiled", pattern).summary["duration"])

    chunked, two, full = seconds("CF"), seconds("TF"), seconds("F")
    assert chunked < two < full


@pytest.mark.parametrize("tokens", [0, 1, 127, 128, 129, 300, 512])
def test_its_pairs_and_keys_are_what_counting_gives(tokens: int) -> None:
    def sees(query: int) -> int:
        return query + 1 - TwoChunks.num_skipped(128, query)

    assert TwoChunks.num_pairs(128, tokens) == sum(map(sees, range(tokens)))
    assert TwoChunks.num_keys(128, tokens, 1) == sees(tokens)


def test_plans_and_cases_have_it(name: str) -> None:
    spec = TwoChunks(16, 128)
    assert attention_spec(group_of(spec)) == spec
    assert spec.kind == len({one.of_kind for one in all_specs().values()}) - 1
    assert all_specs()[name] is TwoChunks


def test_without_it_its_layers_are_unknown() -> None:
    with pytest.raises(ValueError, match="layer_pattern 'X' must be made of F, C, S, T"):
        replace(get_model("llama-3-8b"), layer_pattern="X")
