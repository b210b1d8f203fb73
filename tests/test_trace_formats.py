"""Files of benchmark clients and of OpenAI's interface: the trace of a small sample of each."""

import gzip
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.trace import Trace
from workloads.readers import split_options
from workloads.texts import Characters, Messages, tokenizer_of

SAMPLES = Path(__file__).parent / "data" / "trace_formats"
BY_CHARACTERS = (
    "token counts estimated: 4 characters per token, rounded up; "
    "a chat template's own tokens are not counted"
)


def digest_of(*columns, **more):
    return Trace.from_arrays(*columns, **more).digest


def cached(trace, **options):
    """Return cached tokens per request where nothing is ever evicted."""
    config = {"model": "opt-125m", "gpu": "a100-80gb", "block_size": 1, "backend": "python"}
    config |= {
        "max_num_seqs": 1,
        "num_gpu_blocks_override": 4000,
    }  # one after another, in their order
    return kvsim.simulate(trace, **config, **options).requests["num_cached_tokens"].tolist()


@pytest.fixture
def write(tmp_path):
    def write(rows, name="trace.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def call(capsys):
    from kvsim.cli import main

    def call(*arguments):
        code = 0
        try:
            main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


# -- messages ------------------------------------------------------------------------------------

SYSTEM = "You are a careful assistant of a railway."  # 41 characters, 11 tokens


def test_conversations_are_turns_that_share_beginnings_and_name_answers():
    loaded = workloads.read(SAMPLES / "openai_chat.jsonl")
    assert loaded.format == "openai-chat"
    assert loaded.notes == (
        BY_CHARACTERS,
        "no arrival times in this file: all requests arrive at time 0",
    )
    trace = loaded.trace
    # 34 characters of a question are 9 tokens; both questions begin alike for 24 characters.
    assert trace.num_prompt_tokens.tolist() == [20, 20 + 7 + 4, 20, 11 + 4]
    assert trace.num_output_tokens.tolist() == [7, 3, 7, 20]
    assert trace.session_id.tolist() == [0, 0, 1, 2]
    # The second turn hits its prompt and the answer before it, but for the token it goes on from.
    assert cached(trace) == [0, 26, 11 + 6, 11]


def test_a_log_of_requests_has_times_usage_and_answers(write):
    loaded = workloads.read(SAMPLES / "openai_requests.jsonl")
    assert loaded.format == "openai-chat"
    assert "usage reports 25 prompt tokens, kvsim counts 20" in loaded.notes
    assert "dropped parts of messages that are no text: 1" in loaded.notes
    assert "timestamp read as dates" in loaded.notes
    trace = loaded.trace
    assert trace.arrival_time.tolist() == [0, 3]
    assert trace.num_prompt_tokens.tolist() == [20, 31]
    assert trace.num_output_tokens.tolist() == [9, 64]  # as usage tells, and max_tokens
    assert cached(trace) == [0, 27]  # 20 of the prompt, and all 7 of the answer's text: 9 were made


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        ([1.5, 0.5], "seconds"),
        ([1_700_000_001.5, 1_700_000_000.5], "seconds"),
        ([1_700_000_001_500, 1_700_000_000_500], "milliseconds"),
        ([1_700_000_001_500_000_000, 1_700_000_000_500_000_000], "nanoseconds"),
        (["2026-01-31 12:00:01.5", "2026-01-31T12:00:00.5Z"], "dates"),
    ],
)
def test_times_of_a_log_are_told_by_their_size_and_sorted(write, times, unit):
    rows = [
        {"timestamp": time, "messages": [{"role": "user", "content": text}], "max_tokens": 7}
        for time, text in zip(times, ("later", "earlier"), strict=True)
    ]
    loaded = workloads.read(write(rows))
    assert f"timestamp read as {unit}" in loaded.notes
    assert loaded.trace.arrival_time.tolist() == [0, 1]
    assert loaded.trace.num_prompt_tokens.tolist() == [2, 2]


