"""Time of weights in host memory: kernels read them over PCIe, or copies run ahead of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.cost import Cost, Work


def reading_time(cost: Cost, work: Work, time: float) -> float:
    """Seconds beyond those of the GEMMs, ``time``, that reading weights over PCIe takes.

    Kernels of layers in host memory take the longer of their time and that of their weights' bytes.
    """
    share = cost.host.share
    return max(share * work.weight_bytes / cost.link_bytes_per_s - share * time, 0.0)


def fetching_time(cost: Cost, work: Work) -> float:
    """Seconds in which layers wait for the copies of experts that their tokens choose."""
    experts = cost.experts
    copied = experts.fetched[min(work.num_tokens, experts.last_touched)]
    return experts.num_layers * copied * experts.expert_bytes / cost.link_bytes_per_s


def copying_time(cost: Cost, layer: float) -> float:
    """Seconds that the layers of a stage wait for copies of weights, each layer taking ``layer``.

    The layers of the last places in each group have their weights in the host's memory. After such
    a layer, its buffer takes the weights of the one ``num_buffers`` later, and so on round. A
    forward pass ends when its copies have ended.
    """
    host, now, copied, k = cost.host, 0.0, 0.0, 0
    for place in range(host.num_layers):
        stays = place % host.group_size < host.group_size - host.num_in_group
        if stays or place < host.num_dense:
            now += layer
            continue
        slot = k % host.num_buffers
        if k >= host.num_buffers:
            now = max(now, host.ready[slot])
        now += layer
        copied = max(copied, now) + host.copy_time
        host.ready[slot] = copied
        k += 1
    return max(now, copied) - host.num_layers * layer
