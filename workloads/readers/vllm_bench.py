"""Prompts for ``vllm bench serve --dataset-name custom``: a JSON object with a text per line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.draft import Draft
from workloads.prefixes import common_prefix_segments
from workloads.readers.formats import reader
from workloads.readers.sharegpt import text
from workloads.texts import CHARS_PER_TOKEN, counter

if TYPE_CHECKING:
    from workloads.readers.table import Table

#: vLLM's default of --custom-output-len.
OUTPUT_TOKENS = 256


@reader("vllm-bench", ["prompt"], ["output_tokens"])
def read_vllm_bench(
    table: Table,
    *,
    output_tokens: int | None = None,
    chars_per_token: float = CHARS_PER_TOKEN,
    tokenizer: str | None = None,
) -> Draft:
    """Read prompts without times; they share the tokens of their common prefixes.

    Parameters
    ----------
    table : of the keys prompt and output_tokens
    output_tokens : output length of every request, as ``--custom-output-len``
        Without it a line's own ``output_tokens`` counts, which vLLM uses with
        ``--custom-output-len -1`` only, and lines without one get vLLM's default of 256.
    """
    texts = table.convert("prompt", text, "a text of at least one character")
    count = counter(chars_per_token, tokenizer)
    prompts = [count.tokens(t) for t in texts]
    if output_tokens is None and "output_tokens" in table:
        outputs = table.tokens("output_tokens", empty=OUTPUT_TOKENS)
    else:
        outputs = [OUTPUT_TOKENS if output_tokens is None else output_tokens] * len(table)
    segments, output_content_id = common_prefix_segments(prompts, [[] for _ in prompts])
    return Draft(
        [len(p) for p in prompts],
        outputs,
        segments=segments,
        output_content_id=output_content_id,
        notes=(count.note,),
    )
