"""Requests of clients: read, checked, and refused as in vLLM."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

#: Output tokens of a completion without max_tokens, as in vLLM.
DEFAULT_TOKENS = 16
#: Maximum number of prompts of one request.
MOST_PROMPTS = 2048

#: A text, the token ids of one prompt, or a list with a text or token ids for each prompt.
Prompt = str | list[int | str | list[int]]


class Refused(Exception):  # noqa: N818 - it is an answer, too
    """A request that is answered with an error.

    Parameters
    ----------
    message : what is wrong, and what is allowed
    status : status code of HTTP
    param : the field that is wrong
    """

    KINDS = {  # noqa: RUF012 - a table
        400: "BadRequestError",
        401: "AuthenticationError",
        404: "NotFoundError",
        408: "RequestTimeoutError",
        413: "BadRequestError",
        429: "TooManyRequestsError",
        503: "ServiceUnavailableError",
    }

    def __init__(self, message: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param

    @property
    def body(self) -> bytes:
        kind = self.KINDS.get(self.status, "InternalServerError")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


class StreamOptions(msgspec.Struct):
    """Options of a stream: at which points it reports usage."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Common(msgspec.Struct, kw_only=True):
    """Fields of both kinds of request; unknown fields are ignored, as in vLLM."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = False
    cache_salt: str | None = None
    priority: int | None = 0
    kv_transfer_params: dict[str, Any] | None = None
    return_token_ids: bool | None = False


class Completion(Common, kw_only=True):
    """Body of ``/v1/completions``."""

    prompt: Prompt
    echo: bool | None = False


class Part(msgspec.Struct):
    """A part of a message's content; in kvsim only texts have tokens."""

    type: str = "text"
    text: str = ""


class Message(msgspec.Struct):
    """A turn of a conversation."""

    role: str
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        """The text of all parts together."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class Chat(Common, kw_only=True):
    """Body of ``/v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None


class Tokenize(msgspec.Struct):
    """Body of ``/tokenize``."""

    prompt: str | None = None
    messages: list[Message] | None = None
    model: str | None = None


class Detokenize(msgspec.Struct):
    """Body of ``/detokenize``."""

    tokens: list[int]
    model: str | None = None


class Asked(NamedTuple):
    """A request to serve, of either kind.

    Attributes
    ----------
    prompts : token ids of each prompt
    max_tokens : output tokens of each sample, None for all that fit into max_model_len
    echoes : texts of the prompts, which are sent before their answers; empty without ``echo``
    """

    common: Common
    prompts: list[list[int]]
    max_tokens: int | None
    is_chat: bool
    echoes: tuple[str, ...] = ()


def read(body: bytes, kind: Any) -> Any:
    """Return a body as a record.

    Raises
    ------
    Refused
        The message names the JSON error or the wrong field.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Refused(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"the body is not valid JSON: {error}") from None


def chat_text(messages: list[Message]) -> str:
    """Return a conversation as one text: each turn with its role, then the next role."""
    return "".join(f"<{one.role}>\n{one.text}\n" for one in messages) + "<assistant>\n"


def positive(name: str, value: int | None, most: int) -> int | None:
    """Return a number of tokens or samples, None unchanged; refuse one outside its limits.

    Raises
    ------
    Refused
        The message names the value and the limits.
    """
    if value is not None and not 1 <= value <= most:
        raise Refused(f"{name}: is {value}, must be from 1 to {most:,}", param=name)
    return value
