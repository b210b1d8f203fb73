"""Recorded schedules: vLLM's own come out identical, and any configuration's can be pinned."""

import json

import pytest
from hypothesis import given
from recorded import DATA, name_of, smallest
from strategies import configs, examples, traces

import kvsim
import workloads
from kvsim.cases.recorded import read_case
from kvsim.cli import main
from kvsim.files import read_bytes

GOLDEN = sorted((DATA / "vllm_cases").glob("*.json.gz"))
FEATURES = sorted(path for n in (2, 3) for path in DATA.glob(f"vllm_cases{n}/*/*.json.gz"))
#: Shorter files, in bytes, have all memory recounted after every step.
SHORT = 10_000
#: Shorter files need no long run.
QUICK = 8000


def test_every_recorded_schedule_is_here():
    assert len(GOLDEN) == 66


#: The longest: checksums of two thousand requests take half a minute, of five hundred seconds.
MARKS = {"40_sharegpt_2000": [pytest.mark.slow], "42_sharegpt_async": [pytest.mark.slow]}


def played(path):
    marks = [pytest.mark.long] * (path.stat().st_size > QUICK)
    return pytest.param(path, marks=MARKS.get(name_of(path), marks), id=name_of(path))


@pytest.mark.parametrize("path", [played(path) for path in GOLDEN])
def test_recorded_vllm_schedules_come_out_identical_and_keep_the_invariants(path):
    assert kvsim.replay(path, check_invariants=path.stat().st_size < SHORT) is None


@pytest.mark.parametrize("backend", ["python", pytest.param("compiled", marks=pytest.mark.long)])
@pytest.mark.parametrize("path", smallest(FEATURES, 1))
def test_schedules_of_later_features_come_out_identical(path, backend):
    """Memory is recounted in one engine: the other leaves the same log."""
    recount = backend == "python" and path.stat().st_size < SHORT
    assert kvsim.replay(path, check_invariants=recount, backend=backend) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "feature", sorted({p.parent.name for p in FEATURES if "vllm_cases2" in p.parts})
)
def test_all_recorded_schedules_of_a_feature_come_out_identical(feature, whole_data):
    paths = sorted((whole_data / "vllm_cases2" / feature).glob("*.json"))
    assert len(paths) >= 12
    for path in paths:
        for backend in ("python", "compiled"):
            assert kvsim.replay(path, backend=backend) is None, path


def edited(tmp_path, edit, name="08_multi_turn"):
    source = next(path for path in GOLDEN if name_of(path) == name)
    content = json.loads(read_bytes(source))
    edit(content)
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(content))
    return path


def _change_free_queue(case):
    case["steps"][0]["fql"][3] += 1


def _change_block_table(case):
    step = next(s for s in case["steps"] if "new" in s and s["s"] > 0)
    step["new"][0][2][0][-1] += 1


def _change_growth(case):
    step = next(s for s in case["steps"] if "nb" in s)
    next(iter(step["nb"].values()))[0][0] += 1


def _forget_a_preemption(case):
    del next(s for s in case["steps"] if "pre" in s)["pre"]


@pytest.mark.parametrize(
    ("edit", "case", "field"),
    [
        (_change_free_queue, "02_preempt_recompute", "fql[3]"),
        (_change_block_table, "08_multi_turn", "new[0][2][0]["),
        (_change_growth, "08_multi_turn", "nb["),
        (_forget_a_preemption, "02_preempt_recompute", "pre"),
        (lambda case: case["steps"].pop(), "08_multi_turn", "steps"),
        (lambda case: case["steps"].append({"s": 10**6}), "08_multi_turn", "steps"),
        (lambda case: case["steps"][3].pop("sch"), "08_multi_turn", "sch"),
        (lambda case: case["steps"][5].update(bt=1), "08_multi_turn", "bt"),
        (lambda case: case["steps"][5].update(w=["x"]), "08_multi_turn", "w"),
    ],
)
def test_an_edit_is_found_and_named(tmp_path, capsys, edit, case, field):
    path = edited(tmp_path, edit, case)
    with pytest.raises(SystemExit) as stopped:
        main(["replay-case", str(path)])
    assert stopped.value.code == 1
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert f": {field}" in line
    assert "step " in line
    assert "expected" in line


def test_fields_the_record_lacks_are_not_compared(tmp_path):
    def drop(case):
        for step in case["steps"]:
            for name in ("fq", "fql", "bt", "nb"):
                step.pop(name, None)

    assert kvsim.replay(edited(tmp_path, drop)) is None


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda case: case.pop("steps"), "steps"),
        (lambda case: case["config"].pop("num_gpu_blocks"), "config: lacks num_gpu_blocks"),
        (lambda case: case["config"].update(block_size=0), "config.block_size"),
        (lambda case: case["config"].update(policy="lifo"), "config.policy"),
        (
            lambda case: case["config"].update(
                groups=[{"type": "sliding_window", "block_size": 16}]
            ),
            "window",
        ),
        (lambda case: case["config"].update(scheduler="vlm"), "unknown scheduler"),
        (lambda case: case["config"].update(allocator="contiguous-max"), "kv_cache_bytes"),
        (lambda case: case["workload"]["requests"][0].update(segments=[[1, -4]]), "segments"),
        (
            lambda case: case["workload"]["requests"][0].update(segments=[[1, 10**6]]),
            "max_model_len",
        ),
        (
            lambda case: case["workload"]["requests"].append(case["workload"]["requests"][0]),
            "same id",
        ),
        (lambda case: case["steps"].__setitem__(0, 5), "steps.0"),
        (lambda case: case["steps"][0].pop("s"), "steps[0]"),
    ],
)
def test_a_malformed_case_is_one_line_and_exit_2(tmp_path, capsys, edit, said):
    path = edited(tmp_path, edit)
    with pytest.raises(SystemExit) as stopped:
        main(["replay-case", str(path)])
    assert stopped.value.code == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert said in errors
    assert str(path) in errors or "scheduler" in said


