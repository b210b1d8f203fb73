"""ShareGPT conversations: their lengths as CSV, or the texts themselves as JSON.

Neither has arrival times; see ``workloads.load`` for what ``request_rate`` does about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.draft import Draft, Pace
from workloads.readers.formats import reader
from workloads.sessions import Script
from workloads.texts import CHARS_PER_TOKEN, counter

if TYPE_CHECKING:
    from workloads.readers.table import Table

_PACE = Pace()

#: Names of the model in ShareGPT's "from".
_MODEL = frozenset({"gpt", "chatgpt", "assistant", "bing", "bard", "model"})


@reader("sharegpt-lengths", ["num_prefill_tokens", "num_decode_tokens"])
def read_sharegpt_lengths(
    table: Table,
    *,
    conversations: bool = True,
    think_time: float = _PACE.think_time,
    time_per_output_token: float = _PACE.time_per_output_token,
) -> Draft:
    """Read turns with the whole history as prompt, as in microsoft/sarathi-serve.

    Rows of one conversation are consecutive; a prompt shorter than the previous prompt and output
    together starts a new one. Each prompt names the earlier prompts' texts and outputs.

    Parameters
    ----------
    table : of the columns num_prefill_tokens, num_decode_tokens
    conversations : False takes every row as a request of its own
        For files of the same columns that hold no conversations, such as arXiv summaries.
    think_time, time_per_output_token : seconds, pace of the turns where times are drawn
    """
    prompts, outputs = table.tokens("num_prefill_tokens"), table.tokens("num_decode_tokens")
    if not conversations:
        return Draft(prompts, outputs, ends_by="eos")
    script = Script()
    for prompt, output, place in zip(prompts, outputs, table.places, strict=True):
        if prompt < script.num_tokens or script.num_tokens == 0:
            script.begin()
        script.say(prompt - script.num_tokens)
        script.answer(output, place)
    return script.draft(Pace(think_time, time_per_output_token))


@reader("sharegpt", ["conversations"])
def read_sharegpt(
    table: Table,
    *,
    chars_per_token: float = CHARS_PER_TOKEN,
    tokenizer: str | None = None,
    think_time: float = _PACE.think_time,
    time_per_output_token: float = _PACE.time_per_output_token,
) -> Draft:
    """Read ``{"conversations": [{"from": ..., "value": text}]}``; tokens are counted by characters.

    Every message of the model that follows another is one request: its prompt is all that was said
    before, its output the message. Messages before it are prompt, also the model's own if it spoke
    first. Equal texts are equal content in all conversations.

    Parameters
    ----------
    table : of the key conversations
    chars_per_token : characters that make a token
    tokenizer : a tokenizer.json that counts instead; needs the package tokenizers
    think_time, time_per_output_token : seconds, pace of the turns where times are drawn
    """
    chats = table.convert("conversations", _messages, 'a list of {"from": ..., "value": text}')
    script, count = Script(), counter(chars_per_token, tokenizer)
    contents: dict[str, int] = {}
    silent = 0
    for chat, place in zip(chats, table.places, strict=True):
        script.begin()
        requests = len(script)
        for speaker, said in chat:
            if speaker in _MODEL and script.num_tokens and said:
                script.answer(count.count(said), place)
            else:
                if said not in contents:
                    contents[said] = script.new_content()
                script.say(count.count(said), contents[said])
        silent += len(script) == requests
    if len(script) == 0:
        raise table.error(0, "conversations has no answer of the model, as all others")
    skipped = (f"left out {silent:,} of {len(chats):,} conversations without an answer",)
    notes = (count.note, *(skipped if silent else ()))
    return script.draft(Pace(think_time, time_per_output_token), notes)


def _messages(cell: Any) -> list[tuple[str, str]]:
    messages = [(message["from"], message["value"]) for message in cell]
    if not all(isinstance(part, str) for message in messages for part in message):
        raise TypeError
    return messages


def text(cell: Any) -> str:
    """Return a prompt's text after checking it."""
    if not (isinstance(cell, str) and cell):
        raise ValueError
    return cell
