"""Errors of simulated points by group, and the bands that held-out points are judged by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.validation.points.run import MEASURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from experiments.validation.points.run import Pair, Point

#: The values that all points of a group share.
Key = tuple[str, ...]

HOPPER = ("h100-sxm", "h200-sxm")


class Band(NamedTuple):
    """Largest median absolute errors and bias of the held-out points of a group, percent.

    ``tpot`` and ``ttft`` are of medians of absolute errors, ``bias`` of TPOT's median error. Empty
    fields match anything.
    """

    models: tuple[str, ...]
    weights: tuple[str, ...]
    cards: tuple[str, ...]
    tpot: float
    ttft: float = 15.0
    bias: float = 5.0


#: The first that matches counts. Cards that no kernel table is of have wider ones.
BANDS = (
    Band(("qwen3-32b",), ("bf16",), HOPPER, 3.0),
    Band(("llama-3.1-70b",), ("fp8", "fp8-static"), HOPPER, 5.0),
    Band(("gpt-oss-120b", "minimax-m2.5", "kimi-k2.5"), (), HOPPER, 6.0),
    Band((), (), ("b200",), 8.0),
    Band((), (), ("b300", "gb300"), 12.0, 25.0, 10.0),
)


class Triple(NamedTuple):
    """Errors of some points, percent."""

    median_absolute: float
    mean_absolute: float
    bias: float  # the median of signed errors

    def __str__(self) -> str:
        return f"{self.median_absolute:.1f} / {self.mean_absolute:.1f} / {self.bias:+.1f}"


def triple(errors: Iterable[float]) -> Triple:
    found = np.fromiter(errors, float)
    absolute = np.abs(found)
    return Triple(float(np.median(absolute)), float(absolute.mean()), float(np.median(found)))


def group_of(point: Point) -> Key:
    """Model, format of the weights, card."""
    return point.model, point.weights, point.card


def by_parallel(point: Point) -> Key:
    """The group, and how many GPUs share the work in which way."""
    return *group_of(point), point.parallel


def by_concurrency(point: Point) -> Key:
    """The group, and few, some or many clients."""
    few, some = point.concurrency <= 8, point.concurrency <= 32
    return *group_of(point), "C 01-08" if few else "C 09-32" if some else "C 33+"


def of_half(pairs: Iterable[Pair], half: str) -> list[Pair]:
    """Return the simulated points of a half; ``all`` are both."""
    halves = ("fitted", "held out") if half == "all" else (half,)
    return [pair for pair in pairs if pair.found.ours and pair.point.half in halves]


def grouped(
    pairs: Iterable[Pair], half: str, key: Callable[[Point], Key]
) -> list[tuple[Key, dict[str, Any]]]:
    """Return number and errors by measure of each group's points in a half."""
    groups: dict[Key, list[Pair]] = {}
    for pair in of_half(pairs, half):
        groups.setdefault(key(pair.point), []).append(pair)
    return [(name, {"number": len(of), **measured(of)}) for name, of in sorted(groups.items())]


def measured(pairs: Sequence[Pair]) -> dict[str, Triple]:
    return {name: triple(pair.errors[name] for pair in pairs) for name in MEASURES}


def band_of(group: Key) -> Band | None:
    """Return what a group is judged by, if anything."""
    for band in BANDS:
        sides = zip(group, band[:3], strict=True)
        if all(not known or name in known for name, known in sides):
            return band
    return None


def verdicts(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Hold the held-out points of each group against its band; one without such is not judged."""
    found = dict(grouped(pairs, "held out", group_of))
    judged = []
    for group in sorted({group_of(pair.point) for pair in pairs}):
        band, errors = band_of(group), found.get(group)
        if band is None:
            continue
        for of, limit in (("TPOT", band.tpot), ("TTFT", band.ttft), ("bias of TPOT", band.bias)):
            row = {"group": " ".join(group), "of": of, "number": 0, "band": limit}
            if errors:
                bias = of == "bias of TPOT"
                value = errors["TPOT"].bias if bias else errors[of].median_absolute
                row |= {"number": errors["number"], "found": value, "holds": abs(value) <= limit}
            judged.append(row)
    return judged
