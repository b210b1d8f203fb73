"""Arithmetic intensity of prefill and decode, and the limit of each: memory or arithmetic.

Bytes are the least that kernels move through HBM: weights once per step, KV and activations once
per kernel. The traffic of elementwise kernels counts only in the modelled times.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from kvsim.budget.kernels import USUAL
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.budget.settings import kv_cache_dtype_of, model_of
from kvsim.budget.weights import check_quantization, weight_bytes, weight_dtype
from kvsim.catalog import get_gpu
from kvsim.config import Config
from kvsim.cost.arithmetic import arithmetic_of
from kvsim.cost.efficiency import basis_of
from kvsim.cost.hierarchy import Level, hierarchy
from kvsim.cost.model import CostConfig
from kvsim.display import Tabular, structured
from kvsim.errors import FieldError
from kvsim.files import whole_folder, write_json, writing
from kvsim.intensity.uniform import MOST_FITTED_TOKENS, UniformSteps

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvsim.intensity.bound import Row
    from kvsim.options import Options

#: Default number of requests, and tokens of each.
BATCH_SIZE, CONTEXT_LEN = 32, 2048
#: Largest batch that is tried in the search for the first compute-bound one.
MOST_REQUESTS = 2**24


@dataclass(frozen=True, repr=False)
class Roofline(Tabular):
    """Limits of a model on a GPU at one batch size and context length.

    ``table`` has one row per phase and part, with operations, bytes, intensity (FLOP/B), bound, and
    times in seconds.

    Parameters
    ----------
    arithmetic : arithmetic of the GEMMs: fp4, fp8, int8 or 16-bit; attention's is 16-bit
    peak_flops_per_s, ridge_point : peak of the GEMMs, and this peak in FLOPs per byte of HBM
    rows : prefill of ``batch_size`` prompts of ``context_len`` tokens, and a decode step of
        ``batch_size`` requests at this context length, each as GEMMs, attention and step
    compute_bound_batch_size : by part, the smallest decode batch that arithmetic limits, None if
        there is none
    decode_memory_bytes : weights, and KV of ``batch_size`` requests, on one GPU
    levels : the GPU's memories, fastest to slowest
    """

    shown_by: ClassVar[str] = "kvsim.report.roofline.roofline_tables"
    plotted_by: ClassVar[str] = "kvsim.report.plots.roofline.roofline"

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
        """Return True if weights and KV of the batch fit into GPU memory, without overheads."""
        return self.decode_memory_bytes <= self.gpu_memory_bytes

    def row(self, phase: str, part: str) -> Row:
        """Return the row of a phase and a part."""
        return next(r for r in self.rows if (r.phase, r.part) == (phase, part))

    def level_intensity(self, level: Level) -> float:
        """Return the least FLOPs per byte at which a memory level does not limit the GEMMs."""
        return self.peak_flops_per_s / level.bandwidth_bytes_per_s

    @property
    def table(self) -> NDArray[Any]:
        """The rows as a structured array."""
        return structured([row.to_dict() for row in self.rows])

    def save(self, directory: str | Path) -> None:
        """Write ``roofline.json`` and ``roofline.png``, both or none.

        Raises
        ------
        ValueError
            If the directory cannot be written.
        """
        with writing(directory), whole_folder(Path(directory)) as new:
            write_json(new / "roofline.json", self.to_dict())
            self.plot().savefig(new / "roofline.png", dpi=130)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``kvsim roofline --json`` prints."""
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
    *, batch_size: int = BATCH_SIZE, context_len: int = CONTEXT_LEN, **options: Unpack[Options]
) -> Roofline:
    """Compute the arithmetic intensity of prefill and decode, and their limits.

    Parameters
    ----------
    batch_size : requests in a step
    context_len : tokens of each request, the newest token of a decode included
    **options : fields of :class:`kvsim.config.Config`: model, gpu, dtype, quantization,
        kv_cache_dtype, tensor_parallel_size; other fields change no result

    Raises
    ------
    ValueError
        For unknown names, wrong values, and a context above the model's longest.

    Examples
    --------
    >>> import kvsim
    >>> found = kvsim.roofline(model="llama-2-7b", gpu="h100-sxm", batch_size=32)
    >>> [round(found.row("decode", part).intensity) for part in ("GEMMs", "attention")]
    [32, 1]
    """
    config = Config.build(**options)
    cost_config = _cost_config(config)
    model = cost_config.model
    if batch_size < 1 or batch_size != int(batch_size):
        raise FieldError("batch_size", f"is {batch_size}: must be a whole number, at least 1")
    longest = model.max_position_embeddings
    if not 1 <= context_len <= longest or context_len != int(context_len):
        raise FieldError(
            "context_len",
            f"is {context_len}: must be 1 to {longest}, the longest context of {model.name}",
        )
    steps = UniformSteps(cost_config)
    rows = (*steps.prefill(batch_size, context_len), *steps.decode(batch_size, context_len))
    weights = weight_bytes(
        model,
        dtype=cost_config.dtype,
        quantization=cost_config.quantization,
        tensor_parallel_size=config.tensor_parallel_size,
    )

    def first_compute_bound(part: str) -> int | None:
        return _first(lambda n: _named(steps.decode(n, context_len), part).bound == "compute")

    return Roofline(
        model=model.name,
        gpu=cost_config.gpu.name,
        tensor_parallel_size=config.tensor_parallel_size,
        arithmetic=arithmetic_of(cost_config.gpu, cost_config.quantization),
        kv_cache_dtype=cost_config.layout.dtype.name,
        batch_size=batch_size,
        context_len=context_len,
        peak_flops_per_s=steps.gemm_peak,
        ridge_point=steps.gemm_peak / cost_config.gpu.memory_bandwidth_bytes_per_s,
        rows=rows,
        compute_bound_batch_size={p: first_compute_bound(p) for p in ("GEMMs", "attention")},
        decode_memory_bytes=weights + round(steps.pinned_bytes(batch_size, context_len)),
        gpu_memory_bytes=cost_config.gpu.memory_bytes,
        levels=hierarchy(cost_config.gpu),
        assumptions=_assumptions(cost_config, batch_size, context_len, rows),
    )


