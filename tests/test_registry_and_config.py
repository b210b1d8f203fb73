"""Plug-ins by name, and the configuration as TOML."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.catalog import get_model
from kvsim.config import Config, RunConfig
from kvsim.cost.model import COST_MODELS, StepCost
from kvsim.cost.roofline import RooflineCost
from kvsim.engine.setup import resolve
from kvsim.engines.baselines.sched.schedulers import OrcaScheduler
from kvsim.fleet.routing.router import ROUTERS
from kvsim.kv.contiguous import ContiguousOracle
from kvsim.kv.eviction import EVICTION_POLICIES, LRU
from kvsim.kv.manager import ALLOCATORS, NO_HIT, Hit, KVCacheConfig, KVCacheManager
from kvsim.kv.paged import PagedManager
from kvsim.records.cost import Work
from kvsim.records.request import Request
from kvsim.registry import Registry, parse_spec
from kvsim.sched.scheduler import SCHEDULERS, SchedulerConfig, StepPlan
from kvsim.sched.vllm import VllmScheduler
from kvsim.testing import check_result, equal_tables
from kvsim.trace import Trace
from workloads import WORKLOADS

if TYPE_CHECKING:
    from pydantic import PositiveInt as Positive

    from kvsim.kv.manager import KVCacheConfig as KVConfig

TRACE = Trace.from_arrays([0.0, 0.1, 0.2], [20, 30, 40], [5, 6, 7])


def test_register_returns_its_argument_and_refuses_a_taken_name() -> None:
    registry: Registry[object] = Registry("thing")

    @registry.register("one")
    def make(base: int, *, size: int = 3) -> object:
        return base * size

    assert registry.create("one", 2, size="5") == 10
    assert registry.names() == ["one"]
    with pytest.raises(ValueError, match="thing 'one' is already registered"):
        registry.register("one")(make)
    with pytest.raises(ValueError, match=r"has no parameter 'weight' .its parameters: size"):
        registry.create("one", 2, weight=1)
    with pytest.raises(ValueError, match="unknown thing 'on'; did you mean one"):
        registry.create("on")
    with pytest.raises(ValueError, match=r"cannot import thing 'no\.such:thing'"):
        registry.get("no.such:thing")


def test_specs() -> None:
    assert parse_spec("a+b-c=d+e") == ("a", {"b_c": "d", "e": None})
    with pytest.raises(ValueError, match="given twice"):
        parse_spec("a+b=1+b=2")


class HalfPaged(PagedManager):
    """A user's own allocator: the paged one with half of the memory."""

    def __init__(self, config: KVCacheConfig) -> None:
        super().__init__(replace(config, num_bytes=config.num_bytes // 2))


class EveryNth(PagedManager):
    """A user's own allocator whose annotations are there for type checkers only."""

    def __init__(self, config: KVConfig, *, part: Positive = 2, label: Positive = None) -> None:
        assert isinstance(part, int)
        assert label in (None, "x")
        super().__init__(replace(config, num_bytes=config.num_bytes // part))


class MostRecent(LRU):
    """A user's own eviction policy: least recently freed first, but for the last ``spared``."""

    def __init__(self, *, spared: int = 0) -> None:
        super().__init__()
        assert spared == 3


class LastInFirstOut(OrcaScheduler):
    """A user's own scheduler: the latest arrival first."""

    def add(self, request: Request) -> None:
        self.waiting.push_front(request)


class Slow:
    """A user's own cost model: a second per token."""

    def __init__(self, config: object, *, seconds: float = 1.0) -> None:
        self.seconds = seconds

    def step(self, plan: object) -> StepCost:
        return StepCost(self.seconds * sum(plan.num_tokens), 0.0, 0.0)  # type: ignore[attr-defined]


class WithoutReuse(PagedManager):
    """A user's own allocator: as paged, but it finds no prefix."""

    def lookup(self, request: Request) -> Hit:
        return super().lookup(request)._replace(num_tokens=0, blocks=())


class Stubborn(PagedManager):
    """A user's own allocator: as paged, but beside others it admits every other time only."""

    num_refused = 0

    def __init__(self, config: KVCacheConfig) -> None:
        super().__init__(config)
        self.refuse = False

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        if self.kv.num_held and not self.holds(request):
            self.refuse = not self.refuse
            if self.refuse:
                Stubborn.num_refused += 1
                return False
        return super().allocate_slots(request, num_new_tokens, hit)


class LatestFirst(VllmScheduler):
    """A user's own scheduler: as vLLM's, but the latest arrival first."""

    def add(self, request: Request) -> None:
        self.waiting.push_front(request)


class Counting(VllmScheduler):
    """A user's own scheduler: as vLLM's, but it counts its steps."""

    num_steps = 0

    def schedule(self, now: float) -> StepPlan:
        Counting.num_steps += 1
        return super().schedule(now)


class SlowHead(RooflineCost):
    """A user's own cost model: the roofline with an LM head that takes a second."""

    def lm_head(self, work: Work) -> float:
        return super().lm_head(work) + 1.0


class SameHead(RooflineCost):
    """A user's own cost model: the roofline, by way of Python."""

    def lm_head(self, work: Work) -> float:
        return super().lm_head(work)


class MostRecentFirst(LRU):
    """A user's own eviction policy: most recently freed first."""

    def evict(self) -> int:
        last = list(self)[-1]
        self.remove(last)
        return last


class SameOrder(LRU):
    """A user's own eviction policy: vLLM's order, by way of Python."""

    def evict(self) -> int:
        return super().evict()


#: Requests that wait for each other, share prefixes and evict each other's blocks.
CROWD = workloads.shared_prefix(num_requests=60, request_rate=200.0, seed=0)
CROWDED = {
    "model": "llama-3-8b",
    "gpu": "a100-80gb",
    "max_model_len": 2048,
    "num_gpu_blocks_override": 400,
}


def crowded(**options: Any) -> kvsim.Result:
    result = kvsim.simulate(CROWD, **CROWDED | options)
    check_result(result)
    return result


def together(result: kvsim.Result) -> int:
    """Most requests that a step admits."""
    return int(np.unique(result.requests["first_scheduled_time"], return_counts=True)[1].max())


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"allocator": f"{__name__}:WithoutReuse"}, f"allocator {__name__}:WithoutReuse"),
        ({"allocator": f"{__name__}:Stubborn"}, f"allocator {__name__}:Stubborn"),
        ({"scheduler": f"{__name__}:LatestFirst"}, f"scheduler {__name__}:LatestFirst"),
        ({"scheduler": f"{__name__}:Counting"}, f"scheduler {__name__}:Counting"),
        ({"cost_model": f"{__name__}:SlowHead"}, f"cost model {__name__}:SlowHead"),
        (
            {"allocator": f"paged+eviction={__name__}:MostRecentFirst"},
            f"eviction policy {__name__}:MostRecentFirst",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_users_class_does_in_its_own_way_runs_in_plain_python(
    options: dict[str, Any], part: str
) -> None:
    result = crowded(**options)
    assert result.provenance["engine"] == "python"
    assert result.provenance["reason"] == f"{part} is plain Python"
    with pytest.raises(ValueError, match=r"compiled cannot run this: .* is plain Python"):
        crowded(backend="compiled", **options)


@pytest.mark.long
def test_what_a_users_class_does_in_its_own_way_is_honoured() -> None:
    given = crowded(backend="python")
    reuse = given.summary["prefix_cache_hit_rate"]
    assert reuse > 0.1
    found_nothing = crowded(allocator=f"{__name__}:WithoutReuse")
    assert found_nothing.summary["prefix_cache_hit_rate"] == 0.0
    Stubborn.num_refused = 0
    stubborn = crowded(allocator=f"{__name__}:Stubborn", async_scheduling=False)
    assert Stubborn.num_refused >= len(CROWD) / 2
    assert stubborn.summary["completed"] == len(CROWD)
    assert together(stubborn) == 1 < together(given)
    late = crowded(scheduler=f"{__name__}:LatestFirst", max_num_seqs=1).requests
    assert np.argmax(late["first_scheduled_time"]) < 10 < len(late)
    slow = crowded(cost_model=f"{__name__}:SlowHead", record_steps=True).steps
    assert slow["duration"][slow["num_scheduled_tokens"] > 0].min() > 0.0
    assert slow["duration"].max() > 1.0 > given.summary["mean_tpot_ms"] / 1e3
    evicted = crowded(allocator=f"paged+eviction={__name__}:MostRecentFirst")
    assert evicted.summary["prefix_cache_hit_rate"] not in (0.0, reuse)


@pytest.mark.long
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_users_scheduler_decides_every_step(async_scheduling: bool) -> None:
    Counting.num_steps = 0
    options = {"async_scheduling": async_scheduling, "record_steps": True}
    own = crowded(scheduler=f"{__name__}:Counting", **options)
    given = crowded(backend="python", **options)
    assert Counting.num_steps == own.summary["num_steps"] == given.summary["num_steps"] > 100
    for table in ("requests", "memory", "steps"):
        assert equal_tables(getattr(own, table), getattr(given, table)), table
    Counting.num_steps = 0
    options["record_steps"] = False
    own = crowded(scheduler=f"{__name__}:Counting", **options)
    assert Counting.num_steps == own.summary["num_steps"] == given.summary["num_steps"]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"cost_model": f"{__name__}:SameHead"},
        {"allocator": f"paged+eviction={__name__}:SameOrder"},
    ],
    ids=lambda value: str(*value),
)
def test_a_part_in_python_that_does_the_same_gives_the_same(options: dict[str, Any]) -> None:
    own, given = crowded(record_steps=True, **options), crowded(record_steps=True)
    assert own.provenance["engine"] == "python"
    for table in ("requests", "memory", "steps"):
        assert equal_tables(getattr(own, table), getattr(given, table)), table
    assert own.summary == given.summary


