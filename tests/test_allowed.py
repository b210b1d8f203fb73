"""What a value may be is said in kvsim's words; ``none`` is no value, and 1e3 a number."""

from __future__ import annotations

import json

import pytest
from refused import refused

from kvsim.allowed import is_optional
from kvsim.cli import main
from kvsim.config import Config, RunConfig
from kvsim.study.space import read_varied

OPTIONAL = [name for name, f in RunConfig.model_fields.items() if is_optional(f.annotation)]
SMALL = "run opt-125m --cost-model constant --workload fixed+prompt=10+output=2 --backend python"


def test_none_is_no_value_for_every_optional_option() -> None:
    built = {name: getattr(RunConfig.build(**{name: "none"}), name) for name in OPTIONAL}
    assert built == dict.fromkeys(OPTIONAL)


def test_a_word_that_is_a_value_stays_one() -> None:
    assert Config.build(mamba_cache_mode="none").mamba_cache_mode == "none"


@pytest.mark.parametrize(("text", "number"), [("1e3", 1000), ("2.5E1", 25), ("12", 12)])
def test_whole_numbers_may_have_an_exponent(text: str, number: int) -> None:
    assert RunConfig.build(num_requests=text).num_requests == number
    main([*SMALL.split(), "--num-requests", text, "--json", "/dev/null"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--num-requests many", "--num-requests is 'many': must be a whole number, at least 1"),
        ("--num-requests 0.5e0", "--num-requests is '0.5e0': must be a whole number, at least 1"),
        ("--seed -1", "--seed is '-1': must be a whole number, at least 0"),
        ("--gpu-memory-utilization 2", "is '2': must be a number, above 0, at most 1, or none"),
        ("--kv-transfer-protocol x", "--kv-transfer-protocol is 'x': must be pull or push"),
        ("--goodput ttft:x", "--goodput ttft is 'x': must be a number, above 0"),
        ("--allocator paged+block-size=x", "block-size=x: must be a whole number, above 0"),
        ("--schedule-policy x", "must be one of fcfs, lpm, dfs-weight"),
    ],
)
def test_messages_say_what_is_allowed(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, f"{SMALL} {given}")
    assert said in told
    assert "input should" not in told.lower()


@pytest.mark.long
def test_two_pools_or_four_replicas_take_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    names = "num-prefill-workers:num-decode-workers:data-parallel-size"
    vary = ["--vary", f"{names}=none:none:4,2:2:1", "--replications", "2", "--num-requests", "6"]
    main(["compare", *SMALL.split()[1:], *vary, "--json", "-"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["options"]["num_prefill_workers"] for row in rows] == ["none", "2"]
    roles = [[one["role"] for one in row["replicas"]] for row in rows]
    assert [len(one) for one in roles] == [4, 4]
    assert set(roles[0]) != set(roles[1])


def test_rows_of_options_that_are_walked_together_are_whole() -> None:
    assert len(read_varied(["gpu:block-size=l4:16,l40s:32", "seed:router=1:random"][:1])) == 2
    with pytest.raises(ValueError, match="'l4' must have 2 values, A:B"):
        read_varied(["gpu:block-size=l4,l40s:32"])
    with pytest.raises(ValueError, match="block-size: is given twice"):
        read_varied(["gpu:block-size=l4:16", "block-size=32"])
