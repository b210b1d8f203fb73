"""The live endpoint: vLLM's protocol over an engine on the wall's clock."""

from __future__ import annotations

import asyncio
import gzip
import io
import json

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("msgspec")
pytest.importorskip("prometheus_client")

import msgspec
import zmq
import zmq.asyncio
from aiohttp.test_utils import TestClient, TestServer

import kvsim
import workloads
from kvsim.cli.main import main
from kvsim.serve.behind import Behind, live_router
from kvsim.serve.block_names import SEED, digest
from kvsim.serve.clock import speed_of
from kvsim.serve.publisher import Publisher, Transport
from kvsim.serve.replaying import first_difference
from kvsim.serve.start import Endpoint, make_server
from kvsim.serve.tokens import FIRST_OUTPUT, StandIn, named_output, output_id

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
DEPLOYMENT = {
    "model": MODEL,
    "gpu": "h100-sxm",
    "num_gpu_blocks_override": 64,
    "max_model_len": 512,
    "max_num_seqs": 8,
    "backend": "python",
}
ROOM = {"num_gpu_blocks_override": 10_000}
#: 60 tokens of the stand-in.
PROMPT = ("one two three " * 20).rstrip()


def served(body, *, events=None, deployment=(), **endpoint):
    """Run a client's coroutine against a server, a hundred times the wall's pace."""

    async def run():
        options = DEPLOYMENT | dict(deployment)
        if events is not None:
            options["kv_events_config"] = {"enable_kv_cache_events": True}
        server = make_server(Endpoint(**{"names": [MODEL], "clock": "100", **endpoint}), options)
        if events is not None:
            server.live.publisher = Publisher(Transport(**events), server.live.loads)
        async with TestClient(TestServer(server.app(), handler_cancellation=True)) as client:
            found = await body(client, server)
        server.close()
        return found

    return asyncio.run(asyncio.wait_for(run(), 60))


async def posted(client, path, **body):
    answer = await client.post(path, json=body)
    return answer.status, await answer.json()


