"""Records of a step's cost: the work in it, and the constants that price it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from kvsim.records.paged import FULL
from kvsim.records.part import Part
from kvsim.records.record import Record


class Price(IntEnum):
    """The cost model of steps. PYTHON is a class in Python, OWN a user's compiled rules."""

    PYTHON = 0
    CONSTANT = 1
    ROOFLINE = 2
    OWN = 3


PRICED_IN_PYTHON, CONSTANT, ROOFLINE, PRICED_BY_OWN_RULES = (int(price) for price in Price)


@dataclass(slots=True)
class Layers(Record):
    """Layers that attend to the same tokens, and their work in a step.

    ``kv_bytes`` is per token; ``pair_flops`` is per query-key pair of a decode, and
    ``prompt_pair_flops`` is per query-key pair of a prompt.
    """

    kind: int = FULL
    window: int = 0
    kv_bytes: int = 0
    pair_flops: float = 0.0
    prompt_pair_flops: float = 0.0
    decode_keys: int = 0
    draft_pairs: int = 0  # query-key pairs of drafts, which read the keys of the decodes
    prefill_keys: int = 0
    prefill_pairs: int = 0


@dataclass(slots=True)
class Gemms(Record):
    """GEMMs of all layers with weights of one format, on one GPU.

    ``rate`` is the arithmetic rate in FLOP/s; ``stream_rate`` is the rate in bytes per second at
    which weights are read.
    """

    num_bytes: float = 0.0  # bytes of the weights
    token_flops: float = 0.0
    token_bytes: float = 0.0  # activations read and written per token
    stream_rate: float = math.inf
    rate: float = math.inf
    falloff: float = 0.0
    ridge: float = 0.0


@dataclass(slots=True)
class Experts(Record):
    """Routed experts, on the GPU with the most work; ``num_layers`` is 0 for a dense model.

    ``touched[n]`` is the expected number of experts per layer that a step with n tokens reads. The
    GEMMs of a layer have ``token_rows`` rows per token, and ``block`` rows of padding for each
    expert that is read.
    """

    num_layers: float = 0.0
    touched: list[float] = field(default_factory=list)
    fetched: list[float] = field(default_factory=list)  # of these, copied from host memory
    last_touched: int = 0
    expert_bytes: float = 0.0  # of one expert of one layer
    token_rows: float = 0.0
    row_flops: float = 0.0
    row_time: float = 0.0  # activations read and written
    block: float = 0.0
    stream_rate: float = math.inf
    rate: float = math.inf
    power: float = 1.0  # exponent of the soft maximum of memory time and arithmetic time


