"""Public trace formats: the exact Trace of a small sample of each, and every way to be wrong."""

import gzip
import json
import math
from itertools import pairwise

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.trace import Segment, Trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
)


@pytest.fixture
def write(tmp_path):
    def write(content, name="trace"):
        if isinstance(content, list):
            content = "".join(json.dumps(line) + "\n" for line in content)
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


def lines_of(*columns, **more):
    """Return the digest of the trace with these columns, to compare a reader's result with.

    Answers of production and of chats end by EOS, unless something else is said.
    """
    return Trace.from_arrays(*columns, **{"ends_by": "eos", **more}).digest


# -- each format -------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [str.encode, lambda t: gzip.compress(t.encode())])
def test_azure_2023_counts_from_the_first_row_to_100_ns(write, pack):
    loaded = workloads.read(write(pack(AZURE)))
    assert loaded.format == "azure"
    assert loaded.trace.digest == lines_of([0, 4.314579], [374, 396], [44, 109])


def test_azure_2024_may_carry_time_zones(write):
    path = write(
        "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\r\n"
        "2024-05-10 02:00:00.259930+02:00,2399,6\r\n"
        "2024-05-10T00:00:01Z,76,15\r\n"
    )
    times = [0, 0.25, 0.99007]
    assert workloads.load(path).digest == lines_of(times, [2162, 2399, 76], [5, 6, 15])


def test_mooncake_ids_are_contents_of_512_tokens(write):
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 1024, "output_length": 6, "hash_ids": [0, 7]},
    ]
    loaded = workloads.read(write(rows))
    assert loaded.format == "mooncake"
    assert loaded.trace.digest == lines_of(
        [0, 3],
        [1100, 1024],
        [5, 6],
        segments=[[(0, 0, 512), (1, 0, 512), (2, 0, 76)], [(0, 0, 512), (7, 0, 512)]],
    )


def test_bailian_has_seconds_blocks_of_16_and_chained_chats(write):
    def row(chat, parent, time, length, ids):
        own = {"chat_id": chat, "parent_chat_id": parent, "timestamp": time, "hash_ids": ids}
        return own | {"input_length": length, "output_length": 4, "type": "text", "turn": 1}

    rows = [row(7, -1, 0.5, 20, [3, 4]), row(2, -1, 1.0, 16, [9]), row(5, 7, 61.114, 16, [3])]
    loaded = workloads.read(write(rows))
    assert loaded.format == "bailian"
    assert loaded.trace.digest == lines_of(
        [0.5, 1.0, 61.114],
        [20, 16, 16],
        [4, 4, 4],
        segments=[[(3, 0, 16), (4, 0, 4)], [(9, 0, 16)], [(3, 0, 16)]],
        session_id=[0, 1, 0],
    )


LENGTHS = (
    "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
    "74,918,992,0.08\n1402,711,2113,1.9\n2113,5,2118,1\n41,950,991,0.04\n"
)


def test_sharegpt_lengths_become_conversations_that_name_earlier_outputs(write):
    loaded = workloads.read(write(LENGTHS))
    assert loaded.format == "sharegpt-lengths"
    assert "no arrival times in this file: all requests arrive at time 0" in loaded.notes
    first = [(0, 0, 74), (1, 0, 918), (2, 0, 410)]
    assert loaded.trace.digest == lines_of(
        [0, 0, 0, 0],
        [74, 1402, 2113, 41],
        [918, 711, 5, 950],
        segments=[first[:1], first, [*first, (3, 0, 711)], [(5, 0, 41)]],
        output_content_id=[1, 3, 4, 6],
        session_id=[0, 0, 0, 1],
    )


def test_rows_of_the_same_columns_may_be_no_conversations(write):
    trace = workloads.load(write(LENGTHS), conversations=False)
    assert trace.digest == lines_of([0] * 4, [74, 1402, 2113, 41], [918, 711, 5, 950])


def test_drawn_times_keep_turns_in_order_and_mingle_sessions(write):
    text = "num_prefill_tokens,num_decode_tokens\n" + "10,90\n200,100\n400,100\n" * 200
    path = write(text)
    trace = workloads.load(path, request_rate=3.0, seed=1, think_time=20.0)
    assert trace.digest == workloads.load(path, request_rate=3.0, seed=1, think_time=20.0).digest
    assert trace.digest != workloads.load(path, request_rate=3.0, seed=2, think_time=20.0).digest
    order = np.argsort(trace.session_id, kind="stable")
    assert trace.num_prompt_tokens[order].tolist() == [10, 200, 400] * 200
    gaps = np.diff(trace.arrival_time[order]).reshape(-1)
    within = np.delete(gaps, np.arange(2, len(gaps), 3))
    assert within.min() >= 90 * 0.045
    assert within.mean() == pytest.approx(20 + 95 * 0.045, rel=0.15)
    starts = trace.arrival_time[order][::3]
    assert starts.max() / 200 == pytest.approx(1.0, rel=0.2)  # 3 requests/s are 1 session/s
    assert (np.diff(trace.session_id) != 0).mean() > 0.9


