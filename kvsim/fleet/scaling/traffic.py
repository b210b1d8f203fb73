"""Requests of a pool in an interval, and their mean lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Traffic(NamedTuple):
    """Requests of an interval.

    Attributes
    ----------
    num_requests : number of requests sent; a forecast may be fractional
    prompt_tokens : mean prompt tokens of these requests
    output_tokens : mean output tokens of the requests answered in the interval; 0 without any
    hit_rate : cached share of the prompt tokens of the answered requests
    """

    num_requests: float = 0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    hit_rate: float = 0.0


def traffic_between(
    sent_time: NDArray[np.float64], table: NDArray[Any], start: float, end: float
) -> Traffic:
    """Summarize the requests sent, and those answered, after ``start`` and up to ``end``.

    Parameters
    ----------
    sent_time : send time of each request, seconds, NaN if it has not been sent, shape (requests,)
    table : the requests table
    start, end : seconds
    """
    sent = table["num_prompt_tokens"][(sent_time > start) & (sent_time <= end)]
    if not len(sent):
        return Traffic()
    times, reasons = table["finish_time"], table["finish_reason"]
    done = table[(times > start) & (times <= end) & (reasons == FinishReason.FINISHED)]
    prompts = done["num_prompt_tokens"].sum()
    return Traffic(
        len(sent),
        float(sent.mean()),
        float(done["num_output_tokens"].mean()) if len(done) else 0.0,
        float(done["num_cached_tokens"].sum() / prompts) if prompts else 0.0,
    )
