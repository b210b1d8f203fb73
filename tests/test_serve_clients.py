"""Strangers' programs against the live endpoint; each is skipped where it is not installed."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("aiohttp")

import msgspec
import zmq
import zmq.asyncio
from aiohttp.test_utils import TestClient, TestServer

import kvsim
from kvsim.serve.publisher import Publisher, Transport
from kvsim.serve.start import Endpoint, make_server
from kvsim.stepping.tokens import PromptTree
from kvsim.trace import Trace

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
DEPLOYMENT = {
    "model": MODEL,
    "gpu": "h100-sxm",
    "num_gpu_blocks_override": 64,
    "max_model_len": 512,
    "backend": "python",
    "kv_events_config": {"enable_kv_cache_events": True},
}
#: Simulated seconds per second, before vllm-router: a delay of a loaded machine counts a tenth.
SPEED = 0.1


@pytest.mark.slow
def test_dynamos_radix_tree_holds_the_blocks_of_the_server_at_ten_instants():
    """Fed by the events alone, it knows every hit beforehand, and every block that is cached."""
    llm = pytest.importorskip("dynamo.llm")
    core = pytest.importorskip("dynamo._core")
    tree, rng = llm.RadixTree(), random.Random(5)
    topics = [[1000 * k + j for j in range(150)] for k in range(12)]

    def apply(payload, number):
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "AllBlocksCleared":
                data = "cleared"
            elif event["type"] == "BlockRemoved":
                data = {"removed": {"block_hashes": event["block_hashes"]}}
            else:
                tokens = core.compute_block_hash_for_seq(event["token_ids"], 16)
                pairs = zip(event["block_hashes"], tokens, strict=True)
                blocks = [{"block_hash": one, "tokens_hash": two} for one, two in pairs]
                data = {"stored": {"parent_hash": event["parent_block_hash"], "blocks": blocks}}
            tree.apply_event(0, json.dumps({"event_id": number, "data": data}).encode())

    async def run():
        server = make_server(Endpoint([MODEL], clock="100"), DEPLOYMENT)
        server.live.publisher = Publisher(Transport("ipc:///tmp/kvsim-test-radix"))
        socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect("ipc:///tmp/kvsim-test-radix")
        await asyncio.sleep(0.2)
        found = []
        async with TestClient(TestServer(server.app())) as client:

            async def hit_of(prompt):
                body = {"prompt": prompt, "max_tokens": 20}
                answer = await (await client.post("/v1/completions", json=body)).json()
                while await socket.poll(50):
                    _, number, payload = await socket.recv_multipart()
                    apply(payload, int.from_bytes(number, "big"))
                return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

            for instant in range(10):
                for _ in range(4):
                    prompt = rng.choice(topics)[: rng.randint(20, 150)]
                    prompt = prompt + [rng.randint(0, 9)] * rng.randint(0, 60)
                    tokens = core.compute_block_hash_for_seq(prompt, 16)
                    known = tree.find_matches(tokens).scores.get((0, 0), 0)
                    found.append((known, await hit_of(prompt) // 16, len(prompt)))
                if instant == 5:
                    await client.post("/reset_prefix_cache")
                held = [json.loads(one)["event"]["data"] for one in tree.dump_tree_as_events()]
                held = sum(len(one["stored"]["blocks"]) for one in held)
                if instant != 5:
                    assert held == len(server.live.engine.cached_blocks())
        socket.close()
        return found

    found = asyncio.run(asyncio.wait_for(run(), 120))
    # The last token of a prompt is always computed.
    assert [min(known, (size - 1) // 16) for known, _, size in found] == [
        hit for _, hit, _ in found
    ]
    assert sum(hit for _, hit, _ in found) > 50


def free_ports(number):
    """Return ports that nobody listens on."""
    with ExitStack() as held:
        made = [held.enter_context(socket.socket()) for _ in range(number)]
        for one in made:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in made]


def wait_for(url, seconds=240):
    """Wait until a server answers its health check; it may compile first."""
    end = time.monotonic() + seconds
    while True:
        try:
            return urllib.request.urlopen(f"{url}/health", timeout=5).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def conversations(url, seed=3):
    """Have conversations side by side; return when each request was sent, prompt and hit.

    Times are those of the servers' clocks.
    """
    begin = time.monotonic()

    def one(k):
        rng, found = random.Random(1000 * seed + k), []
        prompt = [1000 * (k % 7) + j for j in range(96)]
        time.sleep(0.12 * k / SPEED)
        for _ in range(5):
            prompt = prompt + [rng.randint(100, 30_000) for _ in range(rng.randint(30, 120))]
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 16, "stream": True}
            body["stream_options"] = {"include_usage": True}
            kind = {"Content-Type": "application/json"}
            sent = (time.monotonic() - begin) * SPEED
            asked = urllib.request.Request(url, json.dumps(body).encode(), kind)
            with urllib.request.urlopen(asked) as answer:
                usage = json.loads(answer.read().split(b"data: ")[-2])["usage"]
            found.append((sent, prompt, usage["prompt_tokens_details"]["cached_tokens"]))
            time.sleep(0.3 * rng.random() / SPEED)
        return found

    with ThreadPoolExecutor(24) as clients:
        return sorted(each for found in clients.map(one, range(24)) for each in found)


@pytest.mark.slow
def test_vllms_router_knows_the_hits_and_has_those_of_the_simulated_policy(
    tmp_path, record_property
):
    """Its kv_aware policy, before two servers: each decision's credit is the hit that follows."""
    pytest.importorskip("vllm_router")
    ports = free_ports(8)
    urls = [f"http://127.0.0.1:{port}" for port in ports[:3]]
    options = {"gpu": "h100-sxm", "num_gpu_blocks_override": 4000, "max_model_len": 4096}
    router = [str(Path(sys.executable).parent / "vllm-router"), "--port", str(ports[2])]
    router += ["--worker-urls", *urls[:2], "--policy", "kv_aware", "--log-level", "debug"]
    router += ["--kv-event-block-size", "16", "--kv-event-model", MODEL]
    router += ["--worker-startup-check-interval", "1", "--prometheus-port", str(ports[7])]
    log = tmp_path / "router.log"
    with ExitStack() as running:

        def start(line, out=subprocess.DEVNULL):
            process = subprocess.Popen(line, stdout=out, stderr=out)
            running.callback(process.wait)
            running.callback(process.kill)

        for k in range(2):
            events = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{ports[3 + k]}"}
            events["replay_endpoint"] = f"tcp://127.0.0.1:{ports[5 + k]}"
            line = [sys.executable, "-m", "kvsim", "serve", MODEL, "--port", str(ports[k])]
            line += ["--clock", str(SPEED)]
            line += ["--kv-events-config", json.dumps(events)]
            for name, value in options.items():
                line += [f"--{name.replace('_', '-')}", str(value)]
            start(line)
            router += ["--kv-event-source", f"{urls[k]}={events['endpoint']}"]
            router += ["--kv-event-replay-source", f"{urls[k]}={events['replay_endpoint']}"]
            wait_for(urls[k])
        start(router, running.enter_context(log.open("w")))
        wait_for(urls[2])
        time.sleep(2)  # its subscribers connect
        found = conversations(f"{urls[2]}/v1/completions")
    text = re.sub(r"\x1b\[[0-9]*m", "", log.read_text())
    credits = re.findall(r"KV prefix decision.*?credited_prefix_tokens=(\d+)", text)
    assert sorted(map(int, credits)) == sorted(hit for *_, hit in found)
    tree, sizes = PromptTree(), [len(prompt) for _, prompt, _ in found]
    spans = [tree.spans(np.array(prompt), k) for k, (_, prompt, _) in enumerate(found)]
    times = [sent for sent, *_ in found]
    trace = Trace.from_arrays(times, sizes, [16] * len(found), segments=spans)
    policy = {"data_parallel_size": 2, "router": "vllm-kv-aware"}
    table = kvsim.simulate(trace, model=MODEL, **options, **policy).requests
    simulated = table["num_cached_tokens"].sum() / sum(sizes)
    served = sum(hit for *_, hit in found) / sum(sizes)
    record_property("hits_served", f"{served:.2%}")
    record_property("hits_simulated", f"{simulated:.2%}")
    assert served == pytest.approx(simulated, abs=0.02)
    assert served > 0.5
