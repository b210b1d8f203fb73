"""Chat messages of OpenAI's interface: conversations, or a log of requests.

The messages are those of platform.openai.com/docs/api-reference/chat; a file of conversations is as
OpenAI's fine-tuning takes it (platform.openai.com/docs/guides/supervised-fine-tuning).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.calls import KEYS, call_of
from workloads.chats import OUTPUT_TOKENS, Chats
from workloads.draft import Draft, Pace
from workloads.readers.columns import SESSIONS, log_times, session_numbers
from workloads.readers.formats import reader
from workloads.texts import CHARS_PER_TOKEN, counter

if TYPE_CHECKING:
    from workloads.readers.table import Table

_PACE = Pace()
#: Names of the column of send times, the best first.
TIMES = (
    *("arrival_time", "timestamp", "created_at", "created", "request_time", "start_time"),
    *("startTime", "time"),
)
#: Required form of a cell of messages, for errors.
MESSAGES = 'a list of {"role": ..., "content": text}'


@reader("openai-chat", ["messages"], [*KEYS, *TIMES, *SESSIONS])
def read_openai_chat(
    table: Table,
    *,
    chars_per_token: float = CHARS_PER_TOKEN,
    tokenizer: str | None = None,
    output_tokens: int = OUTPUT_TOKENS,
    think_time: float = _PACE.think_time,
    time_per_output_token: float = _PACE.time_per_output_token,
) -> Draft:
    """Read ``{"messages": [{"role": ..., "content": ...}]}``; equal beginnings are equal tokens.

    A record without a time that ends with an answer of the model, and tells nothing else of it, is
    a conversation: every answer in it is one request, and later turns name it. Any other record is
    one request. Its output is what ``usage`` or ``completion_tokens`` tells, else the text of the
    response, else the most that was asked for (``max_tokens``).

    Parameters
    ----------
    table : of the key messages
    chars_per_token : characters that make a token
    tokenizer : a tokenizer.json that counts instead; needs the package tokenizers
    output_tokens : of a request of unknown output length
    think_time, time_per_output_token : seconds, pace of the turns where times are drawn
    """
    chats = Chats(counter(chars_per_token, tokenizer), output_tokens)
    notes = []
    times = None
    named = next((name for name in TIMES if name in table), None)
    if named is not None:
        times, unit = log_times(table, named)
        notes.append(f"{named} read as {unit}")
    silent = 0
    calls = table.records("messages", call_of, MESSAGES)
    sessions = session_numbers(table) or (range(len(table)) if times is None else [-1] * len(table))
    for call, place, session in zip(calls, table.places, sessions, strict=True):
        if times is None and call.talk is not None:
            silent += chats.conversation(call.talk, place, session) == 0
            continue
        chats.request(
            call.messages,
            place,
            session,
            answer=call.answer,
            output=call.num_output_tokens,
            num_reported_tokens=call.num_prompt_tokens,
        )
    if len(chats) == 0:
        raise table.error(0, "messages has no answer of the model, as all others")
    if silent:
        notes.append(f"left out {silent:,} of {len(table):,} conversations without an answer")
    return chats.draft(Pace(think_time, time_per_output_token), times, notes)
