"""Cost of drafting: a share of a step on the host, or passes of a small model on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.drafter import drafter_of
from kvsim.budget.weights import DTYPE_BYTES

if TYPE_CHECKING:
    from kvsim.cost.model import CostConfig
    from kvsim.records.cost import Cost
    from kvsim.speculation import SpeculativeConfig

#: Time of an n-gram look-up of drafts as a share of a verification step (SpecDecode-Bench's fit of
#: vLLM on an H100).
LOOK_UP_SHARE = 0.006
#: Fixed seconds of a pass of the drafter. SpecDecode-Bench fits 2.135 ms for EAGLE-3's three passes
#: with Llama-3.1-8B on an H100; 0.27 ms of each is the time to read the weights.
PASS_SECONDS = 2.135e-3 / 3 - 0.27e-3


def init_drafter(record: Cost, config: CostConfig, spec: SpeculativeConfig) -> None:
    """Write the constants of drafting into a record."""
    record.has_drafts = True
    if not spec.has_drafter:
        record.draft_share = LOOK_UP_SHARE
        return
    drafter, tp = drafter_of(config.model, spec), config.tensor_parallel_size
    element = float(DTYPE_BYTES[config.dtype])
    record.draft_passes = 1 if spec.drafts_at_once else spec.num_speculative_tokens
    record.draft_pass_time = PASS_SECONDS
    record.draft_bytes = element * (drafter.body_params + drafter.head_params) / tp
    record.draft_token_flops = 2.0 * drafter.active_params / tp
    record.draft_head_flops = 2.0 * drafter.head_params / tp
    record.draft_key_bytes = element * drafter.kv_dims / tp
