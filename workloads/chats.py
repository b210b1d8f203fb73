"""Requests with chat messages as prompts, as in OpenAI's API."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workloads.draft import Draft, Pace
from workloads.texts import ASSISTANT, NONE, Counter, Messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Tokens of an answer of unknown length, the default of vLLM's --custom-output-len.
OUTPUT_TOKENS = 256
#: Types of message parts that are text, and the key with the text.
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "tool_result": "content"}


@dataclass(frozen=True)
class Message:
    """A message: its speaker, its text, and its number of non-text parts."""

    speaker: str
    text: str
    num_other: int = 0


def messages_of(cell: Any) -> list[Message]:
    """Return the messages of a request; raises an error if the cell is no list of messages."""
    if isinstance(cell, str):  # a CSV or Parquet cell
        cell = json.loads(cell)
    found = [_message(entry) for entry in cell]
    if not found:
        raise ValueError
    return found


def _message(entry: Mapping[str, Any]) -> Message:
    role = entry["role"]
    if not isinstance(role, str):
        raise TypeError
    text, num_other = _text(entry.get("content"))
    for name in ("tool_calls", "function_call"):
        if entry.get(name):
            text += json.dumps(entry[name], ensure_ascii=False)
    return Message(ASSISTANT if role == "model" else role, text, num_other)


def _text(content: Any) -> tuple[str, int]:
    """Return a content's text, and its number of non-text parts."""
    if content is None or isinstance(content, str):
        return content or "", 0
    texts, num_other = [], 0
    for part in content:
        inner = part if isinstance(part, str) else part.get(_TEXTS.get(part.get("type"), ""))
        if inner is None:
            num_other += 1
            continue
        text, more = _text(inner)
        texts.append(text)
        num_other += more
    return "".join(texts), num_other


def tools_of(cell: Any) -> list[Message]:
    """Return the definitions of tools as a message, as a chat template writes them."""
    return [Message("tools", json.dumps(cell, ensure_ascii=False))] if cell else []


@dataclass
class Chats:
    """Collects requests and conversations, and makes a draft of them.

    Parameters
    ----------
    count : counter of a text's tokens
    output_tokens : tokens of an answer of unknown length
    """

    count: Counter
    output_tokens: int = OUTPUT_TOKENS
    _last: list[int] = field(default_factory=list)
    _outputs: list[int] = field(default_factory=list)
    _answers: list[int] = field(default_factory=list)
    _sessions: list[int] = field(default_factory=list)
    _places: list[int] = field(default_factory=list)
    _num_other: int = 0
    _num_assumed: int = 0
    _told: int = 0
    _counted: int = 0

    def __post_init__(self) -> None:
        self._messages = Messages(self.count)

    def __len__(self) -> int:
        return len(self._last)

    def request(
        self,
        messages: Sequence[Message],
        place: int,
        session: int = -1,
        *,
        answer: str | None = None,
        output: int | None = None,
        num_reported_tokens: int | None = None,
    ) -> None:
        """Add one request.

        Parameters
        ----------
        messages : messages of the prompt
        place : line of the file
        session : index of the session, -1 for none
        answer : text of the answer, so that later prompts can share its content
        output : tokens of the answer; None: those of its text, or ``output_tokens`` without a text
        num_reported_tokens : a server's count of prompt tokens
        """
        last = self._say(messages)
        self._ask(last, place, session, answer, output)
        if num_reported_tokens is not None:
            self._told += num_reported_tokens
            self._counted += self._messages.length(last)

    def conversation(self, messages: Sequence[Message], place: int, session: int) -> int:
        """Add a request for each answer that follows another message; return their number."""
        before, last = len(self), NONE
        for message in messages:
            if message.speaker == ASSISTANT and last != NONE and message.text:
                self._ask(last, place, session, message.text, None)
            last = self._say([message], last)
        return len(self) - before

    def _say(self, messages: Sequence[Message], last: int = NONE) -> int:
        for message in messages:
            self._num_other += message.num_other
            last = self._messages.say(last, message.speaker, message.text)
        return last

    def _ask(
        self, last: int, place: int, session: int, answer: str | None, output: int | None
    ) -> None:
        said = self._messages.say(last, ASSISTANT, answer) if answer else None
        if output is None and said is not None:
            output = self._messages.num_tokens(said)
        if output is None:
            self._num_assumed += 1
            output = self.output_tokens
        if said is None:
            said = self._messages.unknown_answer()
        self._last.append(last)
        self._outputs.append(output)
        self._answers.append(said)
        self._sessions.append(session)
        self._places.append(place)

    def draft(
        self,
        pace: Pace | None = None,
        times: Sequence[float] | None = None,
        notes: Sequence[str] = (),
        ends_by: str = "eos",
    ) -> Draft:
        """Return the requests so far, in order of ``times``, or session by session without them."""
        segments = [self._messages.prompt(last) for last in self._last]
        draft = Draft(
            [sum(length for _, _, length in pieces) for pieces in segments],
            self._outputs,
            arrival_time=times,
            segments=segments,
            output_content_id=self._answers,
            session_id=self._sessions,
            places=self._places,
            ends_by=ends_by,
            pace=pace or Pace(),
            notes=(*self._notes(), *notes),
        )
        return draft.session_by_session() if times is None else draft.in_order_of_arrival()

    def _notes(self) -> list[str]:
        """Return notes on how tokens were counted."""
        notes = [f"{self.count.note}; a chat template's own tokens are not counted"]
        if self._told and self._counted:
            notes.append(
                f"usage reports {self._told:,} prompt tokens, kvsim counts {self._counted:,}"
            )
        if self._num_assumed:
            notes.append(
                f"{self._num_assumed:,} of {len(self):,} requests have no output length: "
                f"{self.output_tokens} tokens each (output-tokens)"
            )
        if self._num_other:
            notes.append(f"dropped parts of messages that are no text: {self._num_other:,}")
        return notes
