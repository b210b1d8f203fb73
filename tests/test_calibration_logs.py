"""Start-up logs of real servers, through terminals and containers, whole and cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.calibration.memory import overhead_of
from kvsim.calibration.read_log import read_startup
from kvsim.calibration.server import Server, server_of
from kvsim.calibration.startup import Startup
from kvsim.calibration.text import plain
from kvsim.engine.capacity import capacity

LOGS = Path(__file__).parent / "data" / "logs"

#: What a reader sees in the excerpts: version, GiB, blocks, tokens, and some options.
TOLD: dict[str, tuple[str, dict[str, float], int | None, int | None, dict[str, Any]]] = {
    "vllm-0.4.1": (
        "0.4.1",
        {"weights": 14.9595},
        2358,
        None,
        {"model": "Meta-Llama-3-8B-Instruct", "max_model_len": 8192, "max_num_seqs": 256},
    ),
    "vllm-0.6-dev": (
        "",
        {
            **{"memory": 79.22, "weights": 14.96, "non_torch": 1.79},
            **{"activations": 1.26, "kv_cache": 53.29},
        },
        None,
        None,
        {"gpu_memory_utilization": 0.9},
    ),
    "vllm-0.7-dev": (
        "",
        {
            **{"memory": 79.22, "weights": 19.86, "non_torch": 0.16},
            **{"activations": 36.63, "kv_cache": 14.65},
        },
        6001,
        None,
        {"gpu_memory_utilization": 0.9},
    ),
    "vllm-0.7.1": (
        "0.7.1",
        {"weights": 30.7098},
        None,
        None,
        {"tensor_parallel_size": 2, "enforce_eager": True, "max_model_len": 12288},
    ),
    "vllm-0.8-dev": (
        "",
        {
            **{"memory": 79.33, "weights": 32.95, "non_torch": 0.28},
            **{"activations": 1.3, "kv_cache": 36.07},
        },
        29547,
        None,
        {"gpu_memory_utilization": 0.89, "max_model_len": 131072},
    ),
    "vllm-0.8.3": ("0.8.3", {}, None, None, {"quantization": "awq", "dtype": "torch.float16"}),
    "vllm-0.8-v1": ("", {"weights": 14.9889}, None, 158656, {"max_model_len": 32768}),
    "vllm-0.9.0.1": (
        "0.9.0",
        {"weights": 3.3466},
        70688,
        1131008,
        {"enable_prefix_caching": True, "enable_chunked_prefill": True},
    ),
    "vllm-0.12-dev": (
        "",
        {"memory": 44.4, "weights": 13.72, "activations": 1.83, "non_torch": 0.04},
        None,
        None,
        {"gpu_memory_utilization": 0.9},
    ),
    "vllm-0.12.0": ("0.12.0", {}, None, None, {"tensor_parallel_size": 2, "max_model_len": 16384}),
    "vllm-0.18-dev": ("", {"kv_cache": 17.36}, None, 188640, {}),
    "vllm-0.19.0": (
        "0.19.0",
        {"weights": 33.98, "kv_cache": 5.11},
        None,
        67024,
        {"tensor_parallel_size": 4, "async_scheduling": True, "model": "Qwen/Qwen2.5-72B-Instruct"},
    ),
    "vllm-0.20.0": (
        "0.20.0",
        {"weights": 21.86, "kv_cache": 3.07, "cuda_graphs": 0.39},
        None,
        79648,
        {"kv_cache_dtype": "fp8_e4m3", "max_num_seqs": 1, "block_size": 2096},
    ),
    "vllm-0.23.0": (
        "0.23.0",
        {"weights": 58.99, "kv_cache": 28.41, "cuda_graphs": 0.13},
        None,
        97541,
        {"gpu_memory_utilization": 0.94, "max_num_batched_tokens": 8192},
    ),
    "vllm-journal": ("", {"kv_cache": 5.35}, None, 215401, {"max_model_len": 8192}),
    "sglang-0.4.3": (
        "",
        {"weights": 15.54, "kv_cache": 2.84},
        None,
        46611,
        {"tensor_parallel_size": 4, "max_num_batched_tokens": 2048, "max_num_seqs": 2048},
    ),
}


def test_every_excerpt_is_looked_at_and_six_versions_name_themselves() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(TOLD)
    versions = {told[0] for name, told in TOLD.items() if name.startswith("vllm")} - {""}
    assert len(versions) >= 6
    sources = (LOGS / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}.log`" in sources for name in TOLD)


def check(name: str, path: Path) -> None:
    found = read_startup(path)
    version, memory, blocks, tokens, args = TOLD[name]
    assert found.engine == name.partition("-")[0]
    assert found.version == version
    assert found.memory == pytest.approx(memory)
    assert (found.num_gpu_blocks, found.num_tokens) == (blocks, tokens)
    assert {key: found.args.get(key) for key in args} == args


@pytest.mark.parametrize("name", sorted(TOLD))
def test_logs_of_real_servers_are_read(name: str) -> None:
    check(name, LOGS / f"{name}.log")


def coloured(line: str) -> str:
    return f"\x1b[1;36m{line[:9]}\x1b[0;0m{line[9:]}\x1b[K"


def docker_json(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-01-01T00:00:00Z"})


@pytest.mark.parametrize(
    "through",
    [
        coloured,
        docker_json,
        lambda line: f"vllm-1  | {line}",
        lambda line: f"\x1b[33mvllm-1  |\x1b[0m {line}",
        lambda line: f"[pod/vllm-788d98bbfd-r2tjg/vllm] {line}",
        lambda line: f"2025-09-10T12:00:00.123456789Z stderr F {line}",
        lambda line: f"Loading:  10%\rLoading: 100%\r{line}\r",
    ],
)
def test_terminals_and_containers_change_nothing(through: Any, tmp_path: Path) -> None:
    for name in TOLD:
        lines = (LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines()
        path = tmp_path / f"{name}.log"
        path.write_bytes("".join(f"{through(line)}\r\n" for line in lines).encode())
        check(name, path)


@pytest.mark.parametrize("name", sorted(TOLD))
def test_a_log_cut_anywhere_tells_less_and_nothing_else(name: str, tmp_path: Path) -> None:
    whole = (LOGS / f"{name}.log").read_bytes()
    full = read_startup(LOGS / f"{name}.log")
    path = tmp_path / "server.log"
    for share in range(1, 40):
        path.write_bytes(whole[: len(whole) * share // 40])
        try:
            found = read_startup(path)
        except ValueError as error:
            assert "must be a start-up log" in str(error)  # noqa: PT017
            continue
        for key in ("num_gpu_blocks", "num_tokens"):
            assert getattr(found, key) in (None, getattr(full, key))
        assert found.version in ("", full.version)
        for part, gib in found.memory.items():  # what another process said, or a sum of both
            assert gib == full.memory[part] or f"{gib:g}".encode() in whole
        assert found.memory.keys() <= full.memory.keys()
        for option in ("max_model_len", "tensor_parallel_size", "max_num_batched_tokens"):
            assert found.args.get(option) in (None, full.args.get(option))


def test_several_processes_speak_and_the_least_kv_counts() -> None:
    from kvsim.engines.vllm.calibration import startup_of

    lines = [f"Available KV cache memory: {gib} GiB" for gib in (12.5, 11.75, 12.0)]
    assert startup_of("\n".join(lines)).memory["kv_cache"] == 11.75


def test_the_length_that_the_memory_chose_is_the_one_that_counts() -> None:
    from kvsim.engines.vllm.calibration import startup_of

    lines = (
        "non-default args: {'model': 'meta-llama/Llama-3.1-8B', 'max_model_len': -1}",
        "Using max model len 131072 ",
        "Auto-fit max_model_len: reduced from 131072 to 27760 to fit in available GPU memory",
        "Maximum concurrency for 27,760 tokens per request: 1.00x",
    )
    assert startup_of("\n".join(lines)).args["max_model_len"] == 27_760


def test_a_log_becomes_options() -> None:
    server = server_of(read_startup(LOGS / "vllm-0.19.0.log"), {"gpu": "l40s"})
    assert server.options["model"] == "Qwen/Qwen2.5-72B-Instruct"
    assert server.options["num_gpu_blocks_override"] == 67024 // 16
    assert server.options["vllm_version"] == "0.19.0"
    assert server.options["async_scheduling"] is True
    old = server_of(read_startup(LOGS / "vllm-0.4.1.log"), {"gpu": "rtx-3090"})
    assert old.options["scheduler"] == "vllm-v0"
    assert old.options["num_gpu_blocks_override"] == 2358
    asked = {"gpu": "rtx-3090", "model": "llama-3-8b", "num_gpu_blocks_override": 100}
    own = server_of(read_startup(LOGS / "vllm-0.4.1.log"), asked)
    assert own.options["num_gpu_blocks_override"] == 100


def test_versions_that_schedule_one_step_at_a_time_do_so() -> None:
    args = {"model": "llama-3-8b"}
    options = [
        server_of(Startup("vllm", version, args), {"gpu": "h100-sxm"}).options
        for version in ("0.7.1", "0.12.0", "0.19.0")
    ]
    assert [one.get("async_scheduling") for one in options] == [None, False, None]
    assert options[0]["scheduler"] == "vllm-v0"


def test_groups_of_layers_are_pinned_by_their_bytes() -> None:
    args = {"model": "gemma-3-12b", "max_model_len": 32768}
    startup = Startup("vllm", "0.23.0", args, {"kv_cache": 28.41}, None, 97541)
    server = server_of(startup, {"gpu": "h100-sxm"})
    assert "num_gpu_blocks_override" not in server.options
    assert server.options["logged"] == {"kv_cache": 28.41}


@pytest.mark.parametrize(
    ("startup", "given", "told"),
    [
        (
            Startup("vllm"),
            {"model": "llama-3-8b"},
            "--gpu is missing: the log does not name the GPU",
        ),
        (
            Startup("vllm", memory={"memory": 79.2}),
            {"model": "llama-3-8b"},
            "--gpu: the log does not name the GPU, and its 79.2 GiB are those of a100-80gb",
        ),
        (Startup("vllm"), {"gpu": "h100-sxm"}, "--model: the log does not name it"),
        (
            Startup("vllm", args={"model": "/models/our-own"}),
            {"gpu": "h100-sxm"},
            "--model: /models/our-own is not in the catalogue: give another, or",
        ),
    ],
)
def test_what_a_log_leaves_open_is_asked_for(
    startup: Startup, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=r"^--|^the log") as raised:
        server_of(startup, given)
    assert told in str(raised.value)


def test_what_is_not_modelled_is_said() -> None:
    args = {
        **{"model": "llama-3-8b", "cpu_offload_gb": 4, "num_scheduler_steps": 8},
        **{"decode_context_parallel_size": 1, "speculative_config": {"method": "mtp"}},
    }
    server = server_of(Startup("vllm", "0.6.3", args), {"gpu": "h100-sxm"})
    assert [text.partition(":")[0] for text in server.unmodelled] == [
        "num-scheduler-steps",
        "speculative-config",
    ]
    sglang = server_of(
        read_startup(LOGS / "sglang-0.4.3.log"), {"gpu": "l4", "model": "qwen2.5-32b"}
    )
    assert "simulates vLLM's scheduler, not SGLang's" in sglang.notes[0]


def test_overhead_is_what_weights_and_kv_leave() -> None:
    startup = read_startup(LOGS / "vllm-0.6-dev.log")
    server = server_of(startup, {"model": "llama-3-8b", "gpu": "h100-sxm", "vllm_version": "0.6.6"})
    found = overhead_of(server)
    assert found is not None
    assert found.gib == pytest.approx(1.79 + 1.26, abs=0.01)  # the log's own parts
    assert found.half_width < 0.02
    options = {k: v for k, v in server.options.items() if k != "logged"}
    kv = capacity(**options, logged=found.parts).budget_bytes["kv_cache"] / 2**30
    assert kv == pytest.approx(53.29, abs=0.01)


def test_what_the_log_does_not_split_still_leaves_its_blocks() -> None:
    startup = read_startup(LOGS / "vllm-0.4.1.log")
    server = server_of(startup, {"gpu": "rtx-3090"})
    found = overhead_of(server)
    assert found is not None
    options = {k: v for k, v in server.options.items() if k != "num_gpu_blocks_override"}
    assert capacity(**options, logged=found.parts).num_gpu_blocks == pytest.approx(2358, abs=1)


def test_a_log_without_kv_memory_has_no_overhead() -> None:
    assert overhead_of(Server({"model": "llama-3-8b", "gpu": "h100-sxm"}, {}, (), ())) is None


def test_docker_lines_that_are_no_json_stay() -> None:
    assert plain('{"log": broken') == '{"log": broken'