async def chunks(client, path, **body):
    answer = await client.post(path, json={"stream": True, **body})
    assert answer.status == 200
    lines = (await answer.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_completion_has_the_tokens_that_were_asked_for_and_hits_the_cache():
    async def body(client, _):
        first = await posted(client, "/v1/completions", prompt=PROMPT, max_tokens=5)
        return first, await posted(client, "/v1/completions", prompt=PROMPT, max_tokens=5)

    (status, first), (_, second) = served(body)
    assert status == 200
    assert first["usage"]["completion_tokens"] == 5
    assert first["usage"]["prompt_tokens"] == 60
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    # Of 60 tokens three blocks of 16 are whole.
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": 48}
    choice = first["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["text"].split()) == 5
    assert choice["text"] != second["choices"][0]["text"]


def test_a_stream_has_a_chunk_per_token_and_its_usage_at_the_end():
    async def body(client, _):
        options = {"include_usage": True}
        return await chunks(
            client, "/v1/completions", prompt=PROMPT, max_tokens=4, stream_options=options
        )

    found = served(body)
    assert [len(one["choices"]) for one in found] == [1, 1, 1, 1, 0]
    assert [one["usage"] for one in found[:-1]] == [None] * 4
    assert found[-1]["usage"]["completion_tokens"] == 4
    reasons = [one["choices"][0]["finish_reason"] for one in found[:-1]]
    assert reasons == [None, None, None, "length"]


def test_an_echo_comes_before_the_answer():
    async def body(client, _):
        asked = {"prompt": ['say "one"', "two"], "max_tokens": 2, "echo": True, "n": 2}
        _, whole = await posted(client, "/v1/completions", **asked)
        return whole, await chunks(client, "/v1/completions", **asked)

    whole, parts = served(body)
    texts = [""] * 4
    for one in parts:
        texts[one["choices"][0]["index"]] += one["choices"][0]["text"]
    for found in (texts, [one["text"] for one in whole["choices"]]):
        assert [one.partition(" ~")[0] for one in found] == ['say "one"'] * 2 + ["two"] * 2
        assert [one.count("~") for one in found] == [2] * 4


def test_a_chat_begins_with_its_role_and_may_have_samples():
    async def body(client, _):
        turn = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
        return await chunks(
            client, "/v1/chat/completions", messages=[turn], max_completion_tokens=3, n=2
        )

    found = served(body)
    assert [one["choices"][0]["delta"].get("role") for one in found[:2]] == ["assistant"] * 2
    texts = {0: [], 1: []}
    for one in found[2:]:
        choice = one["choices"][0]
        texts[choice["index"]].append(choice["delta"]["content"])
    assert [len(one) for one in texts.values()] == [3, 3]


def test_the_next_turn_hits_the_blocks_of_the_answer():
    async def body(client, _):
        turns = [{"role": "user", "content": PROMPT}]
        _, first = await posted(client, "/v1/chat/completions", messages=turns, max_tokens=40)
        turns += [first["choices"][0]["message"], {"role": "user", "content": "and then"}]
        _, second = await posted(client, "/v1/chat/completions", messages=turns, max_tokens=2)
        return first["usage"], second["usage"]

    first, second = served(body)
    reached = first["prompt_tokens"] + first["completion_tokens"]
    cached = second["prompt_tokens_details"]["cached_tokens"]
    # The generated role stands between them; all whole blocks of prompt and answer are hit.
    assert first["prompt_tokens"] < cached <= reached
    assert cached % 16 == 0


def test_a_stop_text_ends_an_answer_and_frees_its_blocks():
    async def body(client, server):
        free = server.live.engine.num_free_blocks
        _, first = await posted(client, "/v1/completions", prompt=PROMPT, max_tokens=1)
        assert server.live.engine.num_free_blocks == free
        stop = f"~{output_id(3, 2) - FIRST_OUTPUT:x}"
        _, second = await posted(
            client, "/v1/completions", prompt=PROMPT, max_tokens=100, stop=stop
        )
        return first, second, server.live.engine.num_free_blocks - free

    _, second, missing = served(body)
    assert second["choices"][0]["finish_reason"] == "stop"
    assert second["choices"][0]["stop_reason"]
    assert second["usage"]["completion_tokens"] == 3
    assert missing == 0


def test_a_client_that_goes_away_frees_its_blocks():
    async def body(client, server):
        free = server.live.engine.num_free_blocks
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.3):
                await client.post(
                    "/v1/completions", json={"prompt": PROMPT, "max_tokens": 4000, "n": 3}
                )
        await asyncio.sleep(0.2)
        text = await (await client.get("/metrics")).text()
        return free, server.live.engine.num_free_blocks, server.live.num_open, text

    free, now, num_open, text = served(
        body, deployment={"max_model_len": 131_072, **ROOM}, clock="1"
    )
    assert (now, num_open) == (free, 0)
    assert 'num_requests_running{engine="0"' in text


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"prompt": "x", "model": "other"}, 404, "does not exist"),
        ({"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
        ({"prompt": "x", "n": 0}, 400, "n: is 0"),
        ({"prompt": []}, 400, "at least one token"),
        ({"prompt": ["a", 1]}, 400, "must be one text"),
        ({"prompt": "a " * 600}, 400, "max_model_len 512"),
        ({"max_tokens": 3}, 400, "prompt"),
        ({"prompt": 3}, 400, "prompt"),
        ({"prompt": "x", "kv_transfer_params": {"do_remote_decode": True}}, 400, "no KV connector"),
    ],
    ids=str,
)
def test_wrong_requests_are_refused_as_vllm_refuses_them(body, status, said):
    async def ask(client, _):
        return await posted(client, "/v1/completions", **body)

    found, answer = served(ask)
    assert found == status
    assert said in answer["error"]["message"]
    assert answer["error"]["code"] == status


def test_a_broken_body_a_huge_one_and_a_wrong_path_get_one_clear_error():
    async def body(client, _):
        broken = await client.post("/v1/completions", data=b'{"prompt":')
        huge = await client.post("/v1/completions", data=io.BytesIO(b" " * (33 * 2**20)))
        nowhere = await client.get("/v2/completions")
        return [
            (one.status, (await one.json())["error"]["type"]) for one in (broken, huge, nowhere)
        ]

    assert served(body) == [
        (400, "BadRequestError"),
        (413, "BadRequestError"),
        (404, "NotFoundError"),
    ]


