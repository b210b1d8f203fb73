"""Arithmetic intensity of prefill and decode: which of them memory limits, and which arithmetic.

Bytes are the least that kernels move through HBM: weights once per step, KV and activations once
per kernel. What elementwise kernels move is left out of them, but not of the modelled times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvsim.catalog import get_gpu, get_model
from kvsim.config import Config
from kvsim.cost.bound import Row
from kvsim.cost.efficiency import basis_of
from kvsim.cost.model import CostConfig
from kvsim.cost.roofline import RooflineCost, arithmetic_of, peak_flops
from kvsim.cost.traffic import gemm_activation_bytes, query_bytes
from kvsim.cost.work import Work, num_keys, num_pairs
from kvsim.errors import FieldError
from kvsim.memory.hierarchy import Level, hierarchy
from kvsim.memory.layout import kv_dtype, kv_layout
from kvsim.memory.weights import check_quantization, weight_bytes, weight_dtype
from kvsim.sched.scheduler import StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.cost.work import WorkCounter

#: Requests and tokens of each where nothing is said.
BATCH_SIZE, CONTEXT_LEN = 32, 2048
#: Beyond this many requests no batch is looked for that would make decodes compute-bound.
MOST_REQUESTS = 2**24
#: Tokens of the largest GEMMs that the H100's step times are fitted on (vLLM's kernel tables).
MOST_FITTED_TOKENS = 32_768


@dataclass(frozen=True)
class Roofline:
    """What limits a model on a GPU at one batch size and context length.

    Parameters
    ----------
    arithmetic : of the GEMMs: fp8, int8 or 16-bit; attention's is 16-bit
    peak_flops_per_s, ridge_point : of the GEMMs, and FLOPs per byte of HBM
    rows : prefill of ``batch_size`` prompts of ``context_len`` tokens, and one decode of as many
        requests that then have so many, each as GEMMs, attention and step
    compute_bound_batch_size : of decodes, by part: fewest requests at which arithmetic limits it,
        None if no batch does
    decode_memory_bytes : weights and KV of that batch, on one GPU
    levels : the GPU's memories, fastest to slowest
    """

    model: str
    gpu: str
    tensor_parallel_size: int
    arithmetic: str
    kv_cache_dtype: str
    batch_size: int
    context_len: int
    peak_flops_per_s: float
    ridge_point: float
    rows: tuple[Row, ...]
    compute_bound_batch_size: dict[str, int | None]
    decode_memory_bytes: int
    gpu_memory_bytes: int
    levels: tuple[Level, ...]
    assumptions: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether weights and KV of the batch fit into the GPU's memory, overheads aside."""
        return self.decode_memory_bytes <= self.gpu_memory_bytes

    def row(self, phase: str, part: str) -> Row:
        """Return one row by its names."""
        return next(r for r in self.rows if (r.phase, r.part) == (phase, part))

    def level_intensity(self, level: Level) -> float:
        """FLOPs per byte of a level above which it no longer limits the GEMMs' arithmetic."""
        return self.peak_flops_per_s / level.bandwidth_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """Return what ``kvsim roofline --json`` prints."""
        levels = [v._asdict() | {"intensity": self.level_intensity(v)} for v in self.levels]
        own = ("rows", "levels", "assumptions")
        values = {k: v for k, v in vars(self).items() if k not in own}
        return values | {
            "fits": self.fits,
            "rows": [row.to_dict() for row in self.rows],
            "levels": levels,
            "assumptions": list(self.assumptions),
        }


