"""A cost model: a card that is known by three rates and a fixed time per step.

Run it: kvsim run --cost-model docs/examples/parts/my_gpu.py:MyGpu+bandwidth=4e12
"""

from kvsim.plugins.cost import CostRules, Work


class MyGpu(CostRules):
    """Weights, prompts and decodes follow each other; each is bound by memory or arithmetic."""

    bandwidth: float = 2.6e12  # bytes per second, of weights and KV
    flops: float = 6.0e14  # per second, of GEMMs and the attention of prompts
    overhead: float = 1.5e-3  # seconds per step
    request: float = 5e-6  # seconds per request of a step

    def price(self, work: Work) -> float:
        """Return the seconds of a step."""
        seconds = self.overhead + self.request * work.num_requests
        seconds += self.slower(work.weight_bytes, work.gemm_flops)
        seconds += self.slower(work.head_bytes, work.head_flops)
        seconds += self.slower(work.decode_bytes, work.decode_flops)
        seconds += self.slower(work.prefill_bytes, work.prefill_flops)
        return seconds

    def slower(self, num_bytes: float, num_flops: float) -> float:
        """Return the seconds of a kernel, by what takes longer."""
        return max(num_bytes / self.bandwidth, num_flops / self.flops)
