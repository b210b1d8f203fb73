"""Fleet files of the live endpoint: a port per replica, or one line of refusal."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("aiohttp")

from kvsim.cli.main import main

BASE = """
model = "llama-3.1-8b"
gpu = "h100-sxm"
backend = "python"
workload = "azure-conv"
num_requests = 600
goodput = { ttft = 1000 }
"""


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ('[[pool]]\nrole = "prefill"\n[[pool]]\nrole = "decode"\n', "pool 'prefill' does prefill"),
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