def test_a_rate_scales_times_that_are_there(write):
    trace = workloads.load(write(AZURE), request_rate=2.0)
    assert trace.arrival_time.tolist() == [0, 0.5]
    assert workloads.load(write(AZURE), request_rate=math.inf).arrival_time.tolist() == [0, 0]


def test_vidur(write):
    loaded = workloads.read(
        write("arrived_at,num_prefill_tokens,num_decode_tokens\n0.17,30,40\n2.5,10,90\n")
    )
    assert loaded.format == "vidur"
    assert loaded.trace.digest == lines_of([0.17, 2.5], [30, 10], [40, 90], ends_by="length")


BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
    "19440161.5,d5983bf9,2,ChatGPT,36,0,36,Conversation log\n"
    "19440192.0,1722ac82,8,GPT-4,1779,123,1902,Conversation log\n"
    "19440193.0,,8,GPT-4,5,6,11,API log\n"
)


def test_burstgpt_drops_failures_and_says_so(write):
    loaded = workloads.read(write(BURSTGPT))
    assert loaded.format == "burstgpt"
    assert loaded.notes[0] == "dropped 1 of 4 requests: Response tokens is 0, a failed request"
    expected = lines_of([0, 82, 83], [906, 1779, 5], [446, 123, 6], session_id=[0, 0, -1])
    assert loaded.trace.digest == expected
    with pytest.raises(ValueError, match="line 3: Response tokens is '0', must be a whole number"):
        workloads.load(write(BURSTGPT), drop_failed=False)


def test_burstgpt_of_2023_has_no_sessions(write):
    text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    trace = workloads.load(write(text + "5,ChatGPT,472,18,490,Conversation log\n"))
    assert trace.digest == lines_of([0], [472], [18])


def test_failures_elsewhere_are_refused_unless_dropped(write):
    text = AZURE.replace(",44", ",0")
    with pytest.raises(ValueError, match="line 2: GeneratedTokens is '0', must be a whole number"):
        workloads.load(write(text))
    assert workloads.load(write(text), drop_failed=True).digest == lines_of([0], [396], [109])
    with pytest.raises(ValueError, match=r"as in every row: there is no request to keep$"):
        workloads.load(write(text.replace(",109", ",0")), drop_failed=True)


def test_lines_stay_right_after_dropped_rows(write):
    text = BURSTGPT.replace(",1779,", ",0,")
    with pytest.raises(ValueError, match="line 4: Request tokens is '0'"):
        workloads.load(write(text))


def chat(*messages):
    speakers = {"h": "human", "g": "gpt", "s": "system"}
    said = [{"from": speakers[m[0]], "value": m[2:]} for m in messages]
    return {"id": "x", "conversations": said}


@pytest.mark.parametrize("as_lines", [False, True])
def test_sharegpt_texts_are_sessions_of_estimated_lengths(write, as_lines):
    chats = [
        chat("s:abcd", "h:12345", "g:123456789", "h:1", "g:1234"),
        chat("g:first", "h:who?", "g:I"),
        chat("h:alone"),
        chat("s:abcd", "h:new", "g:", "g:yes"),
    ]
    loaded = workloads.read(write(chats if as_lines else json.dumps(chats)))
    assert loaded.format == "sharegpt"
    assert loaded.notes[:2] == (
        "token counts estimated: 4 characters per token, rounded up",
        "left out 1 of 4 conversations without an answer",
    )
    trace = loaded.trace
    assert trace.num_prompt_tokens.tolist() == [3, 7, 3, 2]
    assert trace.num_output_tokens.tolist() == [3, 1, 1, 1]
    assert trace.session_id.tolist() == [0, 0, 1, 3]
    history = [*trace.segments_of(0), Segment(int(trace.output_content_id[0]), 0, 3)]
    assert trace.segments_of(1)[:3] == history
    assert trace.segments_of(3)[0] == trace.segments_of(0)[0]  # the same system prompt