def test_a_batch_comes_at_once_and_is_as_long_as_it_may_be(write):
    loaded = workloads.read(SAMPLES / "openai_batch.jsonl")
    assert loaded.format == "openai-batch"
    assert loaded.trace.num_prompt_tokens.tolist() == [7 + 3, 7 + 5]
    assert loaded.trace.num_output_tokens.tolist() == [1000, 50]
    assert "output lengths are max_tokens, where a body has it" in loaded.notes
    assert cached(loaded.trace) == [0, 7 + 1]  # "Hell" is common
    body = {"model": "m", "prompt": "Hello, world!"}
    loaded = workloads.read(write([{"custom_id": "a", "url": "/v1/completions", "body": body}]))
    assert loaded.trace.num_prompt_tokens.tolist() == [4]
    assert loaded.trace.num_output_tokens.tolist() == [256]
    assert loaded.notes[1].startswith("1 of 1 requests have no output length: 256 tokens each")
    rows = [{"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "x"}}]
    with pytest.raises(ValueError, match=r"line 1: url is '/v1/embeddings': such a request gener"):
        workloads.load(write(rows))


def test_tools_and_calls_are_text(write):
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    user = {"role": "user", "content": "1234"}
    tools = [{"type": "function", "function": {"name": "f"}}]
    rows = [{"messages": [user, call, {"role": "tool", "content": "5678"}], "tools": tools}]
    trace = workloads.load(write(rows), output_tokens=9)
    texts = (json.dumps(tools), "1234", json.dumps(call["tool_calls"]), "5678")
    assert trace.num_prompt_tokens.tolist() == [sum(math.ceil(len(t) / 4) for t in texts)]
    assert trace.num_output_tokens.tolist() == [9]


def test_characters_of_a_token_are_an_option(write):
    rows = [{"messages": [{"role": "user", "content": "x" * 10}], "max_tokens": 3}]
    path = write(rows)
    loaded = workloads.read(path, chars_per_token=2.5)
    assert loaded.trace.num_prompt_tokens.tolist() == [4]
    assert loaded.notes[0].startswith("token counts estimated: 2.5 characters per token")
    assert Characters(2.5).tokens("x" * 10) == ["xx", "xxx", "xx", "xxx"]
    with pytest.raises(ValueError, match=r"chars_per_token must be at least 0.1, got 0$"):
        workloads.load(path, chars_per_token=0)
    with pytest.raises(ValueError, match="chars-per-token=four: must be a number"):
        workloads.load(path, chars_per_token="four")


def test_a_tokenizer_counts_instead():
    pytest.importorskip("tokenizers")
    file = str(SAMPLES / "words.tokenizer.json")
    loaded = workloads.read(SAMPLES / "openai_batch.jsonl", tokenizer=file)
    # "You are a helpful assistant." has 6 words, "Hello world!" 3, "Hello there, world" 4.
    assert loaded.trace.num_prompt_tokens.tolist() == [9, 10]
    assert loaded.notes[0].startswith(f"tokens counted by {file}, text by text")
    assert cached(loaded.trace) == [0, 7]


def test_a_tokenizer_that_cannot_be_used_is_one_line(monkeypatch):
    batch = SAMPLES / "openai_batch.jsonl"
    with pytest.raises(ValueError, match=r"^tokenizer no.json: no such file; give the model's tok"):
        workloads.load(batch, tokenizer="no.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    tokenizer_of.cache_clear()
    file = str(SAMPLES / "words.tokenizer.json")
    with pytest.raises(ValueError, match=r"needs the package tokenizers: pip install 'kvsim\[tok"):
        workloads.load(batch, tokenizer=file)


def test_messages_share_the_most_they_begin_with():
    """Against a plain comparison of all pairs, over random texts of two letters."""
    rng = np.random.default_rng(0)
    said = []
    for _ in range(60):
        size = rng.integers(1, 4)
        said.append(["".join(rng.choice(["a", "b"], rng.integers(1, 9))) for _ in range(size)])
    messages = Messages(Characters(1))
    last = []
    for texts in said:
        place = -1
        for i, text in enumerate(texts):
            place = messages.say(place, "user" if i % 2 == 0 else "tool", text)
        last.append(place)
    flat = [[(c, s + j) for c, s, n in messages.prompt(place) for j in range(n)] for place in last]

    def shared(a, b):
        same = [x == y for x, y in zip(a, b, strict=False)]
        return same.index(False) if False in same else len(same)

    def expected(a, b):
        tokens = 0
        for x, y in zip(a, b, strict=False):
            tokens += shared(x, y)
            if x != y:
                break
        return tokens

    for i, a in enumerate(flat):
        for j, b in enumerate(flat):
            assert shared(a, b) == expected(said[i], said[j])


# -- reports of benchmark clients ------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_detailed_result_of_vllm_over_several_lines(tmp_path, pack):
    path = tmp_path / "result"
    path.write_bytes(pack((SAMPLES / "vllm_bench_serve.json").read_bytes()))
    loaded = workloads.read(path)
    assert loaded.format == "vllm-bench-serve"
    assert loaded.notes[0] == "dropped 1 of 3 requests: they failed"
    assert loaded.trace.digest == digest_of([0, 1.25], [100, 200], [5, 3])


def test_a_result_without_its_requests_says_how_to_save_them(write):
    kept = {"mean_ttft_ms": 1.0, "request_throughput": 2.0, "completed": 3}
    with pytest.raises(ValueError, match=r"save it with --save-detailed \(vLLM\)"):
        workloads.load(write([kept]))


def test_runs_of_sglang_are_chosen_and_their_times_drawn():
    path = SAMPLES / "sglang_bench.jsonl"
    told = r"holds 2 runs \(1 rate 4.0; 2 rate inf, 8 at once\): give one, as in .*\+run=1$"
    for wrong in ({}, {"run": 3}, {"run": 0}):
        with pytest.raises(ValueError, match=told):
            workloads.read(path, **wrong)
    first, second = (workloads.read(path, run=run) for run in (1, 2))
    assert first.format == "sglang-bench"
    assert "the file has no send times: drawn at 4 requests/s" in first.notes
    assert first.trace.num_prompt_tokens.tolist() == [30, 40, 50, 60]
    assert first.trace.num_output_tokens.tolist() == [3, 4, 5, 6]
    assert 0 < first.trace.arrival_time[-1] < 1  # 4 requests, the last of them after 1 s at most
    assert second.trace.arrival_time.tolist() == [0, 0]
    assert "the client had 8 requests at once: --max-concurrency does so" in second.notes


def test_a_report_of_guidellm_has_a_run_per_strategy():
    path = SAMPLES / "guidellm.json"
    with pytest.raises(ValueError, match=r"holds 2 runs \(1 constant 1; 2 concurrent 4\)"):
        workloads.read(path)
    loaded = workloads.read(path, run="1")
    assert loaded.format == "guidellm"
    assert loaded.notes[0] == "dropped 1 of 3 requests: they failed"
    assert loaded.trace.digest == digest_of([0, 1], [100, 120], [10, 12])
    assert len(workloads.load(path, run=2)) == 1


def test_requests_of_inference_perf_are_counted_by_the_server():
    loaded = workloads.read(SAMPLES / "inference_perf.json")
    assert loaded.format == "inference-perf"
    assert loaded.notes[0] == "dropped 1 of 3 requests: they failed"
    assert loaded.trace.digest == digest_of([0, 0.5], [66, 108], [5, 4])


def test_records_of_aiperf_are_sorted_and_warm_up_is_dropped():
    loaded = workloads.read(SAMPLES / "aiperf_profile_export.jsonl")
    assert loaded.format == "aiperf"
    assert loaded.notes[:2] == (
        "dropped 1 of 4 requests: they failed",
        "dropped requests of the warm-up: 1",
    )
    expected = digest_of([0, 0.25, 1], [300, 550, 320], [5, 9, 11], session_id=[1, 0, 1])
    assert loaded.trace.digest == expected


def test_sessions_of_lmcache_wait_for_their_answers():
    path = SAMPLES / "lmcache_sessions.jsonl"
    loaded = workloads.read(path, session_interval=10.0)
    assert loaded.format == "lmcache"
    trace = loaded.trace
    assert trace.num_output_tokens.tolist() == [52, 90, 73]
    assert trace.arrival_time.tolist() == pytest.approx([0, 52 * 0.045 + 0.5, 10])
    assert trace.session_id.tolist() == [0, 0, 1]
    system, fix = 51, 3  # of 204 and 12 characters
    assert trace.num_prompt_tokens[0] == system + fix
    assert cached(trace) == [0, system + fix, system + 2]  # "Fix issue 2." is new in its last token


def test_records_with_a_block_size_are_of_kvcache_ai(write):
    loaded = workloads.read(SAMPLES / "kvcache_ai.jsonl")
    assert loaded.format == "kvcache-ai"
    assert loaded.notes == ("timestamp read as seconds", "not used: id")[:1]
    assert loaded.trace.digest == digest_of(
        [0, 1.5],
        [100, 192],
        [12, 4],
        segments=[[(0, 0, 64), (1, 0, 36)], [(0, 0, 64), (2, 0, 64), (3, 0, 64)]],
        ends_by="eos",
    )
    short = [{"block_size": 64, "hash_ids": ["x", "y"], "input_length": 128}]
    loaded = workloads.read(write(short))
    assert loaded.trace.num_output_tokens.tolist() == [1]
    assert loaded.notes[0] == "the file has no output lengths: 1 tokens each (output-tokens)"
    mooncake = [{"timestamp": 27_000, **short[0], "output_length": 5}]
    mooncake.append(mooncake[0] | {"timestamp": 28_500})
    assert workloads.load(write(mooncake)).arrival_time.tolist() == [0, 1.5]
    short[0]["input_length"] = 129
    with pytest.raises(ValueError, match="line 1: hash_ids has 2 entries, must have 3: one per 64"):
        workloads.load(write(short))


# -- what is none of them ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("arrived_at,num_prefill_tokens,n", "nearest: vidur (lacks num_decode_tokens)"),
        ("timestamp,ContextTokens", "nearest: azure (lacks TIMESTAMP, GeneratedTokens)"),
        ("prompt_tokens,completion_tokens,start", "nearest: "),
    ],
)
def test_unknown_columns_are_told_in_one_short_line_with_the_nearest(tmp_path, columns, told):
    path = tmp_path / "t.csv"
    path.write_text(f"{columns}\n1,2,3\n"[: 10**6])
    with pytest.raises(ValueError, match="no known trace format has the columns") as raised:
        workloads.load(path)
    message = str(raised.value).removeprefix(str(path))
    assert told in message
    assert len(message) < 300
    assert "kvsim list trace-formats shows all" in message


def test_options_follow_the_file_unless_a_file_is_called_so(tmp_path):
    assert split_options("a.jsonl+chars-per-token=3+run=2") == (
        "a.jsonl",
        {"chars_per_token": "3", "run": "2"},
    )
    plus = tmp_path / "a+b.csv"
    plus.write_text("")
    assert split_options(str(plus)) == (str(plus), {})


def test_the_command_line_takes_options_and_a_tokenizer(call):
    chat, file = SAMPLES / "openai_chat.jsonl", SAMPLES / "words.tokenizer.json"
    code, printed, _ = call("trace", "inspect", f"{chat}+chars-per-token=2")
    assert code == 0
    assert "openai-chat" in printed
    assert "2 characters per token" in printed
    report = SAMPLES / "vllm_bench_serve.json"
    code, printed, _ = call("trace", "inspect", str(report), "--tokenizer", str(file))
    assert code == 0
    assert "--tokenizer has no effect" in " ".join(printed.split())
    code, _, told = call("trace", "inspect", str(chat), "--tokenizer", "none.json")
    assert (code, told.strip()) == (
        2,
        "kvsim: tokenizer none.json: no such file; give the model's tokenizer.json",
    )


@pytest.mark.long
def test_a_servers_tokenizer_has_a_name_and_a_traces_is_a_file(call):
    line = ("run", "vllm", "serve", "opt-125m", "--gpu", "a100-80gb", "--backend", "python")
    asked = ("--trace", str(SAMPLES / "openai_batch.jsonl"), "--max-model-len", "2048")
    code, _, told = call(*line, *asked, "--tokenizer", "facebook/opt-125m")
    assert code == 0
    assert "--tokenizer facebook/opt-125m" in told
    code, _, told = call(*line, *asked, "--tokenizer", "none.json")
    assert code == 2
    assert "tokenizer none.json: no such file" in told
