"""Fleet files of the live endpoint: a port per replica, or one line of refusal."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("aiohttp")

from aiohttp.test_utils import TestClient, TestServer

from kvsim.cli.main import main
from kvsim.fleet.fabric import fabric_of
from kvsim.pool_config import PoolConfig
from kvsim.serve.start import Endpoint, handing_over

BASE = """
model = "llama-3.1-8b"
gpu = "h100-sxm"
backend = "python"
workload = "azure-conv"
num_requests = 600
goodput = { ttft = 1000 }
"""
APART = '[[pool]]\nrole = "prefill"\n[[pool]]\nrole = "decode"\n'


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (f'router = "round-robin"\n{APART}', "--router: is for replicas that do whole requests"),
        ('[[pool]]\nautoscaler = "hpa"\n', "fixed number of ports"),
        ("[[pool]]\nno_such_option = 3\n", "no_such_option"),
        ('router = "llm-d"\n[[pool]]\nreplicas = 2\n', "needs scraped metrics"),
        ('failures = "rate+mtbf=100"\n', "failures"),
    ],
    ids=["roles", "autoscaler", "option", "router", "failures"],
)
def test_a_fleet_that_is_not_served_is_refused_in_one_line(rest, said, tmp_path, capsys):
    path = tmp_path / "fleet.toml"
    path.write_text(BASE + rest)
    with pytest.raises(SystemExit, match="2"):
        main(["serve", str(path)])
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_fleet_file_opens_a_port_per_replica_and_one_of_its_router(tmp_path):
    path = tmp_path / "fleet.toml"
    pool = "[[pool]]\nreplicas = 2\nnum_gpu_blocks_override = 77\n"
    path.write_text(BASE + 'router = "round-robin"\n' + pool)
    line = [sys.executable, "-m", "kvsim", "serve", str(path), "--port", "0"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as server:
        said = iter(server.stderr.readline, "")
        urls = []
        while len(urls) < 3:
            urls += re.findall(r"http://\S+:\d+", next(said))
        answers = [urllib.request.urlopen(f"{url}/get_server_info").read() for url in urls]
        server.send_signal(signal.SIGTERM)
    assert server.returncode == 0
    assert [one.count(b'"num_gpu_blocks":77') > 0 for one in answers] == [True] * 3
    assert b'"data_parallel_size":2' in answers[2]


DEPLOYMENT = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "backend": "python",
    "num_gpu_blocks_override": 400,
    "max_model_len": 4096,
    "kv_transfer_fabric": "400g-ib",
}
#: A clock on which the server's own delays are short.
SLOW = Endpoint(["m"], clock="0.05")
#: What vLLM's toy proxy adds to the request for the prefill replica.
TO_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}


def test_a_prompt_moves_to_its_decode_replica_as_under_vllms_toy_proxy():
    pools = [PoolConfig(role=role, name=role) for role in ("prefill", "decode")]
    (_, prefill), (_, decode) = handing_over(SLOW, DEPLOYMENT, *pools)
    prompt = list(range(1600))

    async def run():
        clients = [TestClient(TestServer(one.app())) for one in (prefill, decode)]
        for one in clients:
            await one.start_server()

        async def ask(client, max_tokens, params):
            body = {"prompt": prompt, "max_tokens": max_tokens, "kv_transfer_params": params}
            return await (await client.post("/v1/completions", json=body)).json()

        first = (await ask(clients[0], 1, TO_PREFILL))["kv_transfer_params"]
        assert prefill.live.engine.num_free_blocks == 400 - 1 - 100  # held until they are read
        answer = await ask(clients[1], 5, first)
        again = await ask(clients[1], 5, first)
        for one in clients:
            await one.close()
        return first, answer, again

    first, answer, again = asyncio.run(asyncio.wait_for(run(), 60))
    assert first["do_remote_prefill"]
    assert {"remote_engine_id", "remote_request_id", "remote_host", "remote_port"} <= first.keys()
    assert len(first["remote_block_ids"][0]) == 100
    assert answer["usage"]["completion_tokens"] == 5
    row = decode.live.engine.row(0)
    took = fabric_of("400g-ib").time(*decode.live.remote.transfer_size(1600))
    assert row["first_scheduled_time"] >= row["arrival_time"] + took
    assert row["num_cached_tokens"] == 1599  # the last token is computed
    assert prefill.live.engine.num_free_blocks == 400 - 1
    assert "holds no blocks of request" in again["error"]["message"]