@pytest.mark.parametrize("content", [b"", b"{", b"\x00\xff", b"[]", b"3", b'{"a":' * 10**5])
def test_a_file_that_is_no_case(tmp_path, capsys, content):
    path = tmp_path / "case.json"
    path.write_bytes(content)
    with pytest.raises(SystemExit) as stopped:
        main(["replay-case", str(path)])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- recording ----------------------------------------------------------------------------------


@pytest.mark.long
@given(configs(), traces())
@examples(30)
def test_whatever_is_recorded_replays_identically(tmp_path_factory, options, trace):
    path = tmp_path_factory.mktemp("cases") / "case.json"
    try:
        case = kvsim.record(trace, path, **options)
    except ValueError as error:
        assert "record" in str(error)  # noqa: PT017 - refused: several replicas, nothing served
        return
    assert read_case(path) == case
    assert kvsim.replay(path, check_invariants=True) is None


def small_trace(**options):
    return workloads.fixed(prompt=100, output=30, num_requests=6, request_rate=20.0, **options)


SMALL = {"model": "llama-3-8b", "gpu": "l4", "max_model_len": 256, "num_gpu_blocks_override": 40}


def test_contiguous_allocators_log_addresses():
    case = kvsim.record(small_trace(), allocator="contiguous-max", **SMALL)
    assert case.steps[0]["addr"] == [["0", 0, 256]]
    assert not {"bt", "fq", "fql", "nb"} & set().union(*case.steps)
    assert kvsim.replay(case) is None


def test_a_request_arrives_at_the_step_that_first_saw_it():
    trace = workloads.fixed(prompt=20, output=5, num_requests=2, request_rate=1.0)
    case = kvsim.record(trace, cost_model="constant+seconds=0.001", async_scheduling=False, **SMALL)
    # Far apart: the second comes when the five steps of the first have gone.
    assert [r.arrival_step for r in case.workload.requests] == [0, 5]


def test_recording_from_the_command_line(tmp_path, capsys):
    path = tmp_path / "case.json"
    main_args = ["run", "--record", str(path), "--num-requests", "4"]
    main_args += ["--workload", "multi-turn+output=20"]
    main_args += ["--model", "llama-3-8b", "--gpu", "l4", "--num-gpu-blocks-override", "600"]
    main([*main_args, "--json", "-"])
    json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit) as stopped:
        main(["replay-case", str(path)])
    assert stopped.value.code == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--data-parallel-size", "2"], "data_parallel_size"),
        (["--horizon", "2"], "horizon"),
        (["--replications", "2"], "--replications"),
    ],
)
def test_what_no_case_can_say_is_refused(tmp_path, capsys, flags, said):
    path = tmp_path / "case.json"
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--record", str(path), "--num-requests", "5", *flags])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
    assert not path.exists()


def test_a_long_run_is_recorded_by_checksums():
    trace = workloads.fixed(prompt=20, output=2, num_requests=300, request_rate=1000.0)
    case = kvsim.record(trace, **SMALL)
    assert case.config.summary
    assert len(case.steps[0]["sch"]) == 3
    assert kvsim.replay(case) is None


def test_a_changed_allocator_is_caught(tmp_path, monkeypatch):
    path = tmp_path / "case.json"
    kvsim.record(small_trace(), path, **SMALL)
    from kvsim.rules.blocks import paged

    free_blocks = paged.free_blocks

    def first_to_last(pool, group, table, first, stop):
        for place in range(first, stop):
            free_blocks(pool, group, table, place, place + 1)

    monkeypatch.setattr(paged, "free_blocks", first_to_last)
    difference = kvsim.replay(path)
    assert difference is not None
    assert difference.field.startswith(("new", "nb", "fq", "bt"))
    assert f"{difference.field} ({difference.meaning}): expected " in str(difference)
    assert difference.meaning


@pytest.mark.long
@pytest.mark.parametrize("allocator", ["paged", "dynamic", "virtual+page-size=64KiB"])
def test_runs_that_swap_are_recorded(allocator, tmp_path):
    trace = workloads.sharegpt(num_requests=5, request_rate=50, seed=1)
    options = {"model": "gpt2", "gpu": "l4", "kv_cache_memory_bytes": 40 << 20}
    options |= {"allocator": allocator, "scheduler": "vllm-v0", "preemption_mode": "swap"}
    assert kvsim.simulate(trace, **options).summary["num_preemptions"] > 0
    kvsim.record(trace, tmp_path / "case.json", **options)
    assert kvsim.replay(tmp_path / "case.json", check_invariants=True) is None


def test_latents_are_recorded_as_one_tensor(tmp_path):
    options = {"gpu": "h200-sxm", "quantization": "fp8", "tensor_parallel_size": 8}
    options |= {"model": "deepseek-v3", "allocator": "virtual"}
    kvsim.record(small_trace(), tmp_path / "case.json", **options)
    assert kvsim.replay(tmp_path / "case.json") is None