def test_vllm_bench_prompts_are_estimated_and_share_beginnings(write):
    rows = [
        {"prompt": "You are a poet. Write about cats"},
        {"prompt": "You are a poet. Write about dogs!", "output_tokens": 7},
        {"prompt": "Hi"},
    ]
    loaded = workloads.read(write(rows))
    assert loaded.format == "vllm-bench"
    assert loaded.notes[0] == "token counts estimated: 4 characters per token, rounded up"
    trace = loaded.trace
    assert trace.num_prompt_tokens.tolist() == [8, 9, 1]
    assert trace.num_output_tokens.tolist() == [256, 7, 256]
    assert trace.segments_of(1) == [Segment(0, 0, 7), Segment(2, 7, 2)]
    assert workloads.load(write(rows), output_tokens=99).num_output_tokens.tolist() == [99] * 3
    with pytest.raises(ValueError, match="line 1: num_output_tokens is 0, must be 1 to"):
        workloads.load(write(rows), output_tokens=0)


def request(time_ns, prompt, output):
    lengths = {"input_toks": len(prompt), "output_toks": len(output), "arrival_time_ns": time_ns}
    return lengths | {"input_tok_ids": prompt, "output_tok_ids": output}


def test_llmservingsim_token_ids_share_exactly_their_common_beginnings(write):
    rows = [
        request(0, [1, 2, 3, 4], [8, 9]),
        request(10**9, [1, 2, 5], [7]),
        request(2 * 10**9, [1, 2, 3, 4, 8, 9, 6], [1]),
        request(3 * 10**9, [2], [1]),
    ]
    loaded = workloads.read(write(rows))
    assert loaded.format == "llmservingsim"
    assert loaded.trace.digest == lines_of(
        [0, 1, 2, 3],
        [4, 3, 7, 1],
        [2, 1, 1, 1],
        segments=[
            [(0, 0, 4)],
            [(0, 0, 2), (2, 2, 1)],
            [(0, 0, 4), (1, 0, 2), (4, 6, 1)],
            [(6, 0, 1)],
        ],
        output_content_id=[1, 3, 5, 7],
        ends_by="length",
    )
    for row in rows:
        del row["input_tok_ids"], row["output_tok_ids"]
    assert not workloads.load(write(rows)).has_segments


def test_weka_sessions_share_one_content_each_and_run_side_by_side(write):
    def turn(t, tokens, out, ids):
        return {"t": t, "type": "n", "in": tokens, "out": out, "hash_ids": ids}

    agent = {"t": 30.0, "type": "subagent", "duration_ms": 12000}
    agent["requests"] = [turn(1.0, 70, 2, [9])]
    sessions = [
        {"id": "a", "block_size": 64, "requests": [turn(0, 130, 5, [1, 2]), agent]},
        {"id": "b", "block_size": 64, "requests": [turn(2, 192, 6, [1, 2, 7]), turn(9, 1, 0, [])]},
    ]
    loaded = workloads.read(write(sessions))
    assert loaded.format == "weka"
    assert loaded.notes[0] == "dropped 1 of 4 requests: out is 0, a failed request"
    assert loaded.trace.digest == lines_of(
        [0, 2, 19],
        [130, 192, 70],
        [5, 6, 2],
        segments=[
            [(0, 64, 128), (2, 0, 2)],
            [(1, 64, 128), (1, 448, 64)],
            [(0, 576, 64), (3, 0, 6)],
        ],
        session_id=[0, 1, 2],
        after=[[], [], [0]],
        think_time=[0, 0, 19],
    )
    spread = workloads.load(write(sessions), session_interval=100.0)
    assert spread.arrival_time.tolist() == [0, 19, 102]
    sessions[1]["requests"][0]["hash_ids"] = [1]
    with pytest.raises(ValueError, match="line 2: hash_ids has 1 entries, must have one per 64"):
        workloads.load(write(sessions))


def weka_family():
    """Two sub-agents that the third turn waits for, one beside the parent, and a failed turn."""

    def turn(t, api_time, think_time, out=1):
        timed = {"api_time": api_time, "think_time": think_time}
        return {"t": t, "in": 64, "out": out, "hash_ids": [int(t) + 1], **timed}

    def agent(t, *turns, **more):
        return {"t": t, "requests": list(turns), **more}

    first = agent(60.0, turn(0.0, 2.0, 0.0), turn(10.0, 3.0, 8.0), duration_ms=48_000)
    second = agent(90.0, turn(0.0, 5.0, 0.0), duration_ms=78_000)
    beside = agent(105.0, turn(0.0, 1.0, 0.0), status="async_launched")
    turns = turn(0.0, 10.0, 0.0), turn(100.0, 4.0, 90.0), turn(110.0, 2.0, 6.0, 0)
    last = turn(130.0, 2.0, 18.0)
    requests = [turns[0], first, second, turns[1], beside, turns[2], last]
    return [{"id": "a", "block_size": 64, "requests": requests}]


