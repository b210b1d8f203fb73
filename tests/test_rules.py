"""Rules that no small recorded schedule pins down, each on its smallest example."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import in_turn as request
from driving import kv_config
from driving import request as urgent
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, traces

import kvsim
from kvsim.attention.chunked import ChunkedLocal
from kvsim.attention.full import MLA, FullAttention
from kvsim.attention.sliding import SlidingWindow
from kvsim.attention.spec import AttentionSpec
from kvsim.kv.block_hash import block_keys
from kvsim.kv.manager import NO_HIT, Hit, KVCacheConfig
from kvsim.kv.paged import PagedManager
from kvsim.records.request import Request
from kvsim.rules.batch import victim_place
from kvsim.sched.scheduler import SchedulerConfig
from kvsim.sched.vllm import VllmScheduler

MODELS = ("llama-3-8b", "gpt-oss-20b")


def scheduler(num_gpu_blocks: int, **options: object) -> VllmScheduler:
    kv = PagedManager(kv_config(num_gpu_blocks, max_model_len=64, enable_prefix_caching=False))
    limits = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64} | options
    return VllmScheduler(kv, SchedulerConfig(**limits))  # type: ignore[arg-type]


def test_a_dropped_victim_gives_its_tokens_back_to_the_budget():
    """Priority preemption of a request that this very step had scheduled (vllm-rules.md, 3.1)."""
    sched = scheduler(6, policy="priority")  # five blocks of four
    for one in (request(0, 3, 8, 2), request(1, 8, 8, 0), request(2, 7, 8, 1)):
        sched.add(one)
        sched.schedule(0.0)
    for one in sched.running:  # as if the three prompts had just been answered
        one.num_tokens = one.num_computed_tokens = one.num_prompt_tokens
        one.num_tokens += 1
    sched.config = replace(sched.config, max_num_batched_tokens=2)
    plan = sched.schedule(0.0)
    # 0 had one of two tokens; 1 needs a block, 0 goes, and its token serves 2.
    assert [r.request_id for r in plan.preempted] == [0]
    assert [r.request_id for r in plan.requests] == [1, 2]


@pytest.mark.parametrize(("clock_ties", "place"), [(True, 0), (False, 2)])
def test_of_equally_urgent_requests_the_first_goes_where_records_tie(clock_ties: bool, place: int):
    """Python's max takes the first of equals; a trace's ids go on, lest two preempt for ever."""
    sched = scheduler(20, policy="priority")
    for index in range(3):
        sched.add(urgent(index, 4, 8, priority=1))
    sched.schedule(0.0)
    sched.state.limits.clock_ties = clock_ties
    assert victim_place(sched.state) == place


def test_layers_of_latents_drop_a_drafters_block_without_the_others():
    """They are looked up by themselves, though they see as much as full attention."""
    for specs, drops in (
        ((FullAttention(4), MLA(4)), [False, True]),
        ((MLA(4), MLA(4)), [True, True]),
    ):
        config = kv_config(20, *specs, specs=specs, drops_last_block=True, draft_groups=(1,))
        kv = PagedManager(config).state.kv
        assert [kv.groups[g].drops_last_block for g in range(2)] == drops


class ThreeInFlight:
    """Asynchronous scheduling with three batches under way, so that two can be stale."""

    def __init__(self, num_gpu_blocks: int) -> None:
        self.sched = scheduler(num_gpu_blocks, async_scheduling=True)
        self.plans = []

    def schedule(self) -> list[int]:
        plan = self.sched.schedule(0.0)
        self.plans.append(plan)
        return [r.request_id for r in plan.requests]

    def complete(self) -> None:
        self.sched.complete(self.plans.pop(0), 0.0)


def test_a_victim_with_output_in_flight_is_set_aside_until_it_has_come():
    """Sections 2b.1 and 3: two stale batches, in order, and those behind may pass."""
    loop = ThreeInFlight(6)  # five blocks of four
    victims = [request(0, 4, 20), request(1, 4, 20), request(2, 4, 20)]
    for one in victims:
        loop.sched.add(one)
    assert loop.schedule() == [0, 1, 2]
    assert loop.schedule() == [0, 1]  # second blocks of 0 and 1: none is left for 2
    assert victims[2].num_stale_tokens == 4
    for _ in range(3):
        loop.schedule()
    # At its fifth token 0 needs a third block: 1 goes, with four batches in flight.
    assert [r.request_id for r in loop.sched.running] == [0, 1]
    assert loop.schedule() == [0]
    assert victims[1].num_stale_tokens == 8
    assert [r.request_id for r in loop.sched.waiting] == [1, 2]
    short = request(3, 2, 2)
    loop.sched.add(short)
    assert loop.schedule() == [0, 3]  # both heads are set aside, the one behind passes
    assert [r.request_id for r in loop.sched.waiting] == [1, 2]
    stale = []
    for _ in range(5):
        loop.complete()
        stale.append((victims[1].num_stale_tokens, victims[2].num_stale_tokens))
    assert stale == [(4, 0), (3, 0), (2, 0), (1, 0), (0, 0)]
    # Their tokens were delivered and kept.
    assert victims[2].num_output_tokens == 1
    assert victims[1].num_output_tokens == 5
    assert victims[1].num_placeholders == 0


def test_admission_caps_count_what_is_in_flight():
    assert FullAttention.admission_cap(0, 16, 128, 512) == 0
    assert ChunkedLocal.admission_cap(64, 16, 128, 512) == 12  # (64 + 128) / 16
    assert ChunkedLocal.admission_cap(64, 16, 128, 160) == 10
    assert SlidingWindow.admission_cap(64, 16, 128, 512) == 13  # ceil(191 / 16) + 1


def own_blocks(groups: list[AttentionSpec], one: Request, held: dict[int, tuple[int, ...]]):
    """Make a manager whose pool holds some blocks of a request's content, by group."""
    kv = PagedManager(kv_config(20, *groups, max_model_len=128))
    base = kv.kv.hash_block_size
    keys = block_keys(one, one.num_tokens // base, base)
    block_of = {}
    for group, places in held.items():
        for place in places:
            (block,) = kv.pool.get(1, group)
            kv.pool.cache(block, keys[(place + 1) * (groups[group].block_size // base) - 1])
            block_of[group, place] = block
    return kv, block_of


def test_full_attention_stops_at_the_first_miss():
    one = request(0, 13, 1)
    kv, block_of = own_blocks([FullAttention(4)], one, {0: (0, 2)})
    assert kv.lookup(one) == (4, [[block_of[0, 0]]], 0)


@pytest.mark.parametrize(
    ("full_block", "hit", "expected"),
    [
        (4, 12, (None, None, 2)),  # the last run that fills the window
        (8, 8, (None, 1)),  # with an alignment of two blocks it may not end at the third
    ],
)
def test_a_window_hit_ends_on_an_aligned_boundary(full_block, hit, expected):
    groups, one = [FullAttention(full_block), SlidingWindow(4, window=5)], request(0, 17, 1)
    full = tuple(range(16 // full_block))
    kv, block_of = own_blocks(groups, one, {0: full, 1: (0, 1, 2)})
    found = kv.lookup(one)
    assert found.num_tokens == hit
    assert found.blocks[0] == [block_of[0, place] for place in range(hit // full_block)]
    blocks = [0 if place is None else block_of[1, place] for place in expected]
    assert found.blocks[1] == blocks


def test_unequal_blocks_meet_at_their_common_multiple():
    groups, one = [FullAttention(16), SlidingWindow(24, 48)], request(0, 97, 1)
    kv, block_of = own_blocks(groups, one, {0: (0, 1, 2, 3, 4), 1: (0, 1, 2)})
    assert kv.kv.alignment == 48
    assert kv.kv.hash_block_size == 8
    assert [group.keys_per_block for group in kv.kv.groups] == [2, 3]
    found = kv.lookup(one)
    assert (found.num_tokens, found.shared_prefix_boundary) == (48, 0)
    assert found.blocks[0] == [block_of[0, place] for place in range(3)]
    assert found.blocks[1] == [block_of[1, place] for place in range(2)]


def test_a_hit_shrinks_until_every_window_can_resume_there():
    """Three kinds of layers: the third limits the second, which is then looked up again."""
    groups = [FullAttention(4), SlidingWindow(4, window=5), SlidingWindow(4, window=9)]
    one = request(0, 17, 1)
    kv, block_of = own_blocks(groups, one, {0: (0, 1, 2, 3), 1: (1, 3), 2: (0, 1)})
    hit = kv.lookup(one)
    assert hit.num_tokens == 8
    assert hit.blocks[0] == [block_of[0, 0], block_of[0, 1]]
    assert hit.blocks[1] == [0, block_of[1, 1]]
    assert hit.blocks[2] == [block_of[2, 0], block_of[2, 1]]
    assert hit.shared_prefix_boundary == 16


def test_a_preempted_request_hits_its_own_freed_blocks():
    kv = PagedManager(kv_config(7, max_model_len=64))
    sched = VllmScheduler(
        kv, SchedulerConfig(max_model_len=64, max_num_seqs=8, max_num_batched_tokens=64)
    )
    for one in (request(0, 8, 12), request(1, 8, 9)):
        sched.add(one)
    resumed = []
    while sched.has_work:
        plan = sched.schedule(0.0)
        resumed += [a.hit.num_tokens for a in plan.admitted if a.resumed]
        sched.complete(plan, 0.0)
    assert resumed
    assert max(resumed) >= 4


class Witness(PagedManager):
    """A paged manager that remembers what each block holds, token by token, and checks hits."""

    num_hits = 0  # of every witness there was

    def __init__(self, config: KVCacheConfig) -> None:
        super().__init__(config)
        self.tokens_of: dict[int, list] = {}  # by block
        self.content: dict[int, list] = {}  # by key

    def prefix(self, request: Request, length: int) -> list:
        tokens = [request.cache_salt]
        pieces = [(s.content_id, s.start, s.num_tokens) for s in request.segments]
        for content, start, count in [*pieces, (request.output_content_id, 0, length)]:
            missing = length + 1 - len(tokens)
            tokens += [(content, start + i) for i in range(min(count, missing))]
        return tokens

    def remember(self, request: Request) -> None:
        """Note what a request's blocks with a key hold: content that is known, under its name."""
        for spec, table in zip(self.groups, self.block_ids(request), strict=True):
            for place, block in enumerate(table):
                end, record = (place + 1) * spec.block_size, self.kv.pool.blocks[block]
                if block and record.hashed:
                    assert end <= request.num_tokens
                    tokens = self.tokens_of[block] = self.prefix(request, end)
                    assert self.content.setdefault(record.key, tokens) == tokens

    def allocate_slots(self, request: Request, num_new_tokens: int, hit: Hit = NO_HIT) -> bool:
        done = super().allocate_slots(request, num_new_tokens, hit)
        if done:
            self.remember(request)
        return done

    def cache_computed(self, request: Request, num_tokens: int) -> None:
        super().cache_computed(request, num_tokens)
        self.remember(request)

    def lookup(self, request: Request) -> Hit:
        hit = super().lookup(request)
        for spec, blocks in zip(self.groups, hit.blocks, strict=False):
            for place, block in enumerate(blocks):
                end = (place + 1) * spec.block_size
                assert not block or self.tokens_of[block] == self.prefix(request, end)
                Witness.num_hits += block != 0
        return hit


@pytest.mark.long
def test_a_hit_never_returns_a_block_with_other_content(monkeypatch):
    monkeypatch.setattr(Witness, "num_hits", 0)
    num_examples = 0

    @examples(60)
    @given(trace=traces(), num_gpu_blocks=st.integers(8, 40), model=st.sampled_from(MODELS))
    def serve(trace, num_gpu_blocks, model):
        nonlocal num_examples
        num_examples += 1
        kvsim.simulate(
            trace,
            model=model,
            gpu="h100-sxm",
            block_size=4,
            allocator=f"{Witness.__module__}:Witness",
            num_gpu_blocks_override=num_gpu_blocks,
            max_model_len=64,
            max_num_seqs=4,
        )

    serve()
    assert Witness.num_hits > 1.5 * num_examples
