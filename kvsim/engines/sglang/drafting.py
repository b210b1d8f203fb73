"""SGLang's speculative decoding from a configuration, with kvsim's settings for memory and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.budget.settings import model_of
from kvsim.engines.sglang.sched.speculation import SpeculationSettings
from kvsim.sched.acceptance import acceptance_rates
from kvsim.speculation import SpeculativeConfig

if TYPE_CHECKING:
    from kvsim.config import Config
    from kvsim.speculation import Method

#: kvsim's names of SGLang's algorithms.
METHODS: dict[str, Method] = {
    **{"EAGLE": "eagle", "EAGLE3": "eagle3", "NEXTN": "mtp"},
    **{"STANDALONE": "draft_model", "NGRAM": "ngram"},
}
#: Algorithms that disable mixed batches of prompts and decodes.
MIX_NOTHING = ("STANDALONE", "NGRAM")
#: Tokens that NGRAM verifies, and its largest number of alternatives for a token.
OF_NGRAMS = (12, 10)
#: Beginnings of the names of models that draft wider and deeper trees.
WIDE = ("llama", "grok")
#: Default max_running_requests under speculative decoding.
MOST_RUNNING = 48


class Shape(NamedTuple):
    """Consecutive drafts, alternatives per draft, and tokens that a step verifies."""

    num_steps: int
    topk: int
    num_draft_tokens: int


def shape_of(config: Config) -> Shape:
    """Return the shape of the drafts: as configured, else SGLang's defaults for the model."""
    if config.speculative_algorithm == "NGRAM":
        most, breadth = config.speculative_num_draft_tokens or OF_NGRAMS[0], OF_NGRAMS[1]
        return Shape(max(most // breadth, 1), breadth, most)
    name = model_of(config).name.lower()
    asked = (
        config.speculative_num_steps,
        config.speculative_eagle_topk,
        config.speculative_num_draft_tokens,
    )
    wide = asked == (None, None, None) and name.startswith(WIDE)
    steps, topk, tokens = (5, 4, 8) if wide else (asked[0] or 3, asked[1] or 1, asked[2])
    if topk == 1 or tokens is None:
        tokens = steps + 1
    return Shape(steps, topk, tokens)


def speculative_config_of(config: Config) -> SpeculativeConfig | None:
    """Return vLLM settings that approximate the algorithm's memory and step time."""
    if config.speculative_algorithm is None:
        return None
    method, shape = METHODS[config.speculative_algorithm], shape_of(config)
    if method == "ngram":
        return SpeculativeConfig(method, shape.num_draft_tokens - 1)
    path = config.speculative_draft_model_path
    if method != "draft_model":
        return SpeculativeConfig(method, shape.num_steps)
    if path is None:
        raise ValueError("speculative_algorithm STANDALONE: needs speculative_draft_model_path")
    return SpeculativeConfig(method, shape.num_steps, model=path)


def speculation_settings(config: Config) -> SpeculationSettings | None:
    """Return the settings of speculative decoding in SGLang's scheduler; None without it."""
    spec = config.speculative_config
    if config.speculative_algorithm is None or spec is None:
        return None
    return SpeculationSettings(
        config.speculative_algorithm,
        *shape_of(config),
        accept_rates=tuple(acceptance_rates(spec)),
        seed=config.seed,
    )
