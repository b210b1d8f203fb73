"""The requests that a cache serves one after another, without simulated time."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.record import Record, Short, Tiny


@dataclass(slots=True)
class Requests(Record):
    """Requests as paths of numbered blocks.

    Attributes
    ----------
    paths : blocks of all requests, request by request, root first
    offsets : first block of each request in ``paths``, and the number of all blocks
    num_lookups : number of blocks that each request looks up; it only inserts the others
    num_tokens : prompt tokens of each request
    number : number of requests
    block_size : tokens per block
    num_nodes : upper bound of the numbers of blocks
    first_measured : first request whose hits count
    """

    paths: list[Short] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    num_lookups: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    number: int = 0
    block_size: int = 0
    num_nodes: int = 0
    first_measured: int = 0


def num_hits(requests: Requests, i: int, is_cached: list[Tiny]) -> int:
    """Return the length of the longest cached path that a request looks up, in blocks."""
    first = at = requests.offsets[i]
    stop = first + requests.num_lookups[i]
    while at < stop and is_cached[requests.paths[at]]:
        at += 1
    return at - first


def tokens_of(requests: Requests, i: int, hits: int) -> int:
    """Return the tokens of a request's first ``hits`` blocks, 0 if the request is not measured."""
    if i < requests.first_measured:
        return 0
    return min(hits * requests.block_size, requests.num_tokens[i])
