"""The command line: answers, files, exit codes, and one clear line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.cli.deferred import COMMANDS
from kvsim.cli.main import cli
from kvsim.cli.options import SECTIONS
from kvsim.cli.pairs import join_pairs
from kvsim.config import Config, RunConfig
from kvsim.report.listing import KINDS

SMALL = ("--num-requests", "20", "--model", "llama-3-8b", "--gpu", "a100-80gb")


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Run a command in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Answer:
        code = 0
        try:
            main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


@pytest.mark.long  # compiles the variant of all kinds
def test_compare_prints_a_table_and_says_how_to_write(call) -> None:  # type: ignore[no-untyped-def]
    answer = call("compare", *SMALL, "--allocators", "contiguous-max,paged")
    assert answer.code == 0
    assert "contiguous-max" in answer.out
    assert "wastes" in answer.out
    assert "--out DIR saves tables and figures" in answer.out
    assert list(Path.cwd().iterdir()) == []
    assert max(map(len, answer.out.splitlines())) <= 100


@pytest.mark.long
def test_compare_json_has_the_four_fractions(call) -> None:  # type: ignore[no-untyped-def]
    answer = call("compare", *SMALL, "--json", "-")
    rows = json.loads(answer.out)["rows"]
    assert [row["allocator"] for row in rows] == [
        "contiguous-max",
        "contiguous-pow2",
        "contiguous-oracle",
        "paged",
    ]
    for row in rows:
        cache = row["kv_cache"]
        parts = ("token_states", "reservation", "internal_fragmentation", "external_fragmentation")
        assert abs(sum(cache[part] for part in parts) - 1) < 1e-9


@pytest.mark.long
def test_compare_writes_figures_tables_and_json(call) -> None:  # type: ignore[no-untyped-def]
    answer = call(
        "compare", *SMALL, "--allocators", "paged,paged+int8", "--out", "out", "--json", "a.json"
    )
    assert answer.code == 0
    written = sorted(str(p.relative_to("out")) for p in Path("out").rglob("*") if p.is_file())
    assert [p for p in written if p.endswith(".png")] == [
        "latency.png",
        "memory.png",
        "memory_map.png",
        "waste.png",
    ]
    assert "comparison.json" in written
    assert "paged+int8/requests.parquet" in written
    assert json.loads(Path("a.json").read_text()) == json.loads(
        Path("out/comparison.json").read_text()
    )
    assert kvsim.load("out/paged").summary["completed"] == 20
    assert not list(Path("out").rglob("*.tmp"))


@pytest.mark.long
def test_run_from_toml_and_flags(call) -> None:  # type: ignore[no-untyped-def]
    Path("run.toml").write_text(
        'model = "llama-3-8b"\ngpu = "h100-sxm"\nnum-requests = 10\nmax-num-seqs = 4\n'
        "goodput = {ttft = 1000.0}\n"
    )
    answer = call("run", "run.toml", "--num-requests", "12", "--json", "-")
    summary = json.loads(answer.out)
    assert summary["completed"] == 12
    assert summary["peak_running"] <= 4
    assert summary["request_goodput"] > 0


@pytest.mark.long
def test_run_writes_a_run_that_can_be_run_again(call) -> None:  # type: ignore[no-untyped-def]
    first = call("run", *SMALL, "--out", "a", "--seed", "3", "--json", "-")
    again = call("run", "a/config.toml", "--json", "-")
    one, other = json.loads(first.out), json.loads(again.out)
    told, retold = one.pop("provenance"), other.pop("provenance")
    assert one == other
    assert told["trace_digest"] == retold["trace_digest"]


def test_goodput_in_the_form_of_vllm(call) -> None:  # type: ignore[no-untyped-def]
    answer = call("run", *SMALL, "--goodput", "ttft:5000", "tpot:500", "--json", "-")
    summary = json.loads(answer.out)
    assert summary["request_goodput"] == summary["request_throughput"]
    assert join_pairs(["run", "--goodput", "ttft:1", "tpot:2", "--seed", "1"]) == [
        *("run", "--goodput", "ttft:1", "--goodput", "tpot:2", "--seed", "1")
    ]


def test_replications_average(call) -> None:  # type: ignore[no-untyped-def]
    answer = call("run", *SMALL, "--replications", "3", "--json", "-")
    summary = json.loads(answer.out)
    assert summary["replications"] == 3
    assert summary["ci95"]["output_throughput"] > 0
    table = call("compare", *SMALL, "--allocators", "paged", "--replications", "2")
    assert "means of 2 replications" in table.out


def test_capacity(call) -> None:  # type: ignore[no-untyped-def]
    options = ("--model", "llama-3-8b", "--gpu", "a100-80gb")
    answer = call("capacity", *options, "--kv-cache-memory-bytes", "60000000000", "--json", "-")
    capacity = json.loads(answer.out)
    assert capacity["num_gpu_blocks"] == 28_610
    assert capacity["max_concurrency"]["4096"] == 111
    table = call("capacity", *options)
    assert "kv cache" in table.out
    assert "Assumed" in table.out
    tiny = call("capacity", *options, "--num-gpu-blocks-override", "5", "--json", "-")
    assert json.loads(tiny.out)["fits"] is False


def test_trace_commands(call) -> None:  # type: ignore[no-untyped-def]
    made = call(
        "trace", "generate", "t.csv.gz", "--workload", "fixed+prompt=7", "--num-requests", "9"
    )
    assert made.code == 0
    assert "9 requests" in made.out
    converted = call(
        "trace", "convert", "t.csv.gz", "t.parquet", "--request-rate", "4", "--num-requests", "5"
    )
    assert converted.code == 0
    facts = json.loads(call("trace", "inspect", "t.parquet", "--json", "-").out)
    assert (facts["num_requests"], facts["mean_prompt_tokens"]) == (5, 7.0)
    assert facts["request_rate"] == pytest.approx(4)
    assert "num requests" in call("trace", "inspect", "t.parquet").out
    served = call("run", "--trace", "t.parquet", "--json", "-")
    assert json.loads(served.out)["completed"] == 5


def test_a_rate_scales_the_requests_that_are_served(call) -> None:  # type: ignore[no-untyped-def]
    call("trace", "generate", "t.csv", "--num-requests", "50", "--request-rate", "1")
    answer = call("compare", "--trace", "t.csv", "--num-requests", "10", "--request-rate", "8",
                  "--allocators", "paged", "--json", "-")  # fmt: skip
    workload = json.loads(answer.out)["workload"]
    assert workload["num_requests"] == 10
    assert workload["request_rate"] == pytest.approx(8)
    inf = call(
        "compare",
        "--trace",
        "t.csv",
        "--request-rate",
        "inf",
        "--allocators",
        "paged",
        "--json",
        "-",
    )
    assert json.loads(inf.out)["workload"]["request_rate"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_list(call, kind: str) -> None:  # type: ignore[no-untyped-def]
    answer = call("list", kind)
    assert answer.code == 0
    assert len(answer.out.splitlines()) > 2


MISTAKES = [
    (("run", "--model", "llama-3-8c"), "unknown model 'llama-3-8c'; did you mean"),
    (("run", "--gpu", "a100-80"), "unknown GPU 'a100-80'; did you mean"),
    (("run", "--trace", "no.csv"), "no.csv: cannot be read: No such file"),
    (("run", "--trace", "."), ".: "),
    (("run", "--trace", "empty.csv"), "empty.csv: "),
    (("run", "--trace", "binary.csv"), "binary.csv: "),
    (("run", "--trace", "nan.csv"), "nan.csv, line 3: arrival_time"),
    (("run", "--trace", "unsorted.csv"), "unsorted.csv, line 3: arrival_time"),
    (("run", "--trace", "zero.csv"), "zero.csv, line 2: num_prompt_tokens"),
    (("run", "--trace", "huge.csv"), "huge.csv, line 2: num_output_tokens"),
    (("run", "--trace", "columns.csv"), "columns.csv: "),
    (("run", "--block-size", "0"), "--block-size is '0'"),
    (("run", "--block-size", "x"), "--block-size is 'x'"),
    (("run", "--max-num-seqs", "-3"), "--max-num-seqs is '-3'"),
    (("run", "--gpu-memory-utilization", "1.5"), "--gpu-memory-utilization is '1.5'"),
    (("run", "--request-rate", "0"), "--request-rate is '0'"),
    (("run", "--request-rate", "nan"), "--request-rate is 'nan'"),
    (("run", "--horizon", "nan"), "--horizon is 'nan'"),
    (("run", "--kv-cache-dtype", "int3"), "unknown KV cache dtype 'int3'"),
    (("run", "--dtype", "int8"), "unknown dtype 'int8'"),
    (("run", "--quantization", "gguf"), "unknown quantization 'gguf'"),
    (("run", "--scheduler", "vlm"), "unknown scheduler 'vlm'; did you mean vllm"),
    (("run", "--router", "rnd-robin"), "unknown router 'rnd-robin'"),
    (("run", "--cost-model", "magic"), "unknown cost model 'magic'"),
    (("run", "--cost-model", "constant+seconds=0"), "seconds=0: must be a number, above 0"),
    (("run", "--workload", "sharegtp"), "unknown workload 'sharegtp'; did you mean sharegpt"),
    (("run", "--workload", "sharegpt+arrival=gamma+cv=2+x=1"), "has no parameter 'x'"),
    (("run", "--scheduling-policy", "lifo"), "--scheduling-policy is 'lifo'"),
    (("run", "--backend", "gpu"), "--backend is 'gpu'"),
    (("run", "--goodput", "ttft"), "must be METRIC:MS"),
    (("run", "--goodput", "tfft:5"), "unknown goodput metric 'tfft'; did you mean ttft"),
    (("run", "--goodput", "ttft:-5"), "--goodput ttft is '-5'"),
    (("run", "--model", "llama-3-70b", "--gpu", "l4"), "llama-3-70b does not fit"),
    (("run", "--model", "llama-3-8b", "--tensor-parallel-size", "3"), "8 KV heads cannot be"),
    (("run", "--workload", "fixed+prompt=900", "--num-gpu-blocks-override", "20"),
     "no request can ever be served"),
    (("run", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "512"),
     "without chunked prefill"),
    (("run", "--max-num-batched-tokens", "8", "--max-num-seqs", "9"), "must be at least max_num_"),
    (("run", "--scheduler", "orca", "--async-scheduling"), "'orca' schedules one step at a time"),
    (("run", "--scheduler", "static", "--enable-prefix-caching"), "'static' has no prefix caching"),
    (("run", "no.toml"), "no.toml: cannot be read"),
    (("run", "broken.toml"), "broken.toml: not a TOML file"),
    (("run", "unknown.toml"), "unknown option 'modle'; did you mean model"),
    (("run", "--replications", "2", "--trace", "good.csv"), "a trace has no seed"),
    (("run", "--replications", "0"), "'--replications'"),
    (("run", "--nope"), "No such option '--nope'"),
    (("rum",), "No such command 'rum'"),
    (("compare", "--allocators", "pagd"), "unknown allocator 'pagd'; did you mean paged"),
    (("compare", "--allocators", ""), "allocators: name at least one"),
    (("compare", "--allocators", "paged,paged"), "paged is given twice"),
    (("compare", "--engines", "sglang", "--allocators", "paged"), "--allocators: conflicts with"),
    (("compare", "--out", "good.csv", *SMALL), "good.csv: cannot create this directory"),
    (("compare", "--json", "no/such/dir.json", *SMALL), "no/such/dir.json: cannot be written"),
    (("capacity", "--gpu", "nope"), "unknown GPU 'nope'"),
    (("capacity", "--model", "llama-3-70b", "--gpu", "l4"), "does not fit"),
    (("capacity", "--vllm-version", "new"), "must look like 0.33"),
    (("list", "cars"), "unknown list 'cars'"),
    (("trace", "inspect", "no.csv"), "no.csv"),
    (("trace", "convert", "good.csv", "out.txt"), "must end in one of .csv"),
    (("trace", "generate", "out.csv", "--workload", "nope"), "unknown workload 'nope'"),
    (("trace", "generate", "out.csv", "--request-rate", "-1"), "request_rate"),
]  # fmt: skip

HEADER = "arrival_time,num_prompt_tokens,num_output_tokens\n"


@pytest.mark.parametrize(
    ("arguments", "message"), MISTAKES, ids=[" ".join(a)[:60] for a, _ in MISTAKES]
)
def test_mistakes_get_one_line_and_exit_code_2(
    call, arguments: tuple[str, ...], message: str
) -> None:  # type: ignore[no-untyped-def]
    files = {
        "empty.csv": b"",
        "binary.csv": bytes(range(256)) * 4,
        "nan.csv": (HEADER + "0,5,5\nnan,5,5\n").encode(),
        "unsorted.csv": (HEADER + "2,5,5\n1,5,5\n").encode(),
        "zero.csv": (HEADER + "0,0,5\n").encode(),
        "huge.csv": (HEADER + "0,5,99999999999999999999\n").encode(),
        "columns.csv": b"a,b\n1,2\n",
        "good.csv": (HEADER + "0,5,5\n").encode(),
        "broken.toml": b"model = ",
        "unknown.toml": b'modle = "x"\n',
    }
    for name, content in files.items():
        Path(name).write_bytes(content)
    answer = call(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("kvsim: ")
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert sorted(p.name for p in Path.cwd().iterdir()) == sorted(files)


def test_targets_are_checked_before_anything_runs(call, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("kvsim.fleet.simulate.serve", lambda *_, **__: pytest.fail("it ran"))
    Path("file").write_text("")
    assert call("compare", "--out", "file").code == 2
    assert call("compare", "--out", "file/below").code == 2
    assert call("run", "--json", "nowhere/a.json").code == 2


def test_every_field_has_a_flag_in_one_section() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    in_files = ["trace_digest", "pool"]  # a saved run's own, and tables
    assert sorted([*listed, *in_files]) == sorted(RunConfig.model_fields)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_its_line_in_the_help_agree(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    for width in (20, 50, 100):
        assert command.get_short_help_str(width) == cli.commands[name].get_short_help_str(width)


@pytest.mark.long
def test_help_and_version_are_light_and_exit_0() -> None:
    for arguments in (["--help"], ["run", "--help"], ["--version"], []):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "kvsim", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-500:]
        for heavy in ("numba", "matplotlib", "pandas", "pyarrow", "simpy"):
            assert f"| {heavy}\n" not in done.stderr.replace("  ", ""), (arguments, heavy)


@pytest.mark.long
def test_a_closed_pipe_is_no_error() -> None:
    script = f"{sys.executable} -m kvsim list models | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--out", "", "--num-requests", "3"],
        ["run", "--json", "", "--num-requests", "3"],
        ["run", "--json", ".", "--num-requests", "3"],
        ["run", "--goodput", "ttft:5", "ttft:500", "--num-requests", "3"],
        ["run", "--cost-model", "constant+seconds=inf", "--num-requests", "3"],
        ["run", "--scheduler", "os:sep", "--num-requests", "3"],
        ["run", "--num-gpu-blocks-override", "1" + "0" * 21, "--num-requests", "3"],
        ["run", "-dp", "100000000", "--num-requests", "3"],
        ["trace", "generate", "t.csv", "--request-rate", "0"],
        ["capacity", "--allocator", "nope"],
    ],
)
def test_more_mistakes_are_one_line(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_vllm_spellings_are_accepted(capsys):
    main(["capacity", "-tp", "2", "--max_num_seqs", "64", "--model", "llama-3-8b", "--json", "-"])
    assert json.loads(capsys.readouterr().out)["tensor_parallel_size"] == 2


def test_json_writes_through_links(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    main(["capacity", "--json", str(link)])
    assert link.is_symlink()
    assert "bytes_per_token" in json.loads(real.read_text())


def test_a_rate_holds_for_the_requests_that_are_kept(tmp_path):
    talk = [{"from": "human", "value": "x" * 40}, {"from": "gpt", "value": "y" * 40}]
    source, target = tmp_path / "sharegpt.json", tmp_path / "out.csv"
    source.write_text(json.dumps([{"id": str(i), "conversations": talk * 4} for i in range(300)]))
    main(
        [
            "trace",
            "convert",
            str(source),
            str(target),
            "--request-rate",
            "8",
            "--num-requests",
            "100",
        ]
    )
    import workloads

    assert workloads.load(target).request_rate == pytest.approx(8, rel=0.01)


def test_an_interrupt_while_writing_leaves_nothing(tmp_path, monkeypatch, capsys):
    from kvsim.report import plot

    def interrupted(runs):
        raise KeyboardInterrupt

    monkeypatch.setitem(plot.FIGURES, "waste", interrupted)
    target = tmp_path / "out"
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "--num-requests", "5", "--allocators", "paged", "--out", str(target)])
    assert stopped.value.code == 130
    assert capsys.readouterr().err.strip().endswith("interrupted; no file is incomplete")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_second_run_replaces_what_it_writes_and_nothing_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for _ in range(2):
        main(["run", "--num-requests", "5", "--out", str(tmp_path)])
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "summary.json").exists()
    assert not list(tmp_path.glob(".*"))


# -- a command line of vLLM's, pasted --------------------------------------------------------------


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Run a command that must fail with one line and exit code 2; return the line."""

    def run(arguments: list[str]) -> str:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


