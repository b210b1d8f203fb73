"""kvsim: a PagedAttention KV-cache manager simulator.

For a model, a GPU, a request trace and a KV-cache manager, it computes how many requests fit, how
much KV memory is wasted and why, and the throughput and latency.

>>> import kvsim, workloads
>>> trace = workloads.sharegpt(num_requests=200, request_rate=8, seed=0)
>>> result = kvsim.simulate(trace, model="llama-3-8b", gpu="a100-80gb", allocator="paged")
>>> result.summary["completed"]
200
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim import testing
    from kvsim.api.calibrate import calibrate
    from kvsim.api.search import search
    from kvsim.api.sweep import sweep
    from kvsim.cases.record import record
    from kvsim.cases.replay import replay
    from kvsim.catalog.spec import GpuSpec, ModelSpec
    from kvsim.config import Config
    from kvsim.engine.capacity import capacity
    from kvsim.fleet.simulate import compare, simulate
    from kvsim.hits.hit_rate import hit_rate
    from kvsim.intensity.roofline import roofline
    from kvsim.options import Options
    from kvsim.report import plot
    from kvsim.results.comparison import Comparison
    from kvsim.results.result import Result, load
    from kvsim.results.tables import FinishReason
    from kvsim.stepping.engine import Engine
    from kvsim.trace import Trace
    from kvsim.training.remedies import train_memory

__all__ = [
    "Comparison",
    "Config",
    "Engine",
    "FinishReason",
    "GpuSpec",
    "ModelSpec",
    "Options",
    "Result",
    "Trace",
    "calibrate",
    "capacity",
    "compare",
    "hit_rate",
    "load",
    "plot",
    "record",
    "replay",
    "roofline",
    "search",
    "simulate",
    "sweep",
    "testing",
    "train_memory",
]

#: Module of each public name; it is imported at first use, so that ``import kvsim`` is fast.
_HOME = {
    "Comparison": "kvsim.results.comparison",
    "Config": "kvsim.config",
    "Engine": "kvsim.stepping.engine",
    "FinishReason": "kvsim.results.tables",
    "GpuSpec": "kvsim.catalog.spec",
    "ModelSpec": "kvsim.catalog.spec",
    "Options": "kvsim.options",
    "Result": "kvsim.results.result",
    "Trace": "kvsim.trace",
    "calibrate": "kvsim.api.calibrate",
    "capacity": "kvsim.engine.capacity",
    "compare": "kvsim.fleet.simulate",
    "hit_rate": "kvsim.hits.hit_rate",
    "load": "kvsim.results.result",
    "plot": "kvsim.report.plot",
    "record": "kvsim.cases.record",
    "replay": "kvsim.cases.replay",
    "roofline": "kvsim.intensity.roofline",
    "search": "kvsim.api.search",
    "simulate": "kvsim.fleet.simulate",
    "sweep": "kvsim.api.sweep",
    "testing": "kvsim.testing",
    "train_memory": "kvsim.training.remedies",
}

_MODULES = ("plot", "testing")


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'kvsim' has no attribute {name!r}")
    module = import_module(_HOME[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
