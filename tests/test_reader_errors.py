"""Every way a trace file can be wrong: one line with the file, the place and what is allowed."""

import gzip
import json

import pytest

import workloads

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
)
MOONCAKE = '{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]}\n'
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n"
)
LENGTHS = "num_prefill_tokens,num_decode_tokens\n74,918\n1402,711\n"


@pytest.fixture
def write(tmp_path):
    def write(content, name="trace"):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ": is empty"),
        (" \n\n", ": is empty"),
        (gzip.compress(b"", mtime=0), ": is empty"),
        (AZURE.splitlines()[0], ": has a header and no requests"),
        (gzip.compress(AZURE.encode(), mtime=0)[:-9], ": is a damaged or truncated gzip file"),
        (gzip.compress(AZURE.encode(), mtime=0)[:30], ": is a damaged or truncated gzip file"),
        (b"\x1f\x8bnonsense", ": is a damaged or truncated gzip file"),
        (b"\xff\xfe\x00rubbish\x80", ": is neither text (UTF-8) nor Parquet"),
        (b"a,b\n1,\0\n", ": is neither text (UTF-8) nor Parquet"),
        (b"PAR1 but not really", ": is a damaged or truncated Parquet file"),
        (
            "a,b\n1,2\n",
            ": no known trace format has the columns a, b; none is similar (kvsim list t",
        ),
        ('{"a": 1}\n', ": no known trace format has the columns a; none is similar (kvsim list t"),
        ("[]", ": holds no requests"),
        ("[1]", ", entry 1: must be a JSON object"),
        (MOONCAKE + "[]\n", ", line 2: must be a JSON object"),
        (MOONCAKE + "{oops}\n", ", line 2: is not valid JSON: Expecting property name"),
        (MOONCAKE + "\n" + MOONCAKE[:20], ", line 3: is not valid JSON: "),
        ('[{"conversations": []},\n}]', ": is not valid JSON: "),
        (MOONCAKE.replace("513", "9" * 5000), ", line 1: is not valid JSON: Exceeds the limit"),
        (MOONCAKE + "{}\n", ", line 2: timestamp is missing, must be a finite number"),
        (MOONCAKE.replace("513", "true"), ", line 1: input_length is True, must be a whole"),
        (MOONCAKE.replace("513", "NaN"), ", line 1: input_length is nan, must be a whole"),
        (MOONCAKE.replace("513", "512"), ", line 1: hash_ids has 2 entries, must have 1: one per"),
        (MOONCAKE.replace("[0, 1]", "[0, -1]"), ", line 1: hash_ids is [0, -1], must be a list"),
        (MOONCAKE.replace("[0, 1]", "7"), ", line 1: hash_ids is 7, must be a list of whole"),
        (MOONCAKE.replace("0,", "-1,", 1), ", line 1: timestamp is -1, must be a finite number"),
        (MOONCAKE.replace("0,", "9,", 1) + MOONCAKE, ", line 2: arrival_time is 0, must be no ear"),
        (AZURE + "2023-11-16 18:15:50,1\n", ", line 4: 2 cells where the header has 3"),
        (AZURE + "2023-11-16 18:15:40,1,2\n", ", line 4: TIMESTAMP is earlier than in the row bef"),
        (AZURE + "2023-13-16 18:15:40,1,2\n", ", line 4: TIMESTAMP is '2023-13-16 18:15:40', must"),
        (AZURE + "soon,1,2\n", ", line 4: TIMESTAMP is 'soon', must be a time as 2023-11-16 18:1"),
        (AZURE.replace("374", "x"), ", line 2: ContextTokens is 'x', must be a whole number from"),
        (AZURE.replace("374", ""), ", line 2: ContextTokens is '', must be a whole number from 1"),
        (AZURE.replace("374", "0"), ", line 2: ContextTokens is '0', must be a whole number from"),
        (AZURE.replace("374", "-4"), ", line 2: ContextTokens is '-4', must be a whole number fr"),
        (AZURE.replace("374", "1.5"), ", line 2: ContextTokens is '1.5', must be a whole number f"),
        (AZURE.replace("374", "nan"), ", line 2: ContextTokens is 'nan', must be a whole number f"),
        (AZURE.replace("374", "inf"), ", line 2: ContextTokens is 'inf', must be a whole number f"),
        (AZURE.replace("374", "1e99"), ", line 2: ContextTokens is '1e99', must be a whole number"),
        (AZURE.replace("374", "16777217"), ", line 2: ContextTokens is '16777217', must be a whol"),
        (AZURE.replace("109", '"1\nx"'), ", line 4: GeneratedTokens is '1\\nx', must be a whole"),
        (BURSTGPT.replace("45,", "inf,"), ", line 3: Timestamp is 'inf', must be a finite n"),
        ('[{"conversations": [{"from": "human"}]}]', ", entry 1: conversations is [{'from': 'hum"),
        (
            '[{"conversations": [{"from": "human", "value": "x"}]}]',
            ", entry 1: conversations has no answer of the model",
        ),
        ('{"prompt": ""}\n', ", line 1: prompt is '', must be a text of at least one character"),
        ('{"prompt": null, "x": 1}\n', ", line 1: prompt is missing"),
        ('{"block_size": 64, "requests": []}\n', ", line 1: requests is empty, as in every sess"),
        ('{"block_size": 64, "requests": [1]}\n', ", line 1: requests is [1], must be a list of"),
        ('{"block_size": 0, "requests": []}\n', ", line 1: block_size is 0, must be a whole"),
    ],
)
def test_errors_are_one_line_with_file_place_and_what_is_allowed(write, content, message):
    path = write(content)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        workloads.load(path)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)


def test_missing_files_and_directories_are_value_errors(tmp_path):
    with pytest.raises(
        ValueError, match=r"nowhere\.csv: cannot be read: No such file or directory"
    ):
        workloads.load(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        workloads.load(tmp_path)


def test_llmservingsim_ids_must_be_as_many_as_the_lengths_say(write):
    lengths = {"input_toks": 3, "output_toks": 1, "arrival_time_ns": 0}
    row = lengths | {"input_tok_ids": [1, 2], "output_tok_ids": [3]}
    with pytest.raises(ValueError, match="line 1: input_tok_ids has 2 ids, must have 3"):
        workloads.load(write(json.dumps(row)))


def test_unknown_options_name_those_there_are(write):
    message = r"format 'azure' has no parameter 'colour' \(its parameters: drop-failed\)"
    with pytest.raises(ValueError, match=message):
        workloads.load(write(AZURE), colour=1)
    with pytest.raises(ValueError, match="session_interval must be finite"):
        workloads.load(write('{"block_size": 64, "requests": []}'), session_interval=-1)
    with pytest.raises(ValueError, match="think_time must be finite and at least 0, got -1"):
        workloads.load(write(LENGTHS), think_time=-1)
    for path in (write(LENGTHS, "without-times"), write(AZURE, "with-times")):
        with pytest.raises(ValueError, match="request_rate must be above 0, got 0"):
            workloads.load(path, request_rate=0)
