"""Input files of OpenAI's Batch API, which ``vllm run-batch`` takes as well.

As platform.openai.com/docs/guides/batch says: a ``custom_id``, a ``url`` and a ``body`` a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.calls import Call, call_of
from workloads.chats import OUTPUT_TOKENS, Chats
from workloads.readers.formats import reader
from workloads.texts import CHARS_PER_TOKEN, counter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workloads.draft import Draft
    from workloads.readers.table import Table

_BODY = "a request with messages, prompt or input"


@reader("openai-batch", ["custom_id", "body"], ["url", "method"])
def read_openai_batch(
    table: Table,
    *,
    chars_per_token: float = CHARS_PER_TOKEN,
    tokenizer: str | None = None,
    output_tokens: int = OUTPUT_TOKENS,
) -> Draft:
    """Read the requests of a batch, which arrive at once; equal beginnings are equal tokens.

    Parameters
    ----------
    table : of the keys custom_id and body
    chars_per_token : characters that make a token
    tokenizer : a tokenizer.json that counts instead; needs the package tokenizers
    output_tokens : of a request without ``max_tokens`` in its body
    """
    for row, url in enumerate(table.columns.get("url", ())):
        if isinstance(url, str) and url.rstrip("/").endswith(("/embeddings", "/moderations")):
            raise table.error(row, f"url is {url!r}: such a request generates no tokens")
    chats = Chats(counter(chars_per_token, tokenizer), output_tokens)
    for call, place in zip(table.convert("body", _call, _BODY), table.places, strict=True):
        chats.request(call.messages, place, output=call.num_output_tokens)
    notes = ["output lengths are max_tokens, where a body has it"]
    return chats.draft(notes=notes, ends_by="length")


def _call(body: Mapping[str, Any]) -> Call:
    return call_of({name: value for name, value in body.items() if name != "response"})
