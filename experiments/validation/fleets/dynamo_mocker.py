"""The engine of Dynamo's mocker where nothing else is asked for, as its planner's studies ran it.

Its formulas, read in ai-dynamo/dynamo (``lib/mocker/src/common/perf_model.rs``, ``Polynomial``; of
its engine's defaults, ``protocols.rs`` beside it): milliseconds of a step's prompt tokens, and of
its decodes by the share of KV in use; a step with both takes both, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cost.roofline import RooflineCost
from kvsim.cost.work import copy_numbers
from kvsim.records.cost import ROOFLINE, Cost

if TYPE_CHECKING:
    from kvsim.cost.model import CostConfig

BLOCK_SIZE, NUM_BLOCKS = 64, 16_384
ENGINE: dict[str, Any] = {
    "cost_model": f"{__name__}:Polynomial",
    "block_size": BLOCK_SIZE,
    "num_gpu_blocks_override": NUM_BLOCKS,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
}
#: ms of prompts: of a step with any, of a token, and of a token and each token of its step.
STEP, TOKEN, SQUARE = 1.650142e01, 1.518344e-02, 4.209989e-07
#: ms of decodes: of a step, of all KV if the step's time grew in a line, and of its falling behind.
DECODE, FULL, SAVED = 5.74, 54.01, 25.74
FASTEST = 1e12


class Polynomial(RooflineCost):
    """Price steps with the terms of a roofline, independent of the model and the GPU.

    KV counts for every request that reads it. Not as in the original, by a percent or two of a
    step, are steps of nothing but parts of prompts, which take ``DECODE`` more; the KV of prompts
    beside decodes, which ``SAVED`` leaves out; and the square, which takes in all tokens of a step.
    """

    def __init__(self, config: CostConfig) -> None:
        super().__init__(config)
        cost = self.record
        nothing = Cost(price=ROOFLINE, num_layers=cost.num_layers, has_samples=True)
        copy_numbers(nothing, cost)
        for name in ("wide", "narrow", "experts"):
            copy_numbers(getattr(nothing, name), getattr(cost, name))
        cost.step_time = DECODE / 1e3
        cost.kv_rate = BLOCK_SIZE * NUM_BLOCKS * config.layout.bytes_per_token / (FULL / 1e3)
        cost.decode_falloff = -SAVED * 1e3 / FULL**2
        cost.prefill_time, cost.prefill_time_per_token = STEP / 1e3, TOKEN / 1e3
        # A GEMM so fast that only the square is left of it.
        cost.head_flops = cost.wide.num_bytes = cost.wide.token_flops = 1.0
        cost.wide.rate = FASTEST
        cost.wide.falloff = SQUARE / 1e3 * FASTEST
