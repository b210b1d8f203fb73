"""Records of virtual memory: physical pages behind the requests' address ranges."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.record import Record


@dataclass(slots=True)
class TensorKind(Record):
    """Tensors that are mapped alike; ``token_bytes`` is per tensor, ``window`` is 0 for none."""

    num_tensors: int = 0
    token_bytes: int = 0
    window: int = 0


@dataclass(slots=True)
class MappedRows(Record):
    """The pages behind a request's tensors of one kind, in rows from ``first`` to ``end``.

    A row has one page per tensor; ``pages`` lists the pages row by row. Tokens before ``seen_from``
    are out of the window.
    """

    first: int = 0
    end: int = 0
    seen_from: int = 0
    pages: list[int] = field(default_factory=list)


@dataclass(slots=True)
class VirtualRange(Record):
    """A request's virtual memory: its rows of pages, by kind of tensor."""

    rows: list[MappedRows] = field(default_factory=list)


@dataclass(slots=True)
class Virtual(Record):
    """Physical pages, the virtual ranges mapped to them, and sums over live requests."""

    tensors: list[TensorKind] = field(default_factory=list)
    num_kinds: int = 0
    num_tensors: int = 0  # tensors of all kinds
    token_bytes: int = 0  # bytes per token of all tensors
    page_bytes: int = 1
    num_pages: int = 0
    free_pages: list[int] = field(default_factory=list)  # a stack: the last entry is used next
    num_free_pages: int = 0
    num_free_host_pages: int = 0
    num_spared: int = 0  # pages that admissions leave free while other requests run
    max_in_flight_tokens: int = 0
    virtual_ranges: list[VirtualRange] = field(default_factory=list)  # by `Request.own_blocks`
    dead_bytes: int = 0  # bytes out of their windows
    last_bytes: int = 0  # mapped bytes that live requests will have written when they end
