"""Time of weights outside a GPU: kernels read them over PCIe, or copies fetch them for a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.cost import Cost, Work


def reading_time(cost: Cost, work: Work, time: float) -> float:
    """Return the seconds that reading weights over PCIe adds to the GEMMs' ``time``.

    The kernels of layers in host memory take the longer of their own time and the transfer time of
    their weights.
    """
    share = cost.host.share
    return max(share * work.weight_bytes / cost.link_bytes_per_s - share * time, 0.0)


def fetching_time(cost: Cost, work: Work) -> float:
    """Return the seconds that layers wait for copies of the experts that tokens choose."""
    experts = cost.experts
    copied = experts.fetched[min(work.num_tokens, experts.last_touched)]
    return experts.num_layers * copied * experts.expert_bytes / cost.link_bytes_per_s


def copying_time(cost: Cost, layer: float) -> float:
    """Return the seconds that the layers of a stage wait for copies of weights.

    A layer takes ``layer`` seconds. The last ``num_in_group`` layers of each group have their
    weights in host memory, and use ``num_buffers`` buffers in turn. After such a layer has run, the
    weights of the layer that uses its buffer next are copied into the buffer. A forward pass ends
    when its copies have ended.

    With ``starts_empty`` a pass first fills its buffers, and copies nothing for the next pass.
    """
    host, now, copied, k = cost.host, 0.0, 0.0, 0
    if host.starts_empty:
        for slot in range(host.num_buffers):
            copied += host.copy_time
            host.ready[slot] = copied
    for place in range(host.num_layers):
        stays = place % host.group_size < host.group_size - host.num_in_group
        if stays or place < host.num_dense:
            now += layer
            continue
        slot = k % host.num_buffers
        if host.starts_empty or k >= host.num_buffers:
            now = max(now, host.ready[slot])
        now += layer
        k += 1
        if host.starts_empty and place + host.num_buffers >= host.num_layers:
            continue
        copied = max(copied, now) + host.copy_time
        host.ready[slot] = copied
    return max(now, copied) - host.num_layers * layer
