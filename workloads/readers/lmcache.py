"""LMCache's sessions of agents (huggingface.co/datasets/sammshen/lmcache-agentic-traces).

A record is one turn: all messages so far, the tokens of its answer, and the seconds between the
answer before and this turn.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from workloads.chats import Chats, messages_of
from workloads.draft import Draft, Pace
from workloads.readers.columns import session_numbers
from workloads.readers.formats import reader
from workloads.readers.openai_chat import MESSAGES
from workloads.texts import CHARS_PER_TOKEN, counter

if TYPE_CHECKING:
    from workloads.readers.table import Table

_PACE = Pace()


@reader("lmcache", ["session_id", "input", "output_length"], ["pre_gap", "model"])
def read_lmcache(
    table: Table,
    *,
    chars_per_token: float = CHARS_PER_TOKEN,
    tokenizer: str | None = None,
    time_per_output_token: float = _PACE.time_per_output_token,
    session_interval: float = 0.0,
) -> Draft:
    """Read turns of sessions; equal beginnings of messages are equal tokens.

    A turn is sent its ``pre_gap`` after the answer before it would be done. Answers have no texts,
    so a later turn repeats them under contents of its own.

    Parameters
    ----------
    table : of the keys session_id, input (messages), output_length, pre_gap (seconds)
    chars_per_token : characters that make a token
    tokenizer : a tokenizer.json that counts instead; needs the package tokenizers
    time_per_output_token : seconds that a token of an answer is taken to last
    session_interval : seconds from the start of one session to that of the next
    """
    if not 0 <= session_interval < math.inf:
        raise ValueError(f"session_interval must be finite and at least 0, got {session_interval}")
    sessions, outputs = session_numbers(table), table.tokens("output_length")
    assert sessions is not None
    gaps = table.floats("pre_gap") if "pre_gap" in table else [0.0] * len(table)
    prompts = table.convert("input", messages_of, MESSAGES)
    chats = Chats(counter(chars_per_token, tokenizer))
    ends: dict[int, float] = {}
    times = []
    for row, (prompt, session) in enumerate(zip(prompts, sessions, strict=True)):
        begin = ends.get(session, session * session_interval) + gaps[row]
        ends[session] = begin + outputs[row] * time_per_output_token
        times.append(begin)
        chats.request(prompt, table.places[row], session, output=outputs[row])
    said = f"{time_per_output_token:g} s a token of the answer before"
    return chats.draft(None, times, [f"a turn starts its pre_gap after {said}"])