def roofline(
    *, batch_size: int = BATCH_SIZE, context_len: int = CONTEXT_LEN, **options: Any
) -> Roofline:
    """Compute the arithmetic intensity of prefill and decode, and what limits them.

    Parameters
    ----------
    batch_size : requests in a step
    context_len : tokens of each; a decode's newest is one of them
    **options : fields of :class:`kvsim.config.Config`: model, gpu, dtype, quantization,
        kv_cache_dtype, tensor_parallel_size; others change nothing

    Raises
    ------
    ValueError
        For unknown names, wrong values, and a context above the model's longest.

    Examples
    --------
    >>> found = roofline(model="llama-2-7b", gpu="h100-sxm", batch_size=32)
    >>> [round(found.row("decode", part).intensity) for part in ("GEMMs", "attention")]
    [31, 1]
    """
    config = Config.build(**options)
    cost_config = _cost_config(config)
    model = cost_config.model
    if batch_size < 1:
        raise FieldError("batch_size", f"is {batch_size}: must be at least 1")
    if not 1 <= context_len <= model.max_position_embeddings:
        raise FieldError(
            "context_len",
            f"is {context_len}: must be 1 to {model.max_position_embeddings}, the longest "
            f"context of {model.name}",
        )
    counter = _Counter(cost_config)
    rows = (*counter.prefill(batch_size, context_len), *counter.decode(batch_size, context_len))
    weights = weight_bytes(
        model,
        dtype=cost_config.dtype,
        quantization=cost_config.quantization,
        tensor_parallel_size=config.tensor_parallel_size,
    )

    def first_compute_bound(part: str) -> int | None:
        return _first(lambda n: _named(counter.decode(n, context_len), part).bound == "compute")

    return Roofline(
        model=model.name,
        gpu=cost_config.gpu.name,
        tensor_parallel_size=config.tensor_parallel_size,
        arithmetic=arithmetic_of(cost_config.gpu, cost_config.quantization),
        kv_cache_dtype=cost_config.layout.dtype.name,
        batch_size=batch_size,
        context_len=context_len,
        peak_flops_per_s=counter.gemm_peak,
        ridge_point=counter.gemm_peak / cost_config.gpu.memory_bandwidth_bytes_per_s,
        rows=rows,
        compute_bound_batch_size={p: first_compute_bound(p) for p in ("GEMMs", "attention")},
        decode_memory_bytes=weights + round(counter.kept_bytes(batch_size, context_len)),
        gpu_memory_bytes=cost_config.gpu.memory_bytes,
        levels=hierarchy(cost_config.gpu),
        assumptions=_assumptions(cost_config, batch_size * context_len, rows),
    )


def _cost_config(config: Config) -> CostConfig:
    model, gpu = get_model(config.model), get_gpu(config.gpu)
    dtype = weight_dtype(config.dtype)
    quantization = config.quantization or model.quantization
    check_quantization(quantization)
    layout = kv_layout(
        model,
        kv_dtype(config.kv_cache_dtype, model_dtype=dtype),
        tensor_parallel_size=config.tensor_parallel_size,
    )
    return CostConfig(
        model=model,
        gpu=gpu,
        layout=layout,
        dtype=dtype,
        quantization=quantization,
        tensor_parallel_size=config.tensor_parallel_size,
        block_size=config.block_size,
    )


class _Counter:
    """Rows of uniform steps of one model on one GPU."""

    def __init__(self, config: CostConfig) -> None:
        self._config = config
        self._cost = RooflineCost(config)
        self._work = self._cost.work
        self._activations, self._logits = gemm_activation_bytes(config)
        self._queries = query_bytes(config, self._work.classes)
        self._layers = config.model.num_layers
        self.gemm_peak = peak_flops(config.gpu, config.quantization)

    def prefill(self, batch_size: int, num_tokens: int) -> tuple[Row, Row, Row]:
        """Whole prompts in one step."""
        return self._rows("prefill", uniform_work(self._work, batch_size, 0, num_tokens))

    def decode(self, batch_size: int, context_len: int) -> tuple[Row, Row, Row]:
        """One more token each, the last of ``context_len``."""
        work = uniform_work(self._work, batch_size, context_len - 1, 1)
        return self._rows("decode", work)

    def kept_bytes(self, batch_size: int, context_len: int) -> float:
        """KV of a batch on one GPU: what a decode of it reads."""
        return uniform_work(self._work, batch_size, context_len - 1, 1).decode_bytes

    def _rows(self, phase: str, work: Work) -> tuple[Row, Row, Row]:
        gpu, times = self._config.gpu, self._cost.times(work)
        bandwidth = gpu.memory_bandwidth_bytes_per_s
        moved = work.num_tokens * self._activations + work.num_sampled * self._logits
        launches = self._layers * self._cost.gemm_launches
        gemms = Row(
            phase,
            "GEMMs",
            work.gemm_flops + work.head_flops,
            work.weight_bytes + work.head_bytes + moved,
            self.gemm_peak,
            bandwidth,
            times.gemms + times.lm_head + launches,
        )
        written = work.num_tokens * self._config.layout.bytes_per_token
        attention = Row(
            phase,
            "attention",
            work.decode_flops + work.prefill_flops,
            work.decode_bytes + work.prefill_bytes + written + work.num_tokens * self._queries,
            gpu.bf16_flops_per_s,
            bandwidth,
            times.decode_attention + times.prefill_attention,
        )
        flops = gemms.flops + attention.flops
        arithmetic = gemms.flops / gemms.peak_flops_per_s
        arithmetic += attention.flops / attention.peak_flops_per_s
        step = replace(
            gemms,
            part="step",
            flops=flops,
            num_bytes=gemms.num_bytes + attention.num_bytes,
            peak_flops_per_s=flops / arithmetic,
            seconds=times.total,
        )
        return gemms, attention, step


