"""The memories that a GPU reads, fastest to slowest, and the links to them.

Work with I operations per byte of a memory cannot run faster than I times the memory's bandwidth
(Williams et al., "Roofline", CACM 2009). Bandwidths are peaks, except over PCIe, where they are the
rates that copies achieve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvsim.catalog.spec import GpuSpec

KIB = 2**10

#: Share of PCIe's nominal rate that copies from pinned memory achieve: 25 to 26 of 31.5 GB/s.
PCIE_EFFICIENCY = 0.81
#: One PCIe 4.0 x4 drive, sequential read and write, bytes per second: Samsung 980 PRO's data sheet.
NVME_READ, NVME_WRITE = 7.0e9, 5.0e9

#: L2 bandwidth of an A100 per SM (NVIDIA's Ampere white paper), also used for cards without a
#: published value.
L2_BYTES_PER_CLOCK_PER_SM = 5120 / 108

#: Typical seconds until the first byte, for all cards. SRAM, L2 and HBM: 20, 200 and 400 cycles at
#: 1.4 GHz (V100, A100 and H100 are similar: table 3 of PMC10448217). NVLink: a load from a peer.
#: Copy: a cudaMemcpyAsync with the driver (microbenchmarks: 5 to 10 us). NVMe: a random read.
SRAM_LATENCY, L2_LATENCY, HBM_LATENCY = 15e-9, 150e-9, 300e-9
NVLINK_LATENCY, COPY_SECONDS, NVME_LATENCY = 2e-6, 1e-5, 1e-4


class Sm(NamedTuple):
    """Resources of one SM, or compute unit, of an architecture.

    ``flops_per_clock`` counts dense 16-bit tensor operations. Shared memory has 32 banks of 4
    bytes, which Turing reads in two clocks (arXiv 1903.07486). ``l2_bytes_per_clock`` is that of
    the whole chip, None if it is not published.
    """

    architecture: str
    flops_per_clock: int
    sram_bytes: int  # shared memory and L1, one array
    l2_bytes_per_clock: int | None = None
    sram_bytes_per_clock: int = 128


# Sources: NVIDIA's white papers (Volta, Turing, Ampere, GA102, Ada, Hopper), AMD's of CDNA 3.
# Blackwell is assumed to be Hopper with twice the tensor rate. GeForce cards accumulate in FP32 at
# half rate; the A10G's 70 TFLOP/s are such a rate, too.
_GA102, _ADA = Sm("GA102", 1024, 128 * KIB), Sm("Ada", 1024, 128 * KIB)
_A100 = Sm("A100", 2048, 192 * KIB, 5120)
_HOPPER, _BLACKWELL = Sm("Hopper", 4096, 256 * KIB, 5120), Sm("Blackwell", 8192, 256 * KIB)
_HALF_GA102, _HALF_ADA = (sm._replace(flops_per_clock=512) for sm in (_GA102, _ADA))
_HALF_BLACKWELL = Sm("Blackwell RTX", 512, 128 * KIB)
SMS = {
    "v100": Sm("Volta", 1024, 128 * KIB, 2048),
    "t4": Sm("Turing", 1024, 96 * KIB, sram_bytes_per_clock=64),
    "a100": _A100,
    "a800": _A100,
    "a10": _GA102,
    "a10g": _HALF_GA102,
    "a40": _GA102,
    "rtx-a6000": _GA102,
    "rtx-3090": _HALF_GA102,
    "l4": _ADA,
    "l40s": _ADA,
    "l20": _HALF_ADA,
    "rtx-3060": _HALF_GA102,
    "rtx-4070": _HALF_ADA,
    "rtx-4080": _HALF_ADA,
    "rtx-6000-ada": _ADA,
    "rtx-4090": _HALF_ADA,
    "h100": _HOPPER,
    "h200": _HOPPER,
    "h800": _HOPPER,
    "h20": _HOPPER._replace(flops_per_clock=1024),  # by its rate and a clock near the H100's
    "b200": _BLACKWELL,
    "gb200": _BLACKWELL,
    "b300": _BLACKWELL,
    "gb300": _BLACKWELL,
    "rtx-5090": _HALF_BLACKWELL,
    "rtx-5070-ti": _HALF_BLACKWELL,
    "gb10": _HALF_BLACKWELL._replace(flops_per_clock=1024),  # not checked in a source
    "rtx-pro-6000": Sm("Blackwell RTX", 1024, 128 * KIB),
    "mi210": Sm("CDNA 2", 1024, 64 * KIB, 4096),  # both CDNA 2: not checked in a source
    "mi250x": Sm("CDNA 2", 1024, 64 * KIB, 8192),
    "mi300x": Sm("CDNA 3", 2048, 64 * KIB, 8192),  # its Infinity Cache: 17.2 TB/s at 2.1 GHz
    "mi325x": Sm("CDNA 3", 2048, 64 * KIB, 8192),
    "mi355x": Sm("CDNA 4", 4096, 160 * KIB, 8192),  # not checked in a source
}


class Level(NamedTuple):
    """A memory that one GPU reads.

    Parameters
    ----------
    capacity_bytes : capacity, None if it is not published
    bandwidth_bytes_per_s : bandwidth of reads
    latency_s : typical seconds until the first byte
    source : source of the numbers
    """

    name: str
    capacity_bytes: int | None
    bandwidth_bytes_per_s: float
    latency_s: float
    source: str


def sm_of(gpu: GpuSpec) -> Sm | None:
    """Return the resources of a card's SMs, None for a card outside the catalogue."""
    names = [name for name in SMS if gpu.name == name or gpu.name.startswith(name + "-")]
    return SMS[names[0]] if names else None


