"""Links: the table, the look-up, and the times of transfers."""

from __future__ import annotations

from math import inf, nan

import pytest

from kvsim.fleet.fabric import Fabric, fabric_of, fabrics


def test_every_fabric_has_figures_and_a_source() -> None:
    assert len(fabrics()) >= 15
    for name, fabric in fabrics().items():
        assert fabric.name == name
        assert fabric.source
        assert 0.5e9 < fabric.bandwidth < 250e9, name
        assert 0 <= fabric.base < 0.1, name


def test_a_transfer_takes_base_descriptors_and_bytes() -> None:
    link = Fabric("mine", 0.002, 1e9, 1e-6)
    assert link.time(0) == 0.002
    assert link.time(5e8, 1000) == pytest.approx(0.002 + 0.001 + 0.5)
    assert Fabric("no wire", 0.0, inf).time(1e12) == 0.0


def test_many_descriptors_set_the_time_of_a_server_in_use() -> None:
    link = fabric_of("nixl-vllm")
    assert 1785 * link.per_descriptor == pytest.approx(6.7e-3, rel=0.01)
    assert link.time(167e6, 1785) == pytest.approx((6.7 + 38.7) * 1e-3, rel=0.01)


def test_an_unknown_fabric_is_refused_with_a_near_name() -> None:
    with pytest.raises(ValueError, match=r"unknown fabric 'nvme-gd'; did you mean nvme-gds"):
        fabric_of("nvme-gd")


@pytest.mark.parametrize(
    "figures", [(-1e-3, 1e9, 0.0), (0.0, 0.0, 0.0), (0.0, 1e9, -1.0), (nan, 1e9, 0.0)]
)
def test_impossible_figures_are_refused(figures: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="fabric mine"):
        Fabric("mine", *figures)