def test_a_full_queue_answers_429_and_a_sleeping_engine_503():
    async def body(client, server):
        long = [
            asyncio.create_task(posted(client, "/v1/completions", prompt=PROMPT, max_tokens=300))
            for _ in range(3)
        ]
        await asyncio.sleep(0.05)
        full = await posted(client, "/v1/completions", prompt=PROMPT)
        await asyncio.gather(*long)
        await client.post("/sleep?level=1")
        asleep = await posted(client, "/v1/completions", prompt=PROMPT)
        await client.post("/wake_up")
        awake = await posted(client, "/v1/completions", prompt=PROMPT, max_tokens=1)
        return full[0], asleep[0], awake[0]

    found = served(body, deployment={"max_num_seqs": 1}, queue_limit=2, clock="5")
    assert found == (429, 503, 200)


def test_an_api_key_is_asked_for():
    async def body(client, _):
        wrong = await client.post("/v1/completions", json={"prompt": "x"})
        headers = {"Authorization": "Bearer secret"}
        right = await client.post(
            "/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=headers
        )
        return wrong.status, right.status, (await client.get("/health")).status

    assert served(body, api_key="secret") == (401, 200, 200)


def test_small_endpoints_answer_as_vllms_do():
    async def body(client, _):
        models = await (await client.get("/v1/models")).json()
        _, tokens = await posted(client, "/tokenize", model=MODEL, prompt=PROMPT)
        _, text = await posted(client, "/detokenize", tokens=tokens["tokens"])
        _, rendered = await posted(client, "/v1/completions/render", prompt=PROMPT)
        head = await client.head("/metrics")
        metrics = await (await client.get("/metrics")).text()
        return models, tokens, text, rendered, head.status, metrics

    models, tokens, text, rendered, head, metrics = served(body)
    assert models["data"][0]["max_model_len"] == 512
    assert tokens["count"] == 60
    assert text == {"prompt": PROMPT.rstrip()} or text["prompt"].strip() == PROMPT.strip()
    assert rendered[0]["token_ids"] == tokens["tokens"]
    assert head == 200
    for name in ("kv_cache_usage_perc", "time_to_first_token_seconds_bucket", "cache_config_info"):
        assert f"vllm:{name}" in metrics


def test_a_cache_that_cannot_be_cleared_is_one_error():
    async def body(client, server):
        paths = "/reset_prefix_cache", "/sleep", "/flush_cache"
        found = [await client.post(path) for path in paths]
        for one in found:
            assert "has no pool of blocks" in await one.text()
        asleep = await client.get("/is_sleeping")
        return [one.status for one in found], await asleep.json()

    found = served(body, deployment={"engine": "sglang"})
    assert found == ([501] * 3, {"is_sleeping": False})


def test_a_request_beyond_the_limits_of_the_front_end_is_answered_as_by_vllm(tmp_path):
    """503 and vLLM's words, streamed or not; what is admitted runs, and comes out again."""
    record = tmp_path / "live.jsonl"

    async def body(client, _):
        async def ask(k):
            asked = {"prompt": PROMPT, "max_tokens": 9, "stream": k % 2 == 0, "n": 1 + k % 3}
            answer = await client.post("/v1/completions", json=asked)
            return answer.status, await answer.text()

        found = await asyncio.gather(*(ask(k) for k in range(30)))
        return found, await (await client.get("/metrics")).text()

    for name, limit, said in [
        ("max_num_queued_reqs", 5, "engine is currently busy"),
        ("max_num_queued_tokens", 130, "prefill token backlog limit"),
    ]:
        path = f"{record}.{limit}.jsonl"
        # Slow steps, so that requests queue even where the client is slow.
        found, metrics = served(body, deployment={name: limit}, record=path, clock="0.1")
        refused = [text for status, text in found if status == 503]
        assert 0 < len(refused) < 30
        assert all(said in text for text in refused)
        assert not any('"abort"' in text for _, text in found)
        assert f'reason="{name}"}} {len(refused)}.0' in metrics.replace('engine="0",', "")
        num_admitted = sum(1 + k % 3 for k, (status, _) in enumerate(found) if status == 200)
        assert first_difference(path) == (None, num_admitted)


