"""Cost of layers with states: reading and writing the states, and the scan of prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.cost.efficiency import Efficiency
    from kvsim.cost.model import CostConfig
    from kvsim.records.cost import Cost


def state_traffic(config: CostConfig) -> float:
    """Bytes of states that a request reads and writes in a step, in all pipeline stages."""
    layers = config.layout.layers
    kept = [layer.state_bytes for layer in layers if layer.kind == "mamba"]
    return 2.0 * sum(kept) / max(len(kept), 1) * config.model.num_state_layers


def scan_flops(config: CostConfig) -> float:
    """FLOPs per token of the scans of all layers on one GPU: states are updated and read."""
    state = config.model.state
    if state is None:
        return 0.0
    return 4.0 * state.num_elements / config.tensor_parallel_size * config.model.num_state_layers


def price_states(record: Cost, config: CostConfig, rate: Efficiency) -> None:
    """Add the cost of layers with states, if there are any, to a record.

    A scan computes the tokens of a prompt one after another, so each token takes a minimum time.
    The prompts of a step are assumed to be scanned one after another, too.
    """
    layers, gpu = config.model.num_state_layers, config.gpu
    if not layers:
        return
    record.request_time += state_traffic(config) / (
        gpu.memory_bandwidth_bytes_per_s * rate.state_traffic
    )
    record.decode_time += layers * rate.state_launch
    record.prefill_time += layers * rate.scan_launch
    computing = scan_flops(config) / (gpu.bf16_flops_per_s * rate.scan)
    record.prefill_time_per_token += max(computing, layers * rate.scan_token)
