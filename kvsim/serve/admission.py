"""Limits above which a server rejects requests on arrival, and the answers to these requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Answers by the limit that is exceeded, in vLLM's words; both have status 503.
TURNED_AWAY = {
    "max_num_queued_reqs": "The engine is currently busy and cannot accept new requests. Please "
    "try again later or on a different instance.",
    "max_num_queued_tokens": "The engine has reached its prefill token backlog limit. Please try "
    "again later or on a different instance.",
}


class Admission(NamedTuple):
    """Limits on the requests and tokens that a server admits at once; None for no limit.

    Attributes
    ----------
    requests : requests in flight, each sample counted
    tokens : prompt tokens of requests without a first output token
    """

    requests: int | None
    tokens: int | None

    def exceeded(self, num_open: int, num_tokens: int, sizes: Sequence[int]) -> str:
        """Return the limit that new samples exceed; an empty text for none.

        Either all samples are admitted, or none. The tokens of the last sample do not count, so it
        may exceed ``tokens``.

        Parameters
        ----------
        num_open, num_tokens : requests and tokens that count already
        sizes : prompt tokens of each new sample
        """
        if self.requests is not None and num_open + len(sizes) > self.requests:
            return "max_num_queued_reqs"
        before_last = num_tokens + sum(sizes[:-1])
        if self.tokens is not None and before_last >= self.tokens:
            return "max_num_queued_tokens"
        return ""


NO_LIMIT = Admission(None, None)


def admission_of(deployment: Mapping[str, int | None]) -> Admission:
    """Return the limits among the options of a deployment."""
    return Admission(*(deployment.get(name) for name in TURNED_AWAY))