def _cost_config(config: Config) -> CostConfig:
    model, gpu = model_of(config), get_gpu(config.gpu)
    if model.num_state_layers:
        raise FieldError(
            "model", f"{model.name} has Mamba or linear-attention layers, whose work is not counted"
        )
    dtype = weight_dtype(config.dtype)
    quantization = config.quantization or model.quantization
    check_quantization(quantization)
    layout = kv_layout(
        model,
        kv_dtype(kv_cache_dtype_of(config, model), model_dtype=dtype),
        tensor_parallel_size=config.tensor_parallel_size,
    )
    return CostConfig(
        model=model,
        gpu=gpu,
        layout=layout,
        dtype=dtype,
        quantization=quantization,
        tensor_parallel_size=config.tensor_parallel_size,
        block_size=config.block_size or USUAL,
    )


def _named(rows: tuple[Row, ...], part: str) -> Row:
    return next(row for row in rows if row.part == part)


def _first(holds: Callable[[int], bool]) -> int | None:
    """Return the smallest batch that meets a condition, which all larger batches must meet.

    Larger batches meet it, since intensity never falls as a batch grows: a step reads the weights
    once.
    """
    high = 1
    while not holds(high):
        high *= 2
        if high > MOST_REQUESTS:
            return None
    low = high // 2  # the condition does not hold, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _assumptions(
    config: CostConfig, batch_size: int, context_len: int, rows: tuple[Row, ...]
) -> tuple[str, ...]:
    basis, _, _ = basis_of(config.gpu.name).partition(" (")  # the errors of each fit follow
    notes = [f"times: {basis}"]
    if batch_size * context_len > MOST_FITTED_TOKENS:
        notes.append(f"prompts timed in steps of up to {MOST_FITTED_TOKENS:,} tokens")
    longest = max(batch_size, context_len)
    if longest > MOST_FITTED_TOKENS:
        notes.append(
            f"a step of {longest:,} tokens is beyond the {MOST_FITTED_TOKENS:,} of the largest "
            "kernel fitted"
        )
    if config.dtype == "fp32":
        notes.append("peak of 16-bit arithmetic; FP32 is slower")
    if config.model.is_moe:
        notes.append("tokens choose experts by a fixed skew")
    if any(row.seconds < row.ideal_seconds for row in rows):
        notes.append("a modelled time is below the ideal: decodes' queries are not counted in it")
    return tuple(notes)
