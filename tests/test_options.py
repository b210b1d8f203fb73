"""The typed options of the Python API are those of the configuration, and mypy knows them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kvsim
import workloads
from kvsim.config import Config, RunConfig
from kvsim.options import RunOptions

ROOT = Path(__file__).resolve().parents[1]

USER = '''
"""A script that a user of the library checks with mypy --strict."""

from typing import Unpack

import kvsim
import workloads
from kvsim.fleet.routers.dynamo import Dynamo
from kvsim.kv.eviction import FIFO
from kvsim.plugins.scheduling import Request, SchedulerRules
from my_gpu import MyGpu
from prefix_cap import PrefixCap
from shortest_first import ShortestFirst
from ttl_lru import TtlLru
from two_sizes import TwoSizes


class Shortest(SchedulerRules):
    ageing: float = 0.0

    def priority(self, request: Request, now: float) -> float:
        return request.num_prompt_tokens - self.ageing * now


def p99(rate: float, **options: Unpack[kvsim.Options]) -> float:
    """Return the p99 of TTFT in seconds."""
    trace = workloads.sharegpt(num_requests=100, request_rate=rate, seed=0)
    result = kvsim.simulate(trace, **options)
    comparison = kvsim.compare(trace, ["paged", "contiguous-max"], **options)
    assert comparison["paged"].requests.dtype.names
    return result.metrics.ttft.p99


def study(**options: Unpack[kvsim.Options]) -> int:
    """Sweep, search, calibrate, draw and step."""
    trace = workloads.sharegpt(num_requests=100, request_rate=2.0, seed=0)
    sweep = kvsim.sweep(trace, {"block_size": [16, 32]}, request_rate=2.0, **options)
    search = kvsim.search(trace, slo="p99_ttft_ms<=500", over={"max_num_seqs": [8, 16]})
    calibrated = kvsim.calibrate(log="server.log", bench=["a.json"], gpu="l4")
    roofline = kvsim.roofline(model="llama-3-8b", batch_size=8)
    for found in (sweep, search, calibrated, roofline):
        found.plot().savefig("figure.png")
        assert found.table.dtype.names == tuple(found.to_pandas().columns)
    kvsim.simulate(trace, router=PrefixCap(cap=4), data_parallel_size=2, allocator=TwoSizes())
    kvsim.Engine(scheduler=ShortestFirst(ageing=5), eviction=TtlLru(ttl=3), cost_model=MyGpu)
    engine = kvsim.Engine(**options)
    engine.add_request(num_prompt_tokens=40, max_tokens=3)
    return search.num_gpus + kvsim.capacity(**options).num_gpu_blocks


shared: kvsim.Options = {"model": "llama-3-8b", "gpu": "a100-80gb", "max_model_len": "8k"}
p99(2.0, **shared)
p99(2.0, speculative_config={"method": "ngram", "num_speculative_tokens": 3})
p99(2.0, router=Dynamo(temperature=0.5), eviction=FIFO(), scheduler=Shortest(ageing=2.0))
'''
WRONG = {
    "p99(2.0, block_sise=16)\n": 'Unexpected keyword argument "block_sise"',
    'p99(2.0, block_size="sixteen")\n': 'incompatible type "str"; expected "int | None"',
    'p99(2.0, backend="fast")\n': "expected \"Literal['auto', 'python', 'compiled']\"",
}


def generator() -> ModuleType:
    path = ROOT / "docs" / "_ext" / "options.py"
    spec = importlib.util.spec_from_file_location("options", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_options_are_the_fields_of_the_configuration() -> None:
    module = generator()
    assert module.options_file() == module.FILE.read_text("utf-8"), "run python docs/generate.py"
    in_the_allocator = {"eviction"}
    assert kvsim.Options.__annotations__.keys() == Config.model_fields.keys() | in_the_allocator
    assert RunOptions.__annotations__.keys() == RunConfig.model_fields.keys() | in_the_allocator
    assert not kvsim.Options.__required_keys__


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_model_len", "8k"),
        ("hf_overrides", {"max_position_embeddings": 4096}),
        ("cudagraph_capture_sizes", [1, 2, 4]),
        ("pool", [{"role": "prefill", "replicas": 1}, {"role": "decode", "replicas": 1}]),
        ("speculative_config", {"method": "ngram", "num_speculative_tokens": 3}),
    ],
)
def test_what_a_validator_takes_the_type_allows(name: str, value: object) -> None:
    Config.build(**{name: value})
    own = kvsim.Options.__annotations__[name].__forward_arg__
    assert {"str": "str", "dict": "Mapping", "list": "Sequence"}[type(value).__name__] in own


def test_finish_reasons_have_names() -> None:
    trace = workloads.fixed(prompt=100, output=2, num_requests=3)
    result = kvsim.simulate(trace, model="opt-13b", backend="python")
    assert (result.requests["finish_reason"] == kvsim.FinishReason.FINISHED).all()
    assert kvsim.FinishReason(result.requests["finish_reason"][0]).name == "FINISHED"


def types_of(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(path)]
    paths = os.environ | {"MYPYPATH": str(ROOT / "docs" / "examples" / "parts")}
    return subprocess.run(command, cwd=ROOT, env=paths, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_mypy_strict_passes_on_a_script_with_options_and_sees_its_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(USER)
    done = types_of(path)
    assert done.returncode == 0, done.stdout
    path.write_text(USER + "".join(WRONG))
    done = types_of(path)
    lines = done.stdout.splitlines()
    for line, said in zip(lines, WRONG.values(), strict=False):
        assert said in line
    assert len(lines) == len(WRONG) + 1, done.stdout
