"""Measured points: which rows are taken, what is simulated of them, how errors are judged."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

import kvsim
from experiments import validate_points
from experiments.validation.data import SAMPLE
from experiments.validation.points import rows as point_rows
from experiments.validation.points.causes import causes, misses
from experiments.validation.points.errors import (
    BANDS,
    band_of,
    by_concurrency,
    by_parallel,
    group_of,
    grouped,
    triple,
    verdicts,
)
from experiments.validation.points.flags import evaluated, flag, whole
from experiments.validation.points.run import (
    BLACKWELL,
    HOPPER,
    Found,
    Pair,
    front_end_of,
    launches_of,
    little,
    parallel_of,
    point_of,
    simulate,
)
from experiments.validation.points.server import (
    gpu_of,
    of_text,
    options_of,
    quantization_of,
    trace_of,
)
from kvsim.catalog import get_model
from kvsim.config import Config
from kvsim.cost.accuracy import SERVED
from kvsim.cost.efficiency import read_table
from kvsim.trace import Trace

VALIDATION = Path(__file__).resolve().parents[1] / "docs" / "validation"


@pytest.fixture(scope="module")
def selection() -> point_rows.Selection:
    return point_rows.select(point_rows.read(SAMPLE))


@pytest.fixture(scope="module")
def rows(selection) -> list[dict[str, str]]:
    return selection.rows.to_dict("records")


def row_of(rows: list[dict[str, str]], identifier: str) -> dict[str, str]:
    (row,) = [row for row in rows if row["id"] == identifier]
    return row


# -- which rows ------------------------------------------------------------------------------------


def test_every_row_of_vllm_is_taken_or_has_a_reason(selection) -> None:
    assert len(selection.rows) == 402
    assert selection.left_out == {
        "trap 6: 52 ms per token whatever the batch": 33,
        "the same measurement as another row": 23,
        "trap 6: faster than without hits": 11,
        "prefill and decode apart": 10,
        "trap 7: more in flight than a server can have held": 4,
        "no concurrency": 2,
    }


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"suspicious": point_rows.UNMERGED}, ""),
        ({"engine": "sglang"}, "another engine than vLLM"),
        ({"mode": "disagg"}, "prefill and decode apart"),
        ({"concurrency": ""}, "no concurrency"),
        ({"tpot_ms": ""}, "no times"),
        ({"spec_decoding": "unknown"}, "speculative decoding, or perhaps"),
        ({"suspicious": "TPOT below the byte floor"}, "TPOT below the byte floor"),
        ({"gpus": "12.0"}, "totals of several machines"),
    ],
)
def test_why_a_row_is_left_out(rows, changed, reason) -> None:
    assert point_rows.why_not(rows[0] | changed) == reason


def test_a_copy_of_a_measurement_is_taken_once_with_the_flags_that_are_known(rows) -> None:
    first = rows[0] | {"flags_status": "unknown", "tpot_ms": "7.06", "ttft_ms": "74.14"}
    copy = rows[0] | {"tpot_ms": "7.06156", "ttft_ms": "74.1409"}
    again = rows[0] | {"tpot_ms": "7.09", "ttft_ms": "74.1409"}  # on another day
    other = copy | {"concurrency": "8.0"}
    assert point_rows.repeats([first, copy, again, other], range(4)) == [0]


def test_the_split_needs_nothing_but_the_id(rows) -> None:
    # sha256sum of them ends in bb, 9d, c6 and e4.
    found = [point_rows.is_fitted(name) for name in "abcd"]
    assert found == [False, False, True, True]
    share = np.mean([point_rows.is_fitted(row["id"]) for row in rows])
    assert 0.45 < share < 0.55


def test_points_that_decided_constants_before_are_never_held_out(rows) -> None:
    decided = [row for row in rows if point_rows.decided_constants(row)]
    assert len(decided) == 7
    assert any(not point_rows.is_fitted(row["id"]) for row in decided)
    assert {point_of(row).half for row in decided} == {"fitted"}


# -- servers and clients ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        (
            "2026_03_25_gpt_oss_120b_h100_sxm_vllm_fp4_agg_1024x1024_c4_tp8_0_ep1_0_210",
            {
                "model": "gpt-oss-120b",
                "gpu": "h100-sxm",
                "quantization": None,  # the model's own
                "kv_cache_dtype": "auto",
                "tensor_parallel_size": 8,
                "enable_expert_parallel": False,
                "max_num_batched_tokens": 8192,
                "max_num_seqs": 4,
                "gpu_memory_utilization": 0.9,
                "async_scheduling": True,
                "max_concurrency": 4,
                "enable_prefix_caching": False,
                "vllm_version": "0.18",
                "block_size": 16,
            },
        ),
        (
            "2026_04_06_minimax_m2_5_b200_sxm_vllm_fp8_agg_1024x1024_c512_tp2_ep1_1402",
            {"quantization": None, "kv_cache_dtype": "fp8", "block_size": 32},
        ),
        (
            "minimaxm2_5_b200_vllm_fp4_agg_8192x1024_c512_cfg706",
            {
                "quantization": "nvfp4",
                "kv_cache_dtype": "fp8",
                "tensor_parallel_size": 1,
                "data_parallel_size": 2,
                "enable_expert_parallel": True,
                "max_num_batched_tokens": 16384,  # $((ISL * 2 ))
                "max_num_seqs": 1024,
            },
        ),
        (
            "kimik2_5_b200_vllm_fp4_agg_1024x1024_c32_cfg635",  # auto: as the checkpoint asks
            {"model": "kimi-k2.5", "kv_cache_dtype": "fp8", "enable_expert_parallel": True},
        ),
        (
            "2026_04_06_llama_3_1_70b_h100_sxm_vllm_fp8_agg_1024x8192_c64_tp2_ep1_327",
            {"quantization": "fp8", "kv_cache_dtype": "auto", "async_scheduling": True},
        ),
        (
            "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_8192x1024_c64_tp1_ep1_486",
            {"quantization": "fp8", "kv_cache_dtype": "fp8", "max_num_seqs": 512},
        ),
        (
            "qwen_qwen3_32b_qwen_qwen3_32b_h100_sxm_vllm_agg_1024x128_c8_tp2_epnone_1",
            {"quantization": None, "async_scheduling": False, "max_model_len": 1468},
        ),
    ],
)
def test_options_of_a_row(rows, identifier, expected) -> None:
    found = options_of(row_of(rows, identifier))
    assert {name: found[name] for name in expected} == expected


SCRIPT = (
    "if [[ $TP -eq 8 ]]; then ; MAX_RUNNING_REQUESTS=128 ; MEM_FRAC_STATIC=0.82 ; else ; "
    "MAX_RUNNING_REQUESTS=32 ; MEM_FRAC_STATIC=0.95 ; fi ; python3 -m sglang.launch_server "
    "--max-running-requests $MAX_RUNNING_REQUESTS --mem-fraction-static $MEM_FRAC_STATIC "
    "--chunked-prefill-size 32768 --cuda-graph-max-bs 256 --attention-backend trtllm_mla"
)


def test_options_of_a_server_of_sglang(rows) -> None:
    row = rows[0] | {"engine": "sglang", "version": "0.5.9", "tp": "8.0", "flags": SCRIPT}
    found = options_of(row)
    expected = {
        **{"engine": "sglang", "max_running_requests": 128, "mem_fraction_static": 0.82},
        **{"chunked_prefill_size": 32768, "max_cudagraph_capture_size": 256, "page_size": 64},
    }
    assert {name: found[name] for name in expected} == expected
    assert not {"max_num_batched_tokens", "block_size", "async_scheduling"} & set(found)
    assert "max_running_requests" not in options_of(row | {"flags": ""})
    with pytest.raises(ValueError, match="no value in the script for 4"):
        options_of(row | {"tp": "4.0"})


@pytest.mark.parametrize(("clients", "passes"), [("4.0", 10), ("16.0", 30)])
def test_a_variable_of_a_script_may_go_by_clients(rows, clients, passes) -> None:
    script = (
        "if [[ $CONC -ge 16 ]]; then ; RECV=30 ; else ; RECV=10 ; python3 -m sglang.launch_server "
        "--scheduler-recv-interval $RECV"
    )
    row = rows[0] | {"engine": "sglang", "version": "0.5.9", "tp": "4.0", "flags": script}
    assert options_of(row | {"concurrency": clients})["scheduler_recv_interval"] == passes


def test_a_model_under_two_names_is_measured_once(rows) -> None:
    one = rows[0] | {"engine": "sglang", "version": "0.5.9", "model": "deepseek-ai/DeepSeek-R1"}
    table = pd.DataFrame([one, one | {"model": "deepseek-ai/DeepSeek-V3", "id": "again"}])
    assert len(point_rows.select(table, "sglang").rows) == 1
    assert len(point_rows.select(table.assign(version=""), "sglang").rows) == 0
    assert len(point_rows.select(table).rows) == 0


def test_a_second_name_takes_the_flags_of_the_first(rows) -> None:
    told = rows[0] | {"engine": "sglang", "model": "deepseek-ai/DeepSeek-R1", "flags": SCRIPT}
    same = told | {"model": "deepseek-ai/DeepSeek-V3", "flags": ""}
    others = [same | {"date": "2020-01-01"}, same | {"gpus": "4.0"}, rows[0] | {"flags": ""}]
    found = point_rows.with_flags(pd.DataFrame([told, same, *others]))
    assert list(found["flags"]) == [SCRIPT, SCRIPT, "", "", ""]


@pytest.mark.parametrize(
    ("engine", "model", "card", "waits"),
    [
        ("sglang", "deepseek-v3", "h200-sxm", True),
        ("vllm", "deepseek-v3", "h200-sxm", False),
        ("sglang", "deepseek-v3", "b200", False),
        ("sglang", "qwen3-235b-a22b", "h200-sxm", False),
    ],
)
def test_prefills_of_latents_wait_for_launches(rows, engine, model, card, waits) -> None:
    row = rows[0] | {"engine": engine}
    point = point_of(rows[0])._replace(row=row, model=model, card=card)
    with launches_of(point) as options:
        assert bool(options) == waits
        if waits:
            table = tomllib.loads(Path(options["cost_model"].partition("=")[2]).read_text())
            own = read_table()["h200"]["uncaptured_experts"]
            assert table["h200"]["uncaptured_experts"] == pytest.approx(own + 1.75e-3, rel=1e-3)


def test_a_group_that_misses_has_a_cause_that_is_printed(rows) -> None:
    path = VALIDATION / "validate_points_sglang.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    missed = {
        group["points"]
        for group in record["groups"]
        if group["half"] == "held out"
        and (group["TPOT"]["median_absolute"] > 6 or group["TTFT"]["median_absolute"] > 15)
    }
    assert missed == set(causes())
    far = paired(rows, rows[0]["id"], off=20.0)
    assert misses([paired(rows, rows[0]["id"], off=1.0)]) == []
    name = " ".join(group_of(far.point))
    assert misses([far]) == [f"MISSED {name}: TPOT 20.0, TTFT 20.0 %. No cause is known."]


def test_every_row_has_options_that_kvsim_knows(rows) -> None:
    for row in rows:
        Config.build(**options_of(row))


@pytest.mark.parametrize(
    ("name", "gpu"),
    [("b300_sxm", "b300"), ("gb300_sxm", "gb300"), ("gb200", "gb200"), ("h200_sxm", "h200-sxm")],
)
def test_cards_of_other_tables(name, gpu) -> None:
    assert gpu_of(name) == gpu


def test_what_is_not_known_is_told(rows) -> None:
    for changed, told in (
        ({"model": "nobody/knows-7b"}, "knows-7b"),
        ({"gpu": "h900_sxm"}, "h900"),
        ({"weights": "fp3"}, "'fp3'"),
        ({"max_num_seqs": "$(nproc)"}, "not arithmetic"),
    ):
        with pytest.raises(ValueError, match=told):
            point_of(rows[0] | changed)


def test_flags_and_a_shells_arithmetic() -> None:
    row = {"isl": "1024", "osl": "8192.0", "concurrency": "16.0", "tp": "4.0", "ep": "1"}
    assert evaluated("$((ISL * 2 ))", row) == 2048
    assert evaluated("$CONC", row) == evaluated("${CONC}", row) == 16
    assert evaluated("$((ISL + OSL/4 - 20))", row) == 3052
    for wrong in ("$HOME", "2 **", "__import__('os')", "1 << 3"):
        with pytest.raises(ValueError, match="not arithmetic"):
            evaluated(wrong, row)
    line = 'vllm serve $MODEL \\ ; --block-size=32 \\ ; --max-num-batched-tokens "$((ISL * 2 ))" \\'
    assert flag(line, "block-size") == "32"
    assert flag(line, "max-num-batched-tokens") == "$((ISL * 2 ))"
    assert flag("cat > config.yaml << EOF ; block-size: 64 ; EOF", "block-size") == "64"
    assert flag(line, "max-num-seqs") == ""
    assert whole("4.0") == whole("", 4) == 4
    with pytest.raises(ValueError, match="not a whole number"):
        whole("4.5")


def test_the_client_sends_all_at_once_ten_prompts_a_client(rows) -> None:
    row = row_of(rows, "kimik2_5_b200_vllm_fp4_agg_1024x1024_c32_cfg635")
    trace = trace_of(row)
    assert len(trace) == 320
    assert not trace.arrival_time.any()
    for lengths in (trace.num_prompt_tokens, trace.num_output_tokens):
        assert 819 <= lengths.min() < 830
        assert 1014 < lengths.max() <= 1024
    assert (trace_of(row).num_prompt_tokens == trace.num_prompt_tokens).all()
    unknown = row | {"random_range_ratio": "", "num_prompts": "", "concurrency": "3.0"}
    exact, spread = trace_of(unknown | {"engine": "sglang"}), trace_of(unknown)
    assert len(exact) == len(spread) == 30
    assert set(exact.num_prompt_tokens) == set(exact.num_output_tokens) == {1024}
    assert 921 <= spread.num_prompt_tokens.min() < 950
    assert 1098 < spread.num_prompt_tokens.max() <= 1127


def test_an_unknown_client_adds_its_own_time_and_no_queue(rows) -> None:
    known = point_of(next(row for row in rows if row["random_range_ratio"]))
    assert front_end_of(known) in (HOPPER, BLACKWELL)
    row = next(row for row in rows if not row["random_range_ratio"] and row["engine"] == "vllm")
    for isl in ("1024", "4096"):
        seconds, queued = front_end_of(point_of(row | {"isl": isl}))
        assert seconds == pytest.approx(10e-3 + 33e-6 * int(isl))
        assert queued == 0


# -- errors and bands ------------------------------------------------------------------------------


def test_throughput_is_by_the_law_that_the_table_has_it_by(rows) -> None:
    for row in rows:
        rate = little(row, float(row["ttft_ms"]) / 1e3, float(row["tpot_ms"]) / 1e3)
        assert rate == pytest.approx(float(row["output_tok_s_per_gpu_est"]), rel=1e-4)


def test_only_clients_that_are_known_send_text(rows) -> None:
    """InferenceX's prompts are tokenised; of the others' servers nobody knows the flags."""
    text = next(row for row in rows if "gpt-oss-120b" in row["model"])
    other = next(row for row in rows if "Qwen3-32B" in row["model"])
    assert of_text(text)
    assert not of_text(other)
    for row in (text, other):
        assert not trace_of(row).arrival_time.any()
        given = {**row, "max_num_batched_tokens": "", "flags": ""}
        assert options_of(given)["max_num_batched_tokens"] == 8192
        assert (
            options_of({**given, "max_num_batched_tokens": "512"})["max_num_batched_tokens"] == 512
        )


def test_errors_are_a_median_a_mean_and_a_bias() -> None:
    assert triple([-10.0, 1.0, 3.0, 2.0]) == (2.5, 4.0, 1.5)
    assert str(triple([-10.0, 2.0, 3.0])) == "3.0 / 5.0 / +2.0"


def paired(rows, identifier: str, *, half: str = "held out", off: float = 0.0) -> Pair:
    point = point_of(row_of(rows, identifier))._replace(half=half)
    ours = {name: value * (1 + off / 100) for name, value in point.measured.items()}
    return Pair(point, Found(ours, "compiled", 0.1))


QWEN = "qwen_qwen3_32b_qwen_qwen3_32b_h100_sxm_vllm_agg_1024x1024_c8_tp4_epnone_32"


def test_points_are_grouped(rows) -> None:
    pair = paired(rows, QWEN, off=-2)
    assert group_of(pair.point) == ("qwen3-32b", "bf16", "h100-sxm")
    assert by_parallel(pair.point)[-1] == "TP4"
    assert by_concurrency(pair.point)[-1] == "C 01-08"
    refused = Pair(pair.point, Found({}, refused="too large"))
    unmerged = paired(rows, QWEN, half="unmerged", off=50)
    pairs = [pair, refused, unmerged, paired(rows, QWEN, half="fitted", off=4)]
    ((_, row),) = grouped(pairs, "all", group_of)
    assert row["number"] == 2
    assert row["TPOT"] == pytest.approx((3, 3, 1))
    options = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 4}
    assert parallel_of(options | {"enable_expert_parallel": True}) == "TP1 DP4 EP"


def test_bands_judge_held_out_points_alone(rows) -> None:
    def words(*pairs: Pair) -> dict[str, bool | None]:
        return {row["of"]: row.get("holds") for row in verdicts(pairs)}

    near, far = paired(rows, QWEN, off=-2.9), paired(rows, QWEN, off=-3.1)
    assert words(near) == {"TPOT": True, "TTFT": True, "bias of TPOT": True}
    assert words(far) == {"TPOT": False, "TTFT": True, "bias of TPOT": True}
    assert words(paired(rows, QWEN, off=20)) == dict.fromkeys(words(near), False)
    fitted = far._replace(point=far.point._replace(half="fitted"))
    assert words(fitted) == dict.fromkeys(words(near))
    assert words(near, fitted) == words(near)


@pytest.mark.parametrize(
    ("group", "tpot"),
    [
        (("qwen3-32b", "bf16", "h100-sxm"), 3),
        (("llama-3.1-70b", "fp8-static", "h200-sxm"), 5),
        (("gpt-oss-120b", "mxfp4", "h200-sxm"), 6),
        (("minimax-m2.5", "fp8-block", "h100-sxm"), 6),
        (("kimi-k2.5", "nvfp4", "b200"), 8),
        (("gpt-oss-120b", "mxfp4", "gb300"), 12),
        (("gpt-oss-120b", "mxfp4", "l40s"), None),
    ],
)
def test_the_band_of_a_group(group, tpot) -> None:
    band = band_of(group)
    assert (band and band.tpot) == tpot
    assert band is None or band in BANDS


# -- the script ------------------------------------------------------------------------------------


def ran(capsys, monkeypatch, *arguments: str) -> tuple[int, list[str]]:
    monkeypatch.setattr("sys.argv", ["", *arguments])
    code = 0
    try:
        validate_points.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 2
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.long
def test_a_clone_validates_a_few_points(tmp_path, capsys, monkeypatch) -> None:
    few = ("--model", "llama-3.1-70b", "--gpu", "h100_sxm", "--limit", "2")
    table = tmp_path / "points.csv"
    code, lines = ran(capsys, monkeypatch, *few, "--out", str(tmp_path), "--csv", str(table))
    assert lines[:2] == [
        "Data: the sample in tests/data; nothing absent.",
        "402 points; left out: 33 trap 6: 52 ms per token whatever the batch, 23 the same "
        "measurement as another row, 11 trap 6: faster than without hits, 10 prefill and decode "
        "apart, 4 trap 7: more in flight than a server can have held, 2 no concurrency.",
    ]
    record = json.loads((tmp_path / "validate_points.json").read_text())
    missed = [row for row in record["bands"] if row.get("holds") is False]
    assert code == bool(missed)
    assert record["only"] == {"model": ["llama-3.1-70b"], "gpu": ["h100_sxm"], "limit": 2}
    assert {row["points"] for row in record["groups"]} == {"llama-3.1-70b fp8-static h100-sxm"}
    assert {backend for _, backend, *_ in record["points"].values()} == {"compiled"}
    written = pd.read_csv(table)
    assert list(written.id) == list(record["points"])
    errors = [of[2] for of in record["points"].values()]
    assert list(written.TPOT_error_percent) == pytest.approx(errors, rel=1e-3)
    assert (np.abs(written.TPOT_error_percent) < 30).all()
    pictures = sorted(path.stem for path in tmp_path.glob("*.png"))
    assert pictures == ["validate_points", "validate_points_by_clients"]
    for path in tmp_path.glob("*.png"):
        assert matplotlib.image.imread(path).std() > 0.01


@pytest.mark.long
def test_another_table_with_other_cards_and_an_unknown_model(
    rows, tmp_path, capsys, monkeypatch
) -> None:
    row = row_of(rows, "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_8192x1024_c64_tp1_ep1_486")
    small = {"concurrency": "4.0", "num_prompts": "40", "osl": "128"}
    others = [
        row | small | {"id": "x", "gpu": "b300_sxm"},
        row | small | {"id": "y", "gpu": "h200_sxm", "tp": "2.0", "gpus": "2.0"},
        row | small | {"id": "z", "model": "nobody/knows-7b"},
        row | small | {"id": "w", "gpu": "h100_sxm", "weights": "bf16"},  # 141 GB
        row | {"engine": "sglang"},
    ]
    (tmp_path / point_rows.FILE).parent.mkdir(parents=True)
    pd.DataFrame(others).to_csv(tmp_path / point_rows.FILE, index=False)
    _, lines = ran(capsys, monkeypatch, "--data", str(tmp_path))
    assert lines[1] == "4 points; left out: 1 another engine than vLLM."
    assert any(line.startswith("REFUSED z: unknown model 'nobody/knows-7b'") for line in lines)
    assert any(line.startswith("REFUSED w: ") for line in lines)
    assert "3 points (2 compiled, 1 refused)" in lines[-1]
    assert ran(capsys, monkeypatch, "--data", str(tmp_path), "--model", "opt-13b")[0] == 2


def test_what_kvsim_refuses_is_told_and_not_raised(rows) -> None:
    point = point_of(row_of(rows, QWEN))
    found = simulate(point._replace(options=point.options | {"tensor_parallel_size": 3}))
    assert found.refused
    assert not found.ours


# -- what was last found on the whole --------------------------------------------------------------


@pytest.mark.long
def test_the_record_has_the_points_that_the_sample_has(rows) -> None:
    """A cost model that changed wants the script run again with ``--out docs/validation``."""
    record = json.loads((VALIDATION / "validate_points.json").read_text(encoding="utf-8"))
    assert record["only"] == {}
    assert set(record["points"]) == {row["id"] for row in rows}
    for row in [row for row in rows if row["model"].endswith(("Qwen3-32B", "70B"))][::24]:
        point = point_of(row)
        errors = Pair(point, simulate(point)).errors
        half, backend, *recorded = record["points"][point.identifier]
        assert (half, backend) == (point.half, "compiled")
        assert list(errors.values()) == pytest.approx(recorded, rel=2e-3, abs=0.01)


def test_what_is_claimed_of_a_model_is_what_the_record_shows() -> None:
    record = json.loads((VALIDATION / "validate_points.json").read_text(encoding="utf-8"))
    found = {}
    for row in record["groups"]:
        if row["half"] == "held out" and len(row["points"].split()) == 3:
            model, weights, card = row["points"].split()
            own = get_model(model).quantization
            errors = [round(row[name]["median_absolute"], 1) for name in ("TPOT", "TTFT")]
            found[model, quantization_of(weights, own) or own, card] = errors
    assert {row[:3]: list(row[3:]) for row in SERVED} == {
        key: errors for key, errors in found.items() if key[0] != "qwen3-32b"
    }


def test_a_run_says_how_far_off_such_servers_were() -> None:
    trace = Trace.from_arrays([0.0], [100], [5])
    served = kvsim.simulate(trace, model="gpt-oss-120b", gpu="h100-sxm").provenance["step_time"]
    assert "closed loops of servers with vLLM: TPOT" in served
    other = kvsim.simulate(trace, model="gpt-oss-20b", gpu="h100-sxm").provenance["step_time"]
    assert "not compared with any measured run: mixture of experts" in other


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "llama-9"], "unknown model 'llama-9'"),
        (["--gpu", "h1000"], "unknown GPU 'h1000'"),
        (["--workers", "0"], "--workers is 0: must be at least 1"),
        (["--limit", "0"], "no such point"),
    ],
)
def test_wrong_arguments_end_in_one_line(arguments, said, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["validate_points", *arguments])
    with pytest.raises(SystemExit) as ended:
        validate_points.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
