"""Notes on a run's configuration for readers of its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.host_weights import NO_HOST_WEIGHTS
from kvsim.budget.kernels import unsupported
from kvsim.budget.limits import length_by_memory, refused_by_vllm
from kvsim.budget.settings import ignored_overrides
from kvsim.budget.tuning import more_buffers, tuned_in_vain
from kvsim.cost.efficiency import measured_narrow_kv
from kvsim.cost.work import is_sparse
from kvsim.engines.registry import engine_for, get_engine
from kvsim.records.kv import FORKED, PAGED, RADIX
from kvsim.sched.acceptance import acceptance_basis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.engine.setup import Setup


def notes(setup: Setup) -> list[str]:
    """Return notes on options without effect, settings vLLM refuses, and unmeasured times."""
    parts = (
        *(_of_engine, _switched, _of_limits, _without_effect, _of_speculation, _of_memory),
        *(_of_events, _of_stores, _not_priced, _not_measured),
    )
    return [note for part in parts for note in part(setup) if note]


def _of_engine(setup: Setup) -> Iterator[str | None]:
    yield engine_for(setup.config).basis


def _switched(setup: Setup) -> Iterator[str]:
    config, usual = setup.config, setup.kv.default_scheduler
    if config.scheduler is None and setup.scheduler != usual:
        reason = "use_beam_search: the sequences of a request fork"
        if setup.allocator.swap:
            reason = f"allocator {config.allocator} swaps"
        yield f"scheduler {setup.scheduler}: {reason}, which {usual} does not do"


def _of_limits(setup: Setup) -> Iterator[str | None]:
    config, memory = setup.config, setup.memory
    yield refused_by_vllm(config, memory.model)
    yield length_by_memory(config, memory.model, memory.limits)
    checks = get_engine(config.engine).checks_block_size and _rules_of(setup) == PAGED
    if config.block_size is not None and checks:
        yield unsupported(memory.model, config.block_size)


def _without_effect(setup: Setup) -> Iterator[str]:
    config = setup.config
    yield from ignored_overrides(config)
    yield from tuned_in_vain(config, setup.memory)
    for field, reason in setup.kv.ignores.items():
        if field in config.model_fields_set and getattr(config, field) is not None:
            value = getattr(config, field)
            yield f"{config.allocator}: {field} = {value} has no effect: {reason}"


def _of_speculation(setup: Setup) -> Iterator[str | None]:
    spec = setup.cost_config.speculation
    if spec is None:
        return
    yield acceptance_basis(spec)
    if spec.has_drafter and _is_roofline(setup):
        yield (
            "drafting: a pass takes the time to read the drafter's weights, plus a "
            "constant fitted to EAGLE-3 on an H100"
        )


def _of_memory(setup: Setup) -> Iterator[str]:
    config, memory = setup.config, setup.memory
    yield from more_buffers(config, memory)
    excess = memory.budget.excess
    if excess > 0 and config.logged:
        yield (
            "the parts of the memory budget, logged and estimated, are "
            f"{excess / 2**30:.2f} GiB more than the total"
        )
    if config.tensor_parallel_size > memory.gpu.num_linked_gpus:
        yield (
            f"tensor_parallel_size {config.tensor_parallel_size} is more than the "
            f"{memory.gpu.num_linked_gpus} GPUs of one server: all-reduces are priced "
            "over its links, which is too fast"
        )


def _of_events(setup: Setup) -> Iterator[str]:
    config, events = setup.config, setup.config.kv_events_config
    if events is not None and events.enable_kv_cache_events:
        if not events.writes:
            yield "kv_events_config has no effect: it has no path, the file to write"
        elif not setup.kv_config.enable_prefix_caching:
            yield "kv_events_config: without prefix caching there are no KV cache events"
    if not config.record_block_events:
        return
    asked = "record_block_events" in config.model_fields_set
    if asked and _rules_of(setup) not in (PAGED, FORKED, RADIX):
        yield f"{config.allocator}: record_block_events has no effect: it has no blocks"
    if _rules_of(setup) == RADIX and getattr(setup.kv, "window", False):
        yield (
            f"{config.allocator}: block_events cover the pool of full-attention layers, "
            "not the pool of sliding windows"
        )


def _of_stores(setup: Setup) -> Iterator[str]:
    offloading = setup.scheduler_config.offloading
    if offloading is not None and offloading.timed:
        yield (
            "native offloading: a store slows concurrent steps by the memory bandwidth "
            "of its copy, as with DMA; its work on the host takes no time. Measured "
            "servers lost about 1 % of their throughput (H100, all stored, none "
            "loaded), 6 % with a copy kernel, 6.5 % (vLLM 0.17.1) and 40 % (0.19.1) "
            "where 50 requests share a prefix"
        )
        if setup.kv_config.drops_last_block or setup.memory.model.num_state_layers:
            yield (
                "native offloading with drafters that drop a block of each hit, and of states: "
                "as read in vLLM's public code, in no recorded schedule"
            )


def _not_priced(setup: Setup) -> Iterator[str]:
    """Yield the missing terms of the step time for a model or its deployment."""
    model = setup.memory.model
    if not _is_roofline(setup):
        return
    if setup.config.use_beam_search:
        yield (
            "beams: sorting and copying beams on the host takes no time in kvsim; vLLM "
            "0.6 served 0.61 requests/s of Llama-3-8B on an H100 with 4 beams of 256 "
            "tokens (vLLM issue 8726), while GPU work alone allows about 18"
        )
    if is_sparse(model):
        yield "sparse attention: its kernels are not fitted; selecting keys takes no time"
    if model.num_state_layers and model.state_form != "gdn":
        yield f"{model.state_form} layers: priced with the kernels of gated delta nets"
    if setup.scheduler_config.encoder_inputs is not None:
        yield (
            "image encoder: only its GEMMs are priced, not the attention among patches; "
            "no measured run checks it"
        )
    if setup.config.decode_context_parallel_size > 1:
        yield "context parallelism: no measured run checks the time of its exchanges"
        if setup.scheduler_config.engine_settings is not None:
            yield "context parallelism: chunks end with pages of all ranks, not of one"
    if setup.memory.host_weights.num_resident:
        yield (
            "experts in host memory: an LRU cache of each layer under requests that choose experts "
            "independently, as many per step as before; no measured run checks it"
        )
    elif (ranks := setup.memory.host_weights.num_ranks) > 1:
        yield (
            f"experts of {ranks} GPUs: copied at the peak rate of their link, which slows no "
            "kernel down; no measured run checks it"
        )
    elif setup.memory.host_weights != NO_HOST_WEIGHTS:
        yield (
            "weights in host memory: read at the peak rate of PCIe, layers taken to be alike; no "
            "measured run checks it"
        )
    if model.moe_latent_size:
        yield "latent experts: the kernels between their widths are not priced"


def _not_measured(setup: Setup) -> Iterator[str]:
    gpu, dtype = setup.memory.gpu.name, setup.kv_config.layout.dtype
    if dtype.bits <= 8 and not measured_narrow_kv(gpu, dtype.name):
        yield (
            f"attention over {dtype.name} KV was never measured on {gpu}: its times are "
            "those of the roofline, with the fractions of other kernels"
        )


def _rules_of(setup: Setup) -> int | None:
    return getattr(setup.kv, "rules_of", None)


def _is_roofline(setup: Setup) -> bool:
    return setup.config.cost_model.partition("+")[0] == "roofline"