def test_events_let_an_index_rebuild_the_cache():
    async def body(client, server):
        endpoint = server.live.publisher.source["endpoint"]
        socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(endpoint)
        await asyncio.sleep(0.2)
        _, answer = await posted(client, "/v1/completions", prompt=PROMPT, max_tokens=20)
        await client.post("/reset_prefix_cache")
        messages = []
        while not messages or messages[-1][1][1][0]["type"] != "AllBlocksCleared":
            topic, number, payload = await asyncio.wait_for(socket.recv_multipart(), 10)
            assert topic == b""
            messages.append((int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))
        socket.close()
        _, tokens = await posted(client, "/tokenize", prompt=PROMPT + answer["choices"][0]["text"])
        return messages, tokens["tokens"]

    endpoint = "ipc:///tmp/kvsim-test-events"
    messages, tokens = served(body, events={"endpoint": endpoint})
    numbers = [number for number, _ in messages]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    stored = [
        one for _, (_, events, _) in messages for one in events if one["type"] == "BlockStored"
    ]
    # Five whole blocks: of 60 prompt tokens and 19 of 20 output tokens, 16 each, four are whole.
    ids = [token for one in stored for token in one["token_ids"]]
    assert ids == tokens[: len(ids)]
    assert len(ids) == 64
    known = set()
    for one in stored:
        assert one["parent_block_hash"] is None or one["parent_block_hash"] in known
        known |= set(one["block_hashes"])
        assert one["block_size"] == 16
        assert "extra_keys" not in one


def test_events_number_adapters_as_they_were_loaded_and_hash_their_paths():
    async def body(client, server):
        for name in ("one", "two"):
            asked = {"lora_name": name, "lora_path": f"/{name}"}
            assert (await client.post("/v1/load_lora_adapter", json=asked)).status == 200
        for name in ("two", "one"):
            await posted(client, "/v1/completions", prompt=PROMPT, max_tokens=1, model=name)
        sent = [msgspec.msgpack.decode(one)[1] for _, one in server.live.publisher._sent]
        return [one for events in sent for one in events if one["type"] == "BlockStored"]

    endpoint = {"endpoint": "ipc:///tmp/kvsim-test-adapters"}
    stored = served(body, events=endpoint, deployment={"enable_lora": True, **ROOM})
    assert [(one["lora_name"], one["lora_id"]) for one in stored] == [("two", 2), ("one", 1)]
    for one in stored:
        name = one["lora_name"]
        key = digest((SEED, tuple(one["token_ids"][:16]), (("lora", name, f"/{name}"),)))
        assert one["block_hashes"][0] == int.from_bytes(key[-8:], "big")
        assert one["extra_keys"] == [[name]] * 3


def test_a_subscriber_that_missed_events_can_ask_for_them():
    async def body(client, server):
        await posted(client, "/v1/completions", prompt=PROMPT, max_tokens=2)
        socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        socket.connect(server.live.publisher.source["replay_endpoint"])
        await socket.send_multipart([b"", (1).to_bytes(8, "big")])
        found = []
        while True:
            _, _, number, payload = await asyncio.wait_for(socket.recv_multipart(), 10)
            if not payload:
                break
            found.append(int.from_bytes(number, "big"))
        socket.close()
        return found

    found = served(
        body,
        events={
            "endpoint": "ipc:///tmp/kvsim-test-a",
            "replay_endpoint": "ipc:///tmp/kvsim-test-b",
        },
    )
    assert found
    assert found == list(range(1, 1 + len(found)))


