"""Steps of equal requests: their work and their times, by part."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.cost.arithmetic import peak_flops
from kvsim.cost.roofline import RooflineCost
from kvsim.cost.traffic import gemm_activation_bytes, query_bytes
from kvsim.cost.work import WorkCounter, num_keys, num_pairs
from kvsim.intensity.bound import Row
from kvsim.records.cost import Work
from kvsim.rules.work import weigh_gemms

if TYPE_CHECKING:
    from kvsim.cost.model import CostConfig

#: Tokens of the largest GEMMs to which the H100's step times are fitted (vLLM's kernel tables).
MOST_FITTED_TOKENS = 32_768


class Seconds(NamedTuple):
    """Modelled times of a step, of its GEMMs and of its attention."""

    gemms: float
    attention: float
    step: float


class UniformSteps:
    """Makes the rows of steps of equal requests, for one model on one GPU."""

    def __init__(self, config: CostConfig) -> None:
        self._config = config
        self._cost = RooflineCost(config)
        self._work = self._cost.work
        self._queries = query_bytes(config, self._work.classes)
        self.gemm_peak = peak_flops(config.gpu, config.quantization)

    def prefill(self, batch_size: int, num_tokens: int) -> tuple[Row, Row, Row]:
        """Return the rows of a prefill of whole prompts.

        The work counts as one step. Its time is the sum over steps of at most
        :data:`MOST_FITTED_TOKENS` tokens each, or of one prompt each if prompts are longer.
        """
        per_step = max(1, MOST_FITTED_TOKENS // num_tokens)
        num_full, rest = divmod(batch_size, per_step)
        total = Seconds(0.0, 0.0, 0.0)
        for count, size in ((num_full, per_step), (1, rest)):
            if count and size:
                one = self._seconds(uniform_work(self._work, size, 0, num_tokens))
                total = Seconds(*(t + count * s for t, s in zip(total, one, strict=True)))
        return self._rows("prefill", uniform_work(self._work, batch_size, 0, num_tokens), total)

    def decode(self, batch_size: int, context_len: int) -> tuple[Row, Row, Row]:
        """Return the rows of a step with one token per request, the last of ``context_len``."""
        work = uniform_work(self._work, batch_size, context_len - 1, 1)
        return self._rows("decode", work, self._seconds(work))

    def pinned_bytes(self, batch_size: int, context_len: int) -> float:
        """Return the bytes of a batch's KV on one GPU that a decode step reads."""
        return uniform_work(self._work, batch_size, context_len - 1, 1).decode_bytes

    def _seconds(self, work: Work) -> Seconds:
        times = self._cost.times(work)
        launches = self._config.model.num_layers * self._cost.gemm_launches
        attention = times.decode_attention + times.prefill_attention
        return Seconds(times.gemms + times.lm_head + launches, attention, times.total)

    def _rows(self, phase: str, work: Work, seconds: Seconds) -> tuple[Row, Row, Row]:
        gpu = self._config.gpu
        bandwidth = gpu.memory_bandwidth_bytes_per_s
        per_token, per_sample = gemm_activation_bytes(self._config)
        moved = work.num_tokens * per_token + work.num_sampled * per_sample
        gemms = Row(
            phase,
            "GEMMs",
            work.gemm_flops + work.head_flops,
            work.weight_bytes + work.head_bytes + moved,
            self.gemm_peak,
            bandwidth,
            seconds.gemms,
        )
        written = work.num_tokens * self._config.layout.bytes_per_token
        attention = Row(
            phase,
            "attention",
            work.decode_flops + work.prefill_flops,
            work.decode_bytes + work.prefill_bytes + written + work.num_tokens * self._queries,
            gpu.bf16_flops_per_s,
            bandwidth,
            seconds.attention,
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
            seconds=seconds.step,
        )
        return gemms, attention, step


def uniform_work(counter: WorkCounter, batch_size: int, num_computed: int, num_new: int) -> Work:
    """Return the work of a step of equal requests, as ``counter.count`` would count it."""
    keys, flops = 0.0, 0.0
    decodes = num_new == 1
    for layers in counter.classes:
        end = num_computed + num_new
        pairs = num_pairs(layers.kind, layers.window, end)
        pairs -= num_pairs(layers.kind, layers.window, num_computed)
        seen = num_keys(layers.kind, layers.window, num_computed, num_new)
        keys += batch_size * seen * layers.kv_bytes
        flops += batch_size * pairs * (layers.pair_flops if decodes else layers.prompt_pair_flops)
    num_tokens = batch_size * num_new
    work = Work(
        num_requests=batch_size,
        num_tokens=num_tokens,
        num_sampled=batch_size,
        num_decodes=batch_size if decodes else 0,
        num_context_tokens=batch_size * (num_computed + num_new) if decodes else 0,
        head_bytes=counter.record.head_bytes,
        head_flops=batch_size * counter.record.head_flops,
        decode_bytes=keys if decodes else 0.0,
        decode_flops=flops if decodes else 0.0,
        prefill_bytes=0.0 if decodes else keys,
        prefill_flops=0.0 if decodes else flops,
        chunks=[],
    )
    weigh_gemms(counter.record, work)
    return work
