"""Expected errors of simulated latencies, for configurations close to a measured one.

An accuracy is stated only where a named run shows it. A run of a dense model with full attention
and 16-bit weights and KV stands for all such models on the same card
(``experiments.validate_serving``). Closed loops of other models stand only for that model, weight
format and card (``experiments.validate_points``, on points that no constant was fitted on).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvsim.budget.layout import KVLayout
    from kvsim.catalog.spec import ModelSpec


class Compared(NamedTuple):
    """Measured runs: their card, most GPUs, models, and errors.

    ``e2e`` and ``ttft`` are the largest errors of mean end-to-end latency and of mean TTFT over the
    runs, in percent.
    """

    gpu: str
    num_gpus: int
    runs: str
    e2e: int
    ttft: int


#: By card, the fewest GPUs first.
COMPARED = (
    Compared("h100-sxm", 1, "Qwen3-14B (vLLM 0.23) and Llama-2-7B (0.15)", 5, 12),
    Compared("h100-sxm", 8, "CodeLlama-34B on 2 (vLLM 0.15), closed loops on 4 and 8", 12, 12),
    Compared("rtx-4090", 1, "Llama-3.1-8B (vLLM 0.19)", 15, 25),
    Compared("rtx-pro-6000", 1, "Llama-3.1-8B (vLLM 0.19)", 8, 12),
)


class Served(NamedTuple):
    """Closed loops of one model, weight format and card; median errors of held-out points in %."""

    model: str
    quantization: str | None
    gpu: str
    tpot: float
    ttft: float


#: Errors from ``docs/validation/validate_points.json``.
SERVED = (
    Served("gpt-oss-120b", "mxfp4", "b200", 3.5, 14.8),
    Served("gpt-oss-120b", "mxfp4", "h100-sxm", 1.5, 5.9),
    Served("kimi-k2.5", "int4", "b200", 4.6, 7.9),
    Served("kimi-k2.5", "nvfp4", "b200", 2.4, 4.6),
    Served("llama-3.1-70b", "fp8", "b200", 4.2, 5.8),
    Served("llama-3.1-70b", "fp8", "h100-sxm", 2.3, 9.9),
    Served("llama-3.1-70b", "nvfp4", "b200", 1.9, 12.5),
    Served("minimax-m2.5", "fp8-block", "b200", 5.4, 4.9),
    Served("minimax-m2.5", "fp8-block", "h200-sxm", 2.8, 6.0),
    Served("minimax-m2.5", "nvfp4", "b200", 5.0, 13.0),
)

UNKNOWN = "not compared with any measured run"


def accuracy_of(
    model: ModelSpec,
    gpu: str,
    num_gpus: int,
    layout: KVLayout,
    *,
    dtype: str,
    quantization: str | None,
) -> str:
    """Return a text with the expected error of an unsaturated run, and the runs that show it."""
    for served in SERVED:
        if (served.model, served.quantization, served.gpu) == (model.name, quantization, gpu):
            return (
                f"closed loops of servers with vLLM: TPOT {served.tpot:.1f} % off, mean TTFT "
                f"{served.ttft:.1f} %, at the median of points that no constant was fitted on"
            )
    unlike = unlike_what_was_run(model, layout, dtype, quantization)
    if unlike:
        return f"{UNKNOWN}: {unlike}"
    for compared in COMPARED:
        if compared.gpu == gpu and num_gpus <= compared.num_gpus:
            return (
                f"unsaturated, expect mean latencies within {compared.e2e} %, TTFT within "
                f"{compared.ttft} %, as for {compared.runs}"
            )
    known = [compared.num_gpus for compared in COMPARED if compared.gpu == gpu]
    return f"{UNKNOWN}: {f'more than {max(known)} GPUs' if known else f'none was on {gpu}'}"


def unlike_what_was_run(
    model: ModelSpec, layout: KVLayout, dtype: str, quantization: str | None
) -> str:
    """Return the properties of a configuration that no measured run has, or an empty string."""
    kv_dtype = layout.dtype.name
    kinds = {
        "mixture of experts": model.num_experts > 0,
        "latent attention": model.kv_lora_rank > 0,
        "sliding or chunked attention": any(layer.window is not None for layer in layout.layers),
        "Mamba or linear attention": model.num_state_layers > 0,
        f"{quantization} weights": quantization is not None,
        f"{dtype} arithmetic": dtype not in ("bf16", "fp16"),
        f"{kv_dtype} KV": kv_dtype not in ("bf16", "fp16"),
    }
    return ", ".join(kind for kind, is_so in kinds.items() if is_so)