def test_a_recorded_run_comes_out_again(tmp_path):
    """The same flags on the recorded trace give the same schedule and tokens, to the bit."""
    record = tmp_path / "live.jsonl.gz"

    async def body(client, server):
        asked = [
            posted(
                *(client, "/v1/completions"),
                prompt=f"{PROMPT} {k % 3}",
                max_tokens=5 + k,
                priority=k,
                cache_salt=f"tenant-{k % 2}",
            )
            for k in range(12)
        ]
        await asyncio.gather(*asked)
        return server.live.engine.result()

    live = served(body, record=str(record))
    replayed = kvsim.simulate(workloads.load(record), **DEPLOYMENT)
    lines = [json.loads(one) for one in gzip.decompress(record.read_bytes()).splitlines()]
    assert [one["cache_salt"] for one in lines[:2]] == ["tenant-0", "tenant-1"]
    assert len(lines) == 12
    for name in live.requests.dtype.names:
        assert live.requests[name].tolist() == replayed.requests[name].tolist(), name


@pytest.mark.long
def test_a_replay_says_the_first_difference(tmp_path, capsys):
    """Aborts by stop texts and by clients that go away, hits of answers, and a reset replay."""
    record = tmp_path / "live.jsonl.gz"

    async def body(client, server):
        turns = [{"role": "user", "content": PROMPT}]
        _, first = await posted(client, "/v1/chat/completions", messages=turns, max_tokens=40)
        turns += [first["choices"][0]["message"], {"role": "user", "content": "and then"}]
        gone = asyncio.create_task(
            posted(client, "/v1/completions", prompt=PROMPT, max_tokens=400, n=3)
        )
        stop = f"~{output_id(11, 2) - FIRST_OUTPUT:x}"
        asked = [
            posted(client, "/v1/chat/completions", messages=turns, max_tokens=9, stop=stop, n=4),
            *(posted(client, "/v1/completions", prompt=f"{PROMPT} {k}") for k in range(9)),
        ]
        served = asyncio.gather(*asked)
        await asyncio.sleep(0.1)
        gone.cancel()
        await served
        await asyncio.sleep(0.1)
        await client.post("/reset_prefix_cache")
        await posted(client, "/v1/completions", prompt=PROMPT)
        return server.live.engine.result().requests

    live = served(body, record=str(record), clock="10")
    assert live["num_cached_tokens"].max() > 90  # of the answer
    assert live["num_cached_tokens"][-1] == 0
    events = tmp_path / "live.jsonl.gz.events.jsonl"
    lines = events.read_text().splitlines()
    # One by a stop text, and three that the client left, if it did so in time.
    assert 1 <= sum('"abort"' in line for line in lines) <= 4
    assert first_difference(str(record)) == (None, len(live))
    events.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:9])  # killed as it wrote
    assert first_difference(str(record)) == (None, len(live) - 1)
    place = next(k for k, line in enumerate(lines) if '"end"' in line)
    changed = json.loads(lines[place])
    lines[place] = json.dumps(changed | {"num_cached_tokens": 7})
    events.write_text("\n".join(lines) + "\n")
    with pytest.raises(SystemExit, match="1"):
        main(["replay-live", str(record)])
    said = f"request {changed['request']}: num_cached_tokens: recorded 7, replayed 0"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("router", "shares"),
    [("round-robin", [4, 4]), ("sglang-cache-aware", [8, 0]), ("least-outstanding", [8, 0])],
)
def test_a_router_sends_each_request_to_a_replica(router, shares):
    """Turns of one conversation, one at a time: a cache-aware router keeps them together."""

    async def run():
        servers = [make_server(Endpoint([MODEL], clock="100"), DEPLOYMENT) for _ in range(2)]
        front = Behind(servers, router, DEPLOYMENT)
        clients = [
            TestClient(TestServer(one.app(), handler_cancellation=True))
            for one in (*servers, front)
        ]
        for one in clients:
            await one.start_server()
        for _ in range(8):
            status, _ = await posted(
                clients[-1], "/v1/completions", prompt=PROMPT, max_tokens=2, stream=False
            )
            assert status == 200
        health = await clients[-1].get("/health")
        text = await (await clients[-1].get("/metrics")).text()
        prompts = [f'vllm:prompt_tokens_total{{engine="{k}"' for k in range(2)]
        counted = [float(text.partition(one)[2].split()[1]) for one in prompts]
        assert sorted(counted, reverse=True) == [60.0 * one for one in shares]
        assert text.count("# TYPE vllm:prompt_tokens_total") == 1
        await clients[-1].post("/sleep")
        asleep = [(await (await one.get("/is_sleeping")).json())["is_sleeping"] for one in clients]
        assert asleep == [True] * 3
        for one in reversed(clients):
            await one.close()
        assert health.status == 200
        return [len(one.live.engine.trace) if one.live.engine.start_time else 0 for one in servers]

    assert sorted(asyncio.run(asyncio.wait_for(run(), 60)), reverse=True) == shares


