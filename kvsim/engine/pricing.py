"""The settings of a cost model: the model's shape, and the limits of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.graphs import LARGEST, capture_sizes, graph_mode, tokens_per_decode
from kvsim.budget.lora import lora_bytes
from kvsim.budget.settings import expert_parallel_size, expert_replicas
from kvsim.budget.versions import HOST_FREED, precedes
from kvsim.budget.weights import DTYPE_BYTES
from kvsim.cost.model import COST_MODELS, Adapter, CostConfig, CostModel
from kvsim.engine.settings import by_name
from kvsim.lora import LoRAConfig
from kvsim.registry import parse_spec

if TYPE_CHECKING:
    from kvsim.budget.capacity import Memory
    from kvsim.budget.layout import KVLayout
    from kvsim.config import Config
    from kvsim.kv.manager import KVCacheManager


def make_cost_model(config: Config, cost_config: CostConfig) -> CostModel:
    """Make the cost model that a configuration names.

    Raises
    ------
    ValueError
        For an unknown name or parameter.
    """
    name, params = parse_spec(config.cost_model)
    return COST_MODELS.create(name, cost_config, **params)


def cost_config_of(
    config: Config, memory: Memory, layout: KVLayout, kv: KVCacheManager, *, host_waits: bool
) -> CostConfig:
    """Return the configuration of a cost model; see :class:`CostConfig` for ``host_waits``."""
    block_size = kv.block_size if kv.has_block_table else None
    resolved = {"layout": layout, "block_size": block_size}
    alone = config.dwdp_size > 1  # each GPU computes its tokens with all experts
    return CostConfig(
        **by_name(CostConfig, config, memory, memory.limits) | resolved,
        piece_bytes=kv.piece_bytes,
        expert_parallel_size=1 if alone else expert_parallel_size(config) or 1,
        num_attention_ranks=1 if alone else expert_replicas(config),
        captured_tokens=_captured_tokens(config, memory),
        host_waits=host_waits,
        host_counts=precedes(config.vllm_version, HOST_FREED),
        encoder_params=0 if config.language_model_only else memory.model.num_tower_params,
        adapter=_adapter(config, memory),
        speculation=config.speculative_config,
    )


def _adapter(config: Config, memory: Memory) -> Adapter | None:
    """Return one adapter of the largest rank, all pipeline stages together."""
    if config.lora is None:
        return None
    num_bytes = lora_bytes(
        memory.model,
        LoRAConfig(1, config.lora.max_lora_rank),
        dtype=memory.dtype,
        tensor_parallel_size=config.tensor_parallel_size,
    )
    return Adapter(num_bytes, 2.0 * num_bytes / DTYPE_BYTES[memory.dtype])


def _captured_tokens(config: Config, memory: Memory) -> int:
    """Return the largest step in tokens with a CUDA graph, whose experts have to fit on the GPU."""
    largest = _largest_capture(config, memory.limits.max_num_seqs)
    if resident := memory.host_weights.num_resident:
        largest = min(largest, resident // memory.model.num_experts_per_token)
    return largest


def _largest_capture(config: Config, max_num_seqs: int) -> int:
    """Return the largest size that is captured: vLLM's default unless configured.

    A decode has all tokens that are verified at once (vLLM's ``decode_query_len``).
    """
    if graph_mode(config) == "NONE" or config.dwdp_size > 1:
        return 0
    if (sizes := capture_sizes(config)) is not None:
        return max(sizes, default=0)
    if config.max_cudagraph_capture_size is not None:
        return config.max_cudagraph_capture_size
    return min(2 * max_num_seqs * tokens_per_decode(config), LARGEST)