def test_weka_turns_wait_for_answers_and_sub_agents(write):
    """The turn after a failed one takes over its wait."""
    trace = workloads.load(write(weka_family()))
    waits = [
        [[-one - 1, "start"] if one < 0 else one for one in trace.after[first:stop].tolist()]
        for first, stop in pairwise(trace.after_offsets.tolist())
    ]
    assert trace.arrival_time.tolist() == [0, 12, 12, 22, 100, 105, 130]
    assert waits == [[], [0], [0], [1], [0, 3, 2], [[4, "start"]], [4]]
    assert trace.think_time.tolist() == [0, 2, 2, 8, 10, 5, 26]
    assert trace.session_id.tolist() == [0, 1, 2, 1, 0, 3, 0]
    recorded = workloads.load(write(weka_family()), waits=False)
    assert not recorded.has("after")
    assert recorded.arrival_time.tolist() == trace.arrival_time.tolist()


def test_a_weka_session_takes_the_sum_of_its_parts(write):
    """A step takes a second, and so does each answer."""
    trace = workloads.load(write(weka_family()))
    run = kvsim.simulate(
        trace, model="llama-3-8b", gpu="h100-sxm", cost_model="constant+seconds=1", backend="python"
    )
    assert run.requests["arrival_time"].round().tolist() == [0, 3, 3, 12, 23, 28, 50]


def test_weka_runs_of_ids_are_those_ids(write):
    """Runs say the same in less; a sub-agent without a duration starts at its time."""

    def session(key, *blocks):
        turns = [
            {"t": k, "in": tokens, "out": 1, key: ids}
            for k, (tokens, ids) in enumerate(zip((130, 192, 5), blocks, strict=True))
        ]
        agent = {"t": 30.0, "type": "subagent", "status": "async_launched"}
        agent["requests"] = [{"t": 1.0, "in": 64, "out": 2, key: blocks[0][:1]}]
        return {"id": "a", "block_size": 64, "requests": [*turns, agent]}

    listed = workloads.load(write([session("hash_ids", [1, 2], [1, 2, 7], [])]))
    runs = session("hash_runs", [[1, 2]], [[1, 2], [7, 1]], [])
    runs["requests"][-1]["requests"][0]["hash_runs"] = [[1, 1]]
    assert workloads.load(write([runs])).digest == listed.digest
    assert listed.arrival_time[-1] == 31
    for wrong in ([[1]], [[1, 0]], [[-1, 2]], [[1, 2.0]], ["a"]):
        runs["requests"][0]["hash_runs"] = wrong
        with pytest.raises(ValueError, match=r"line 1: hash_ids is .* or of runs \[first, count\]"):
            workloads.load(write([runs]))


def test_formats_are_listed():
    assert workloads.formats() == [
        *("aiperf", "azure", "bailian", "burstgpt", "guidellm", "inference-perf", "kvcache-ai"),
        *("kvsim", "llmservingsim", "lmcache", "mooncake", "openai-batch", "openai-chat"),
        *("sglang-bench", "sharegpt", "sharegpt-lengths", "vidur", "vllm-bench"),
        *("vllm-bench-serve", "weka"),
    ]


# -- the real ones -----------------------------------------------------------------------------


