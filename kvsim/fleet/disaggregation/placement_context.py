"""The context of a placement decision: a request, its decode replica, and both pools."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from kvsim.engine.incoming import IncomingRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.fleet.member import Member
    from kvsim.fleet.pool import Pool
    from kvsim.trace import Trace


class PlacementContext:
    """A request with its chosen decode replica; attributes are computed when first read.

    Parameters
    ----------
    trace : the requests
    row : row of the trace
    now : seconds
    target : the decode replica
    main, prefill : the decode pool and the prefill pool
    prompts_at : returns the requests with prompts that a prefill replica has yet to compute
    rows_for : returns the requests at a decode replica or on their way to it
    can_stay : a prefill replica can serve the whole request
    predicted_tokens : prompt tokens that the router predicts to be cached; None if unknown

    Attributes
    ----------
    num_prompt_tokens : prompt tokens of the request
    max_num_batched_tokens : largest number of tokens in a step of a prefill replica
    num_kv_tokens, max_num_seqs : KV slots of the decode replica, and its limit of running requests
    """

    def __init__(
        self,
        trace: Trace,
        row: int,
        now: float,
        target: Member,
        main: Pool,
        prefill: Pool,
        *,
        prompts_at: Callable[[Member], list[int]],
        rows_for: Callable[[Member], list[int]],
        can_stay: bool,
        predicted_tokens: int | None,
    ) -> None:
        self._predicted_tokens = predicted_tokens
        self._trace, self._row, self._now = trace, row, now
        self._target, self._prefill = target, prefill
        self._prompts_at, self._rows_for = prompts_at, rows_for
        self.can_stay = can_stay
        self.num_prompt_tokens = int(trace.num_prompt_tokens[row])
        self.max_num_batched_tokens = prefill.setup.scheduler_config.max_num_batched_tokens
        self.max_num_seqs = main.setup.scheduler_config.max_num_seqs
        kv = main.setup.kv
        self.num_kv_tokens = kv.num_gpu_blocks * kv.block_size

    @cached_property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that the decode replica's prefix cache holds.

        This is the router's prediction, right or wrong; without a prediction, it is the true
        number.
        """
        if self._predicted_tokens is not None:
            return self._predicted_tokens
        request = IncomingRequest(self._trace, self._row, self._now)
        return self._target.replica.num_cached_tokens(request)

    @cached_property
    def num_pending_tokens(self) -> int:
        """Pending prompt tokens of the prefill replica that has the fewest of them."""
        prompts, members = self._trace.num_prompt_tokens, self._prefill.choosable()
        return min(int(prompts[self._prompts_at(one)].sum()) for one in members)

    @cached_property
    def _scheduled(self) -> list[int]:
        return self._rows_for(self._target)

    @property
    def num_scheduled(self) -> int:
        """Number of requests at the decode replica or on their way to it."""
        return len(self._scheduled)

    @cached_property
    def num_scheduled_tokens(self) -> int:
        """Total tokens so far of the requests at the decode replica or on their way to it."""
        prompts, lengths = self._trace.num_prompt_tokens, self._target.replica.lengths()
        return int(sum(lengths.get(row, prompts[row]) for row in self._scheduled))
