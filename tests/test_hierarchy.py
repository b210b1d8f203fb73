"""The memory hierarchy against published figures, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.catalog import get_gpu, gpu_names
from kvsim.cost.hierarchy import (
    PCIE_EFFICIENCY,
    Level,
    clock_hz,
    hierarchy,
    sm_of,
    transfer_seconds,
)
from kvsim.cost.model import CostConfig
from kvsim.cost.roofline import RooflineCost


def levels(gpu: str) -> dict[str, Level]:
    return {level.name: level for level in hierarchy(get_gpu(gpu))}


def test_the_a100_is_flash_attentions() -> None:
    """FlashAttention (arXiv 2205.14135), section 2.1 and Fig. 1: SRAM of 20 MB at 19 TB/s."""
    a100 = levels("a100-40gb")
    assert a100["SRAM"].bandwidth_bytes_per_s == pytest.approx(19e12, rel=0.03)
    assert a100["SRAM"].bandwidth_bytes_per_s == pytest.approx(108 * 128 * 1.41e9, rel=1e-3)
    assert a100["SRAM"].capacity_bytes == 108 * 192 * 1024
    assert a100["SRAM"].capacity_bytes == pytest.approx(20e6, rel=0.07)
    assert a100["HBM"].bandwidth_bytes_per_s == 1555e9
    assert a100["L2"].bandwidth_bytes_per_s == pytest.approx(5120 * 1.41e9, rel=1e-3)


@pytest.mark.parametrize(
    ("gpu", "terabytes"),
    # PMC10448217, table 3 (at 1.53 and 1.41 GHz); AMD's figure of the Infinity Cache
    [("v100-16gb", 3.133), ("a100-80gb", 7.219), ("mi300x", 17.2)],
)
def test_l2_bandwidth_is_the_published_one(gpu: str, terabytes: float) -> None:
    assert levels(gpu)["L2"].bandwidth_bytes_per_s == pytest.approx(terabytes * 1e12, rel=0.005)


@pytest.mark.parametrize(
    ("gpu", "ghz"),
    [
        ("v100-16gb", 1.53),
        ("t4", 1.59),
        ("a100-40gb", 1.41),
        ("a10", 1.695),
        ("a40", 1.74),
        ("rtx-3090", 1.695),
        ("h100-sxm", 1.83),
        ("h100-pcie", 1.62),
        ("l4", 2.04),
        ("l40s", 2.49),
        ("rtx-4070", 2.475),
        ("rtx-4090", 2.52),
        ("rtx-pro-6000", 2.43),
        ("mi300x", 2.1),
    ],
)
def test_operations_per_clock_give_the_clock_on_the_data_sheet(gpu: str, ghz: float) -> None:
    spec = get_gpu(gpu)
    sm = sm_of(spec)
    assert sm is not None
    assert clock_hz(spec, sm) == pytest.approx(ghz * 1e9, rel=0.005)


@pytest.mark.parametrize("name", gpu_names())
def test_every_card_has_its_levels_from_fast_to_slow(name: str) -> None:
    gpu = get_gpu(name)
    found = hierarchy(gpu)
    names = [level.name for level in found]
    peer = ["peer GPU"] if gpu.nvlink_bytes_per_s else []
    assert names == ["SRAM", "L2", "HBM", *peer, "host", "NVMe"]
    rates = [level.bandwidth_bytes_per_s for level in found]
    assert rates == sorted(rates, reverse=True)
    delays = [level.latency_s for level in found]
    assert delays == sorted(delays)
    assert min(delays) > 0
    sizes = [level.capacity_bytes for level in found]
    assert sizes[-2:] == [None, None]
    assert sizes[0] is not None
    assert sizes[2] == gpu.memory_bytes
    assert all(level.source for level in found)


def test_what_is_not_known_is_left_out() -> None:
    mine = replace(get_gpu("h100-sxm"), name="my-card")
    assert [level.name for level in hierarchy(mine)] == ["HBM", "peer GPU", "host", "NVMe"]
    blank = replace(get_gpu("h100-sxm"), num_sms=0)
    assert hierarchy(blank)[0].name == "HBM"
    assert [v.name for v in hierarchy(replace(get_gpu("l4"), l2_bytes=0))][:2] == ["SRAM", "HBM"]


def test_names_that_begin_alike_are_told_apart() -> None:
    found = [sm_of(get_gpu(name)) for name in ("a10", "a10g", "a100-40gb")]
    rates = [(sm.architecture, sm.flops_per_clock) for sm in found if sm is not None]
    assert rates == [("GA102", 1024), ("GA102", 512), ("A100", 2048)]
    assert sm_of(replace(get_gpu("a10"), name="a1000")) is None


def test_a_transfer_takes_its_latency_and_its_bytes() -> None:
    host = levels("h100-sxm")["host"]
    assert host.bandwidth_bytes_per_s == pytest.approx(63e9 * PCIE_EFFICIENCY)
    assert transfer_seconds(host, 0) == host.latency_s
    gib = transfer_seconds(host, 2**30) - host.latency_s
    assert gib == pytest.approx(2**30 / 51.03e9)
    slow = replace(get_gpu("t4"), pcie_bytes_per_s=4e9)  # a drive is no faster than its link
    *_, link, drive = hierarchy(slow)
    assert drive.bandwidth_bytes_per_s == link.bandwidth_bytes_per_s


def test_a_swapped_block_pays_the_latency_of_host_copies() -> None:
    from kvsim.catalog import get_model
    from kvsim.sched.scheduler import StepPlan

    model = get_model("llama-3-8b")
    layout, block = kv_layout(model, kv_dtype("bf16")), 16 * 131_072
    config = CostConfig(model, get_gpu("h100-sxm"), layout, block_size=16, piece_bytes=block)
    cost = RooflineCost(config)
    plan = StepPlan.of([])
    plan.swapped_bytes = block
    copies = cost.times(cost.work.count(plan)).swap - block / 63e9
    assert copies == pytest.approx(2 * 32 * levels("h100-sxm")["host"].latency_s)
