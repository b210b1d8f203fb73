"""What changes if a server is upgraded: the rules that differ between vLLM's versions."""

from __future__ import annotations

import json

import pytest

import kvsim
from kvsim.budget.versions import CHANGES, changes_between, precedes, upgrade_notes
from kvsim.cli import main


def test_changes_are_listed_from_old_to_new() -> None:
    assert list(CHANGES) == sorted(CHANGES, key=lambda change: change.since)


@pytest.mark.parametrize(
    ("version", "release", "older"),
    [("0.7", (0, 7, 1), False), ("0.7.0", (0, 7, 1), True), ("v0.20.2", (0, 21, 0), True)],
)
def test_a_version_without_its_last_number_is_the_last_release(
    version: str, release: tuple[int, int, int], older: bool
) -> None:
    assert precedes(version, release) is older


def test_versions_differ_by_the_changes_between_them() -> None:
    assert not changes_between("0.24", "0.33")
    told = [change.now for change in changes_between("0.33", "0.12")]
    assert told[0] == "little host time per request and step"
    assert len(told) == 5


def test_what_no_version_brings_names_its_option() -> None:
    first, second, _ = upgrade_notes(["0.13", "0.20"])
    assert first == "vllm_version 0.13 and 0.20: no rule that kvsim knows differs by itself"
    assert second.endswith("not followed, give --no-async-scheduling for the older one")
    assert not list(upgrade_notes(["0.20", "0.20"]))


def test_compare_says_what_an_upgrade_changes(capsys: pytest.CaptureFixture[str]) -> None:
    line = "compare --vary vllm-version=0.20,0.33 --workload fixed+prompt=10+output=2"
    main(f"{line} --num-prompts 2 --replications 1 --backend python --json -".split())
    told, known = json.loads(capsys.readouterr().out)["versions"]
    assert "the budget counts CUDA graphs since 0.21 (before: it does not)" in told
    assert "groups of layers" in known


def test_capacity_follows_the_version() -> None:
    """0.92 of 80 GiB less graphs, against 0.90 without them."""
    old, new = (
        kvsim.capacity(model="llama-3-8b", gpu="h100-sxm", vllm_version=v) for v in ("0.20", "0.33")
    )
    assert new.budget_bytes["total"] > old.budget_bytes["total"]
    assert old.budget_bytes["cuda_graphs"] == 0 < new.budget_bytes["cuda_graphs"]
