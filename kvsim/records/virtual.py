"""Records of virtual memory: physical pages behind the requests' address ranges."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.record import Record


@dataclass(slots=True)
class TensorKind(Record):
    """Tensors mapped alike: their number, bytes per token of one, and its window or 0."""

    num_tensors: int = 0
    token_bytes: int = 0
    window: int = 0


@dataclass(slots=True)
class MappedRows(Record):
    """Rows of pages behind a request's tensors of one kind; a row is a page of each tensor.

    The pages of a row stand side by side, those of row 0 first. Tokens before ``seen_from`` are out
    of the window.
    """

    first: int = 0
    end: int = 0
    seen_from: int = 0
    pages: list[int] = field(default_factory=list)


@dataclass(slots=True)
class VirtualRange(Record):
    """A request's virtual memory: rows by kind."""

    rows: list[MappedRows] = field(default_factory=list)


@dataclass(slots=True)
class Virtual(Record):
    """Pages, the ranges of requests over them, and sums over live requests."""

    tensors: list[TensorKind] = field(default_factory=list)
    num_kinds: int = 0
    num_tensors: int = 0  # of all kinds
    token_bytes: int = 0  # of all tensors
    page_bytes: int = 1
    num_pages: int = 0
    free_pages: list[int] = field(default_factory=list)  # a stack: the next one out is last
    num_free_pages: int = 0
    num_free_host_pages: int = 0
    num_spared: int = 0  # pages that admissions leave free while others run
    max_in_flight_tokens: int = 0
    virtual_ranges: list[VirtualRange] = field(default_factory=list)  # by holding
    dead_bytes: int = 0  # out of their windows
    last_bytes: int = 0  # of mapped memory, up to where requests will have written by their end