def test_a_users_components_run_by_import_path_without_editing_any_file() -> None:
    here = __name__
    result = kvsim.simulate(
        TRACE,
        model="llama-3-8b",
        gpu="a100-80gb",
        allocator=f"{here}:HalfPaged",
        scheduler=f"{here}:LastInFirstOut",
        cost_model=f"{here}:Slow+seconds=0.5",
        num_gpu_blocks_override=40,
        max_num_seqs=1,
        check_invariants=True,
    )
    check_result(result)
    assert result.summary["completed"] == 3
    assert result.summary["kv_cache"]["num_gpu_blocks"] == 20
    order = result.requests["first_scheduled_time"].argsort().tolist()
    assert order == [0, 2, 1]


def test_annotations_may_exist_for_type_checkers_only() -> None:
    name = f"{__name__}:EveryNth+part=4+label=x"
    result = kvsim.simulate(TRACE, allocator=name, num_gpu_blocks_override=400)
    assert result.summary["kv_cache"]["num_gpu_blocks"] == 100
    with pytest.raises(ValueError, match="part=many: must be a whole number"):
        kvsim.simulate(TRACE, allocator=f"{__name__}:EveryNth+part=many")


def test_eviction_policies_take_parameters() -> None:
    name = f"paged+eviction={__name__}:MostRecent:spared=3"
    assert kvsim.simulate(TRACE, allocator=name).summary["completed"] == 3
    with pytest.raises(ValueError, match=r"has no parameter 'size' .its parameters: none"):
        kvsim.simulate(TRACE, allocator="paged+eviction=lru:size=3")


