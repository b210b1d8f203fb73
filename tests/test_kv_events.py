"""KV cache events: a consumer of them knows what is in the pool, and files hold them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from driving import in_turn, kv_config
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, traces

import kvsim
import workloads
from kvsim.attention.full import FullAttention
from kvsim.attention.sliding import SlidingWindow
from kvsim.cli import main
from kvsim.config import Config
from kvsim.engine.replica import Replica
from kvsim.engine.setup import resolve
from kvsim.fleet.simulate import serve
from kvsim.kv.events import take_events
from kvsim.kv.paged import PagedManager
from kvsim.kv_events import KVEventsConfig
from kvsim.records.events import REMOVED, STORED
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.kv.events import EventRows
    from kvsim.trace import Trace

SMALL = {"model": "llama-3-8b", "gpu": "h100-sxm", "max_model_len": 128}


class Consumer:
    """Knows of a pool what its events tell."""

    def __init__(self) -> None:
        self.keys: Counter[tuple[int, int]] = Counter()

    def read(self, chunks: Iterable[EventRows]) -> None:
        for rows in chunks:
            for event in rows.events:
                group, first = int(event["group"]), int(event["first_key"])
                if event["kind"] == STORED:
                    found = rows.keys[first : first + int(event["key_count"])].tolist()
                    self.keys.update((group, key) for key in found)
                elif event["kind"] == REMOVED:
                    for key in rows.keys[first : first + int(event["key_count"])].tolist():
                        self.keys[group, key] -= 1
                        assert self.keys[group, key] >= 0

    def check(self, kv: Any) -> None:
        """Compare with the pool: every block and each of its keys."""
        pool = kv.pool
        there = Counter((b.group, b.key) for b in pool.blocks if b.hashed)
        for block in range(pool.num_usable + 1 if pool.num_hash_aliases else 0):
            card = pool.first_hash_aliases[block]
            while card != NONE:
                assert pool.blocks[block].hashed
                there[pool.blocks[card].group, pool.blocks[card].key] += 1
                card = pool.places[card].next
        assert +self.keys == there


class Watcher:
    """Reads the events of every replica after every step."""

    def __init__(self) -> None:
        self.consumers: dict[int, Consumer] = {}
        self.most = 0

    def scheduled(self, replica: Replica) -> None:
        consumer = self.consumers.setdefault(replica.state.index, Consumer())
        consumer.read(replica.take_events())
        consumer.check(replica.state.kv)
        self.most = max(self.most, len(consumer.keys))

    completed = scheduled


def telling(options: dict[str, Any], path: object) -> Config:
    events = {"enable_kv_cache_events": True, "path": str(path)}
    return Config.build(**options, kv_events_config=events)


def check_consumer(trace: Trace, options: dict[str, Any], path: object) -> int:
    watcher = Watcher()
    serve(resolve(telling(options, path)), trace, observer=watcher)
    return watcher.most


#: Configurations of what tells events, under memory pressure.
WITH_EVENTS = st.fixed_dictionaries(
    {
        name: st.sampled_from(values)
        for name, values in {
            "parts": [
                ("llama-3-8b", "paged+eviction=s3fifo"),
                ("llama-3-8b", "tiered+host-gib=0.01"),
                ("gpt-oss-20b", "paged"),
                ("gemma-4-26b-a4b", "paged"),
            ],
            "num_gpu_blocks_override": [12, 20, 60],
            "prefix_cache_retention_interval": [0, None, 16],
            "block_size": [4, 16],
            "max_num_seqs": [2, 6],
            "max_num_batched_tokens": [8, 300],
            "scheduling_policy": ["fcfs", "priority"],
            "async_scheduling": [False, True],
            "num_lookahead_tokens": [0, 3],
            "data_parallel_size": [1, 2],
        }.items()
    }
)


class Untold(PagedManager):
    """A manager of one's own, whose content is in no replica's state."""

    @property
    def num_free(self) -> int:
        return super().num_free


@pytest.mark.parametrize("allocator", ["unified+host-gib=0.1", f"{__name__}:Untold"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"router": "dynamo", "data_parallel_size": 2}, "'dynamo': it needs KV cache events"),
        (
            {"kv_events_config": {"enable_kv_cache_events": True, "path": "e.jsonl"}},
            "emits no KV cache events; paged",
        ),
        ({"kv_store": "peer", "data_parallel_size": 2}, "cannot transfer KV; vllm with paged can"),
    ],
)
def test_who_tells_no_events_is_refused_where_they_are_followed(allocator, options, said):
    with pytest.raises(ValueError, match=said):
        kvsim.simulate(workloads.fixed(num_requests=1), allocator=allocator, **SMALL, **options)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_a_consumer_knows_the_keys_in_the_pool_after_every_step(backend, tmp_path):
    most = []

    @examples(40)
    @given(trace=traces(), options=WITH_EVENTS)
    def run(trace, options):
        model, allocator = options["parts"]
        options = options | SMALL | {"model": model, "allocator": allocator, "backend": backend}
        del options["parts"]
        most.append(check_consumer(trace, options, tmp_path / "events.jsonl"))

    run()
    assert sum(n > 0 for n in most) > len(most) // 5


# -- rules that no recorded schedule shows --------------------------------------------------------


def unequal() -> PagedManager:
    """Full attention over blocks of 16, beside a window over blocks of 8."""
    groups = (FullAttention(16), SlidingWindow(8, 24))
    return PagedManager(kv_config(40, *groups, max_model_len=128, events=True))


def told(kv: PagedManager, group: int = 0) -> list[Any]:
    rows = take_events(kv.kv.pool)
    found: list[Any] = []
    for e in rows.events[rows.events["group"] == group]:
        count = int(e["key_count"])
        if e["kind"] == STORED:
            found.append((int(e["first"]), int(e["stop"]), count))
        else:
            found += ["removed"] * count
    return found


def grow(kv: PagedManager, request: Any, num_tokens: int) -> None:
    """Compute tokens of a request, those of its output included."""
    request.num_tokens = max(request.num_tokens, request.num_computed_tokens + num_tokens)
    assert kv.allocate_slots(request, num_tokens)
    request.num_computed_tokens += num_tokens


def test_a_full_block_is_told_beside_the_prompt_that_ends_in_it():
    kv, one = unequal(), in_turn(0, 30, 40)
    grow(kv, one, 30)
    assert told(kv) == [(0, 16, 1)]
    grow(kv, one, 2)
    assert told(kv) == [(16, 32, 1), (16, 24, 1)]
    grow(kv, one, 16)
    assert told(kv) == [(32, 48, 1)]  # the prompt's end once
    kv.free(one)
    kv.pool.get(39)
    assert told(kv) == ["removed"] * 4  # three blocks, and one of two keys


def test_a_prompt_that_ends_in_a_block_of_others_is_told_at_once():
    kv, other = unequal(), in_turn(0, 40, 8)
    grow(kv, other, 40)
    told(kv)
    one = in_turn(1, 30, 40)
    one.segments, one.num_segments = other.segments, other.num_segments
    one.segments[0].num_tokens = 128
    one.num_tokens = 35  # as if it had been preempted
    hit = kv.lookup(one)
    assert hit.num_tokens == 32
    assert kv.allocate_slots(one, 3, hit)
    assert told(kv) == [(16, 24, 1)]


def test_a_step_without_room_for_its_events_is_an_error():
    kv, one = unequal(), in_turn(0, 64, 8)
    kv.kv.pool.log.room = 3
    grow(kv, one, 64)
    with pytest.raises(RuntimeError, match="events of one step found no room"):
        take_events(kv.kv.pool)


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
def trace():
    return workloads.fixed(prompt=64, output=40, num_requests=12, request_rate=20.0)


def run_into(path, trace, **options):
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557"}
    events |= {"path": str(path)} | options.pop("events", {})
    deployment = SMALL | {"num_gpu_blocks_override": 24, "max_num_seqs": 4, "backend": "python"}
    return kvsim.simulate(trace, **deployment | options, kv_events_config=events)


def test_a_file_holds_the_batches_of_all_replicas_by_time(tmp_path, trace):
    path = tmp_path / "events.jsonl"
    run_into(path, trace, data_parallel_size=2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["ts"] for line in lines] == sorted(line["ts"] for line in lines)
    assert {line["data_parallel_rank"] for line in lines} == {0, 1}
    stored = [e for line in lines for e in line["events"] if e["type"] == "BlockStored"]
    removed = [e for line in lines for e in line["events"] if e["type"] == "BlockRemoved"]
    assert removed
    assert stored[0] == {
        "type": "BlockStored",
        "block_hashes": stored[0]["block_hashes"],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * 4,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "kv_cache_spec_sliding_window": None,
    }
    assert removed[0] == {
        "type": "BlockRemoved",
        "block_hashes": removed[0]["block_hashes"],
        "medium": "GPU",
        "group_idx": 0,
    }
    known = {h for e in stored for h in e["block_hashes"]}
    assert {h for e in removed for h in e["block_hashes"]} <= known


def test_events_change_nothing_else(tmp_path, trace):
    plain = kvsim.simulate(
        trace, **SMALL, num_gpu_blocks_override=24, max_num_seqs=4, backend="python"
    )
    told = run_into(tmp_path / "events.jsonl", trace)
    assert (plain.requests == told.requests).all()


def test_tokens_have_stand_ins_that_follow_their_content(tmp_path):
    shared = [[(7, 0, 32), (8 + k, 0, 16)] for k in range(2)]
    trace = kvsim.Trace.from_arrays(
        [0.0, 9.0], [48, 48], [20, 1], segments=shared, cache_salt=[0, 5]
    )
    path = tmp_path / "events.jsonl"
    run_into(path, trace, events={"token_ids": True})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    events = [e for line in lines for e in line["events"]]
    first, output, second = events
    assert len(first["token_ids"]) == 48
    assert first["token_ids"][:32] == second["token_ids"][:32]
    assert first["token_ids"][32:] != second["token_ids"][32:]
    assert output["parent_block_hash"] == first["block_hashes"][-1]
    assert len(output["token_ids"]) == 16
    assert second["extra_keys"] == [["5"], None, None]


def test_messagepack_holds_arrays_as_vllm_sends_them(tmp_path, trace, monkeypatch):
    sent = []

    def encode(batch):
        sent.append(batch)
        return b"x"

    packer = ModuleType("msgspec.msgpack")
    packer.encode = encode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "msgspec.msgpack", packer)
    monkeypatch.setitem(sys.modules, "msgspec", ModuleType("msgspec"))
    path = tmp_path / "events.msgpack"
    run_into(path, trace)
    assert path.read_bytes() == b"x" * len(sent)
    ts, events, rank = sent[0]
    assert (type(ts), rank) == (float, 0)
    name, hashes, parent, tokens, size, *rest = events[0]
    assert (name, len(hashes), parent, tokens, size) == ("BlockStored", 4, None, [], 16)
    assert rest == [None, "GPU", None, [None] * 4, 0, "full_attention", None]


def test_messagepack_needs_a_package(tmp_path, trace, monkeypatch):
    for name in ("msgspec", "msgspec.msgpack", "msgpack"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"needs the package msgspec or msgpack; \.jsonl"):
        run_into(tmp_path / "events.msgpack", trace)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "kv_events_config is not JSON"),
        ([], "must be an object"),
        ({"publishr": "zmq"}, "did you mean publisher"),
        ({"publisher": "kafka"}, "unknown publisher 'kafka'"),
        ({"enable_kv_cache_events": 1}, "must be true or false"),
        ({"path": "events.txt"}, "must end with .jsonl or .msgpack"),
    ],
)
def test_a_wrong_setting_is_told(given, said):
    with pytest.raises(ValueError, match=said):
        Config.build(kv_events_config=given)


def test_what_cannot_tell_events_is_refused(tmp_path, trace):
    with pytest.raises(ValueError, match="emits no KV cache events; paged does"):
        run_into(tmp_path / "events.jsonl", trace, allocator="contiguous-max")
    with pytest.raises(ValueError, match="no such directory"):
        run_into(tmp_path / "missing" / "events.jsonl", trace)


def test_the_flag_takes_vllms_object(tmp_path, capsys):
    path = tmp_path / "events.jsonl"
    given = {"enable_kv_cache_events": True, "path": str(path)}
    common = ["run", "llama-3-8b", "--gpu", "l4", "--max-model-len", "512", "--backend", "python"]
    common += ["--workload", "fixed+prompt=64+output=8", "--num-requests", "4"]
    main([*common, "--kv-events-config", json.dumps(given)])
    assert path.read_text().count("BlockStored") >= 4
    main([*common, "--kv-events-config", '{"enable_kv_cache_events": true}'])
    assert "it has no path" in "".join(capsys.readouterr())
    with pytest.raises(SystemExit) as stopped:
        main([*common, "--replications", "2", "--kv-events-config", json.dumps(given)])
    assert stopped.value.code == 2


def test_the_configuration_survives_a_file(tmp_path):
    config = Config.build(kv_events_config={"enable_kv_cache_events": True, "path": "a.jsonl"})
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert Config.from_toml(path).kv_events_config == KVEventsConfig(True, path="a.jsonl")
