"""Plug-ins by name, and the configuration as TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvsim
from kvsim.catalog import get_model
from kvsim.config import Config, RunConfig
from kvsim.cost.model import COST_MODELS, StepCost
from kvsim.engine.router import ROUTERS
from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.manager import ALLOCATORS, KVCacheConfig
from kvsim.kv.paged import PagedManager, paged
from kvsim.registry import Registry, parse_spec
from kvsim.request import Request
from kvsim.sched.orca import OrcaScheduler
from kvsim.sched.scheduler import SCHEDULERS
from kvsim.testing import check_result
from kvsim.trace import Trace
from workloads import WORKLOADS

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
    """A user's own allocator: as paged, but it only trusts every other block."""

    def __init__(self, config: KVCacheConfig) -> None:
        whole = paged(config)
        assert isinstance(whole, PagedManager)
        super().__init__(
            whole.num_gpu_blocks // 2,
            whole.groups,
            slot_bytes=whole.slot_bytes,
            bytes_per_block=whole.bytes_per_block,
            max_model_len=config.max_model_len,
            reserve_output=config.reserve_output,
        )


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
        ({"block_size": 0}, "block_size is 0: input should be greater than or equal to 1"),
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
