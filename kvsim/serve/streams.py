"""Answers in progress: the tokens of a sample, as chunks of a stream or as one text."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import msgspec

from kvsim.results.tables import FinishReason
from kvsim.serve.messages import Refused
from kvsim.serve.tokens import INDEX_BITS, output_id, output_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.serve.messages import Common

#: How vLLM names the end of a request.
REASONS = {
    FinishReason.FINISHED: "length",
    FinishReason.ABORTED: "abort",
    FinishReason.REJECTED: "abort",
    FinishReason.FAILED: "error",
}
#: Message and status of the answer to a request that failed, in vLLM's words.
FAILED = "Internal server error", 500
DONE = b"data: [DONE]\n\n"
LAST_INDEX = (1 << INDEX_BITS) - 1


def nothing(data: bytes) -> None:
    """Take bytes, and send none."""


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Reply:
    """The parts of an answer that all samples of a request share.

    Parameters
    ----------
    send : sends bytes to the client; None if the whole answer is sent at the end
    arrived : moment at which the request was read, monotonic seconds
    """

    model: str
    is_chat: bool
    common: Common
    num_prompt_tokens: int
    send: Callable[[bytes], None] | None = None
    request_id: str = ""
    arrived: float = field(default_factory=time.monotonic)
    num_cached_tokens: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    has_begun: bool = False
    samples: list[Sample] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        kind = "chatcmpl" if self.is_chat else "cmpl"
        self.request_id = f"{kind}-{self.request_id or uuid4().hex}"
        options = self.common.stream_options
        self.with_usage = options is not None and bool(options.include_usage)
        self.each_usage = options is not None and bool(options.continuous_usage_stats)
        name = "chat.completion.chunk" if self.is_chat else "text_completion"
        head = {"id": self.request_id, "object": name, "created": self.created, "model": self.model}
        self._head = b"data: " + msgspec.json.encode(head)[:-1] + b',"choices":['

    @property
    def num_output_tokens(self) -> int:
        """Tokens so far of all samples."""
        return sum(sample.count for sample in self.samples)

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens so far, summed over all samples."""
        count = self.num_output_tokens
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "total_tokens": self.num_prompt_tokens + count,
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }

    def chunk(self, choice: bytes) -> bytes:
        return chunked(self.data(choice))

    def data(self, choice: bytes) -> bytes:
        """Return an event of the stream with one choice."""
        tail = b"]}\n\n"
        if self.each_usage:
            tail = b'],"usage":' + msgspec.json.encode(self.usage) + b"}\n\n"
        elif self.with_usage:
            tail = b'],"usage":null}\n\n'
        return self._head + choice + tail

    def begin(self) -> bytes:
        """Return the first chunks of a chat, which hold the roles. Mutates.

        They are sent with the first token, as in vLLM. So a client that takes the first chunk for
        the first token still measures TTFT.
        """
        if self.has_begun or not self.is_chat:
            return b""
        self.has_begun = True
        heads = [
            {
                "index": sample.index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            for sample in self.samples
        ]
        return b"".join(self.chunk(msgspec.json.encode(one)) for one in heads)

    def end(self) -> list[bytes]:
        """Return the usage and the end of a stream once all samples have ended. Mutates."""
        if self.ended.is_set() or not all(sample.reason for sample in self.samples):
            return []
        self.ended.set()
        parts = [chunked(DONE)]
        if self.with_usage and not self.has_failed:
            tail = b'],"usage":' + msgspec.json.encode(self.usage) + b"}\n\n"
            parts.insert(0, chunked(self._head + tail))
        return parts

    @property
    def has_failed(self) -> bool:
        """True if the engine could not end a sample."""
        return any(sample.reason == "error" for sample in self.samples)

    @property
    def body(self) -> bytes:
        """The whole answer, as JSON."""
        answer = {
            "id": self.request_id,
            "object": "chat.completion" if self.is_chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [sample.choice for sample in self.samples],
            "usage": self.usage,
        }
        if self.kv_transfer_params is not None:
            answer["kv_transfer_params"] = self.kv_transfer_params
        return msgspec.json.encode(answer)


class Sample:
    """One answer to a prompt.

    Parameters
    ----------
    content : content number of its output, a part of its token ids
    echoed : text of the prompt, sent before the answer
    most : largest number of tokens

    Attributes
    ----------
    next : prepared chunk of the next token; invalid if this token ends the answer; may be empty
    send : takes bytes for the client
    """

    def __init__(
        self, reply: Reply, index: int, content: int, echoed: str = "", most: int = 0
    ) -> None:
        self.reply, self.index, self.content, self.most = reply, index, content, most
        self.count, self.reason = 0, ""
        self.stop_reason: str | None = None
        self._echoed = echoed
        self._unmatched = ""  # end of the answer, in which a stop text may begin
        stop = reply.common.stop
        self.stop = [stop] if isinstance(stop, str) else stop or []
        self._before = b'{"index":%d,' % index
        self._before += b'"delta":{"content":"' if reply.is_chat else b'"text":"'
        self._middle = b'"},' if reply.is_chat else b'",'
        self._middle += b'"logprobs":null,"finish_reason":'
        # All chunks but the last differ in their text only.
        self._is_plain = not (self.stop or reply.each_usage or reply.common.return_token_ids)
        self.next, self.send = b"", cast("Callable[[bytes], None]", nothing)
        first = output_text(output_id(content, 0))
        # Texts of a content differ in four digits, unless leading zeros are left out.
        self._is_plain &= len(first) > len(" ~0000")
        after = self._middle + b'null,"stop_reason":null}'
        plain = reply.chunk(self._before + first.encode() + after)
        self._before_digits, _, rest = plain.rpartition(b"0000" + after)
        self._after_digits = after + rest

    @property
    def token_ids(self) -> list[int]:
        return [output_id(self.content, k) for k in range(self.count)]

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._echoed + "".join(map(output_text, self.token_ids))

    def prepare(self) -> None:
        """Make the chunk of the next token before it is due. Mutates."""
        if self._is_plain and self.reply.send is not None:
            self.send = self.reply.send
            self.next = b"%b%04x%b" % (
                self._before_digits,
                self.count & LAST_INDEX,
                self._after_digits,
            )

    def add(self, count: int, ended: FinishReason | None) -> bool:
        """Add new tokens, and possibly the end; True if a stop text ends the sample.

        All tokens of a step are sent in one write to the connection. Mutates.
        """
        parts = [self.reply.begin()] if self.reply.send is not None else []
        for left in range(count - 1, -1, -1):
            text = output_text(output_id(self.content, self.count))
            self.count += 1
            if self.stop and self._is_stopped(text):
                self.reason = "stop"
            elif ended is not None and not left:
                self.reason = REASONS.get(ended, "stop")
            parts.append(self._chunk(text))
            if self.reason:
                break
        if ended is not None and not self.reason:
            self.reason = REASONS.get(ended, "stop")
            failed = self.reason == "error"
            error = b"data: " + Refused(*FAILED).body + b"\n\n"
            parts.append(chunked(error) if failed else self._chunk(""))
        if self.reason:
            parts += self.reply.end()
        if self.reply.send is not None:
            self.reply.send(b"".join(parts))
        return self.reason == "stop" and ended is None

    def _is_stopped(self, text: str) -> bool:
        """Return True if the text of this token completes a stop text. Mutates."""
        seen = self._unmatched + text
        for stop in self.stop:
            if stop and stop in seen:
                self.stop_reason = stop
                return True
        self._unmatched = seen[-max(map(len, self.stop)) :]
        return False

    def _chunk(self, text: str) -> bytes:
        """Return the chunk of the newest token, or of an end without a token."""
        reply = self.reply
        if reply.send is None:
            return b""
        reason = b"null" if not self.reason else b'"%b"' % self.reason.encode()
        tail = b',"stop_reason":null'
        if self.stop_reason is not None:
            tail = b',"stop_reason":' + msgspec.json.encode(self.stop_reason)
        if reply.common.return_token_ids:
            ids = [output_id(self.content, self.count - 1)] if text else []
            tail += b',"token_ids":' + msgspec.json.encode(ids)
        if self.count == 1:
            text = msgspec.json.encode(self._echoed).decode()[1:-1] + text
        return reply.chunk(self._before + text.encode() + self._middle + reason + tail + b"}")

    @property
    def choice(self) -> dict[str, Any]:
        """The sample's entry in an answer that is not streamed."""
        common: dict[str, Any] = {
            "index": self.index,
            "logprobs": None,
            "finish_reason": self.reason,
            "stop_reason": self.stop_reason,
        }
        if self.reply.common.return_token_ids:
            common["token_ids"] = self.token_ids
        if self.reply.is_chat:
            return common | {"message": {"role": "assistant", "content": self.text}}
        return common | {"text": self.text}
