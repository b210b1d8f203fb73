"""Fleet files of the live endpoint: a port per replica, or one line of refusal."""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

pytest.importorskip("aiohttp")

from aiohttp import ClientError
from aiohttp.test_utils import TestClient, TestServer

from kvsim.cli.main import main
from kvsim.fleet.fabric import fabric_of
from kvsim.fleet.scaling.failures import LEASE
from kvsim.pool_config import PoolConfig
from kvsim.serve import start
from kvsim.serve.failing import HEADER, failures_of
from kvsim.serve.messages import Asked, Completion
from kvsim.serve.metrics import metrics_text
from kvsim.serve.replaying import first_difference
from kvsim.serve.start import Endpoint, handing_over, let_fail, make_server
from kvsim.serve.streams import Reply
from kvsim.stepping.remote import RemoteEngine

BASE = """
model = "llama-3.1-8b"
gpu = "h100-sxm"
backend = "python"
workload = "azure-conv"
num_requests = 600
goodput = { ttft = 1000 }
"""
APART = '[[pool]]\nrole = "prefill"\n[[pool]]\nrole = "decode"\n'


@pytest.mark.long
@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (f'router = "round-robin"\n{APART}', "--router: is for replicas that do whole requests"),
        ('[[pool]]\nautoscaler = "hpa"\n', "fixed number of ports"),
        ("[[pool]]\nno_such_option = 3\n", "no_such_option"),
        ('router = "llm-d"\n[[pool]]\nreplicas = 2\n', "needs scraped metrics"),
        ('failures = "rate+mtbf=100"\n', "failures"),
        ('failures = "rate+policy=migrate"\n', "policy: is up to the gateway"),
        ('failures = "at+time=1+pool=prefill"\n', "pool: there is no pool of that role"),
        ('failures = "rate"\nengine = "sglang"\n', "has no pool of blocks"),
        (f'failures = "at+pool=prefill+replica=1"\n{APART}', "replica must be below 1"),
    ],
    ids=[
        "roles",
        "autoscaler",
        "option",
        "router",
        "failures",
        "policy",
        "role",
        "pool",
        "failing-roles",
    ],
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


PROMPT = list(range(1600))  # 100 blocks


def handed_over(endpoint, body, **given):
    """Run a coroutine of clients against a prefill and a decode replica."""
    pools = [PoolConfig(role=role, name=role) for role in ("prefill", "decode")]
    servers = [server for _, server in handing_over(endpoint, DEPLOYMENT | given, *pools)]

    async def run():
        clients = [TestClient(TestServer(one.app(), handler_cancellation=True)) for one in servers]
        for one in clients:
            await one.start_server()

        async def ask(number, max_tokens, params, failing=None, **options):
            asked = {"prompt": PROMPT, "max_tokens": max_tokens, "kv_transfer_params": params}
            asked |= options
            headers = {} if failing is None else {HEADER: failing}
            answer = await clients[number].post("/v1/completions", json=asked, headers=headers)
            return await (answer.text if options.get("stream") else answer.json)()

        ask.failing = [one.failing for one in servers]
        found = await body(ask, *(one.live for one in servers))
        for one in clients:
            await one.close()
        for one in servers:
            one.close()
        return found

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.long
def test_a_record_of_pools_has_what_transfers_did_and_replays(tmp_path):
    """A transfer that arrives a second later is the first difference of its request."""

    async def body(ask, prefill, decode):
        await ask(1, 3, None, prompt=PROMPT[::-1])
        first = (await ask(0, 1, TO_PREFILL))["kv_transfer_params"]
        await ask(1, 5, first)
        return prefill.engine.row(0)["finish_time"], decode.engine.row(1)

    record = str(tmp_path / "live.jsonl")
    computed, row = handed_over(Endpoint(["m"], record=record), body)
    paths = [tmp_path / f"live.{k}.jsonl.events.jsonl" for k in range(2)]
    prefill, decode = ([json.loads(one) for one in path.read_text().splitlines()] for path in paths)
    assert (prefill[0]["role"], prefill[0]["hold_limit"]) == ("prefill", 256)
    assert [one["event"] for one in prefill[1:]] == ["keep", "end", "release"]
    assert prefill[3]["time"] > computed
    events = ["end", "offer", "receive", "end"]
    assert (decode[0]["role"], [one["event"] for one in decode[1:]]) == ("decode", events)
    assert (decode[2]["request"], decode[2]["num_tokens"]) == (1, 1600)
    assert row["arrival_time"] < decode[3]["time"] < row["first_token_time"]
    records = [str(tmp_path / f"live.{k}.jsonl") for k in range(2)]
    assert [first_difference(one) for one in records] == [(None, 1), (None, 2)]
    decode[3]["time"] += 1
    paths[1].write_text("".join(json.dumps(one) + "\n" for one in decode))
    said = f"request 1: first_token_time: recorded {row['first_token_time']}, replayed "
    difference, _ = first_difference(records[1])
    assert difference.startswith(said)
    assert float(difference.removeprefix(said)) == pytest.approx(row["first_token_time"] + 1)


