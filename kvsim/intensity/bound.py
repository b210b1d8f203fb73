"""One kind of work under the roofline: memory or arithmetic limits it.

By Williams, Waterman, Patterson (CACM 52(4), 2009), F operations on B bytes take at least
max(F / peak, B / bandwidth) seconds. Arithmetic is the limit if F / B is above the ridge point,
peak / bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One kind of work in one kind of step, on one GPU.

    Parameters
    ----------
    phase : prefill or decode
    part : GEMMs (LM head included), attention, or step
    flops, num_bytes : operations, and bytes through HBM
    peak_flops_per_s : peak of the arithmetic used; for a step, the mean over GEMMs and attention
    bandwidth_bytes_per_s : bandwidth of HBM
    seconds : modelled by :class:`kvsim.cost.roofline.RooflineCost`; the time of a step includes
        overheads, elementwise kernels and all-reduces
    """

    phase: str
    part: str
    flops: float
    num_bytes: float
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.num_bytes

    @property
    def ridge_point(self) -> float:
        """FLOPs per byte above which arithmetic takes longer than memory."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s

    @property
    def bound(self) -> str:
        """``compute`` or ``memory``."""
        return "compute" if self.intensity >= self.ridge_point else "memory"

    @property
    def ideal_seconds(self) -> float:
        """The longer of two times, in seconds: of arithmetic and of memory, at their peak rates."""
        arithmetic = self.flops / self.peak_flops_per_s
        return max(arithmetic, self.num_bytes / self.bandwidth_bytes_per_s)

    @property
    def mfu(self) -> float:
        """Share of the peak FLOP/s that the modelled time reaches."""
        return self.flops / (self.seconds * self.peak_flops_per_s)

    @property
    def mbu(self) -> float:
        """Share of the HBM bandwidth that the modelled time reaches."""
        return self.num_bytes / (self.seconds * self.bandwidth_bytes_per_s)

    def to_dict(self) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "part": self.part,
            "flops": self.flops,
            "bytes": self.num_bytes,
            "intensity": self.intensity,
            "ridge_point": self.ridge_point,
            "bound": self.bound,
            "ideal_seconds": self.ideal_seconds,
            "modelled_seconds": self.seconds,
            "mfu": self.mfu,
            "mbu": self.mbu,
        }
