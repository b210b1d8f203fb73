"""The claims kvsim was started from: which of them are wrong, found by computation."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import founding_figures, offload
from experiments.founding_figures import Row, Shown, judged, shown
from experiments.validation.founding.techniques import is_there
from experiments.validation.founding.verdict import (
    Claim,
    agrees,
    between,
    figures,
    judge,
    one_truth,
    part_of,
)

#: By the beginning of the claim; every other one must be right.
EXPECTED = {
    "PagedAttention saves 10 to 30 %": "depends",
    "Llama-2-70B, 128 requests": "right in GiB",
    "13B, 32 requests of 4,096": "WRONG by 2.1x",
    "KV grows quadratically": "WRONG by 2.0x",
    "13B, 4,096 tokens: activations": "WRONG by 38x",
    "7B Adam state": "WRONG by 2.0x",
    "70B: two FP32 moments": "WRONG by 2.0x",
    "7B activations: 32 x 12": "WRONG by 2.0x",
    "ZeRO-2 is 4P + 14P/N": "WRONG by 1.5x",
    "MI300X": "WRONG by 7.3x",
    "RTX 4070": "WRONG by 1.2x",
    "QLoRA r = 16": "WRONG by 4.2x",
    "PCIe gen 4": "contradictory: 32 right, 16 WRONG by 2.0x",
    "checkpoints every 4": "right, incomplete by 2.1 GB",
    "standard attention's matrix": "right in GiB",
    "PyTorch's fragmentation": "reported" if is_there("dynamic") else "not there",
}


@pytest.fixture(scope="session")
def rows() -> list[Row]:
    return judged(quick=True)


@pytest.fixture(scope="session")
def techniques() -> list[Shown]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offload, "REQUESTS", 16)  # demand paging runs in plain Python
        return shown(quick=True)


@pytest.mark.long
def test_every_verdict(rows: list[Row]) -> None:
    assert len(rows) == 32
    for beginning in EXPECTED:
        assert sum(row.claim.startswith(beginning) for row in rows) == 1, beginning
    for row in rows:
        expected = [v for k, v in EXPECTED.items() if row.claim.startswith(k)] or ["right"]
        assert [row.verdict] == expected, row


@pytest.mark.long
def test_a_measured_figure_for_every_technique_that_is_there(techniques: list[Shown]) -> None:
    assert len(techniques) == 20
    assert not [row.technique for row in techniques if row.measured == "not there"]
    measured = {row.technique: row.measured for row in techniques}
    assert measured["KV of MHA, GQA, MQA, MLA"].startswith("GQA-8 4x, MQA 32x")
    assert "74.6 % less; LoRA 402x fewer" in measured["8-bit Adam; LoRA; accumulation"]
    assert measured["roofline"] == (
        "decode attention 1 FLOP/B, memory-bound; decode GEMMs 32 FLOP/B, memory-bound; "
        "prefill GEMMs 2,936 FLOP/B, compute-bound; ridge 295"
    )
    assert measured["flash attention"] == "twice the tokens: 2x the statistics, 4x the scores"


def claim(theirs: tuple[str, ...], how=figures, unit: str = "GB", tolerance: float = 0.02) -> Claim:  # type: ignore[no-untyped-def]
    return Claim("", theirs, lambda: [], how, unit, tolerance)


def test_verdicts_can_be_otherwise() -> None:
    assert judge(claim(("10", "20")), [10.1, 19.9]) == "right"
    assert judge(claim(("10", "20")), [10.1, 22]) == "WRONG by 1.1x"
    assert judge(claim(("10", "20")), [10.1, 60]) == "WRONG by 3.0x"
    assert judge(claim(("20",)), [5]) == "WRONG by 4.0x"
    assert judge(claim(("32",)), [32 * 1.073741824]) == "right in GiB"
    assert judge(claim(("32",), unit="x"), [32 * 1.073741824]) == "WRONG by 1.1x"
    assert judge(claim(("2", "4"), between), [2.1, 3.9]) == "right"
    assert judge(claim(("2", "4"), between), [1.5, 3.9]) == "depends"
    assert judge(claim(("2", "4"), between), [8, 12]) == "WRONG by 2.0x"
    assert judge(claim(("2", "4"), between), [0.5, 1]) == "WRONG by 2.0x"
    assert judge(claim(("2", "4"), between), [1, 8]) == "depends"  # on both sides of it
    assert judge(claim(("2", "4"), between), [5, 8]) == "WRONG by 1.2x"
    assert judge(claim(("16", "32"), one_truth), [8]).count("WRONG") == 2
    assert judge(claim(("16", "16"), one_truth), [16]) == "right"
    assert judge(claim(("5",), part_of), [7, 5]) == "incomplete by 2.0 GB"
    assert judge(claim(("5",), part_of), [10, 9]) == "WRONG by 2.0x"
    assert judge(claim(("5",)), []) == "not there"


def test_a_figure_is_right_if_ours_rounds_to_it() -> None:
    assert agrees("0.07", 0.0671, 0.0)
    assert not agrees("0.07", 0.0751, 0.0)
    assert agrees("28610", 28610, 0.0)
    assert not agrees("28610", 28611, 0.0)


@pytest.mark.long
def test_the_script_prints_every_row_and_writes_both_tables(
    rows: list[Row],
    techniques: list[Shown],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = []
    monkeypatch.setattr(founding_figures, "judged", lambda quick: asked.append(quick) or rows)
    monkeypatch.setattr(founding_figures, "shown", lambda quick: asked.append(quick) or techniques)
    monkeypatch.setattr("sys.argv", ["founding_figures", "--quick", "--out", str(tmp_path)])
    founding_figures.main()
    assert asked == [True, True]
    printed = capsys.readouterr().out
    assert "32 claims, 11 with something wrong; 20 techniques" in printed
    written = {p.name: p.read_text().count("\n") for p in tmp_path.iterdir()}
    assert written["founding_figures.csv"] == 33
    assert written["founding_techniques.csv"] == 21
