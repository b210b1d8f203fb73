"""Live equals offline: recorded sessions of mixed traffic, and a server killed as it records."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from aiohttp import ClientError
from aiohttp.test_utils import TestClient, TestServer

from kvsim.pool_config import PoolConfig
from kvsim.serve.recording import beside
from kvsim.serve.replaying import engine_of, first_difference, lines_of, serve_again
from kvsim.serve.start import Endpoint, handing_over, make_server
from kvsim.serve.tokens import FIRST_OUTPUT, output_id
from kvsim.stepping.engine import Engine

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def deployment_of(rng: random.Random) -> dict[str, object]:
    """Return options under which requests wait, are preempted and hit."""
    return {
        "model": MODEL,
        "gpu": "h100-sxm",
        "backend": "python",
        "num_gpu_blocks_override": rng.choice([33, 45, 400]),
        "max_model_len": 512,
        "max_num_seqs": rng.choice([2, 8]),
        "max_num_batched_tokens": rng.choice([64, 512]),
        "enable_lora": True,
        "scheduling_policy": rng.choice(["fcfs", "priority"]),
        "async_scheduling": rng.choice([True, False]),
        "kv_events_config": {"enable_kv_cache_events": True},
    }


async def talk(client: TestClient, rng: random.Random, number: int) -> None:
    """Have a conversation of one to three turns, which may be broken off."""
    turns = [{"role": "user", "content": f"topic {number % 3} " * rng.randint(1, 40)}]
    for _ in range(rng.randint(1, 3)):
        body = {
            "messages": turns,
            "max_tokens": rng.randint(1, 200),
            "n": rng.choice([1, 1, 1, 3]),
            "priority": rng.randint(0, 3),
            "model": rng.choice([MODEL, "one", "two"]),
            "stream": False,
        }
        if rng.random() < 0.2:
            body["stop"] = f"~{output_id(rng.randint(0, 60), 4) - FIRST_OUTPUT:x}"
        if rng.random() < 0.2:
            body["cache_salt"] = "of one tenant"
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await asyncio.sleep(rng.random() * 0.02)
        if rng.random() < 0.2:
            asked.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asked
            return
        answer = await (await asked).json()
        if "choices" not in answer:  # longer than the model takes
            return
        turns = [*turns, answer["choices"][0]["message"], {"role": "user", "content": "and then?"}]


async def session(seed: int, record: str) -> Engine:
    """Serve a session of mixed traffic; return its engine."""
    rng = random.Random(seed)
    server = make_server(Endpoint([MODEL], clock="6", record=record), deployment_of(rng))
    async with TestClient(TestServer(server.app(), handler_cancellation=True)) as client:
        for name in ("one", "two"):
            await client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": "x"})
        for wave in range(2):
            rngs = [random.Random(seed * 1000 + wave * 100 + k) for k in range(6)]
            await asyncio.gather(*(talk(client, one, k) for k, one in enumerate(rngs)))
            await client.post("/reset_prefix_cache")
        await asyncio.gather(*(talk(client, random.Random(seed + k), k) for k in range(4)))
        await asyncio.sleep(0.05)
        assert server.live.num_open == 0
    server.close()
    return server.live.engine


def names(request: int, first: int, stop: int) -> list[int]:
    """Return token ids that are enough to tell tokens apart."""
    return [request * 4096 + k for k in range(first, stop)]


def assert_replays(record: str, live: Engine) -> None:
    """Tables, blocks stored and removed, and the order of free blocks are those of the live run."""
    difference, number = first_difference(record)
    assert difference is None
    assert number == len(live.trace)
    events = lines_of(beside(record))
    again = engine_of(events[0])
    serve_again(again, lines_of(Path(record)), events)
    assert again.free_queue() == live.free_queue()
    assert again.cached_blocks() == live.cached_blocks()
    assert again.take_kv_events(names) == live.take_kv_events(names)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_recorded_session_replays_block_by_block(seed, tmp_path):
    record = str(tmp_path / "live.jsonl.gz")
    assert_replays(record, asyncio.run(asyncio.wait_for(session(seed, record), 120)))


async def hand_over(clients: list[TestClient], rng: random.Random, number: int) -> None:
    """Send a prompt to a prefill replica and then to a decode replica, or break it off."""
    prompt = [number % 3] * rng.randint(1, 300) + [number]
    body = {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    body["priority"] = rng.randint(0, 3)
    headers = {"X-Request-Id": str(rng.randint(0, 9))}  # some come twice
    await asyncio.sleep(rng.random() * 0.05)
    answer = await clients[0].post("/v1/completions", json=body, headers=headers)
    found = (await answer.json()).get("kv_transfer_params")
    if rng.random() < 0.1 or found is None:  # its blocks stay until the lease ends
        return
    body |= {"max_tokens": rng.randint(1, 60), "kv_transfer_params": found}
    if rng.random() < 0.2:
        body["stop"] = f"~{output_id(rng.randint(0, 30), 4) - FIRST_OUTPUT:x}"
    asked = asyncio.create_task(clients[1].post("/v1/completions", json=body))
    await asyncio.sleep(rng.random() * 0.02)
    if rng.random() < 0.3:
        asked.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await asked).read()


async def session_of_pools(seed: int, record: str) -> list[Engine]:
    """Serve prompts on a prefill and then on a decode replica, which fail under odd seeds."""
    rng = random.Random(seed)
    options = deployment_of(rng) | {"kv_transfer_fabric": "tcp-ucx", "cold_start": 0.01}
    options["num_gpu_blocks_override"] = rng.choice([70, 150, 400])
    pools = [PoolConfig(role=role, name=role) for role in ("prefill", "decode")]
    endpoint = Endpoint([MODEL], clock="6", record=record)
    servers = [server for _, server in handing_over(endpoint, options, *pools)]
    apps = [TestServer(one.app(), handler_cancellation=True) for one in servers]
    loop = asyncio.get_running_loop()
    async with TestClient(apps[0]) as prefill, TestClient(apps[1]) as decode:
        for wave in range(3):
            rngs = [random.Random(seed * 1000 + wave * 100 + k) for k in range(12)]
            for one in [servers[wave % 2]] if seed % 2 else []:
                loop.call_later(rng.uniform(0.06, 0.12), one.failing.fail)
            talks = [hand_over([prefill, decode], one, k) for k, one in enumerate(rngs)]
            found = await asyncio.gather(*talks, return_exceptions=True)
            assert all(one is None or isinstance(one, ClientError) for one in found)
        while any(one.live.num_open for one in servers) or servers[0].live.handover._keeps:
            await asyncio.sleep(0.05)
    for one in servers:
        one.close()
    return [one.live.engine for one in servers]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_recorded_session_of_pools_replays_block_by_block(seed, tmp_path):
    """Transfers, stops, aborts while they load, leases that end, ids that come twice, failures."""
    engines = asyncio.run(asyncio.wait_for(session_of_pools(seed, f"{tmp_path}/l.jsonl.gz"), 120))
    for number, engine in enumerate(engines):
        assert_replays(f"{tmp_path}/l.{number}.jsonl.gz", engine)


@pytest.mark.slow
def test_the_record_of_a_killed_server_is_whole_up_to_its_last_step(tmp_path):
    record = tmp_path / "live.jsonl.gz"
    line = [sys.executable, "-m", "kvsim", "serve", MODEL, "--gpu", "h100-sxm", "--port", "0"]
    line += ["--backend", "python", "--record", str(record), "--clock", "20"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as server:
        said = iter(server.stderr.readline, "")
        url = next(found[0] for one in said if (found := re.search(r"http://\S+:\d+", one)))
        asked = []
        for k in range(30):
            body = {"prompt": f"topic {k % 3} " * 50, "max_tokens": 20 + 40 * k, "stream": True}
            request = urllib.request.Request(
                f"{url}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            asked.append(urllib.request.urlopen(request))
        while sum('"end"' in one for one in beside(str(record)).read_text().splitlines()) < 5:
            time.sleep(0.02)
        os.kill(server.pid, signal.SIGKILL)
    for one in asked:
        one.close()
    difference, number = first_difference(str(record))
    assert difference is None
    assert 5 <= number <= 30
    assert len(lines_of(record)) == 30
