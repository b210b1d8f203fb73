"""Lines of servers as people write them: each runs in one command."""

from __future__ import annotations

import shlex

import pytest

from kvsim.cli import main

SGLANG = "python3 -m sglang.launch_server --model-path"
#: Behind each line: the card, if the line says none, and a few short requests.
FEW = "--workload fixed+prompt=300+output=20 --num-prompts 4 --backend python --json -"
LINES = {
    "eagle": [
        f"{SGLANG} meta-llama/Llama-3.1-8B-Instruct --speculative-algorithm EAGLE3 "
        "--speculative-draft-model-path jamesliu1/sglang-EAGLE3-Llama-3.1-Instruct-8B "
        "--speculative-num-steps 5 --speculative-eagle-topk 8 --speculative-num-draft-tokens 32 "
        "--mem-fraction-static 0.6 --cuda-graph-max-bs 2 --dtype float16 --log-level warning",
        f"{SGLANG} meta-llama/Llama-2-7b-chat-hf --speculative-algorithm EAGLE "
        "--speculative-draft-model-path lmsys/sglang-EAGLE-llama2-chat-7B "
        "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 "
        "--enable-torch-compile --cuda-graph-max-bs 2",
        f"{SGLANG} deepseek-ai/DeepSeek-R1 --tp 8 --trust-remote-code --speculative-algorithm "
        "NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --gpu h200-sxm --quantization fp8",
        f"{SGLANG} Qwen/Qwen3-32B --tp 2 --speculative-algorithm STANDALONE "
        "--speculative-draft-model-path Qwen/Qwen3-0.6B --speculative-num-steps 4 "
        "--speculative-eagle-topk 2 --speculative-num-draft-tokens 7",
        f"{SGLANG} Qwen/Qwen2.5-Coder-7B-Instruct --speculative-algorithm NGRAM "
        "--speculative-num-draft-tokens 16 --host 0.0.0.0 --port 30000",
    ],
    "states": [
        f"{SGLANG} Qwen/Qwen3-Next-80B-A3B-Instruct --tp 4",
        f"{SGLANG} Qwen/Qwen3-Next-80B-A3B-Thinking --tp-size 8 --context-length 262144 "
        "--mem-fraction-static 0.8 --reasoning-parser deepseek-r1",
        f"{SGLANG} Qwen/Qwen3-Next-80B-A3B-Instruct --tp 4 --mamba-ssm-dtype bfloat16 "
        "--mamba-full-memory-ratio 1.2 --max-running-requests 64",
        f"{SGLANG} Qwen/Qwen3-Next-80B-A3B-Instruct --tp 4 --disable-radix-cache "
        "--chunked-prefill-size 16384",
        f"{SGLANG} Qwen/Qwen3-Next-80B-A3B-Instruct --tp 4 --mamba-radix-cache-strategy "
        "extra_buffer --mamba-track-interval 128 --page-size 64 --attention-backend fa3",
    ],
    "dcp": [
        f"vllm serve {model} --gpu h200-sxm -tp 8 {more}"
        for model, more in (
            ("moonshotai/Kimi-K2-Thinking", "--decode-context-parallel-size 8"),
            ("moonshotai/Kimi-K2-Instruct", "-dcp 8 --quantization int4 --max-model-len 131072"),
            ("deepseek-ai/DeepSeek-R1", "-dcp 8 --gpu-memory-utilization 0.95"),
            (
                "deepseek-ai/DeepSeek-V3",
                "--decode-context-parallel-size=8 --max-num-seqs 64",
            ),
            ("deepseek-ai/DeepSeek-V3.1", "-dcp 8 --kv-cache-dtype fp8 --max-num-seqs 256"),
        )
    ],
    "lmcache": [
        f"vllm serve {model} --kv-transfer-config '{given}' {more}"
        for given in ('{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}',)
        for model, more in (
            ("meta-llama/Llama-3.1-8B-Instruct", ""),
            ("Qwen/Qwen3-8B", "--max-model-len 16384 --port 8000"),
            ("Qwen/Qwen3-32B", "-tp 2 --gpu-memory-utilization 0.8"),
            ("mistralai/Mistral-7B-Instruct-v0.2", "--enforce-eager"),
            ("Qwen/Qwen2.5-7B-Instruct", "--max-num-batched-tokens 4096"),
        )
    ],
    "trtllm": [
        f"trtllm-serve {line}"
        for line in (
            "meta-llama/Llama-3.1-8B-Instruct --host 0.0.0.0 --port 8000",
            "Qwen/Qwen3-8B --max_batch_size 64 --max_num_tokens 8192",
            "Qwen/Qwen3-32B --tp_size 2 --kv_cache_free_gpu_memory_fraction 0.85",
            "serve meta-llama/Llama-3.1-70B-Instruct --tp_size 4 --max_seq_len 16384",
            "Qwen/Qwen3-30B-A3B --backend pytorch --ep_size 2 --tp_size 2",
        )
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for kind in LINES.values() for line in kind])
def test_a_pasted_line_runs_in_one_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    card = "" if "--gpu " in line else "--gpu h100-sxm"
    main(["run", *shlex.split(f"{line} {card} {FEW}")])
    assert '"completed": 4' in capsys.readouterr().out
