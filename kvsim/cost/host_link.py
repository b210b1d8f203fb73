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

    A copied block takes one copy for the keys and one for the values of each layer, each with a
    fixed time.
    """

    def __init__(self, config: CostConfig, copy_seconds: float = COPY_SECONDS) -> None:
        self.bytes_per_s = config.gpu.pcie_bytes_per_s
        block_bytes = (config.block_size or 1) * config.layout.bytes_per_token
        self._copy_time_per_byte = 2 * len(config.layout.layers) * copy_seconds / block_bytes

    def copy_seconds(self, num_bytes: int) -> float:
        """Seconds of copying blocks one way."""
        return num_bytes / self.bytes_per_s + num_bytes * self._copy_time_per_byte

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