def test_the_plug_in_here_is_the_one_of_the_readme() -> None:
    readme = Path(__file__).resolve().parents[1] / "README.md"
    assert inspect.getsource(HalfPaged.__init__) in readme.read_text(encoding="utf-8")


EVERY_SETTING = (
    {},
    {"enable_prefix_caching": False},
    {"watermark": 0.3},
    {"scheduler_reserve_full_isl": False},
    {"num_lookahead_tokens": 7},
    {"model": "gpt-oss-20b", "prefix_cache_retention_interval": None},
    {"model": "gpt-oss-20b", "prefix_cache_retention_interval": 64},
    {"model": "gpt-oss-20b", "disable_hybrid_kv_cache_manager": True},
    {"model": "gemma-3-27b", "kv_cache_layout": "BLNHC"},
    {"block_size": 32},
    {"kv_cache_dtype": "fp8"},
    {"async_scheduling": False},
    {"max_num_batched_tokens": 128},
    {"max_model_len": 600},
    {"scheduler": "orca"},
    {"scheduler": "vllm-v0"},
    {"scheduler": "vllm-v0", "preemption_mode": "swap", "swap_space": 1.0},
    {"scheduler": "vllm-v0", "preemption_mode": "swap", "swap_space": 0.0},
)


@pytest.mark.long
@pytest.mark.parametrize("changes", EVERY_SETTING, ids=str)
def test_the_plug_in_of_the_readme_honours_every_setting(changes: dict[str, object]) -> None:
    """On all blocks it does what the built-in does on half of them."""
    trace = workloads.shared_prefix(num_requests=30, request_rate=200.0, seed=0)
    options = {"model": "llama-3-8b", "gpu": "a100-80gb", "max_model_len": 2048} | changes
    options |= {"backend": "python", "record_steps": True}
    num_blocks = 300  # enough for the longest request, and too few for all
    half = kvsim.simulate(trace, allocator="paged", num_gpu_blocks_override=num_blocks, **options)
    own = kvsim.simulate(
        trace,
        allocator=f"{__name__}:HalfPaged",
        num_gpu_blocks_override=2 * num_blocks,
        **options,
    )
    for table in ("requests", "memory", "steps"):
        assert equal_tables(getattr(own, table), getattr(half, table)), table
    assert own.summary == half.summary
    if changes == {"enable_prefix_caching": False}:
        assert own.summary["prefix_cache_hit_rate"] == 0.0
    assert own.summary["completed"] > 0


