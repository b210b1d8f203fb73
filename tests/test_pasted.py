"""Lines of servers, pasted behind a command of kvsim."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import click
import pytest
from refused import refused

import kvsim
import workloads
from kvsim.cli import main
from kvsim.cli.deferred import PASTED
from kvsim.cli.main import cli
from kvsim.cli.pasted import Pasted, own_flags, translate
from kvsim.cli.server_flags import ServerFlag, flags_of
from kvsim.engines.registry import all_engines

if TYPE_CHECKING:
    from pathlib import Path

VLLM = "vllm serve meta-llama/Llama-3.1-8B"
SGLANG = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B"
#: Values that a flag of kvsim takes, by its kind.
SOME = {
    "--offload-mode": "cpu",
    "--hicache-storage-backend": "mooncake",
    "--hf-overrides": "{}",
    "--kv-transfer-config": "none",
    "--speculative-config": "none",
}
SOME |= {"--kv-events-config": "none", "--compilation-config": "{}", "--optimization-level": "2"}


def said(line: str) -> Pasted:
    return translate(line.split(), cli)


def words(line: str) -> list[str]:
    """Return what kvsim makes of a line after the model."""
    made = said(f"run {VLLM} {line}").words
    return made[2:]


def every_flag(server: str) -> list[ServerFlag]:
    return list(dict.fromkeys(flags_of(server).values()))


# Every flag is known


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_every_flag_of_the_servers_own_parsers_is_known(server: str, whole_data: Path) -> None:
    table = (whole_data / "flags" / f"flags_{server}.tsv").read_text().splitlines()[1:]
    known = flags_of(server)
    for row in table:
        for name in row.split("\t")[0].replace(",", " ").split():
            assert name in known or name in ("..", "-O0", "-O3"), name


@pytest.mark.parametrize("server", all_engines())
def test_the_tables_say_one_thing_of_each_flag(server: str) -> None:
    for flag in every_flag(server):
        assert flag.takes in ("switch", "value", "values")
        assert flag.does in ("modelled", "nothing", "time", "assumed", "refused")
        assert (flag.does in ("assumed", "refused")) <= bool(flag.about), flag
        assert not flag.negatives or flag.takes == "switch"


def test_what_the_tables_call_modelled_is_an_option_of_run() -> None:
    own = own_flags(cli, "run")
    special = {"--optimization-level", "--compilation-config", "--cudagraph-capture-sizes"}
    special.add("--offload-mode")
    for server in all_engines():
        for flag in every_flag(server):
            if flag.does == "modelled" and flag.own not in special:
                assert flag.own.partition(".")[0] in own, flag
                assert flag.takes != "switch" or f"--no-{flag.own[2:]}" in own


@pytest.mark.long
@pytest.mark.parametrize(("server", "line"), [("vllm", VLLM), ("sglang", SGLANG)])
@pytest.mark.parametrize("command", PASTED)
def test_no_flag_is_unknown_to_any_command(server: str, line: str, command: str) -> None:
    """Ten flags at a time, in any order; what is refused is refused with its reason."""
    flags = [flag for flag in every_flag(server) if flag.does != "refused"]
    chosen = random.Random(command)
    chosen.shuffle(flags)
    known = cli.get_command(click.Context(cli), command)
    assert known is not None
    for first in range(0, len(flags), 10):
        given: list[str] = []
        for flag in flags[first : first + 10]:
            name = chosen.choice([*flag.names, *flag.negatives])
            value = [SOME.get(flag.names[0], "1")]
            given += [name, *([] if flag.takes == "switch" else value)]
        made = translate([command, *line.split(), *given], cli).words
        # Values are checked later; here every word has its place.
        known.make_context(command, made[1:], resilient_parsing=False)


@pytest.mark.parametrize(("server", "line"), [("vllm", VLLM), ("sglang", SGLANG)])
def test_what_is_refused_says_why_and_takes_its_default(server: str, line: str) -> None:
    for flag in every_flag(server):
        if flag.does != "refused":
            continue
        name = flag.negatives[0] if flag.is_on else flag.names[0]
        given = [] if flag.takes == "switch" else ["17x"]
        with pytest.raises(ValueError, match="is not modelled") as told:
            translate(["run", *line.split(), name, *given], cli)
        assert flag.about in str(told.value)
        for default in flag.defaults:
            if flag.takes != "switch":
                made = translate(["run", *line.split(), name, default], cli)
                assert f"{name} {default}" in made.unused


# How a line is read


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("--max-num-batched-token 4096", ["--max-num-batched-tokens", "4096"]),
        ("--max_num_seqs=8", ["--max-num-seqs", "8"]),
        ("--kv-cache-memory 20G", ["--kv-cache-memory-bytes", "20G"]),
        ("--disable-prefix-caching", ["--no-enable-prefix-caching"]),
        ("--enable-prefix-caching=false", ["--no-enable-prefix-caching"]),
        ("--no-enforce-eager", ["--no-enforce-eager"]),
        ("-q awq -tp 2", ["--quantization", "awq", "--tensor-parallel-size", "2"]),
        ("-cc.cudagraph_mode=none", ["--compilation-config", '{"cudagraph_mode": "none"}']),
        ("-cc.mode=none --compilation-config 3", ["--optimization-level", "2"]),
        ("-O0", ["--optimization-level", "0"]),
        ("--cudagraph-capture-sizes 1 2 4", ["--cudagraph-capture-sizes", "[1,2,4]"]),
        ("--cuda-graph-sizes 1,2", ["--cudagraph-capture-sizes", "[1,2]"]),
        ("--quantization awq_marlin", ["--quantization", "awq"]),
        ("--quantization=modelopt_fp4", ["--quantization", "nvfp4"]),
        ("--quantization compressed-tensors", []),
        ("-q auto_round", []),
        ("--tokenizer a/b.json --tokenizer name", ["--tokenizer", "a/b.json"]),
        ("--num-lookahead-slots 4", ["--num-lookahead-tokens", "4"]),
        (
            "--workload fixed+prompt=100 --router random",
            ["--workload", "fixed+prompt=100", "--router", "random"],
        ),
    ],
)
def test_flags_are_read_as_vllm_reads_them(line: str, made: list[str]) -> None:
    assert words(line) == made


def test_a_container_of_formats_is_told_to_follow_the_model() -> None:
    (note,) = said(f"run {VLLM} --quantization compressed-tensors").notes()
    assert "the model's name or its config.json decides how weights are stored" in note


@pytest.mark.parametrize("value", ["-1", "auto"])
def test_a_length_that_follows_from_memory_is_passed_on(value: str) -> None:
    assert words(f"--max-model-len {value}") == ["--max-model-len", value]


def test_flags_that_tell_a_part_of_the_speculation_are_put_together() -> None:
    flag, value = words("--spec-method ngram --spec-tokens 3")
    assert flag == "--speculative-config"
    assert json.loads(value) == {"method": "ngram", "num_speculative_tokens": 3}
    older = words("--speculative-model ngram --num-speculative-tokens 3")
    assert json.loads(older[1]) == {"model": "ngram", "num_speculative_tokens": 3}
    flag, value = words("--speculative-config.method ngram -sc.num_speculative_tokens=2")[-2:]
    assert flag == "--speculative-config"


def test_a_rope_of_older_versions_joins_the_overrides() -> None:
    flag, value = words('--hf-overrides {"num_hidden_layers":2} --rope-scaling {"factor":4.0}')
    assert flag == "--hf-overrides"
    assert json.loads(value) == {"num_hidden_layers": 2, "rope_scaling": {"factor": 4.0}}


def test_one_note_names_what_has_no_effect_and_one_what_is_not_known() -> None:
    given = "--host a --served-model-name b c --moe-backend triton --limit-mm-per-prompt {}"
    (
        unused,
        timed,
    ) = said(f"run {VLLM} {given}").notes()
    assert unused == (
        "without effect in kvsim: --host a, --served-model-name b c, --limit-mm-per-prompt {}"
    )
    assert timed == "step times do not include the effect of --moe-backend triton"
    (assumed,) = said(f"run {VLLM} --generation-config vllm --lora-dtype X").notes()
    assert assumed.startswith(
        "assumed although flags differ: answers are as long as the requests say"
    )
    assert "(--lora-dtype X)" in assumed


def test_an_abbreviation_of_several_flags_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, f"run {VLLM} --max-num 3")
    assert "--max-num: is ambiguous (--max-num-active-seqs, --max-num-batched-tokens" in told


def test_sglangs_line_keeps_values_with_an_equals_sign() -> None:
    made = said(f"run {SGLANG} --workload fixed+prompt=100 --num-prompts 10").words
    assert made == [
        *("run", "--engine", "sglang", "--model", "meta-llama/Llama-3.1-8B"),
        *("--workload", "fixed+prompt=100", "--num-prompts", "10"),
    ]


@pytest.mark.parametrize(
    "beginning",
    [
        "vllm serve",
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve",
        "--gpu l4 vllm serve",
        "python3 -m vllm.entrypoints.openai.api_server --model",
    ],
)
def test_a_line_is_pasted_with_its_beginning(beginning: str) -> None:
    made = said(f"capacity {beginning} llama-3-8b").words
    assert made[-1] == "llama-3-8b"
    assert not {"vllm", "serve", "python3", "-m"} & set(made)


# What capacity and the others take


def test_capacity_takes_a_model_a_line_and_a_file(capsys, tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "run.toml"
    file.write_text('model = "llama-3-8b"\ngpu = "l40s"\nrequest_rate = 3.0\n')
    answers = []
    for given in (
        ["llama-3-8b", "--gpu", "l40s"],
        ["vllm", "serve", "llama-3-8b", "--gpu", "l40s", "--scheduling-policy", "fcfs"],
        [str(file)],
        ["--model", "llama-3-8b", "--gpu", "l40s"],
    ):
        main(["capacity", *given, "--json", "-"])
        answers.append(json.loads(capsys.readouterr().out))
    assert all(answer == answers[0] for answer in answers)


def test_capacity_of_sglang_is_what_a_run_of_it_has() -> None:
    given = {"model": "llama-3-8b", "gpu": "h100-sxm", "engine": "sglang"}
    fits = kvsim.capacity(**given)
    trace = workloads.fixed(prompt=20, output=3, num_requests=2, request_rate=1.0)
    result = kvsim.simulate(trace, **given, backend="python")
    assert fits.engine == "sglang"
    assert fits.num_tokens * fits.bytes_per_token == result.summary["kv_cache"]["bytes"]
    assert fits.budget_bytes["kv_cache"] == result.summary["kv_cache"]["bytes"]
    with pytest.raises(ValueError, match="only engine sglang supports it"):
        kvsim.capacity(model="llama-3-8b", page_size=4)


@pytest.mark.parametrize("command", ["roofline", "train-memory", "capacity", "calibrate"])
def test_a_second_model_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = " --log x.log" if command == "calibrate" else ""
    told = refused(capsys, f"{command} llama-3-8b --model opt-13b{log}")
    assert "conflicts with --model" in told or "cannot be read" in told


def test_compare_of_sglangs_line_compares_it_with_vllm() -> None:
    assert said(f"compare {SGLANG}").words[1:3] == ["--engines", "vllm,sglang"]
    assert "--engines" not in said(f"compare {SGLANG} --vary page_size=1,16").words


def test_commands_without_a_deployment_are_left_alone() -> None:
    assert said("trace inspect x --host a").words == ["trace", "inspect", "x", "--host", "a"]
    assert isinstance(cli, click.Group)
