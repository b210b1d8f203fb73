"""Step time from aiconfigurator-core, NVIDIA's estimator on measured kernels.

The estimator prices the GPU's part of a step; host work between steps is that of the roofline. A
query takes about a millisecond; a step with prompts needs two queries. The optional extra
``[aiconfigurator]`` installs it, with tables of data-centre cards and shapes of popular models; it
loads other shapes from Hugging Face.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from kvsim.budget.host_weights import NO_HOST_WEIGHTS
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.catalog import get_gpu
from kvsim.cost.efficiency import efficiency_of
from kvsim.cost.host_link import init_link
from kvsim.cost.model import COST_MODELS, CostConfig, StepCost
from kvsim.cost.work import WorkCounter
from kvsim.records.kv import Moved
from kvsim.rules.price import swap_time, with_transfers

if TYPE_CHECKING:
    from kvsim.sched.scheduler import StepPlan

#: Cards by the estimator's names.
SYSTEMS = (
    *("a100_pcie", "a100_sxm", "b200_sxm", "h100_pcie", "h100_sxm", "h200_sxm", "l4", "l40s"),
    "rtx_pro_6000_server",
)


@COST_MODELS.register("aiconfigurator")
class AIConfiguratorCost:
    """Prices a step by the estimator's time for its tokens, requests and mean context lengths.

    Parameters
    ----------
    framework : framework of the measured kernels, by the estimator's name
    version : version of the framework, by default the newest measured one

    Raises
    ------
    ValueError
        If the extra is not installed, or does not know the card or the model; for what-if KV
        shapes, and for pipeline stages.
    """

    def __init__(
        self, config: CostConfig, *, framework: str = "vllm", version: str | None = None
    ) -> None:
        _refuse(config)
        self._engine = _engine(
            config.model.hf_id,
            _system(config.gpu.name),
            framework,
            version,
            config.tensor_parallel_size,
        )
        self._work = WorkCounter(config)
        init_link(self._work.record, config)
        rate = efficiency_of(config.gpu.name)
        waits = config.host_waits
        self._step_time = rate.step + (rate.sync_step if waits else 0.0)
        self._request_time = rate.request + (rate.sync_request if waits else 0.0)

    def step(self, plan: StepPlan) -> StepCost:
        if not plan.batch.size:
            return StepCost(0.0, 0.0, 0.0)
        work = self._work.count(plan)
        lengths = zip(plan.ends, plan.num_tokens, strict=True)
        keys = [end for end, new in lengths if new == 1]
        context = max(sum(keys) // len(keys), 2) if keys else 2
        decodes = work.num_decodes
        if not work.num_prefill_tokens:
            milliseconds = self._engine.decode_step_latency(decodes, context - 1, 2)
        else:
            chunks = work.chunks
            end = sum(stop for _, stop in chunks) // len(chunks)
            start = min(sum(start for start, _ in chunks) // len(chunks), end - 1)
            tokens = work.num_prefill_tokens
            mixed = self._engine.mixed_step_breakdown
            milliseconds = sum(mixed(tokens, decodes, end, 2, start)[1:3])
            if decodes:
                milliseconds += mixed(tokens, decodes, context - 1, 2)[3]
        time = self._step_time + work.num_requests * self._request_time + milliseconds / 1e3
        time = with_transfers(self._work.record, time, Moved(*plan.transfers))
        time += swap_time(self._work.record, plan.swapped_bytes)
        return StepCost(time, *self._work.totals(work))


def _refuse(config: CostConfig) -> None:
    model = config.model
    if len(config.layout.layers) != model.num_layers:
        raise ValueError("cost model aiconfigurator: pipeline stages are not modelled")
    if config.decode_context_parallel_size > 1:
        raise ValueError("cost model aiconfigurator: context parallelism is not modelled")
    if config.host_weights != NO_HOST_WEIGHTS:
        raise ValueError("cost model aiconfigurator: weights in host memory are not modelled")
    plain = kv_layout(
        model, kv_dtype(config.dtype), tensor_parallel_size=config.tensor_parallel_size
    )
    if config.layout.bytes_per_token != plain.bytes_per_token:
        raise ValueError("cost model aiconfigurator: KV cache as the model has it, 16-bit only")
    if config.quantization != model.quantization:
        raise ValueError("cost model aiconfigurator: name the quantised checkpoint as the model")


def _system(gpu_name: str) -> str:
    for system in SYSTEMS:
        if get_gpu(system).name == gpu_name:
            return system
    known = ", ".join(get_gpu(system).name for system in SYSTEMS)
    raise ValueError(f"cost model aiconfigurator has no tables of {gpu_name} (it has: {known})")


@cache
def _engine(model: str, system: str, framework: str, version: str | None, tp: int) -> Any:
    try:
        from aiconfigurator_core.sdk import EngineHandle
    except ImportError:
        raise ValueError(
            'cost model aiconfigurator needs a package: pip install "aiconfigurator-core>=0.12"'
        ) from None
    logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)
    try:
        return EngineHandle.compile(model, system, framework, backend_version=version, tp_size=tp)
    except Exception as error:  # the estimator does not document its exceptions
        raise ValueError(f"cost model aiconfigurator: {model} on {system}: {error}") from None