def test_the_plug_in_of_the_readme_refuses_what_it_cannot_serve() -> None:
    options = {"allocator": f"{__name__}:HalfPaged", "scheduler": "vllm-v0", "num_samples": 2}
    with pytest.raises(ValueError, match="serves one sequence per request"):
        kvsim.simulate(TRACE, **options)


def oracle(config: KVCacheConfig) -> ContiguousOracle:
    """Make the built-in, by a factory function."""
    return ContiguousOracle(config)


def orca(kv: KVCacheManager, config: SchedulerConfig) -> OrcaScheduler:
    """Make the built-in, by a factory function."""
    return OrcaScheduler(kv, config)


@pytest.mark.parametrize(
    ("allocator", "scheduler"),
    [
        ("contiguous-oracle", None),
        ("kvsim.kv.contiguous:ContiguousOracle", None),
        (f"{__name__}:oracle", None),
        (f"{__name__}:oracle", "orca"),
        (f"{__name__}:oracle", f"{__name__}:orca"),
    ],
)
def test_a_part_is_the_same_by_any_name(allocator: str, scheduler: str | None) -> None:
    setup = resolve(Config.build(allocator=allocator, scheduler=scheduler))
    assert setup.scheduler_type is OrcaScheduler
    assert setup.kv_config.reserve_output
    assert setup.cost_config.block_size is None
    assert setup.for_samples(2).kv.serves_samples


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_each_part_is_made_once(num_replicas: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(registry: Registry[Any]) -> None:
        create = registry.create

        def counting(*args: object, **params: object) -> object:
            made.append(registry.what)
            return create(*args, **params)

        monkeypatch.setattr(registry, "create", counting)

    counted(ALLOCATORS)
    counted(COST_MODELS)
    for backend in ("python", "compiled"):
        made.clear()
        kvsim.simulate(TRACE, backend=backend, data_parallel_size=num_replicas)
        assert made.count("allocator") <= 1 + num_replicas
        assert made.count("cost model") == 1


@pytest.mark.parametrize(
    "registry", [ALLOCATORS, SCHEDULERS, COST_MODELS, EVICTION_POLICIES, ROUTERS, WORKLOADS]
)
def test_every_component_says_what_it_does(registry: Registry[object]) -> None:
    for name in registry.names():
        assert (registry.get(name).__doc__ or "").strip(), name


def test_toml_round_trip(tmp_path: Path) -> None:
    config = RunConfig.build(
        model=get_model("gpt-oss-20b"),
        gpu="h100-sxm",
        max_num_seqs=64,
        enable_prefix_caching=False,
        goodput={"ttft": 500},
        request_rate=float("inf"),
        prefix_cache_retention_interval=64,
    )
    path = tmp_path / "run.toml"
    path.write_text(config.to_toml())
    again = RunConfig.from_toml(path)
    assert again == config
    assert again.digest == config.digest
    assert config.digest != RunConfig.build().digest
    assert RunConfig.build().to_toml() == ""


def test_a_model_that_is_not_in_the_catalogue_can_be_given_as_a_spec() -> None:
    spec = kvsim.ModelSpec(
        name="tiny",
        hf_id="me/tiny",
        source="made up",
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=1000,
        max_position_embeddings=256,
    )
    result = kvsim.simulate(TRACE, model=spec, gpu="l4", num_gpu_blocks_override=50)
    assert result.summary["completed"] == 3
    assert result.summary["kv_cache"]["bytes"] == 49 * 16 * 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size is 0: must be a whole number, at least 1"),
        ({"modell": "x"}, "unknown option 'modell'; did you mean model"),
        ({"gpu_memory_utilization": 2}, "gpu_memory_utilization is 2: "),
        ({"seed": -1}, "seed is -1: "),
        ({"model": 5}, "model is 5: "),
    ],
)
def test_wrong_options_raise_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        kvsim.simulate(TRACE, **options)
    assert "\n" not in str(caught.value)


def test_configurations_are_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config.build().block_size = 32  # type: ignore[misc]


def test_none_survives_where_it_is_not_the_default(tmp_path):
    config = Config.build(prefix_cache_retention_interval=None)
    assert config.digest != Config.build().digest
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert Config.from_toml(path) == config
