"""Records of a step's cost: the work in it, and the constants that price it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.paged import FULL
from kvsim.records.part import Part
from kvsim.records.record import Record


class Price(IntEnum):
    """The cost model of steps. PYTHON is one written in Python, OWN has rules of a user's."""

    PYTHON = 0
    CONSTANT = 1
    ROOFLINE = 2
    OWN = 3


PRICED_IN_PYTHON, CONSTANT, ROOFLINE, PRICED_BY_OWN_RULES = (int(price) for price in Price)


@dataclass(slots=True)
class Layers(Record):
    """Layers with attention to the same tokens, and their work in a step.

    ``kv_bytes`` per token; FLOPs per query-key pair of a decode and of a prompt.
    """

    kind: int = FULL
    window: int = 0
    kv_bytes: int = 0
    pair_flops: float = 0.0
    prompt_pair_flops: float = 0.0
    decode_keys: int = 0
    draft_pairs: int = 0  # of drafts, which read those keys too
    prefill_keys: int = 0
    prefill_pairs: int = 0


@dataclass(slots=True)
class Gemms(Record):
    """GEMMs of all layers with weights of one format, on one GPU.

    ``rate`` of the arithmetic, FLOP/s; ``stream_rate`` of the weights, bytes per second.
    """

    num_bytes: float = 0.0  # of the weights
    token_flops: float = 0.0
    token_bytes: float = 0.0  # activations read and written
    stream_rate: float = math.inf
    rate: float = math.inf
    falloff: float = 0.0
    ridge: float = 0.0


@dataclass(slots=True)
class Experts(Record):
    """Routed experts, on the GPU with the most work; ``num_layers`` is 0 for a dense model.

    ``touched`` experts of a layer by tokens in the step; per layer, ``token_rows`` rows of the
    GEMMs per token and ``block`` rows of padding per touched expert.
    """

    num_layers: float = 0.0
    touched: list[float] = field(default_factory=list)
    last_touched: int = 0
    expert_bytes: float = 0.0  # of one expert of one layer
    token_rows: float = 0.0
    row_flops: float = 0.0
    row_time: float = 0.0  # activations read and written
    block: float = 0.0
    stream_rate: float = math.inf
    rate: float = math.inf
    power: float = 1.0  # of the soft maximum of memory and arithmetic


@dataclass(slots=True)
class Work(Record):
    """The work of a step, all pipeline stages together, on one GPU of each.

    Tokens and requests are counts; of the requests, ``num_sampled`` get a token and
    ``num_decodes`` compute one token, over ``num_context_tokens`` tokens in all. Bytes are reads:
    weights of the layers (``weight_bytes``) and of the LM head, KV by decodes and by prompts.
    """

    num_requests: int = 0
    num_tokens: int = 0
    num_sampled: int = 0
    num_decodes: int = 0
    num_context_tokens: int = 0
    num_drafts: int = 0  # of the tokens, those that are only proposed
    num_drafted: int = 0  # tokens to propose after it, per request
    touched: float = 0.0  # experts of a layer
    num_encoded: int = 0  # tokens that an encoder computes
    num_adapters: int = 0  # LoRA adapters of the requests that run
    draft_pairs: int = 0  # query-key pairs of drafts, beside those of the tokens before them
    draft_keys: int = 0  # tokens whose KV the drafter reads
    weight_bytes: float = 0.0
    gemm_flops: float = 0.0
    head_bytes: float = 0.0
    head_flops: float = 0.0
    decode_bytes: float = 0.0
    decode_flops: float = 0.0
    prefill_bytes: float = 0.0
    prefill_flops: float = 0.0
    chunks: object = None  # first and past-the-end token of every prompt, or chunk of one
    swapped_bytes: int = 0  # between GPU and host before the step starts

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of prompts, or of chunks of them."""
        return self.num_tokens - self.num_decodes - self.num_drafts


@dataclass(slots=True)
class Cost(Record):
    """Constants of a model on a GPU, seconds and bytes; see :class:`kvsim.cost.roofline`."""

    price: int = CONSTANT
    seconds: float = 0.0  # of every step, under CONSTANT
    flops: float = 0.0  # of the step priced last
    bytes: float = 0.0
    work: Work = field(default_factory=Work)
    python: object = None  # a cost model that is not a rule, or its rules as Python
    part: Part = field(default_factory=Part)  # rules of a user's
    is_refused: bool = False  # a user's cost model returned a value that is not a time
    refused_time: float = 0.0

    layers: list[Layers] = field(default_factory=list)
    num_layers: int = 0
    has_samples: bool = False  # some request has several sequences
    wide: Gemms = field(default_factory=Gemms)  # 16-bit weights, the LM head's kind
    narrow: Gemms = field(default_factory=Gemms)  # quantised ones
    experts: Experts = field(default_factory=Experts)
    num_stages: float = 1.0
    kv_token_bytes: int = 0  # written per token
    head_flops: float = 0.0
    head_bytes: float = 0.0
    logit_bytes: float = 0.0
    step_time: float = 0.0
    request_time: float = 0.0
    captured_tokens: int = 0  # most of a step that a CUDA graph covers
    uncaptured_time: float = 0.0  # least time of a longer one, requests' share aside
    kv_rate: float = math.inf
    prefill_rate: float = math.inf
    decode_time: float = 0.0
    decode_time_per_request: float = 0.0
    decode_falloff: float = 0.0  # of ``kv_rate``, by the seconds that decodes read
    mixed_decode: float = 0.0
    mixed_tokens: float = 1.0
    prefill_time: float = 0.0
    prefill_time_per_token: float = 0.0
    token_time: float = 0.0
    one_shot: float = 0.0
    one_shot_token: float = 0.0
    two_shot: float = 0.0
    two_shot_token: float = 0.0
    encoder_launch: float = 0.0  # least time of a pass of an image or audio encoder
    encoder_bytes: float = 0.0  # of its weights
    encoder_token_flops: float = 0.0
    adapter_launch: float = 0.0  # of a step with any LoRA adapter
    adapter_bytes: float = 0.0  # of one
    adapter_flops: float = 0.0  # per token
    link_bytes_per_s: float = math.inf  # between GPU and host, one way
    copy_round: float = 0.0  # a copy per tensor of each layer
    copy_round_per_byte: float = 0.0
    copy_share: float = 0.0  # of the GPU's memory bandwidth, by a copy over that link
    fault_time: float = 0.0
    has_drafts: bool = False
    draft_share: float = 0.0  # of a step's time, on the host
    draft_passes: int = 0  # most passes of the drafter per step
    draft_pass_time: float = 0.0  # fixed, of each
    draft_bytes: float = 0.0  # weights that a pass reads
    draft_token_flops: float = 0.0
    draft_head_flops: float = 0.0  # per token that is drafted
    draft_key_bytes: float = 0.0  # KV per token
