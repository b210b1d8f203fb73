"""What is too large is one line at once, and what was cut off is said."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.compiled import machine
from kvsim.trace import Trace

RUN = ["run", "gpt2", "--gpu", "l4", "--num-requests", "5"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-dp 2 --router chwbl+points=1000000000", "points=1000000000: "),
        ("-dp 2 --router session+points=1000000000", "points=1000000000: "),
        ("-dp 2 --router random+gateways=1000000000", "a whole number from 1 to 4096"),
        (
            "--autoscaler hpa+max=1000000000",
            "max=1000000000: must be a whole number from 1 to 4096",
        ),
        ("--num-prefill-workers 1000000000 --num-decode-workers 1", "4096"),
        ("--num-requests 1000000000", "100000000"),
        ("--num-gpu-blocks-override 100000000 --record-memory-map", "too many to draw"),
        (
            "--num-gpu-blocks-override 1000000000 --backend python",
            "bytes for 1,000,000,000 records of kind Block as Python objects",
        ),
        ("--request-rate 1e308", "request_rate must be from 1e-09 to 1e+12 per second, or inf"),
        ("--request-rate 1e-308", "request_rate must be from 1e-09 to 1e+12 per second, or inf"),
    ],
)
@pytest.mark.timeout(60)
def test_what_is_too_large_is_one_line_at_once(
    capsys: pytest.CaptureFixture[str], flags: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*RUN, *flags.split()])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("kvsim: ")
    assert error.count("\n") == 1
    assert said in error


def test_a_pool_has_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.toml").write_text(
        'model = "gpt2"\ngpu = "l4"\n[[pool]]\nrole = "mixed"\nreplicas = 1000000000\n'
    )
    with pytest.raises(SystemExit):
        main(["run", str(tmp_path / "fleet.toml")])
    assert "replicas is 1000000000: must be at most 4,096" in capsys.readouterr().err


@pytest.mark.long
def test_memory_that_the_system_refuses_is_one_line_with_its_size() -> None:
    def little() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))

    command = [sys.executable, "-m", "kvsim", *RUN, "--num-gpu-blocks-override", "1000000000"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=little,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("kvsim: too large: ")
    assert "bytes for 1,000,000,000 records of kind Block" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_a_replica_that_takes_anothers_place_needs_no_gpus_of_its_own() -> None:
    trace = workloads.fixed(prompt=100, output=200, num_requests=20, request_rate=2.0)
    result = kvsim.simulate(
        trace,
        model="gpt2",
        gpu="l4",
        data_parallel_size=2,
        failures="at+time=1+replica=0+policy=retry",
        cold_start=1.0,
        backend="python",
    )
    assert len(result.summary["replicas"]) == 3
    assert result.summary["num_gpus"] == 2


@pytest.mark.long
def test_outputs_that_are_cut_off_are_counted_and_said() -> None:
    trace = Trace.from_arrays([0.0, 0.0], [2, 3], [9, 8])
    options = {"model": "falcon-7b", "gpu": "h200-sxm", "backend": "python"}
    cut = kvsim.simulate(trace, **options, engine="sglang", page_size=16, max_total_tokens=41)
    assert cut.requests["num_output_tokens"].tolist() == [1, 1]
    assert cut.summary["num_clipped"] == 2
    said = "2 requests received fewer tokens than requested: prompt and output must fit"
    assert f"{said} the pool of 32 tokens" in cut.provenance["notes"]
    short = kvsim.simulate(trace, **options, max_model_len=11)
    assert short.summary["num_clipped"] == 0
    short = kvsim.simulate(trace, **options, max_model_len=10)
    assert short.summary["num_clipped"] == 2
    assert f"{said} max_model_len (10)" in short.provenance["notes"]


def test_a_full_disk_leaves_a_run_uncached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path, code: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    text = "define i64 @full() {\nret i64 1\n}"
    assert machine.address_in(machine.library_of("full", tmp_path, lambda: text), "full")
    said = f"kvsim: note: compiled code is not cached: {tmp_path}: No space left on device\n"
    assert capsys.readouterr().err == said
    with machine.alone(tmp_path / "no folder" / "lock"):  # nor can a lock be made
        pass


def test_a_process_says_that_it_waits_for_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    has_it, let_go = threading.Event(), threading.Event()

    def compile_elsewhere() -> None:
        with machine.alone(tmp_path / "lock"):
            has_it.set()
            let_go.wait(30)

    other = threading.Thread(target=compile_elsewhere)
    other.start()
    has_it.wait(30)
    threading.Timer(0.2, let_go.set).start()
    with machine.alone(tmp_path / "lock"):
        pass
    other.join()
    said = capsys.readouterr().err
    assert said.startswith("kvsim: waiting for another process to compile the code")
    assert said.count("\n") == 1
