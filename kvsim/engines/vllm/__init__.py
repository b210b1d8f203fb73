"""vLLM, the default engine, with the schedulers of the baselines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvsim.engines.engine import Engine
from kvsim.engines.policies import ORCA, SCHEDULED_IN_PYTHON, STATIC, VLLM, VLLM_V0
from kvsim.engines.registry import ENGINES

if TYPE_CHECKING:
    from kvsim.calibration.startup import Startup
    from kvsim.catalog.spec import ModelSpec


@ENGINES.register("vllm")
class Vllm(Engine):
    """vLLM 0.33."""

    title = "vLLM"
    policies = frozenset((SCHEDULED_IN_PYTHON, VLLM, ORCA, STATIC, VLLM_V0))
    launchers = ("vllm.entrypoints.openai.api_server", "vllm serve")
    flags = Path(__file__).parent / "flags.tsv"
    has_auto_length = True
    has_context_parallel = True
    has_compressed_kv = True
    offloads_weights = "read"
    shares_experts = True
    checks_block_size = True

    def offloaded_in_groups(self, model: ModelSpec) -> Literal["layers", "experts"] | None:
        return "layers"

    @property
    def log_mark(self) -> str:
        from kvsim.engines.vllm.calibration import MARK

        return MARK

    def startup_of(self, text: str) -> Startup:
        from kvsim.engines.vllm.calibration import startup_of

        return startup_of(text)
