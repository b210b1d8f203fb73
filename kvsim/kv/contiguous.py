"""Contiguous KV: one piece of memory per request, reserved whole at admission.

These are the baselines of the PagedAttention paper (section 6.1): Orca (Max) reserves the longest
possible sequence, Orca (Pow2) rounds the output up to a power of two, Orca (Oracle) knows it. All
place their pieces with a buddy allocator unless told otherwise.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsim.kv.address_space import AddressSpace, Fit, address_space
from kvsim.kv.manager import (
    ALLOCATORS,
    NO_HIT,
    Hit,
    KVCacheConfig,
    KVCacheManager,
)
from kvsim.kv.usage import Cause, KVUsage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.records.request import Request


class _Piece(NamedTuple):
    """Slots of one request: handed out from ``start`` on, asked for, and filled by its end."""

    request: Request
    start: int
    size: int
    asked: int
    last: int


def _allocate(space: AddressSpace, asked: int, count: int) -> list[tuple[int, int]] | None:
    """Place ``count`` pieces, or none at all if one of them finds no room."""
    places: list[tuple[int, int]] = []
    for _ in range(count):
        place = space.allocate(asked)
        if place is None:
            for start, size in places:
                space.free(start, size)
            return None
        places.append(place)
    return places


class ContiguousManager(KVCacheManager):
    """One contiguous piece per request, never moved, never grown.

    When every layer has a sliding window, a piece is a rolling buffer of at most one window
    (Mistral 7B, arXiv 2310.06825). Subclasses say how much a request reserves.

    Parameters
    ----------
    config : its memory and its users
    fit : where a piece goes
    """

    default_scheduler = "orca"
    has_block_table = False
    serves_samples = True

    def __init__(self, config: KVCacheConfig, *, fit: Fit = "buddy") -> None:
        self._slot_bytes = config.layout.bytes_per_token
        self.num_slots = config.num_bytes // self._slot_bytes
        self.block_size = config.block_size
        self.num_gpu_blocks = self.num_slots // config.block_size
        self.total_bytes = self.num_slots * self._slot_bytes
        self._max_model_len = config.max_model_len
        self._window = config.layout.rolling_window
        self.fit = fit
        self._space = address_space(self.num_slots, fit)
        self._pieces: dict[int, list[_Piece]] = {}  # one per sequence
        self._filled: dict[int, int] = {}  # live tokens of each; an ended request has no entry
        # Sums over the pieces; every report is made of them.
        self._num_size = 0
        self._num_asked = 0
        self._num_last = 0  # slots that live requests will have used by their end
        self._num_filled = 0

    @abstractmethod
    def reserve(self, request: Request) -> int:
        """Return how many slots a request asks for. Does not mutate."""

    # -- the protocol ------------------------------------------------------------------------

    def _slots(self, num_tokens: int) -> int:
        return num_tokens if self._window is None else min(num_tokens, self._window)

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        """Reserve all at the first call; later calls only fill what is reserved."""
        del hit
        key = request.request_id
        filled = self._filled.get(key)
        if filled is None:
            asked = self._slots(self.reserve(request))
            places = _allocate(self._space, asked, request.num_samples)
            if places is None:
                return False
            last = min(self._slots(request.max_slots), asked)
            pieces = [_Piece(request, *place, asked, last) for place in places]
            self._pieces[key] = pieces
            for piece in pieces:
                self._num_size += piece.size
                self._num_asked += piece.asked
                self._num_last += piece.last
            filled = 0
        end = self._slots(request.num_computed_tokens + num_new_tokens)
        self._filled[key] = end
        self._num_filled += request.num_samples * (end - filled)
        return True

    def free(self, request: Request) -> None:  # noqa: D102 - see KVCacheManager
        if request.request_id in self._filled:
            self.retire(request)
        for piece in self._pieces.pop(request.request_id):
            self._num_size -= piece.size
            self._num_asked -= piece.asked
            self._space.free(piece.start, piece.size)

    def retire(self, request: Request) -> None:  # noqa: D102
        pieces = self._pieces[request.request_id]
        self._num_filled -= len(pieces) * self._filled.pop(request.request_id)
        self._num_last -= sum(piece.last for piece in pieces)

    def fits(self, request: Request) -> bool:  # noqa: D102
        asked = self._slots(self.reserve(request))
        if request.num_samples == 1:
            return asked <= self._space.largest()
        empty = address_space(self.num_slots, self.fit)
        return _allocate(empty, asked, request.num_samples) is not None

    @property
    def num_free(self) -> int:  # noqa: D102
        return self.num_slots - self._num_size

    def address(self, request: Request) -> tuple[int, int] | None:  # noqa: D102
        piece = self._pieces[request.request_id][0]
        return piece.start, piece.size

    # -- accounting --------------------------------------------------------------------------

    @property
    def kv_usage(self) -> float:  # noqa: D102
        return self._num_size / self.num_slots if self.num_slots else 0.0

    @property
    def usage(self) -> KVUsage:  # noqa: D102
        slot = self._slot_bytes
        return KVUsage(
            token_states=self._num_filled * slot,
            reservation=(self._num_last - self._num_filled) * slot,
            internal=(self._num_asked - self._num_last) * slot,
            external=(self._num_size - self._num_asked) * slot,
            unallocated=(self.num_slots - self._num_size) * slot,
            cached=0,
        )

    def memory_map(self, num_bins: int) -> NDArray[np.uint8]:  # noqa: D102
        causes = np.zeros(num_bins, dtype=np.uint8)

        def first_bin(slot: int) -> int:
            """Return the first bin whose middle is not before a slot."""
            return -((self.num_slots - 2 * slot * num_bins) // (2 * self.num_slots))

        def paint(start: int, stop: int, cause: Cause) -> None:
            causes[first_bin(start) : first_bin(stop)] = cause

        for key, piece in ((k, piece) for k, pieces in self._pieces.items() for piece in pieces):
            live = key in self._filled
            filled = piece.start + (self._filled[key] if live else 0)
            last = piece.start + (piece.last if live else 0)
            paint(piece.start, filled, Cause.TOKEN_STATES)
            paint(filled, last, Cause.RESERVATION)
            paint(last, piece.start + piece.asked, Cause.INTERNAL)
            paint(piece.start + piece.asked, piece.start + piece.size, Cause.EXTERNAL)
        return causes

    def check_integrity(self) -> None:  # noqa: D102
        pieces = [piece for pieces in self._pieces.values() for piece in pieces]
        spans = [(piece.start, piece.size) for piece in pieces] + self._space.holes()
        expected = 0
        for start, size in sorted(spans):
            if start != expected:
                raise RuntimeError(f"invariant 4: slot {start} follows slot {expected}")
            expected = start + size
        if expected != self.num_slots:
            raise RuntimeError(f"invariant 2: {expected} slots found of {self.num_slots}")
        filled = sum(n * len(self._pieces[key]) for key, n in self._filled.items())
        if filled != self._num_filled:
            raise RuntimeError("filled slots are miscounted")
        self.usage.check(self.total_bytes)


@ALLOCATORS.register("contiguous-max")
class ContiguousMax(ContiguousManager):
    """Reserve max_model_len for every request: Orca (Max)."""

    def reserve(self, request: Request) -> int:  # noqa: D102
        del request
        return self._max_model_len


@ALLOCATORS.register("contiguous-pow2")
class ContiguousPow2(ContiguousManager):
    """Reserve the output length rounded up to a power of two: Orca (Pow2)."""

    def reserve(self, request: Request) -> int:  # noqa: D102
        output = 1 << (request.max_tokens - 1).bit_length()  # 25 -> 32
        return min(request.num_prompt_tokens + output, self._max_model_len)


@ALLOCATORS.register("contiguous-oracle")
class ContiguousOracle(ContiguousManager):
    """Reserve the true output length: Orca (Oracle)."""

    def reserve(self, request: Request) -> int:  # noqa: D102
        return min(request.num_prompt_tokens + request.max_tokens, self._max_model_len)
