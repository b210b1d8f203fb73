"""Peak memory of experts that data-parallel ranks share, in vLLM's profile run at start-up.

Each rank gathers the tokens of all ranks and computes its experts on them, with a separate row for
each chosen expert. Sizes are those of vLLM's workspaces. One log checks them: Qwen3-Coder-480B in
FP8 on eight H20 (vllm-project/recipes#12) took 9.35 GiB for these workspaces and NCCL; kvsim
computes 9.36 GiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.settings import expert_replicas, ranks_per_expert
from kvsim.budget.versions import CHUNKED_FINER, precedes
from kvsim.catalog.generations import capability

if TYPE_CHECKING:
    from kvsim.budget.limits import Limits
    from kvsim.catalog.spec import ModelSpec
    from kvsim.config import Config

#: Gathered tokens whose experts are computed at once (VLLM_FUSED_MOE_CHUNK_SIZE): before vLLM
#: 0.12, and since.
CHUNK_BEFORE, CHUNK = 32_768, 16_384
#: Bytes of an activation in 16 bits.
ELEMENT = 2


def exchange_bytes(
    config: Config, model: ModelSpec, limits: Limits, gpu: str, quantization: str | None
) -> int:
    """Return the peak of a layer's experts on one GPU; 0 if no data-parallel ranks share them.

    DeepGEMM's kernels (block-wise FP8 on Hopper and Blackwell) need tokens sorted by expert, so
    inputs are copied in FP8, and the second workspace is as wide as the hidden states.

    Parameters
    ----------
    gpu : name of the GPU in the catalogue
    """
    ranks = expert_replicas(config)
    if ranks == 1 or not model.is_moe:
        return 0
    chunk = CHUNK_BEFORE if precedes(config.vllm_version, CHUNKED_FINER) else CHUNK
    permuted = quantization == "fp8-block" and capability(gpu) in (9, 10)
    gathered = ranks * limits.max_num_batched_tokens
    hidden = model.hidden_size
    width = model.moe_intermediate_size // ranks_per_expert(config)
    narrow = max(width, hidden) if permuted else width
    wide = max(2 * width, hidden)
    rows = min(gathered, chunk) * model.num_experts_per_token
    work = rows * ((wide + narrow) * ELEMENT + hidden * permuted)
    return work + 2 * gathered * hidden * ELEMENT  # gathered inputs, and outputs
