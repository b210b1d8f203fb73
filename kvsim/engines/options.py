"""The choice of an engine, and the options of each engine."""

from __future__ import annotations

from pydantic import BaseModel, Field, field_validator

from kvsim.engines.registry import get_engine
from kvsim.engines.sglang.server_options import SglangOptions
from kvsim.engines.tensorrt_llm.server_options import TensorrtLlmOptions


class EngineChoice(BaseModel, defer_build=True):
    """The engine of a configuration."""

    engine: str | None = Field(
        None, description="engine whose scheduler, KV cache and defaults to simulate [vllm]"
    )

    @field_validator("engine")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        get_engine(name)
        return name


class EngineOptions(TensorrtLlmOptions, SglangOptions, EngineChoice):
    """The options of every engine."""