def test_a_prompt_moves_to_its_decode_replica_as_under_vllms_toy_proxy():
    async def body(ask, prefill, decode):
        first = (await ask(0, 1, TO_PREFILL))["kv_transfer_params"]
        assert prefill.engine.num_free_blocks == 400 - 1 - 100  # held until they are read
        answers = [await ask(1, 5, first), await ask(1, 5, first)]
        return first, *answers, prefill, decode, metrics_text([prefill, decode]).decode()

    first, answer, again, prefill, decode, metrics = handed_over(SLOW, body)
    assert first["do_remote_prefill"]
    assert {"remote_engine_id", "remote_request_id", "remote_host", "remote_port"} <= first.keys()
    assert len(first["remote_block_ids"][0]) == 100
    assert answer["usage"]["completion_tokens"] == 5
    row = decode.engine.row(0)
    took = fabric_of("400g-ib").time(*decode.remote.transfer_size(1600))
    assert row["first_scheduled_time"] >= row["arrival_time"] + took
    assert row["num_cached_tokens"] == 1599  # the last token is computed
    assert prefill.engine.num_free_blocks == 400 - 1
    assert "holds no blocks of request" in again["error"]["message"]
    counts = re.findall(r"vllm:(?:external_)?prefix_cache_(?:\w+)_total\{.* (\d+)", metrics)
    # Queries and hits of the pool, by replica, then those of other replicas.
    assert list(map(int, counts)) == [1600, 1600, 0, 0, 1600, 1600, 0, 1600]


def test_the_clock_of_pools_starts_once_all_engines_are_made(monkeypatch):
    made = []

    def noted(*args):
        made.append((make_server(*args), time.monotonic()))
        return made[-1][0]

    monkeypatch.setattr(start, "make_server", noted)
    pools = [PoolConfig(role=role, name=role) for role in ("prefill", "decode")]
    (_, server), _ = handing_over(Endpoint(["m"]), DEPLOYMENT, *pools)
    assert server.live.clock.at(made[-1][1]) <= 0


@pytest.mark.long
def test_held_requests_are_as_many_as_asked_for():
    """An engine has room for them, compiled or not; one more is turned away in one line."""

    async def body(ask, prefill, _):
        asked = [ask(0, 1, TO_PREFILL, prompt=[k] * 20) for k in range(3)]
        return await asyncio.gather(*asked), prefill.engine._replica.state.kv.num_request_blocks

    found, _ = handed_over(Endpoint(["m"], clock="100", hold_limit=2), body)
    assert ["error" in one for one in found] == [False, False, True]
    assert "2 requests hold blocks for transfers, the --hold-limit" in found[2]["error"]["message"]
    rooms = [handed_over(Endpoint(["m"], hold_limit=most), body)[1] for most in (256, 300)]
    assert rooms[1] - rooms[0] == 300 - 256


def test_blocks_that_no_decode_replica_reads_are_free_after_vllms_lease():
    async def body(ask, prefill, _):
        first = (await ask(0, 1, TO_PREFILL))["kv_transfer_params"]
        assert prefill.engine.num_free_blocks == 400 - 1 - 100
        while prefill.engine.num_free_blocks < 400 - 1:
            await asyncio.sleep(0.01)
        lasted = prefill.clock.now - prefill.engine.row(0)["finish_time"]
        return lasted, await ask(1, 5, first), metrics_text([prefill])

    lasted, late, metrics = handed_over(Endpoint(["m"], clock="100"), body)
    assert lasted >= LEASE
    assert "holds no blocks of request" in late["error"]["message"]
    assert b'nixl_num_kv_expired_reqs_total{engine="0",model_name="m"} 1.0' in metrics


def test_a_request_id_that_comes_twice_frees_blocks_within_a_step_and_advances_none():
    """Steps that are due meanwhile wait: tokens of later steps come after those of this one."""
    pools = [PoolConfig(role=role, name=role) for role in ("prefill", "decode")]
    (_, server), _ = handing_over(Endpoint(["m"], clock="100"), DEPLOYMENT, *pools)
    live, times = server.live, []
    live.metrics.record_tokens = lambda _request, _count, time: times.append(time)

    def submit(name, arrived, prompt, max_tokens, params=None):
        common = Completion(prompt="x", kv_transfer_params=params)
        reply = Reply("m", False, common, len(prompt), request_id=name, arrived=arrived)
        live.submit(Asked(common, [prompt], max_tokens, False), reply)
        return reply

    async def run():
        for _ in range(2):
            now = time.monotonic()
            first = submit("again", now, PROMPT, 1, TO_PREFILL)
            long = submit("long", now, PROMPT[:20], 9)
            time.sleep(0.02)  # 2 s of the replica's clock: all steps are due
            while live.num_open:
                live.advance()
            assert first.kv_transfer_params["remote_num_tokens"] == 1600
            assert long.num_output_tokens == 9

    asyncio.run(run())
    assert times == sorted(times)
    assert live.engine.num_free_blocks == 400 - 1 - 100  # the first's are free


