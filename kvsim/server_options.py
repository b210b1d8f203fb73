"""Further options of a vLLM server: JSON objects, kernels, admission, states."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, field_validator

from kvsim.json_object import parsed

#: Value of ``max_model_len`` for the longest length that fits the KV memory, up to the model's.
AUTO = -1


def _length(value: object) -> object:
    """Read vLLM's ``auto`` as -1; refuse any other length below 1."""
    if isinstance(value, str) and value.lower() == "auto":
        return AUTO
    number = re.fullmatch(r"\s*\+?(-?\d+)(\.0*)?\s*", str(value))
    if number is None or (int(number[1]) < 1 and int(number[1]) != AUTO):
        raise ValueError(f"is {value!r}: must be a whole number, at least 1, auto, or none")
    return value


#: Tokens, or ``AUTO``.
Length = Annotated[int, Field(ge=AUTO), BeforeValidator(_length)]


class ServerOptions(BaseModel, defer_build=True):
    """Further options of a server; None means vLLM's choice."""

    hf_overrides: str | None = Field(
        None, description="values to replace in the model's config.json, as vLLM's JSON object"
    )

    compilation_config: str | None = Field(
        None,
        description="vLLM's JSON object; only cudagraph_mode and cudagraph_capture_sizes have an "
        "effect",
    )
    optimization_level: Annotated[int, Field(ge=0, le=3)] | None = Field(
        None, description="vLLM's -O0 to -O3, which selects the captured CUDA graphs [2]"
    )
    cudagraph_capture_sizes: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, description="tokens of the steps to capture as CUDA graphs, e.g. 1,2,4 [vLLM's]"
    )

    performance_mode: Literal["balanced", "interactivity", "throughput"] = Field(
        "balanced",
        description="vLLM's defaults: throughput doubles those of a step's tokens and requests, "
        "interactivity captures a CUDA graph for each of 1 to 32 tokens",
    )
    attention_backend: str | None = Field(
        None, description="attention backend, which decides block or page size [server's choice]"
    )
    disable_sliding_window: bool = Field(
        False, description="cap the context at the model's sliding window"
    )
    max_num_queued_reqs: Annotated[int, Field(ge=1)] | None = Field(
        None, description="maximum number of requests in flight; the front end rejects more"
    )
    max_num_queued_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="maximum prompt tokens of requests without a first token; the front end "
        "rejects more",
    )
    long_prefill_token_threshold_adaptive: bool = Field(
        False,
        description="raise the threshold to max-num-batched-tokens over the unfinished requests",
    )
    prefix_match_unit: Annotated[int, Field(ge=1)] | None = Field(
        None, description="tokens per block key, if block sizes of KV-cache groups differ"
    )
    mamba_shared_prefix_checkpoint: bool = Field(
        False, description="keep a Mamba state where a shared prefix ends"
    )
    mamba_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="data type of the states of convolutions; auto: as the weights"
    )
    mm_ipc_gpu_memory_gb: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="GiB of GPU memory for images on their way from the front end"
    )
    cpu_offload_gb: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="GiB of layers' weights per GPU that kernels read in host memory"
    )
    offload_group_size: Annotated[int, Field(ge=0)] = Field(
        0,
        description="layers of a group, of which the last have weights in host memory that are "
        "copied ahead; 0: none",
    )
    offload_num_in_group: Annotated[int, Field(ge=1)] = Field(
        1, description="layers of each group with weights in host memory"
    )
    offload_prefetch_step: Annotated[int, Field(ge=1)] = Field(
        1, description="copied layers ahead, each with a buffer on the GPU"
    )
    decode_context_parallel_size: Annotated[int, Field(ge=1, le=4096)] = Field(
        1, description="tensor-parallel ranks over which the tokens of a KV block are split"
    )

    @field_validator("cudagraph_capture_sizes", mode="before")
    @classmethod
    def _sizes(cls, value: object) -> object:
        """Read a list, or a text of numbers separated by commas or blanks."""
        if value == "none":
            return None
        if isinstance(value, str):
            value = [size for size in re.split(r"[\s,\[\]]+", value) if size]
        return tuple(sorted(value)) if isinstance(value, list | tuple) else value

    @field_validator("hf_overrides", "compilation_config", mode="before")
    @classmethod
    def _object(cls, value: object) -> object:
        """Return a JSON object, given as dict or text, as a text."""
        if value is None or value == "none":
            return None
        return json.dumps(parsed(value, '{"max_position_embeddings": 32768}'), sort_keys=True)