def uniform_work(counter: WorkCounter, batch_size: int, num_computed: int, num_new: int) -> Work:
    """Count a step in which all requests are alike, as ``counter.count`` would one by one."""
    keys, flops = 0.0, 0.0
    for layers in counter.classes:
        end = num_computed + num_new
        pairs = num_pairs(layers.kind, layers.window, end)
        pairs -= num_pairs(layers.kind, layers.window, num_computed)
        seen = num_keys(layers.kind, layers.window, num_computed, num_new)
        keys += batch_size * seen * layers.kv_bytes
        flops += batch_size * pairs * layers.pair_flops
    num_tokens = batch_size * num_new
    by_tokens = counter.weight_bytes_by_tokens
    decodes = num_new == 1
    return Work(
        num_requests=batch_size,
        num_tokens=num_tokens,
        num_sampled=batch_size,
        num_decodes=batch_size if decodes else 0,
        weight_bytes=by_tokens[min(num_tokens, len(by_tokens) - 1)],
        gemm_flops=num_tokens * counter.body_flops,
        head_bytes=counter.head_bytes,
        head_flops=batch_size * counter.head_flops,
        decode_bytes=keys if decodes else 0.0,
        decode_flops=flops if decodes else 0.0,
        prefill_bytes=0.0 if decodes else keys,
        prefill_flops=0.0 if decodes else flops,
        plan=StepPlan(),
    )


def _named(rows: tuple[Row, ...], part: str) -> Row:
    return next(row for row in rows if row.part == part)


def _first(holds: Callable[[int], bool]) -> int | None:
    """Return the smallest batch for which something holds, that then holds for all larger ones.

    Intensity never falls as a batch grows: weights are read once for all its tokens.
    """
    high = 1
    while not holds(high):
        high *= 2
        if high > MOST_REQUESTS:
            return None
    low = high // 2  # does not hold, or is 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _assumptions(
    config: CostConfig, num_prefill_tokens: int, rows: tuple[Row, ...]
) -> tuple[str, ...]:
    basis, _, _ = basis_of(config.gpu.name).partition(" (")  # the errors of each fit follow
    notes = ["prompts computed whole, in one step", f"times: {basis}"]
    if num_prefill_tokens > MOST_FITTED_TOKENS:
        notes.append(
            f"prefill of {num_prefill_tokens:,} tokens is beyond the {MOST_FITTED_TOKENS:,} of the "
            "largest kernel fitted"
        )
    if config.dtype == "fp32":
        notes.append("peak of 16-bit arithmetic; FP32 is slower")
    if config.model.is_moe:
        notes.append("tokens choose experts at random")
    if any(row.seconds < row.ideal_seconds for row in rows):
        notes.append(
            "a modelled time is below the ideal: it leaves out activations, and arithmetic in "
            "the attention of decodes"
        )
    return tuple(notes)
