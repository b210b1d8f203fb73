"""Parts of training memory outside the GPU, and the time of their transfers per step.

With ZeRO-Offload (Ren et al., arXiv 2101.06840), gradients are copied to the host as they are
computed, the CPU updates its states, and the new weights are copied back; with NVMe (ZeRO-Infinity,
arXiv 2104.07857) the states are also read and written. Paged Adam (QLoRA, arXiv 2305.14314) runs on
the GPU, and states that do not fit are paged in and out. Transfers are assumed not to overlap with
arithmetic, so the seconds are an upper bound. The CPU's arithmetic is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.cost.hierarchy import NVME_READ, NVME_WRITE, PCIE_EFFICIENCY

if TYPE_CHECKING:
    from kvsim.catalog.spec import GpuSpec
    from kvsim.training.config import TrainingConfig


class Traffic(NamedTuple):
    """Bytes that are moved for one GPU per step.

    ``to_gpu`` and ``from_gpu`` cross PCIe; ``disk_read`` and ``disk_written`` are between NVMe and
    CPU only.
    """

    to_gpu: int = 0
    from_gpu: int = 0
    disk_read: int = 0
    disk_written: int = 0


def optimizer_traffic(
    config: TrainingConfig, *, gradients: int, weights: int, states: int
) -> Traffic:
    """Return the traffic of offloaded optimizer states and gradients: one update per step.

    Parameters
    ----------
    gradients, weights, states : bytes of this GPU's share of the trained parameters
    """
    disk = states if config.offload == "nvme" else 0
    return Traffic(weights, gradients * config.num_micro_batches, disk, disk)


def add(parts: list[Traffic]) -> Traffic:
    return Traffic(*(sum(column) for column in zip(*parts, strict=True))) if parts else Traffic()


def transfer_seconds(traffic: Traffic, config: TrainingConfig, gpu: GpuSpec) -> float:
    """Return the seconds of a step's transfers, one after another.

    A transfer to or from NVMe also crosses PCIe, and takes the time of the slower of both links.
    """
    up = down = gpu.pcie_bytes_per_s * PCIE_EFFICIENCY
    if config.offload == "nvme":
        up, down = min(up, NVME_READ), min(down, NVME_WRITE)
    seconds = traffic.to_gpu / up + traffic.from_gpu / down
    return seconds + traffic.disk_read / NVME_READ + traffic.disk_written / NVME_WRITE
