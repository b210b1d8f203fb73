"""Acceptance rates of drafts: from the configuration, else published means by method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory
    from kvsim.speculation import SpeculativeConfig

#: Mean tokens per verification with 1, 3 and 5 drafts, the target's own token included, of
#: Llama-3.1-8B on ShareGPT (SpecDecode-Bench, traces of vLLM on an H100). Other texts differ: with
#: three drafts, EAGLE-3 has 2.39 on GSM8K and 2.33 on CNN; n-gram has 1.16 and 1.33 there, and
#: 2.03 on code.
PUBLISHED = {"eagle3": (1.66, 2.25, 2.48), "ngram": (1.24, 1.40, 1.45)}
#: The positions at which those means are known.
MEASURED_DRAFTS = (1, 3, 5)


def acceptance_rates(config: SpeculativeConfig) -> list[float]:
    """Return the share of verifications that accept the first k drafts, for each position k."""
    count = config.num_speculative_tokens
    if config.synthetic_acceptance_rates:
        return [float(rate) for rate in config.synthetic_acceptance_rates]
    if config.synthetic_acceptance_length is not None:
        return geometric(config.synthetic_acceptance_length - 1, count)
    if config.synthetic_acceptance_rate is not None:
        return geometric(config.synthetic_acceptance_rate * count, count)
    return published(PUBLISHED["eagle3" if config.has_drafter else "ngram"], count)


def init_drafts(state: Replica, memory: Memory, config: SpeculativeConfig | None) -> None:
    """Write the acceptance rates into an empty state, and the drafts by size of a step."""
    rows = config.num_speculative_tokens_per_batch_size if config else ()
    state.draft_rows = memory.list_of([number for row in rows for number in row] or [0])
    state.accept_rates = memory.list_of(acceptance_rates(config) if config else [0.0])


def acceptance_basis(config: SpeculativeConfig) -> str:
    """Return the source of the acceptance rates in words; empty if the user gave them."""
    given = (
        config.synthetic_acceptance_rates,
        config.synthetic_acceptance_length,
        config.synthetic_acceptance_rate,
    )
    if any(value not in ((), None) for value in given):
        return ""
    method = "EAGLE-3" if config.has_drafter else "n-gram"
    return (
        f"acceptance of drafts: published means of {method} for Llama-3.1-8B on ShareGPT; your "
        "model and text differ (set synthetic_acceptance_length)"
    )


def conditional_rates(given: NDArray[Any], count: int) -> NDArray[np.float64]:
    """Return each request's acceptance probability per draft; below 0 if none is given.

    Parameters
    ----------
    given : share of drafts that are accepted, below 0 if not given, shape (requests,)
    count : drafts of a verification
    """
    means, row = np.unique(given, return_inverse=True)
    rates = [m if m < 0 else conditional_rate(m * count, count) for m in means.tolist()]
    return np.array(rates)[row.reshape(-1)]


def conditional_rate(accepted: float, count: int) -> float:
    """Return the probability per draft at which ``accepted`` of ``count`` are accepted on average.

    A draft is accepted only if all drafts before it are.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**k for k in range(1, count + 1)) < accepted:
            low = middle
        else:
            high = middle
    return 1.0 if accepted >= count else high if accepted > 0 else 0.0


def geometric(accepted: float, count: int) -> list[float]:
    """Return rates by position for an equal probability per draft; their sum is ``accepted``."""
    rate = conditional_rate(accepted, count)
    return [rate**k for k in range(1, count + 1)]


def published(lengths: Sequence[float], count: int) -> list[float]:
    """Return rates by position that reproduce published mean lengths.

    Between the positions with known means, and beyond them, the rates are geometric.
    """
    rates = [lengths[0] - 1]
    known = zip(np.diff(lengths).tolist(), np.diff(MEASURED_DRAFTS).tolist(), strict=True)
    for more, positions in known:
        # These positions add rates[-1] * (q + q**2 + ...) to the mean.
        q = conditional_rate(more / rates[-1], positions)
        rates += [rates[-1] * q**k for k in range(1, positions + 1)]
    while len(rates) < count:
        rates.append(rates[-1] * rates[-1] / rates[-2])
    return rates[:count]
