"""TensorRT-LLM by its documented policies: no recorded run of a server checks them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.engines.engine import Engine
from kvsim.engines.policies import STATIC, TENSORRT_LLM
from kvsim.engines.registry import ENGINES

if TYPE_CHECKING:
    from kvsim.budget.capacity import Capacity, Memory
    from kvsim.budget.layout import KVLayout
    from kvsim.config import Config
    from kvsim.kv.allocator_spec import AllocatorSpec
    from kvsim.kv.manager import KVCacheConfig
    from kvsim.sched.scheduler import Scheduler, SchedulerConfig


@ENGINES.register("tensorrt-llm")
class TensorrtLlm(Engine):
    """TensorRT-LLM by its documented policies: blocks of 32 tokens, and a capacity scheduler."""

    title = "TensorRT-LLM"
    scheduler = "tensorrt-llm"
    policies = frozenset((TENSORRT_LLM,))
    launchers = ("trtllm-serve serve", "trtllm-serve")
    basis = "TensorRT-LLM by its documented policy, not recorded"
    flags = Path(__file__).parent / "flags.tsv"

    @property
    def options(self) -> tuple[str, ...]:
        from kvsim.engines.tensorrt_llm.server_options import TensorrtLlmOptions

        return tuple(TensorrtLlmOptions.model_fields)

    def runs(self, scheduler: str, policy: int) -> bool:
        """Return True for its own scheduler, and for static batches."""
        return super().runs(scheduler, policy) or policy == STATIC

    def choices(self, config: Config) -> dict[str, Any]:
        from kvsim.engines.tensorrt_llm.setup import choices_of

        return choices_of(config)

    def check(
        self, config: Config, allocator: AllocatorSpec, kind: type[Scheduler], scheduler: str
    ) -> None:
        from kvsim.engines.registry import get_engine
        from kvsim.engines.tensorrt_llm.setup import check_policy

        is_engine = isinstance(get_engine(config.engine), TensorrtLlm)
        check_policy(config, kind, scheduler, is_engine=is_engine)
        if kind.rules_of in self.policies and allocator.base != kind.needs_allocator:
            raise ValueError(
                f"scheduler {scheduler!r}: needs allocator {kind.needs_allocator!r}, "
                f"not {config.allocator!r}"
            )

    def resolve(
        self,
        config: Config,
        memory: Memory,
        layout: KVLayout,
        allocator: AllocatorSpec,
        kv_config: KVCacheConfig,
        scheduler_config: SchedulerConfig,
    ) -> tuple[KVCacheConfig, SchedulerConfig]:
        from kvsim.engines.tensorrt_llm.setup import with_policy

        return with_policy(config, kv_config, scheduler_config)

    def capacity(self, config: Config) -> Capacity:
        from kvsim.engines.tensorrt_llm.capacity import capacity_by_fraction

        return capacity_by_fraction(config)

    def describe_pool(self, capacity: Capacity) -> str:
        return (
            f"{capacity.num_gpu_blocks:,} blocks of {capacity.block_size} tokens and "
            f"{capacity.bytes_per_block:,} bytes: {capacity.num_tokens:,} tokens, "
            f"{capacity.logged_concurrency:,.2f} requests of max_model_len; "
            "by its documented policy, not recorded"
        )