@pytest.mark.parametrize("router", ["llm-d", "least-kv", "round-robin+gateways=2", "nowhere"])
def test_a_router_that_reads_more_than_a_live_replica_shows_is_refused(router):
    with pytest.raises(ValueError, match="router"):
        live_router(router)


def test_replicas_have_ports_and_records_of_their_own():
    events = Transport("tcp://*:5557", "ipc:///tmp/again")
    one = Endpoint([MODEL], record="a/live.jsonl.gz", events=events).of_replica(2)
    assert (one.port, one.record) == (8002, "a/live.2.jsonl.gz")
    assert one.events == Transport("tcp://*:5559", "ipc:///tmp/again_dp2")


def test_the_openai_client_is_answered():
    """Completions, streams with usage, and errors, which it maps to exceptions by their code."""
    openai = pytest.importorskip("openai")

    async def body(client, _):
        base = str(client.make_url("/v1"))
        turns = [{"role": "user", "content": PROMPT}]
        async with openai.AsyncOpenAI(base_url=base, api_key="x", max_retries=0) as asking:
            whole = await asking.completions.create(model=MODEL, prompt=PROMPT, max_tokens=5)
            stream = await asking.chat.completions.create(
                model=MODEL,
                messages=turns,
                max_tokens=4,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [one async for one in stream]
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                await asking.completions.create(model="other", prompt="x")
            with pytest.raises(openai.BadRequestError, match="max_tokens"):
                await asking.completions.create(model=MODEL, prompt="x", max_tokens=-1)
            models = [one.id async for one in asking.models.list()]
        return whole, chunks, models

    whole, chunks, models = served(body)
    assert whole.usage.completion_tokens == 5
    assert whole.choices[0].finish_reason == "length"
    assert [len(one.choices) for one in chunks] == [1] * 5 + [0]  # the role, and four tokens
    assert chunks[-1].usage.completion_tokens == 4
    assert models == [MODEL]


@pytest.mark.parametrize("text", ["", "{\n", '{"event": "start"}\n', "[1]\n"])
def test_what_is_no_record_is_refused(tmp_path, text):
    record = tmp_path / "live.jsonl"
    for path in (record, tmp_path / "live.jsonl.events.jsonl"):
        path.write_text(text)
    with pytest.raises(ValueError, match=r"live\.jsonl"):
        first_difference(str(record))


@pytest.mark.parametrize("text", ["virtual", "0", "fast", "-1", "inf"])
def test_a_wrong_clock_is_refused(text):
    with pytest.raises(ValueError, match="--clock"):
        speed_of(text)


def test_ids_of_output_tokens_name_their_content():
    for content, index in ((7_400, 0), (8_000, 17), (40_000, 65_535)):
        assert named_output(output_id(content, index), 40_100) == (content, index)
    assert named_output(output_id(0, 0), 40_100) == (32_768, 0)  # the newest of its number
    assert named_output(output_id(7, 0), 3) is None  # of another server
    assert named_output(12, 3) is None


def test_the_stand_in_gives_equal_texts_equal_tokens():
    tokens = StandIn()
    long = tokens.encode("The quick brown fox jumps over 12345 lazy dogs.")
    assert tokens.encode("The quick brown fox")[:4] == long[:4]
    assert tokens.decode(long) == "The quick brown fox jumps over 12345 lazy dogs."
    assert max(long) < FIRST_OUTPUT