def raw_lines(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def raw_columns(path):
    """Return a CSV's columns as arrays, without any reader."""
    names, *rows = [line.split(",") for line in raw_lines(path)]
    return dict(zip(names, np.array(rows).T, strict=True))


def test_the_azure_trace(sample_data):
    path = sample_data / "traces" / "azure2023_conv_2000.csv.gz"
    trace, raw = workloads.load(path), raw_columns(path)
    assert trace.num_prompt_tokens.tolist() == raw["ContextTokens"].astype(int).tolist()
    assert trace.num_output_tokens.tolist() == raw["GeneratedTokens"].astype(int).tolist()
    first, last = raw["TIMESTAMP"][[0, -1]].astype("datetime64[ns]")
    span = (last - first) / np.timedelta64(1, "s")
    assert trace.arrival_time[-1] - trace.arrival_time[0] == pytest.approx(span, abs=1e-6)


def test_the_mooncake_trace(sample_data):
    path = sample_data / "traces" / "mooncake_fast25_conversation_1000.jsonl.gz"
    trace, raw = workloads.load(path), [json.loads(line) for line in raw_lines(path)]
    assert trace.num_prompt_tokens.tolist() == [row["input_length"] for row in raw]
    assert trace.num_output_tokens.tolist() == [row["output_length"] for row in raw]
    unique = {i for row in raw for i in row["hash_ids"]}
    assert len(np.unique(trace.segment_content_id)) == len(unique) == 21514


def test_the_sharegpt_lengths(sample_data):
    path = sample_data / "traces" / "sharegpt_8k_llama2tok_2000.csv.gz"
    trace, raw = workloads.load(path), raw_columns(path)
    prompt, total = (raw[f"num_{name}_tokens"].astype(int) for name in ("prefill", "total"))
    assert trace.num_prompt_tokens.tolist() == prompt.tolist()
    assert len(np.unique(trace.session_id)) == 1 + (prompt[1:] < total[:-1]).sum()


def reuse_of(trace, num_sessions):
    """Return the share of prompt tokens in blocks of 64 that the same session has sent before."""
    reused, seen = 0, {}
    for i in range(len(trace)):
        blocks = seen.setdefault(int(trace.session_id[i]), set())
        hit = True
        for content, start, length in trace.segments_of(i):
            for block in range(start, start + length, 64) if content < num_sessions else ():
                hit = hit and block in blocks
                reused += 64 * hit
                blocks.add(block)
    return reused / trace.num_prompt_tokens.sum()


@pytest.mark.long
def test_the_weka_sessions_reuse_what_their_ids_say(sample_data):
    path = sample_data / "traces" / "weka_claudecode_4sessions.jsonl.gz"
    trace, raw = workloads.load(path), [json.loads(line) for line in raw_lines(path)]
    assert len(np.unique(trace.session_id)) == len(raw) == 4
    assert len(trace) == sum(len(session["requests"]) for session in raw)
    reused = 0
    for session in raw:
        seen = set()
        for request in session["requests"]:
            known = [i in seen for i in request["hash_ids"]]
            reused += 64 * (known.index(False) if False in known else len(known))
            seen.update(request["hash_ids"])
    assert reuse_of(trace, 4) == pytest.approx(reused / trace.num_prompt_tokens.sum(), abs=0.001)


def test_the_llmservingsim_requests(sample_data):
    path = sample_data / "traces" / "llmservingsim_sharegpt30_llama-3.1-8b.jsonl.gz"
    trace, raw = workloads.load(path), [json.loads(line) for line in raw_lines(path)]
    assert trace.num_prompt_tokens.tolist() == [row["input_toks"] for row in raw]
    assert trace.num_output_tokens.tolist() == [row["output_toks"] for row in raw]
    arrivals = [row["arrival_time_ns"] / 1e9 for row in raw]
    assert trace.arrival_time.tolist() == pytest.approx(arrivals)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_requests", "prompt", "output", "rate", "sessions"),
    [
        ("azure2023_conv.csv.gz", 19366, 1155, 211, 5.53, None),
        ("mooncake_fast25_conversation.jsonl.gz", 12031, 12035, 343, 3.40, None),
        ("sharegpt_8k_llama2tok.csv.gz", 30731, 2340, 439, math.inf, 5678),
        ("weka_claudecode_48sessions.jsonl.gz", 2197, None, None, None, 48 + 4),
        ("claudecode_sessions_with_subagents.jsonl.gz", 7842, None, None, None, 111 + 63),
        ("llmservingsim_sharegpt300_llama-3.1-8b.jsonl.gz", 300, 857, 653, 10.3, None),
    ],
)
def test_whole_traces(whole_data, name, num_requests, prompt, output, rate, sessions):
    """Sizes, means and rates as their sources state them."""
    trace = workloads.load(whole_data / "traces" / name)
    assert len(trace) == num_requests
    if prompt is not None:
        assert round(trace.num_prompt_tokens.mean()) == prompt
        assert round(trace.num_output_tokens.mean()) == output
        assert trace.request_rate == pytest.approx(rate, abs=0.05)
    if sessions is not None:
        assert len(np.unique(trace.session_id)) == sessions
    if name.startswith("sharegpt"):
        trace = workloads.load(whole_data / "traces" / name, request_rate=5.0)
        assert trace.request_rate == pytest.approx(5.0, rel=0.2)
    if name.startswith("mooncake"):
        assert len(np.unique(trace.segment_content_id)) == 182790
    if name.startswith("weka"):
        assert reuse_of(trace, 48) == pytest.approx(0.949, abs=0.001)
    if name.startswith("claudecode"):  # 59 sub-agents are joined, 4 run beside their parents
        assert np.bincount(np.diff(trace.after_offsets)).tolist() == [111, 7696, 20, 8, 7]
        assert (trace.after < 0).sum() == 4