def failing(body, *, record=None, **given):
    """Run a coroutine of clients against two replicas with the failures of a fleet."""
    options = {name: value for name, value in DEPLOYMENT.items() if name != "kv_transfer_fabric"}
    base = Endpoint(["m"], clock="10", record=record)
    servers = [make_server(base.of_replica(k), options) for k in range(2)]
    fleet = options | {"cold_start": 20.0} | given
    let_fail(servers, failures_of(fleet, [PoolConfig(replicas=2)]), fleet, options)

    async def run():
        clients = [TestClient(TestServer(one.app(), handler_cancellation=True)) for one in servers]
        for one in clients:
            await one.start_server()
        found = await body(clients, servers)
        for client, server in zip(clients, servers, strict=True):
            await client.close()
            server.close()
        return found

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_a_stop_text_ends_a_prefill_that_holds_nothing_then():
    async def body(ask, prefill, _):
        stopped = await ask(0, 9, TO_PREFILL, stop=" ")
        held = prefill.handover._keeps, prefill.engine.num_free_blocks
        wrong = await ask(1, 5, {"do_remote_prefill": True, "remote_engine_id": [1]})
        plain = await ask(1, 5, {"do_remote_prefill": False}, n=2)
        return stopped["choices"][0]["finish_reason"], held, wrong, len(plain["choices"])

    reason, held, wrong, number = handed_over(Endpoint(["m"], clock="100"), body)
    assert (reason, held, number) == ("stop", (set(), 400 - 1), 2)
    assert "remote_engine_id and remote_request_id must be texts" in wrong["error"]["message"]


@pytest.mark.long
def test_a_failure_on_demand_leaves_one_timer_of_the_rate_and_wakes_the_replica():
    async def body(clients, servers):
        fails = servers[0].failing
        planned, number = set(), 0
        for _ in range(3):
            planned.add(fails._next)
            assert (await clients[0].post("/sleep")).status == 200
            fails.fail()
            await until(servers[0], is_down=False)
            number += (await (await clients[0].get("/is_sleeping")).json())["is_sleeping"]
        planned.add(fails._next)
        return number, [one.cancelled() for one in planned].count(False)

    assert failing(body, failures="rate+gpu_hours=1000") == (0, 1)


