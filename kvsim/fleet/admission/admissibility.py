"""Request validation before a run: errors of the trace, and requests that no replica can serve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.contents import Contents
from kvsim.engines.policies import VLLM
from kvsim.records.record import NONE
from kvsim.records.request import Request
from kvsim.results.tables import REQUESTS, FinishReason
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.setup import Setup


#: Rows of a table that are written at once, few enough for the processor's cache.
ROWS_AT_ONCE = 1 << 14


def check_trace(trace: object) -> None:
    """Refuse an object that is not a trace, with a hint.

    Raises
    ------
    ValueError
        If ``trace`` is not a :class:`kvsim.Trace`.
    """
    if not isinstance(trace, Trace):
        raise ValueError(
            f"trace: must be a kvsim.Trace, not {type(trace).__name__}; workloads.load reads files"
        )


def check_columns(setup: Setup, trace: Trace) -> None:
    """Refuse a trace with requests that need features the configuration lacks.

    Raises
    ------
    ValueError
        The message names the row, and the option or model that it needs.
    """
    if trace.has("lora_id") and not setup.config.enable_lora:
        row = int(np.argmax(trace.lora_id > 0))
        raise ValueError(f"trace: request {row} names an adapter, and enable_lora is off")
    if trace.has("item_start"):
        row, model = int(np.argmax(np.diff(trace.item_offsets) > 0)), setup.memory.model
        if not model.num_tower_params or setup.config.language_model_only:
            raise ValueError(
                f"trace: request {row} has encoder items, and {model.name} has no "
                "encoder; give a multimodal model"
            )
    if trace.has("grammar_time") and setup.scheduler_type.rules_of != VLLM:
        raise ValueError(
            f"trace: requests have grammars, which scheduler {setup.scheduler!r} does "
            "not support; vllm does"
        )


def reset_requests(table: NDArray[Any], rows: Sequence[int]) -> None:
    """Reset the results of requests that start again, except their token counts. Mutates."""
    for name in ("first_scheduled_time", "first_token_time", "finish_time"):
        table[name][rows] = math.nan
    for name in ("num_cached_tokens", "num_preemptions"):
        table[name][rows] = 0
    table["finish_reason"][rows] = FinishReason.IN_FLIGHT


def blank_rows(count: int) -> NDArray[Any]:
    """Return empty rows of the requests table."""
    row = np.zeros(1, dtype=REQUESTS)
    for name in ("first_scheduled_time", "first_token_time", "finish_time"):
        row[name] = math.nan
    row["prefill_replica"] = NONE
    row["finish_reason"] = FinishReason.IN_FLIGHT
    return np.repeat(row, count)


def new_requests(trace: Trace) -> NDArray[Any]:
    """Return the requests table at the start of a run."""
    table = np.empty(len(trace), dtype=REQUESTS)
    piece = blank_rows(min(len(trace), ROWS_AT_ONCE))
    for start in range(0, len(trace), ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, len(trace)))
        piece = piece[: rows.stop - start]
        piece["request_id"] = np.arange(start, rows.stop)
        piece["arrival_time"] = trace.arrival_time[rows]
        piece["num_prompt_tokens"] = trace.num_prompt_tokens[rows]
        table[rows] = piece
    return table


def admissible_requests(setup: Setup, trace: Trace) -> NDArray[np.bool_]:
    """Mark the requests that an idle replica could serve, bool, shape (requests,).

    A prompt must be shorter than max_model_len, the sequences of a request must fit into one batch,
    and its KV must fit into an empty KV memory.
    """
    longest, kv = setup.memory.limits.max_model_len, setup.kv
    admissible = trace.num_prompt_tokens < longest
    admissible &= trace.num_samples <= setup.scheduler_config.max_num_seqs
    if admissible.any() and trace.num_samples.max() == 1:
        # A request of one sequence that fits still fits with fewer tokens, so checking the worst
        # case often suffices. Several sequences share more of a longer prompt.
        prompts = trace.num_prompt_tokens[admissible]
        prompt = int(prompts.max())
        outputs = np.minimum(trace.num_output_tokens[admissible], longest - prompts)
        output = min(int(outputs.max()), longest)
        worst = Request(0, 0.0, prompt, output)
        if kv.fits(worst):
            return admissible
    contents = Contents.of(trace)
    for index in np.flatnonzero(admissible).tolist():
        admissible[index] = kv.fits(contents.request(index, 0.0, longest))
    return admissible


def whole_requests(decode: Setup, prefill: Setup, trace: Trace) -> NDArray[np.bool_]:
    """Mark the requests that a prefill replica could serve as a whole, bool, shape (requests,).

    It must be able to generate as many tokens as a decode replica.
    """
    longest, own = (setup.memory.limits.max_model_len for setup in (decode, prefill))
    ends = np.minimum(trace.num_prompt_tokens + trace.num_output_tokens, longest)
    whole: NDArray[np.bool_] = admissible_requests(prefill, trace) & (ends <= own)
    return whole