@dataclass(slots=True)
class HostWeights(Record):
    """Weights of layers in host memory: a share that kernels read there, or layers to copy.

    In each group of ``group_size`` layers of a stage, the last ``num_in_group`` are copied. A copy
    takes ``copy_time`` seconds, into one of ``num_buffers`` buffers; ``ready`` has the time at
    which each buffer is free. The first ``num_dense`` layers are never copied.
    With ``starts_empty`` each forward pass copies its first layers; else the pass before copies
    them.
    """

    share: float = 0.0  # share of the weights that kernels read from host memory
    has_experts: bool = False  # routed experts are copied when tokens choose them
    num_layers: int = 0  # layers of a stage; 0 if none is copied
    group_size: int = 1
    num_in_group: int = 0
    num_buffers: int = 1
    copy_time: float = 0.0
    num_dense: int = 0
    starts_empty: bool = False
    graph_time: float = 0.0  # of copies that take turns with the layers of a decode in a CUDA graph
    ready: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Work(Record):
    """The work of a step on one GPU of each pipeline stage, summed over the stages.

    Of the requests, ``num_sampled`` get a token, and ``num_decodes`` compute one token each, with
    attention to ``num_context_tokens`` tokens in total. Bytes count reads: the weights of the
    layers (``weight_bytes``), the weights of the LM head, the KV of decodes and the KV of prompts.
    """

    num_requests: int = 0
    num_tokens: int = 0
    num_sampled: int = 0
    num_decodes: int = 0
    num_context_tokens: int = 0
    num_drafts: int = 0  # drafts among the tokens
    num_drafted: int = 0  # drafts to propose after the step, per request
    touched: float = 0.0  # experts of a layer that the step reads
    num_encoded: int = 0  # tokens that an encoder computes
    num_adapters: int = 0  # different LoRA adapters of the running requests
    num_prompt_context_tokens: int = 0  # before prompt chunks, if ranks split the tokens
    draft_pairs: int = 0  # query-key pairs of drafts; those of other tokens are not counted here
    draft_keys: int = 0  # tokens of which the drafter reads the KV
    weight_bytes: float = 0.0
    gemm_flops: float = 0.0
    head_bytes: float = 0.0
    head_flops: float = 0.0
    decode_bytes: float = 0.0
    decode_flops: float = 0.0
    prefill_bytes: float = 0.0
    prefill_flops: float = 0.0
    chunks: Any = None  # (first token, end) of every prompt or prompt chunk
    swapped_bytes: int = 0  # copied between GPU and host before the step starts

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of prompts and prompt chunks."""
        return self.num_tokens - self.num_decodes - self.num_drafts


@dataclass(slots=True)
class Cost(Record):
    """Constants of a model on a GPU, in seconds and bytes; see :mod:`kvsim.cost.roofline`."""

    price: int = CONSTANT
    seconds: float = 0.0  # time of every step, under CONSTANT
    flops: float = 0.0  # FLOPs and bytes of the step priced last
    bytes: float = 0.0
    work: Work = field(default_factory=Work)
    python: Any = None  # a cost model in Python, or a user's rules as Python
    part: Part = field(default_factory=Part)  # a user's rules
    is_refused: bool = False  # a user's cost model returned a value that is not a time
    refused_time: float = 0.0

    layers: list[Layers] = field(default_factory=list)
    num_layers: int = 0
    has_samples: bool = False  # some request has several sequences
    wide: Gemms = field(default_factory=Gemms)  # 16-bit weights, as the LM head has
    narrow: Gemms = field(default_factory=Gemms)  # quantised weights
    experts: Experts = field(default_factory=Experts)
    host: HostWeights = field(default_factory=HostWeights)
    num_stages: float = 1.0
    kv_token_bytes: int = 0  # written per token
    head_flops: float = 0.0
    head_bytes: float = 0.0
    logit_bytes: float = 0.0
    step_time: float = 0.0
    request_time: float = 0.0
    captured_tokens: int = 0  # largest step that a CUDA graph covers
    uncaptured_time: float = 0.0  # least time of a larger step, before its time per request
    kv_rate: float = math.inf
    prefill_rate: float = math.inf
    decode_time: float = 0.0
    decode_time_per_request: float = 0.0
    decode_falloff: float = 0.0  # relative loss of ``kv_rate`` per second that decodes read
    mixed_decode: float = 0.0
    mixed_tokens: float = 1.0
    prefill_time: float = 0.0
    prefill_time_per_token: float = 0.0
    token_time: float = 0.0
    one_shot: float = 0.0
    one_shot_token: float = 0.0
    two_shot: float = 0.0
    two_shot_token: float = 0.0
    splits_context: bool = False  # ranks of context parallelism split the tokens of the KV
    exchanges_prompts: bool = False  # prompt chunks exchange queries and outputs, as decodes do
    exchange_launch: float = 0.0  # fixed time of a step's exchanges
    exchange_token: float = 0.0  # time of the exchanges per token of the step
    gather_token: float = 0.0  # time per token of context that a prompt chunk gathers
    encoder_launch: float = 0.0  # least time of a pass of an image or audio encoder
    encoder_bytes: float = 0.0  # bytes of the encoder's weights
    encoder_token_flops: float = 0.0
    adapter_launch: float = 0.0  # time that a step with any LoRA adapter adds
    adapter_bytes: float = 0.0  # bytes of one adapter
    adapter_flops: float = 0.0  # FLOPs per token
    link_bytes_per_s: float = math.inf  # between GPU and host, one way
    copy_round: float = 0.0  # fixed time of a copy of every tensor of each layer
    copy_round_per_byte: float = 0.0
    copy_share: float = 0.0  # share of the GPU's memory bandwidth that a copy over the link takes
    fault_time: float = 0.0
    has_drafts: bool = False
    draft_share: float = 0.0  # drafting on the host, as a share of the step's time
    draft_passes: int = 0  # most passes of the drafter per step
    draft_pass_time: float = 0.0  # fixed time of each pass
    draft_bytes: float = 0.0  # weights that a pass reads
    draft_token_flops: float = 0.0
    draft_head_flops: float = 0.0  # FLOPs of the LM head per drafted token
    draft_key_bytes: float = 0.0  # bytes of the drafter's KV per token
