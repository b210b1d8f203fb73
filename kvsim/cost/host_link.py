"""The link between GPU and host: PCIe at its peak rate, separately in each direction.

Swapping copies each block or page separately, with one copy per K or V tensor of each layer; every
copy takes a fixed time. Prefix blocks are copied together, with one copy per tensor.
:mod:`kvsim.rules.price` adds transfers to the time of a step. Stores of native offloading slow a
step down by the memory bandwidth that they use (``rules/offloading/scheduler.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.cost.hierarchy import COPY_SECONDS

if TYPE_CHECKING:
    from kvsim.cost.model import CostConfig
    from kvsim.records.cost import Cost

#: Time of a GPU page fault that the driver serves: 20 to 50 us (Zheng et al., HPCA 2016; D34).
FAULT_SECONDS = 3e-5


def init_host_weights(record: Cost, config: CostConfig) -> None:
    """Write the constants of weights in host memory; copies run at the link's peak rate."""
    given, host = config.host_weights, record.host
    host.share, host.has_experts = given.share, given.num_resident > 0
    if given.layer_bytes == 0:
        return
    host.num_layers, host.group_size = given.num_layers, given.group_size
    host.num_in_group, host.num_buffers = given.num_in_group, given.num_buffers
    host.num_dense = given.num_dense
    host.starts_empty, rate = given.num_ranks > 1, config.gpu.pcie_bytes_per_s
    if given.num_ranks > 1:
        rate = config.gpu.link_bytes_per_s(given.num_ranks)
    host.copy_time = given.layer_bytes / rate
    host.graph_time = given.graph_copies * host.copy_time


def init_link(record: Cost, config: CostConfig, copy_seconds: float = COPY_SECONDS) -> None:
    """Write the link's constants into a record."""
    record.link_bytes_per_s = config.gpu.pcie_bytes_per_s
    record.copy_share = config.gpu.pcie_bytes_per_s / config.gpu.memory_bandwidth_bytes_per_s
    num_tensors = sum(layer.num_tensors for layer in config.layout.layers)
    record.copy_round = copy_seconds * num_tensors
    pieces = config.piece_bytes
    record.copy_round_per_byte = record.copy_round / pieces if pieces else 0.0
    record.fault_time = FAULT_SECONDS
