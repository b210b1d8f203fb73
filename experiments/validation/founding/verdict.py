"""A published claim beside what kvsim computes, and the verdict, which is computed as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Allowed relative deviation from a claim that is not rounded further: 2 %.
TOLERANCE = 0.02
GIB_PER_GB = 2**30 / 1e9


def agrees(printed: str, ours: float, tolerance: float) -> bool:
    """Return True if ours rounds to the printed figure, or is within the tolerance of it."""
    claimed = float(printed)
    decimals = len(printed.partition(".")[2])
    return abs(ours - claimed) <= max(0.5 * 10.0**-decimals, tolerance * abs(claimed))


def off(printed: str, ours: float) -> float:
    """Return the factor by which a claim is too large or too small, at least 1."""
    ratio = float(printed) / ours
    return max(ratio, 1 / ratio)


def wrong_by(factor: float) -> str:
    """Write a factor with two digits, whole from 10 on."""
    return f"WRONG by {factor:.1f}x" if factor < 10 else f"WRONG by {factor:.0f}x"


def figures(claim: Claim, ours: Sequence[float]) -> str:
    """Compare one figure with one; gigabytes may have been meant as GiB."""
    pairs = list(zip(claim.theirs, ours, strict=True))
    if all(agrees(printed, value, claim.tolerance) for printed, value in pairs):
        return "right"
    if claim.unit == "GB" and all(
        agrees(printed, value / GIB_PER_GB, claim.tolerance) for printed, value in pairs
    ):
        return "right in GiB"
    return wrong_by(max(off(printed, value) for printed, value in pairs))


class Claim(NamedTuple):
    """A claim as its source prints it.

    Attributes
    ----------
    text : the claim in words
    theirs : its figures, as printed: the digits say how far they are rounded
    measure : our figures, in the same order and unit; none if kvsim has nothing to measure
    judge : how figures and claim are compared
    unit, tolerance : of both; the relative room around a figure beside its rounding
    note : the convention that ours was computed under
    """

    text: str
    theirs: tuple[str, ...]
    measure: Callable[[], Sequence[float]]
    judge: Callable[[Claim, Sequence[float]], str] = figures
    unit: str = "GB"
    tolerance: float = TOLERANCE
    note: str = ""


def between(claim: Claim, ours: Sequence[float]) -> str:
    """Compare what was measured under several conditions with a claimed range.

    It depends on the condition if some results lie in the range, or on both sides of it.
    """
    low, high = (float(printed) for printed in claim.theirs)
    room = claim.tolerance
    inside = [low * (1 - room) <= value <= high * (1 + room) for value in ours]
    if all(inside):
        return "right"
    if any(inside) or min(ours) < low <= high < max(ours):
        return "depends"
    return wrong_by(min(value / high if value > high else low / value for value in ours))


def one_truth(claim: Claim, ours: Sequence[float]) -> str:
    """Compare several claims of one quantity with it."""
    (value,) = ours
    right = [printed for printed in claim.theirs if agrees(printed, value, claim.tolerance)]
    others = [printed for printed in claim.theirs if printed not in right]
    if not others:
        return "right"
    parts = [f"{printed} right" for printed in right]
    parts += [f"{printed} {wrong_by(off(printed, value))}" for printed in others]
    return f"contradictory: {', '.join(parts)}"


def part_of(claim: Claim, ours: Sequence[float]) -> str:
    """Compare figures with a whole and a part each: a claim may have left the rest out.

    ``ours`` holds whole and part in turns.
    """
    verdicts = []
    for printed, whole, part in zip(claim.theirs, ours[::2], ours[1::2], strict=True):
        if agrees(printed, whole, claim.tolerance):
            verdicts.append("right")
        elif agrees(printed, part, claim.tolerance):
            verdicts.append(f"incomplete by {whole - part:.1f} {claim.unit}")
        else:
            verdicts.append(wrong_by(off(printed, whole)))
    return ", ".join(verdicts)


def reported(claim: Claim, ours: Sequence[float]) -> str:
    """Judge a definition: whether kvsim reports the quantity, and it is a share."""
    return "reported" if all(0 <= value <= 1 for value in ours) else "WRONG: no share"


def judge(claim: Claim, ours: Sequence[float]) -> str:
    """Compare; a claim that nothing can be measured for is not there yet."""
    return claim.judge(claim, ours) if ours else "not there"
