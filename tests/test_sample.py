"""The measurements that every clone has: what they are, and how tests ask for more."""

from __future__ import annotations

import ast
import gzip
from pathlib import Path

import pytest
import whole
from whole import NEEDS_THE_WHOLE, not_listed

from experiments import sample
from experiments.validation import data as measurements
from kvsim.cli import main

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parent
#: All of tests/data together, recorded schedules included.
MOST_BYTES = 4_800_000


def asking_for_the_whole() -> set[str]:
    """Return the tests whose arguments name the fixture, by file and name."""
    found = set()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body if "whole_data" in text else ():
            arguments = node.args.args if isinstance(node, ast.FunctionDef) else []
            if "whole_data" in {argument.arg for argument in arguments}:
                found.add(f"{path.name}::{node.name}")
    return found


def test_every_test_that_may_skip_for_absent_data_is_in_the_list() -> None:
    assert asking_for_the_whole() == set(NEEDS_THE_WHOLE)


def test_a_test_that_asks_for_the_whole_and_is_not_in_the_list_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "WHOLE", Path("absent"))
    monkeypatch.setitem(NEEDS_THE_WHOLE, "test_listed.py::test_listed", "a reason")
    pytester.makeconftest((TESTS / "conftest.py").read_text())
    pytester.makepyfile(
        test_listed="def test_listed(whole_data): pass",
        test_stray="def test_stray(whole_data): pass",
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(skipped=1, errors=1)
    result.stdout.fnmatch_lines(["*test_stray*is not in NEEDS_THE_WHOLE*"])


def test_names_are_compared_without_folder_and_parameters() -> None:
    assert not_listed("tests/test_readers.py::test_whole_traces[a/b-1]") is None
    assert not_listed("test_readers.py::test_whole_traces") is None
    assert "test_other" in str(not_listed("tests/test_readers.py::test_other[x]"))


def test_no_test_looks_for_the_whole_by_itself() -> None:
    for path in TESTS.rglob("*.py"):
        if path.name != "whole.py" and path != Path(__file__):
            assert '"shared" / "data"' not in path.read_text(encoding="utf-8"), path


def test_the_sample_is_small_and_every_file_is_named_in_a_readme() -> None:
    files = [path for path in measurements.SAMPLE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    for path in files:
        readme = next(f / "README.md" for f in path.parents if (f / "README.md").exists())
        parts = path.relative_to(readme.parent).parts
        text = readme.read_text(encoding="utf-8")
        folder_or_file = parts[0] + ("/" if len(parts) > 1 else "")
        named = (
            folder_or_file in text
            or path.parent.name in ("vidur", "vllm_cases", "sglang_cases")
            or "vllm_cases2" in str(path)
            or "vllm_cases3" in str(path)
        )
        assert named or path == readme, path


def test_what_is_left_out_is_not_there() -> None:
    """No set without a licence; of the start-up logs the one from a repository under MIT."""
    for name in ("serving/qwen3-14b_h100_vllm0.23", "serving/h100_vllm0.15"):
        assert name in measurements.LEFT_OUT
        assert not (measurements.SAMPLE / name).exists()
    _, *logs = (measurements.SAMPLE / sample.LOGS).read_text().splitlines()
    assert len(logs) == 1
    assert sample.LOGS_FROM in logs[0]


#: Public files, as docs/data.md names them; what the sample has of each, and how many requests.
STANDS_FOR = {
    "AzureLLMInferenceTrace_conv.csv": ("azure2023", 2000),
    "conversation_trace.jsonl": ("mooncake", 1000),
    "sharegpt_8k_filtered_stats_llama2_tokenizer.csv": ("sharegpt", 2000),
    "sessions.jsonl": ("weka", 248),
    "sharegpt-llama-3.1-8b-300-sps10.jsonl": ("llmservingsim", 30),
}


@pytest.mark.long
def test_the_one_command_that_converts_each_public_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (TESTS.parent / "docs" / "data.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("kvsim trace convert ")]
    assert {line.split()[3] for line in lines} == set(STANDS_FOR)
    monkeypatch.chdir(tmp_path)
    for line in lines:
        _, *words = line.split()
        start, count = STANDS_FOR[words[2]]
        (path,) = (measurements.SAMPLE / "traces").glob(f"{start}*")
        words[2] = str(path)
        main(words)
        assert f"{words[3]}: {count:,} requests" in capsys.readouterr().out
        assert (tmp_path / words[3]).stat().st_size > 0


@pytest.mark.slow
def test_the_sample_is_what_the_script_takes_from_the_whole(whole_data: Path) -> None:
    made = dict(sample.sampled(whole_data))
    for name, content in made.items():
        # Compressors differ, contents do not.
        unfold = gzip.decompress if name.endswith(".gz") else bytes
        assert unfold((measurements.SAMPLE / name).read_bytes()) == unfold(content), name
    others = {"README.md", "vllm_cases", "vllm_cases2", "vllm_cases3", "sglang_cases", "hf_configs"}
    files = {
        path.relative_to(measurements.SAMPLE)
        for path in measurements.SAMPLE.rglob("*")
        if path.is_file()
    }
    kept = {p.as_posix() for p in files if p.parts[0] not in others and p.name != "README.md"}
    assert kept == set(made)
