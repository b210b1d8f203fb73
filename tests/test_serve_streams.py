"""Streams of the live endpoint: what is sent before it is counted, and counts in bulk."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import re
import time

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

import prometheus_client as prometheus

from kvsim.results.buckets import PER_TOKEN
from kvsim.results.tables import FinishReason
from kvsim.serve.block_names import Adapter, BlockNames
from kvsim.serve.histogram import MOST_WAITING, Histogram
from kvsim.serve.messages import Asked, Completion, StreamOptions
from kvsim.serve.metrics import metrics_text
from kvsim.serve.publisher import fields_of
from kvsim.serve.start import Endpoint, make_server
from kvsim.serve.streams import Reply, Sample
from kvsim.stepping.engine import Engine


@pytest.mark.parametrize("number", [0, 7, MOST_WAITING, 2 * MOST_WAITING + 3])
def test_a_histogram_in_bulk_has_the_text_of_prometheus_clients_own(number):
    labels = {"engine": "0", "model_name": "m"}
    ours, theirs = prometheus.CollectorRegistry(), prometheus.CollectorRegistry()
    bulk = Histogram("vllm:x", "X.", labels, PER_TOKEN, ours)
    single = prometheus.Histogram("vllm:x", "X.", list(labels), registry=theirs, buckets=PER_TOKEN)
    for k in range(number):
        value = (0.01, 0.0, 81.0, 0.07 * k)[k % 4]  # on a bound, under all, over all
        bulk.observe(value)
        single.labels(**labels).observe(value)
    single.labels(**labels)
    texts = [prometheus.generate_latest(one).decode() for one in (ours, theirs)]
    without = [re.sub(r"(_created\{.*) .*", r"\1", one) for one in texts]
    assert without[0] == without[1]


def test_a_request_arrives_when_it_was_read_unless_a_step_was_scheduled_since():
    deployment = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "backend": "python"}
    live = make_server(Endpoint(["m"]), deployment).live
    read = time.monotonic()
    time.sleep(0.002)  # a long prompt is cut into tokens
    for _ in range(2):
        reply = Reply("m", False, Completion(prompt="x"), 40, arrived=read)
        live.submit(Asked(reply.common, [list(range(40))], 3, False), reply)
        live.engine.run_until(live.clock.at(read) + 1e-4)
    first, second = (live.engine.trace_row(k)["arrival_time"] for k in range(2))
    assert first == live.clock.at(read)
    assert second == math.nextafter(first, math.inf)


def test_metrics_have_the_names_that_dashboards_of_vllm_ask_for():
    deployment = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "backend": "python"}
    live = make_server(Endpoint(["m"]), deployment).live
    reply = Reply("m", False, Completion(prompt="x", n=2), 40)
    live.submit(Asked(reply.common, [list(range(40))], 3, False), reply)
    for step in live.engine.steps_until(float("inf")):
        live.metrics.note_step(step)
    for request in range(2):
        live.metrics.record_end(live.engine.row(request), "length")
    text = metrics_text([live]).decode()
    found = {
        line.partition("{")[0]: float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("vllm:") and "_bucket" not in line
    }
    # The second sample hits two blocks of the first; each of three steps has a token per sample.
    assert found["vllm:request_params_n_sum"] == 2
    assert found["vllm:prompt_tokens_cached_total"] == 32
    assert found["vllm:request_prefill_kv_computed_tokens_sum"] == 80 - 32
    assert found["vllm:iteration_tokens_total_sum"] == 80 - 32 + 2 * 2
    assert found["vllm:request_num_preemptions_count"] == 2
    assert found["vllm:external_prefix_cache_hits_total"] == 0


def streamed(counts, **fields):
    """Return the writes of a stream with these new tokens in each step."""
    reply = Reply("m", False, Completion(prompt="x", stream=True, **fields), 1)
    writes: list[bytes] = []
    reply.send = writes.append
    sample = Sample(reply, 0, 5)
    reply.samples.append(sample)
    sample.prepare()
    for step, count in enumerate(counts):
        is_last = step == len(counts) - 1
        ended = FinishReason.FINISHED if is_last else None
        if count == 1 and not is_last and sample.next:
            sample.send(sample.next)
            sample.count += 1
        elif sample.add(count, ended) or is_last:
            break
        sample.prepare()
    return writes, sample


def choices(writes):
    lines = re.findall(rb"data: (\{.*\})", b"".join(writes))
    return [choice for line in lines for choice in json.loads(line)["choices"]]


@pytest.mark.parametrize("counts", [[1, 1, 1, 1], [2, 1, 3, 1], [4], [1, 3, 0]])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"return_token_ids": True},
        {"stream_options": StreamOptions(include_usage=True, continuous_usage_stats=True)},
        {"stop": "no such text"},
    ],
    ids=str,
)
def test_each_step_is_one_write_and_each_token_one_chunk(counts, fields):
    writes, sample = streamed(counts, **fields)
    assert len(writes) == len(counts)
    found = choices(writes)
    assert "".join(one["text"] for one in found) == sample.text
    reasons = [one["finish_reason"] for one in found]
    assert reasons == [None] * (len(found) - 1) + ["length"]
    assert len(found) == sum(counts) + (counts[-1] == 0)
    assert sample.reply.num_output_tokens == sample.count == sum(counts)
    for part in writes:
        while part:  # as chunks of HTTP
            size, _, rest = part.partition(b"\r\n")
            assert rest[int(size, 16) :][:2] == b"\r\n"
            part = rest[int(size, 16) + 2 :]  # noqa: PLW2901 - what is left of it


def test_a_stop_text_over_two_tokens_ends_an_answer_at_the_second():
    _, whole = streamed([1] * 9)
    text = whole.text
    place = text.index("~", 20)
    writes, sample = streamed([1] * 9, stop=["nothing", text[place - 3 : place + 2]])
    assert sample.reason == "stop"
    assert sample.text == text[: len(sample.text)]
    assert sample.stop_reason in sample.text
    assert sample.stop_reason not in "".join(one["text"] for one in choices(writes)[:-1])


def test_blocks_have_the_names_that_vllms_sha256_gives_them():
    """Equal tokens have equal names on every server, whatever numbers its engine gives them."""

    def hashed(value):
        return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()

    lora = "lora", "ad", "/adapters/ad"
    salted = lora, ("mm", "image", -1), ("cache_salt", "tenant")
    first = hashed((hashed("vllm-none-hash"), (1, 2), salted))
    chain = [first, hashed((first, (3, 4), (lora,)))]
    chain.append(hashed((chain[1], (5, 6), None)))
    sent = [int.from_bytes(one[-8:], "big") for one in chain]
    stored = {"type": "BlockStored", "block_size": 2}
    for number in (7, 900):
        names = BlockNames({"other": Adapter(1, "/x"), "ad": Adapter(2, "/adapters/ad")})
        keys = [["ad", ["image", -1], "tenant"], ["ad"]]
        two = names.rename(
            stored
            | {"block_hashes": [number, number + 1], "token_ids": [1, 2, 3, 4]}
            | {"parent_block_hash": None, "extra_keys": keys, "lora_name": "ad", "lora_id": 1}
        )
        assert (two["block_hashes"], two["parent_block_hash"]) == (sent[:2], None)
        assert (two["lora_id"], two["lora_name"], two["extra_keys"]) == (2, "ad", keys)
        third = stored | {"block_hashes": [number + 2], "token_ids": [5, 6]}
        third = names.rename(third | {"parent_block_hash": number + 1})
        assert (third["block_hashes"], third["parent_block_hash"]) == (sent[2:], sent[1])
        gone = names.rename({"type": "BlockRemoved", "block_hashes": [number + 2, number]})
        assert gone["block_hashes"] == [sent[2], sent[0]]


def test_equal_salts_and_adapters_give_blocks_equal_names_on_every_server():
    """Each engine numbers salts and adapters in the order of its requests."""

    def stored(asked):
        engine = Engine(
            model="llama-3.1-8b",
            gpu="h100-sxm",
            backend="python",
            enable_lora=True,
            kv_events_config={"enable_kv_cache_events": True},
        )
        names, found = BlockNames(), {}
        for salt, adapter in asked:
            engine.add_request(list(range(20)), 1, cache_salt=salt, lora_id=adapter)
            engine.run_until(math.inf)
            batches = engine.take_kv_events(lambda _, first, stop: list(range(first, stop)))
            (one,) = [event for batch in batches for event in batch.events]
            renamed = names.rename(fields_of(one))
            found[salt, adapter] = renamed["block_hashes"], one.extra_keys, one.lora_name
        return found

    asked = [("tenant-a", None), ("tenant-b", None), (None, "ad"), ("tenant-a", "ad"), (None, None)]
    first, second = stored(asked), stored(asked[::-1])
    assert first == second
    assert len({tuple(hashes) for hashes, *_ in first.values()}) == len(asked)
    keys = [found[1:] for found in first.values()]
    assert keys[:2] == [([["tenant-a"]], None), ([["tenant-b"]], None)]
    assert keys[2:4] == [([["ad"]], "ad"), ([["ad", "tenant-a"]], "ad")]
    assert keys[4] == ([None], None)


@pytest.mark.parametrize("backend", ["python", "compiled"])
@pytest.mark.parametrize("is_async", [True, False])
def test_the_tokens_of_the_step_in_flight_are_known_before_its_output(backend, is_async):
    """Under chunks of prompts, preemptions and aborts; all tokens but those are told."""
    engine = Engine(
        model="llama-3.1-8b",
        gpu="h100-sxm",
        backend=backend,
        num_gpu_blocks_override=40,
        max_model_len=512,
        max_num_batched_tokens=48,
        async_scheduling=is_async,
    )
    for k in range(8):
        engine.add_request(list(range(100 * k, 100 * k + 40 + k)), 60, arrival_time=k / 1000)
    told, lost, time, is_aborted = 0, 0, 0.0, False
    while engine.next_event_time < math.inf:
        time = max(time + 1e-4, engine.next_event_time - 1e-9)
        engine.run_until(time)
        if len(engine.next_tokens[1]) == 8 and not is_aborted:
            is_aborted = engine.abort(3)
            assert len(engine.next_tokens[1]) == 7
        due, requests = engine.next_tokens
        for step in engine.steps_until(due if requests else time):
            lost += len(step.preempted)
            if requests:
                assert step.time + step.duration == due
                assert step.num_new_tokens == dict.fromkeys(requests, 1)
            told, requests = told + len(requests), []
    assert is_aborted
    assert lost
    assert told > 400