@pytest.mark.long
def test_a_prefill_replica_that_fails_takes_the_kv_with_it_that_is_on_its_way(tmp_path):
    """The engine of a request that loads this KV ends it, and vLLM answers 500 then."""

    async def body(ask, prefill, decode):
        firsts = [(await ask(0, 1, TO_PREFILL))["kv_transfer_params"] for _ in range(3)]
        reading = [ask(1, 5, firsts[0]), ask(1, 5, firsts[1], stream=True)]
        reading = [asyncio.create_task(one) for one in reading]
        while len(prefill.handover._loads) < 2:
            await asyncio.sleep(0.001)
        with pytest.raises(ClientError):
            await ask(0, 1, None, "replica")
        lost, streamed = await asyncio.gather(*reading)
        free = [one.engine.num_free_blocks for one in (prefill, decode)]
        late, again = await ask(1, 5, firsts[2]), await ask(0, 1, TO_PREFILL)
        metrics = metrics_text([decode]).decode()
        return lost, streamed, late, again, free, metrics

    lost, streamed, late, again, free, metrics = handed_over(
        Endpoint(["m"], record=str(tmp_path / "live.jsonl")),
        body,
        kv_transfer_fabric="tcp-ucx",
        cold_start=0.0,
    )
    said = {"message": "Internal server error", "type": "InternalServerError", "code": 500}
    assert lost["error"].items() >= said.items()
    assert json.loads(streamed.splitlines()[0].removeprefix("data: ")) == lost
    assert streamed.endswith("data: [DONE]\n\n")
    assert streamed.count("data:") == 2
    assert free == [400 - 1, 400 - 1]
    assert "holds no blocks of request" in late["error"]["message"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert 'finished_reason="error",model_name="m"} 2.0' in metrics
    records = [str(tmp_path / f"live.{k}.jsonl") for k in range(2)]
    assert [first_difference(one) for one in records] == [(None, 4), (None, 2)]


@pytest.mark.long
def test_a_decode_replica_that_fails_leaves_its_prefill_blocks_to_the_lease(tmp_path):
    """Its own blocks are free at once, those of a request that still loads, too."""

    async def body(ask, prefill, decode):
        running = asyncio.create_task(ask(1, 2000, None, prompt=PROMPT[:200]))
        first = (await ask(0, 1, TO_PREFILL, prompt=PROMPT * 2))["kv_transfer_params"]
        reading = asyncio.create_task(ask(1, 5, first, prompt=PROMPT * 2))
        while not prefill.handover._loads:
            await asyncio.sleep(0)
        ask.failing[1].fail()
        time = decode.clock.now
        free = decode.engine.num_free_blocks, decode.engine.cached_blocks()
        with pytest.raises(ClientError):
            await running
        with pytest.raises(ClientError):
            await reading
        while prefill.engine.num_free_blocks < 400 - 1:
            await asyncio.sleep(0.01)
        return time, free, prefill.clock.now

    record = str(tmp_path / "live.jsonl")
    asked = {"kv_transfer_fabric": "tcp-ucx", "async_scheduling": True}
    time, free, ended = handed_over(Endpoint(["m"], clock="10", record=record), body, **asked)
    assert free == (400 - 1, [])
    assert LEASE - 1 < ended - time < LEASE + 3
    records = [str(tmp_path / f"live.{k}.jsonl") for k in range(2)]
    assert [first_difference(one) for one in records] == [(None, 1), (None, 2)]


def test_a_halt_ends_the_step_that_has_begun():
    engine = RemoteEngine("decode", **DEPLOYMENT, async_scheduling=True)
    request = engine.add_request(PROMPT, 50)
    engine.run_until(0.1)
    engine.abort(request)
    assert engine.num_free_blocks < 400 - 1  # the step still writes to them
    engine.halt()
    assert engine.num_free_blocks == 400 - 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("failures", "times"),
    [
        ("at+time=5+pool=prefill", [5, math.inf]),
        ("at+time=5", [math.inf, 5]),
        ("rate", [math.inf] * 2),
    ],
)
def test_failures_of_pools_are_those_of_a_fleet(failures, times):
    pools = [PoolConfig(role=role, name=role) for role in ("prefill", "decode")]
    pairs = handing_over(Endpoint(["m"]), DEPLOYMENT | {"failures": failures}, *pools)
    assert [server.failing._planned for _, server in pairs] == times
    assert len({id(server.failing._failures) for _, server in pairs}) == 1


async def until(server, *, is_down):
    while server.failing.is_down != is_down:
        await asyncio.sleep(0.005)
    return server.live.clock.now


@pytest.mark.long
@pytest.mark.parametrize("failures", ["at+time=15+replica=1", "rate+gpu_hours=0.003"])
def test_replicas_fail_as_in_a_fleet_and_start_again(failures):
    async def body(clients, servers):
        down = await until(servers[1], is_down=True)
        others = servers[0].failing.is_down
        with pytest.raises(ClientError):
            await clients[1].get("/health")
        await until(servers[1], is_down=False)
        return down, others, (await clients[1].get("/health")).status

    down, others, status = failing(body, failures=failures)
    assert failures.startswith("rate") or (down >= 15 and not others)
    assert status == 200


@pytest.mark.long
def test_a_request_fails_alone_or_its_replica_with_it(tmp_path):
    async def body(clients, servers):
        async def ask(failing=None, **options):
            asked = {"prompt": PROMPT, "max_tokens": 5, **options}
            headers = {} if failing is None else {HEADER: failing}
            return await clients[0].post("/v1/completions", json=asked, headers=headers)

        async def hit():
            return (await (await ask()).json())["usage"]["prompt_tokens_details"]["cached_tokens"]

        statuses = [(await ask(one)).status for one in ("503", "200")]
        hits = [await hit(), await hit()]
        stream = await ask(stream=True, max_tokens=2000)
        await stream.content.readline()
        with pytest.raises(ClientError):
            await ask("replica")
        with pytest.raises(ClientError):  # its end was not sent
            await stream.read()
        with pytest.raises(ClientError):
            await ask()
        lost = servers[0].live
        assert (lost.num_open, lost.engine.num_free_blocks) == (0, 400 - 1)
        await until(servers[0], is_down=False)
        return statuses, [*hits, await hit()]

    statuses, hits = failing(body, record=str(tmp_path / "live.jsonl"))
    assert statuses == [503, 400]
    assert hits == [0, 1584, 0]
    assert first_difference(str(tmp_path / "live.0.jsonl")) == (None, 4)
