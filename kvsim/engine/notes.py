"""What somebody who reads a run's numbers should know of its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.kernels import unsupported
from kvsim.budget.limits import length_by_memory, refused_by_vllm
from kvsim.budget.settings import unused_overrides
from kvsim.cost.efficiency import measured_narrow_kv
from kvsim.cost.work import is_sparse
from kvsim.records.kv import FORKED, PAGED, RADIX
from kvsim.sched.acceptance import acceptance_basis

if TYPE_CHECKING:
    from kvsim.engine.setup import Setup
    from kvsim.speculation import SpeculativeConfig


def notes(setup: Setup) -> list[str]:
    """Say what has no effect, what vLLM would refuse, and what rests on no measurement."""
    config, memory = setup.config, setup.memory
    said = _switched(setup)
    doubt = refused_by_vllm(config, memory.model)
    if doubt is not None:
        said.append(doubt)
    if chosen := length_by_memory(config, memory.model, memory.limits):
        said.append(chosen)
    size = config.block_size
    if size is not None and getattr(setup.kv, "rules_of", None) == PAGED:
        refused = None if config.engine == "sglang" else unsupported(memory.model, size)
        said += [refused] if refused else []
    if unused := unused_overrides(config):
        said.append(f"{', '.join(unused)} of hf_overrides changes nothing here")
    for field, reason in setup.kv.ignores.items():
        if field in config.model_fields_set and getattr(config, field) is not None:
            said.append(
                f"{config.allocator}: {field} = {getattr(config, field)} has no effect: {reason}"
            )
    if setup.scheduler_config.speculation is not None:
        said.extend(_of_speculation(setup, setup.scheduler_config.speculation))
    excess = memory.budget.excess
    if excess > 0 and config.logged:
        said.append(
            f"the parts of the memory budget, logged and estimated, are {excess / 2**30:.2f} GiB "
            "more than its total"
        )
    if config.tensor_parallel_size > memory.gpu.num_linked_gpus:
        said.append(
            f"tensor_parallel_size {config.tensor_parallel_size} is more than the "
            f"{memory.gpu.num_linked_gpus} GPUs of one server: all-reduces are priced as if they "
            "shared its links, too fast"
        )
    said += _events_unheard(setup)
    rules_of = getattr(setup.kv, "rules_of", None)
    asked = config.record_block_events and "record_block_events" in config.model_fields_set
    if asked and rules_of not in (PAGED, FORKED, RADIX):
        said.append(f"{config.allocator}: record_block_events has no effect: it has no blocks")
    if config.record_block_events and rules_of == RADIX and getattr(setup.kv, "window", 0):
        said.append(
            f"{config.allocator}: block_events tell of the pool of layers that see all, not of the "
            "one of sliding windows"
        )
    said += _of_stores(setup)
    said += _not_priced(setup)
    dtype = setup.kv_config.layout.dtype
    if dtype.bits <= 8 and not measured_narrow_kv(memory.gpu.name, dtype.name):
        said.append(
            f"attention over {dtype.name} KV was never measured on {memory.gpu.name}: its times "
            "are the roofline's, with the fractions of other kernels"
        )
    return said


def _of_stores(setup: Setup) -> list[str]:
    """Say what is assumed of stores of native offloading, and what was measured of them."""
    offloading = setup.scheduler_config.offloading
    if offloading is None or not offloading.timed:
        return []
    return [
        "native offloading: a store slows the steps beside it by the memory bandwidth that its "
        "copy takes, as DMA does; the host's work for it is free. Servers were measured to lose "
        "about 1 % of their throughput (H100, all stored, none loaded), 6 % with a copy kernel, "
        "6.5 % (vLLM 0.17.1) and 40 % (0.19.1) where 50 requests share a prefix"
    ]


def _switched(setup: Setup) -> list[str]:
    """Say why a scheduler serves that nobody named, where it is not the allocator's own."""
    config, usual = setup.config, setup.kv.default_scheduler
    if config.scheduler is not None or setup.scheduler == usual:
        return []
    if setup.allocator.swap:
        reason = f"allocator {config.allocator} swaps"
    else:
        reason = "use_beam_search: the sequences of a request fork"
    return [f"scheduler {setup.scheduler}: {reason}, which {usual} does not do"]


def _not_priced(setup: Setup) -> list[str]:
    """Say which terms of the step time a model, its format or its deployment would need."""
    config, memory = setup.config, setup.memory
    model = memory.model
    said: list[str] = []
    if config.cost_model.partition("+")[0] != "roofline":
        return said
    if config.use_beam_search:
        said.append(
            "beams: sorting and copying them on the host takes no time here; vLLM 0.6 served 0.61 "
            "requests/s of Llama-3-8B on an H100 with 4 beams of 256 tokens (vLLM issue 8726), "
            "where GPU work alone allows some 18"
        )
    if is_sparse(model):
        said.append("sparse attention: not fitted on its kernels; choosing keys takes no time")
    if model.num_state_layers and model.state_form != "gdn":
        said.append(f"{model.state_form} layers: priced with the kernels of gated delta nets")
    if setup.scheduler_config.encoder_inputs is not None:
        said.append(
            "image encoder: its GEMMs at the card's rates, without attention among patches; no "
            "measured run checks it"
        )
    if model.moe_latent_size:
        said.append("latent experts: the kernels between their widths are not priced")
    return said


def _of_speculation(setup: Setup, spec: SpeculativeConfig) -> list[str]:
    """Say what the acceptance of drafts, and their time, rest on."""
    said = [acceptance_basis(spec)]
    if spec.has_drafter and setup.config.cost_model.partition("+")[0] == "roofline":
        said.append(
            "drafting: a pass takes the drafter's weights at the card's rates and a fixed time "
            "fitted to EAGLE-3 on an H100"
        )
    return [text for text in said if text]


def _events_unheard(setup: Setup) -> list[str]:
    """Say why KV cache events that were asked for go nowhere, if so."""
    events = setup.config.kv_events_config
    if events is None or not events.enable_kv_cache_events:
        return []
    if not events.writes:
        return ["kv_events_config has no effect: it names no path, the file that gets the events"]
    if not setup.kv_config.enable_prefix_caching:
        return ["kv_events_config: without prefix caching there are no KV cache events"]
    return []