def clock_hz(gpu: GpuSpec, sm: Sm) -> float:
    """Return the clock in Hz at which all SMs reach the card's peak dense 16-bit rate."""
    return gpu.bf16_flops_per_s / (gpu.num_sms * sm.flops_per_clock)


def hierarchy(gpu: GpuSpec) -> tuple[Level, ...]:
    """Return the memories that one GPU can read, fastest to slowest.

    SRAM and L2 are left out for a card that is not in the catalogue, NVLink for a card without it.

    Examples
    --------
    >>> from kvsim.catalog import get_gpu
    >>> [level.name for level in hierarchy(get_gpu("l4"))]
    ['SRAM', 'L2', 'HBM', 'host', 'NVMe']
    """
    levels = [*_on_chip(gpu), _hbm(gpu)]
    if gpu.nvlink_bytes_per_s:
        source = "catalogue, one direction of all links"
        rate = gpu.nvlink_bytes_per_s
        levels.append(Level("peer GPU", gpu.memory_bytes, rate, NVLINK_LATENCY, source))
    pcie = gpu.pcie_bytes_per_s * PCIE_EFFICIENCY
    source = f"catalogue's PCIe, {100 * PCIE_EFFICIENCY:.0f} % achieved"
    levels.append(Level("host", None, pcie, COPY_SECONDS, source))
    nvme = min(pcie, NVME_READ)
    levels.append(Level("NVMe", None, nvme, NVME_LATENCY, "one Samsung 980 PRO, reading"))
    return tuple(levels)


def _on_chip(gpu: GpuSpec) -> list[Level]:
    sm = sm_of(gpu)
    if sm is None or not gpu.num_sms:
        return []
    clock = clock_hz(gpu, sm)
    sram = gpu.num_sms * sm.sram_bytes_per_clock * clock
    source = f"{sm.sram_bytes_per_clock} B per clock and SM, {sm.architecture}"
    levels = [Level("SRAM", gpu.num_sms * sm.sram_bytes, sram, SRAM_LATENCY, source)]
    if gpu.l2_bytes:
        per_clock = sm.l2_bytes_per_clock or L2_BYTES_PER_CLOCK_PER_SM * gpu.num_sms
        source = f"{per_clock:,.0f} B per clock"
        source += "" if sm.l2_bytes_per_clock else ", per SM as on the A100"
        levels.append(Level("L2", gpu.l2_bytes, per_clock * clock, L2_LATENCY, source))
    return levels


def _hbm(gpu: GpuSpec) -> Level:
    """Return the card's own memory, which is called HBM even if it is GDDR."""
    rate = gpu.memory_bandwidth_bytes_per_s
    return Level("HBM", gpu.memory_bytes, rate, HBM_LATENCY, "catalogue")


def transfer_seconds(level: Level, num_bytes: float) -> float:
    """Return the seconds of one transfer of ``num_bytes`` from a memory."""
    return level.latency_s + num_bytes / level.bandwidth_bytes_per_s
