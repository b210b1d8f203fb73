"""Memory of an image encoder's profile run when a vLLM server starts.

The server first encodes as many images of the largest size as its encoder budget holds. It then
runs the text model, with their outputs in memory (vLLM 0.33). It keeps the larger peak free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvsim.budget.limits import Limits
    from kvsim.catalog.spec import ModelSpec
    from kvsim.config import Config

#: Tokens of the largest image of Qwen3-VL's processor ("Encoder cache will be initialized with a
#: budget of 16384 tokens, and profiled with 1 image items of the maximum feature size").
LARGEST_IMAGE = 16_384
#: Ratio of the peak memory to that of all patches at the tower's width, from 1.59 GiB of "peak
#: activation" on each of two RTX 5090 with Qwen3.8-27B-FP8 (noonghunna/club-3090#1087, which is not
#: among the logs of startup.csv). Most of it is interpolated position embeddings, which each GPU
#: holds whole.
COPIES = 11.3


class EncoderProfile(NamedTuple):
    """Bytes on one GPU: the encoder's peak, and its outputs, which the text model keeps."""

    peak: int
    outputs: int


NO_ENCODER = EncoderProfile(0, 0)


def encoder_profile(
    config: Config, model: ModelSpec, limits: Limits, element: int
) -> EncoderProfile:
    """Return the memory of the encoder's profile run; zeros if it is unknown, or if none runs.

    Parameters
    ----------
    element : bytes of the model's dtype
    """
    told = config.language_model_only or config.encoder_cache_size
    if told or not model.tower_hidden_size:
        return NO_ENCODER
    budget = max(limits.max_num_batched_tokens, LARGEST_IMAGE)
    per_prompt = max(1, limits.max_model_len // LARGEST_IMAGE)
    images = max(1, min(budget // LARGEST_IMAGE, limits.max_num_seqs * per_prompt))
    tokens = images * LARGEST_IMAGE
    patches = tokens * model.patches_per_token
    peak = COPIES * patches * model.tower_hidden_size * element
    return EncoderProfile(int(peak), tokens * model.hidden_size * element)
