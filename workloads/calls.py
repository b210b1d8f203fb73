"""One call of OpenAI's API, from a log or a batch file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workloads.chats import Message, messages_of, tools_of
from workloads.texts import ASSISTANT

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Columns with the server's count of output tokens, and with the requested maximum.
GENERATED = ("completion_tokens", "output_tokens", "output_length")
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
#: Keys of a record that this module reads.
KEYS = ("tools", "response", "usage", *GENERATED, *LIMITS)


@dataclass(frozen=True)
class Call:
    """A prompt, and the known facts of its answer.

    Attributes
    ----------
    messages : messages of the prompt
    answer : text of the answer, None if not recorded
    num_output_tokens : output tokens, or else the requested maximum; None if neither is recorded
    num_prompt_tokens : the server's count of prompt tokens, None if not recorded
    talk : all messages, if the last one is an answer and the record has no other facts of an answer
    """

    messages: list[Message]
    answer: str | None
    num_output_tokens: int | None
    num_prompt_tokens: int | None
    talk: list[Message] | None


def call_of(record: Mapping[str, Any]) -> Call:
    """Return the call of a record with ``messages``, ``prompt`` or ``input``.

    If the last message is an answer, it is the answer of this call.
    """
    messages = tools_of(record.get("tools")) + _prompt(record)
    response = record.get("response")
    usage = _usage(record, response)
    answer, talk = _answer(response), None
    if answer is None and len(messages) > 1 and messages[-1].speaker == ASSISTANT:
        told = any(record.get(name) is not None for name in ("response", "usage", *GENERATED))
        talk = None if told else list(messages)
        answer = messages.pop().text
    output = _first(usage, ("completion_tokens", "output_tokens"))
    if output is None:
        output = _first(record, GENERATED)
    if output is None and not answer:
        output = _first(record, LIMITS)
    return Call(messages, answer, output, _first(usage, ("prompt_tokens", "input_tokens")), talk)


def _prompt(record: Mapping[str, Any]) -> list[Message]:
    for name in ("messages", "input", "prompt"):
        cell = record.get(name)
        if isinstance(cell, str) and name != "messages":
            return [Message("user", cell)]
        if cell is not None:
            return messages_of(cell)
    raise ValueError


def _usage(record: Mapping[str, Any], response: Any) -> Mapping[str, Any]:
    usage = record.get("usage")
    if usage is None and isinstance(response, dict):
        usage = response.get("usage")
    return usage if isinstance(usage, dict) else {}


def _answer(response: Any) -> str | None:
    """Return the text of a response: the response itself, or the text of its first choice."""
    if response is None or isinstance(response, str):
        return response
    choices = response.get("choices") or [{}]
    message = choices[0].get("message")
    if message is None:
        text = choices[0].get("text")
        return text if isinstance(text, str) else None
    return messages_of([{"role": ASSISTANT, **message}])[0].text


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first value that is a count of tokens above 0; None without one."""
    for name in names:
        value = record.get(name)
        if value is not None and not isinstance(value, bool) and float(value).is_integer():
            return int(value) or None
    return None