def test_a_whole_vllm_command_line_runs(capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "run",
            "meta-llama/Llama-3.1-8B-Instruct",
            "--gpu",
            "h100-sxm",
            "--host",
            "0.0.0.0",
            "--port=8000",
            "--served-model-name",
            "mine",
            "--trust-remote-code",
            "--disable_log_requests",
            "-O3",
            "--max-model-len",
            "8k",
            "-tp",
            "2",
            "--gpu-memory-utilization",
            "0.9",
            "--enable-prefix-caching",
            "--kv-cache-dtype",
            "fp8",
            "--max-num-seqs",
            "256",
            "--num-requests",
            "10",
            "--json",
            "-",
        ]
    )
    printed = capsys.readouterr()
    assert json.loads(printed.out)["completed"] == 10
    (note,) = printed.err.splitlines()
    assert note == (
        "note: without effect in kvsim: --host 0.0.0.0, --port=8000, --served-model-name mine, "
        "--trust-remote-code, --disable_log_requests"
    )


def test_flags_of_vllm_that_change_the_numbers_are_refused_with_the_reason(error) -> None:  # type: ignore[no-untyped-def]
    for flag_, words in (
        ("--prefill-context-parallel-size", "prompts split over ranks"),
        ("--max_num_partial_prefills", "several partial prefills"),
    ):
        message = error(["run", flag_, "x"])
        assert "is not modelled" in message
        assert words in message
    assert "No such option" in error(["trace", "inspect", "x", "--host", "a"])  # no deployment


