"""Strangers' programs against the live endpoint; each is skipped where it is not installed."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

pytest.importorskip("aiohttp")

import msgspec
import zmq
import zmq.asyncio
from aiohttp.test_utils import TestClient, TestServer

from kvsim.serve.publisher import Publisher, Transport
from kvsim.serve.start import Endpoint, make_server

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
DEPLOYMENT = {
    "model": MODEL,
    "gpu": "h100-sxm",
    "num_gpu_blocks_override": 64,
    "max_model_len": 512,
    "backend": "python",
    "kv_events_config": {"enable_kv_cache_events": True},
}


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
