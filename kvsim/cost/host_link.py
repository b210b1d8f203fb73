"""The link between GPU and host, and what transfers over it make of a step's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.memory.hierarchy import COPY_SECONDS

if TYPE_CHECKING:
    from kvsim.cost.model import CostConfig
    from kvsim.kv.manager import Transfers

#: Of one page fault of the GPU's, served by the driver: 20 to 50 us (Zheng et al., HPCA 2016).
FAULT_SECONDS = 3e-5


class HostLink:
    """PCIe at its peak rate, each way by itself.

    Swapping copies piece by piece (a block, a page), keys and values of each layer by themselves,
    each copy with a fixed time. Prefix blocks go all at once, in one launch per tensor of a layer.
    """

    def __init__(self, config: CostConfig, copy_seconds: float = COPY_SECONDS) -> None:
        self.bytes_per_s = config.gpu.pcie_bytes_per_s
        self._round = copy_seconds * sum(layer.num_tensors for layer in config.layout.layers)
        self._round_per_byte = self._round / config.piece_bytes if config.piece_bytes else 0.0

    def swap_seconds(self, num_bytes: int) -> float:
        """Seconds of copying a request's KV one way, piece by piece."""
        return num_bytes / self.bytes_per_s + num_bytes * self._round_per_byte

    def copy_seconds(self, num_bytes: int) -> float:
        """Seconds of copying prefix blocks one way, all together."""
        return num_bytes / self.bytes_per_s + self._round if num_bytes else 0.0

    def step_seconds(self, time: float, transfers: Transfers) -> float:
        """Seconds of a step that computes for ``time``, its transfers included.

        Blocks are fetched layer by layer under the computation and stored the other way at the
        same time, so the longest of the three counts. In a page fault the GPU waits; what it takes
        in and what it gives up for that go both ways at once.
        """
        fetched, stored = transfers.fetched, transfers.stored
        if fetched or stored:
            time = max(time, self.copy_seconds(fetched), self.copy_seconds(stored))
        if transfers.num_faults:
            time += transfers.num_faults * FAULT_SECONDS
            time += max(transfers.paged_in, transfers.paged_out) / self.bytes_per_s
        return time