@pytest.mark.parametrize(
    ("text", "value"),
    [("8k", 8000), ("8K", 8192), ("25.6k", 25600), ("1M", 1 << 20), ("4096", 4096)],
)
def test_numbers_with_vllms_suffixes(text: str, value: int) -> None:
    assert Config.build(max_model_len=text).max_model_len == value
    assert Config.build(kv_cache_memory_bytes=text).kv_cache_memory_bytes == value


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('max_num_seqs = "64"', "max_num_seqs = '64': must be a number, without quotes"),
        ("gpu_memory_utilization = true", "gpu_memory_utilization is True: must be a number"),
        ('modle = "x"', "unknown option 'modle'"),
        ('max_num_seqs = "many"', "without quotes"),
        ("max_num_seqs = 0", "max_num_seqs is 0"),
    ],
)
def test_mistakes_in_a_file_name_the_file(error, tmp_path, toml: str, message: str) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "run.toml"
    file.write_text(toml + "\n")
    said = error(["run", str(file)])
    assert str(file) in said
    assert message in said


def test_what_contradicts_is_refused(error, tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert "every request has one sequence" in error(["run", "--use-beam-search"])
    trace = tmp_path / "t.csv"
    workloads.fixed(num_requests=3).save(trace)
    both = ["run", "--trace", str(trace), "--workload", "fixed"]
    assert "give one of them" in error(both)
    assert "trace needs a command: convert, generate, inspect" in error(["trace"])
    assert "a block takes" in error(["run", "--block-size", "1000000000"])
    assert "--logged weights is '-3'" in error(["run", "--logged", "weights:-3"])
    assert "conflicts with --model" in error(["run", "llama-3-8b", "--model", "opt-13b"])
    assert "must be a whole number, at least 1" in error(["run", "--max-model-len", "1.5K"])


def test_bytes_between_host_and_gpu_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "run",
            "--workload",
            "shared-prefix",
            "--num-requests",
            "200",
            "--model",
            "llama-3-8b",
            "--gpu",
            "l4",
            "--kv-offloading-size",
            "4",
            "--kv-cache-memory-bytes",
            "500m",
        ]
    )
    assert "GiB fetched" in capsys.readouterr().out


def test_a_length_that_vllm_would_refuse_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for length, told in (("2048", False), ("4096", True)):
        main(["run", "--num-requests", "5", "--max-model-len", length, "--json", "-"])
        main(["run", "--num-requests", "5", "--max-model-len", length])
        noted = "exceeds the 2,048 of opt-13b: vLLM would not start" in capsys.readouterr().err
        assert noted == told


def test_fp32_is_said_to_be_priced_too_fast() -> None:
    trace = workloads.fixed(num_requests=2)
    for dtype, told in (("float32", True), ("auto", False)):
        result = kvsim.simulate(trace, model="gpt2", gpu="l4", dtype=dtype)
        assert ("16-bit peak" in result.provenance["step_time"]) == told
