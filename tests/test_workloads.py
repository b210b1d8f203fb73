"""Generators: means, widths and rates as stated, equal seeds, sessions that reuse outputs."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

import workloads
from kvsim.api.requests import requests_of
from kvsim.config import RunConfig
from kvsim.trace import Trace
from workloads.arrivals import draw_arrivals
from workloads.lengths import LogNormal, clipped_mean, fitted_mu

NAMES = [name for name in workloads.WORKLOADS.names() if name != "empirical"]


def generate(spec, num_requests=200, request_rate=8.0, seed=0):
    return workloads.generate(spec, num_requests=num_requests, request_rate=request_rate, seed=seed)


# -- all of them -------------------------------------------------------------------------------


def test_the_registry_has_every_generator_under_its_command_line_name():
    for name in workloads.WORKLOADS.names():
        assert workloads.WORKLOADS.get(name) is getattr(workloads, name.replace("-", "_"))


@pytest.mark.parametrize("name", NAMES)
def test_defaults_make_a_trace_of_as_many_requests_as_asked(name):
    function = getattr(workloads, name.replace("-", "_"))
    assert len(function()) == 1000
    assert len(function(num_requests=1)) == 1
    assert function(num_requests=50).digest == function(num_requests=50, seed=0).digest


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_give_equal_traces_and_others_do_not(name):
    assert generate(name).digest == generate(name).digest
    assert generate(name).digest != generate(name, seed=1).digest


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("multi-turn", "agentic")])
@pytest.mark.parametrize("arrival", ["", "+arrival=gamma+cv=3", "+arrival=onoff"])
def test_rate_and_arrival_process_leave_the_lengths_alone(name, arrival):
    slow, fast = generate(name), generate(name + arrival, request_rate=80.0)
    assert np.array_equal(slow.num_prompt_tokens, fast.num_prompt_tokens)
    assert np.array_equal(slow.num_output_tokens, fast.num_output_tokens)
    assert not np.array_equal(slow.arrival_time, fast.arrival_time)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("multi-turn", "agentic")])
def test_an_infinite_rate_puts_everything_at_time_0(name):
    assert generate(name, request_rate=math.inf).arrival_time.tolist() == [0.0] * 200


# -- lengths -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prompt", "output", "most"),
    [
        ("sharegpt", 161.31, 337.99, (2047, 2048)),
        ("alpaca", 19.31, 58.45, (2047, 2048)),
        ("azure-conv", 1155, 211, (14050, 1000)),
        ("azure-code", 2048, 28, (7437, 2048)),
    ],
)
def test_means_are_the_published_ones_after_clipping(name, prompt, output, most):
    trace = generate(name, num_requests=200_000)
    columns = (trace.num_prompt_tokens, trace.num_output_tokens)
    for tokens, mean, longest in zip(columns, (prompt, output), most, strict=True):
        error = tokens.std() / math.sqrt(len(tokens))
        assert abs(tokens.mean() - mean) < 4 * error
        assert tokens.min() >= 1
        assert tokens.max() <= longest


def test_widths_are_those_their_sources_give():
    # Orca (Max)'s reservation in the PagedAttention paper's Fig. 2 is E[o^2] / E[o] = 598.
    output = generate("sharegpt", num_requests=200_000).num_output_tokens.astype(float)
    assert (output**2).mean() / output.mean() == pytest.approx(598, rel=0.15)
    code = generate("azure-code", num_requests=200_000)
    assert np.median(code.num_prompt_tokens) == pytest.approx(1500, rel=0.01)
    assert np.median(code.num_output_tokens) == pytest.approx(13, abs=0.5)


def test_azure_conv_is_as_near_the_trace_as_stated(whole_data):
    real = workloads.load(whole_data / "traces" / "azure2023_conv.csv.gz")
    ours = generate("azure-conv", num_requests=100_000)

    def ratios(name):
        return np.percentile(getattr(ours, name), [50, 99]) / np.percentile(
            getattr(real, name), [50, 99]
        )

    assert ratios("num_prompt_tokens") == pytest.approx([0.94, 0.94], abs=0.02)
    assert ratios("num_output_tokens") == pytest.approx([1.29, 1.41], abs=0.03)
    widths = [t.num_output_tokens.std() / t.num_output_tokens.mean() for t in (ours, real)]
    assert widths == pytest.approx([0.755, 0.771], abs=0.005)


def test_alpaca_width_reproduces_the_batches_of_the_paper():
    trace = generate("alpaca", num_requests=200_000)
    prompt, output = trace.num_prompt_tokens, trace.num_output_tokens

    def running(reserved):
        """15,728 slots over the mean buddy block, each counted for as long as it is held."""
        return 15728 * output.sum() / (output * power_of_2(reserved)).sum()

    def power_of_2(tokens):
        return 2 ** np.ceil(np.log2(tokens))

    assert running(prompt + output) == pytest.approx(72.75, rel=0.03)
    assert running(prompt + power_of_2(output)) == pytest.approx(43.24, rel=0.06)


@pytest.mark.long
@examples(30)
@given(sigma=st.floats(0.05, 2.5), high=st.integers(20, 3000), share=st.floats(0.05, 0.9))
def test_the_fitted_mean_is_that_of_the_rounded_and_clipped_lengths(sigma, high, share):
    mean = 1 + share * (high - 1)
    mu = fitted_mu(mean, sigma, 1, high)
    edges = np.log(np.arange(1, high) + 0.5)
    exact = 1 + sum(math.erfc((x - mu) / (sigma * math.sqrt(2))) / 2 for x in edges)
    assert clipped_mean(mu, sigma, 1, high) == pytest.approx(mean, abs=1e-5)
    assert exact == pytest.approx(mean, abs=1e-3)


def test_a_width_of_0_is_a_constant():
    assert LogNormal(256.0, 0.0).sample(np.random.default_rng(0), 3).tolist() == [256] * 3


def test_uniform_and_fixed_take_their_bounds():
    trace = generate("uniform+prompt-min=5+prompt-max=7+output-min=2+output-max=2", 300)
    assert set(trace.num_prompt_tokens.tolist()) == {5, 6, 7}
    assert set(trace.num_output_tokens.tolist()) == {2}
    fixed = generate("fixed+prompt=512+output=128")
    assert set(fixed.num_prompt_tokens.tolist()) == {512}
    assert set(fixed.num_output_tokens.tolist()) == {128}


def test_empirical_draws_pairs_of_a_trace(tmp_path):
    path = tmp_path / "trace.csv"
    Trace.from_arrays([0, 1, 2], [10, 20, 30], [1, 2, 3]).save(path)
    trace = generate(f"empirical+trace={path}", 3000)
    pairs, counts = np.unique(
        np.stack([trace.num_prompt_tokens, trace.num_output_tokens]), axis=1, return_counts=True
    )
    assert pairs.tolist() == [[10, 20, 30], [1, 2, 3]]
    assert counts.min() > 850


# -- arrivals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("process", "cv"),
    [("poisson", 1.0), ("constant", 0.0), ("gamma+cv=3", 3.0), ("gamma+cv=0.5", 0.5)],
)
def test_gaps_have_the_stated_mean_and_cv(process, cv):
    times = draw_arrivals(process, 200_000, 5.0, np.random.default_rng(1))
    gaps = np.diff(times, prepend=0.0)
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03, abs=1e-9)
    assert gaps[0] > 0  # the first arrival is one gap after 0


def test_bursts_keep_the_mean_rate_and_are_silent_between():
    process = "onoff+on-duration=2+off-duration=6"
    times = draw_arrivals(process, 40_000, 5.0, np.random.default_rng(1))
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.03)
    assert (times % 8.0).max() < 2.0
    assert (np.diff(times) >= 0).all()
    assert np.diff(times)[np.diff(times) < 6].mean() == pytest.approx(1 / 20, rel=0.03)


# -- shared content ----------------------------------------------------------------------------


def test_shared_prefixes_are_shared_and_the_rest_is_not():
    spec = "shared-prefix+num-prefixes=4+prefix=100+suffix=50+output=9+sigma=0.5+zipf=1"
    trace = generate(spec, 20_000)
    first = trace.segment_content_id[::2]
    assert set(trace.segment_num_tokens[::2].tolist()) == {100}
    shares = np.bincount(first) / len(trace)
    assert shares == pytest.approx(np.array([12, 6, 4, 3]) / 25, abs=0.02)
    assert len(np.unique(trace.segment_content_id[1::2])) == 20_000
    assert (trace.num_prompt_tokens - 100).mean() == pytest.approx(50, rel=0.02)
    alike = generate("shared-prefix", 20_000)
    assert np.bincount(alike.segment_content_id[::2]) / 20_000 == pytest.approx(0.1, abs=0.01)
    assert set(alike.num_prompt_tokens.tolist()) == {512}


def test_every_turn_repeats_the_session_so_far_outputs_included():
    trace = generate("multi-turn+turns=5+system=100+think-time=5", 500)
    history = {}
    for i in range(len(trace)):
        session, segments = int(trace.session_id[i]), trace.segments_of(i)
        assert sum(s.num_tokens for s in segments) == trace.num_prompt_tokens[i]
        before, ready = history.get(session, (segments[:1], 0.0))
        assert segments[:-1] == before
        assert trace.arrival_time[i] >= ready
        output = int(trace.num_output_tokens[i])
        said = [*segments, (int(trace.output_content_id[i]), 0, output)]
        history[session] = (said, trace.arrival_time[i] + 0.045 * output)
    assert 500 / len(history) == pytest.approx(5, rel=0.25)
    assert {tuple(said[0]) for said, _ in history.values()} == {(0, 0, 100)}


def test_long_chats_may_keep_only_their_end():
    whole = generate("multi-turn+turns=8")
    cut = generate("multi-turn+turns=8+max-prompt=1024")
    assert np.array_equal(cut.num_prompt_tokens, np.minimum(whole.num_prompt_tokens, 1024))
    row = int(np.argmax(whole.num_prompt_tokens))
    full, kept = whole.segments_of(row), cut.segments_of(row)
    assert full[-len(kept) + 1 :] == kept[1:]
    content, start, length = kept[0]
    assert full[-len(kept)] == (content, 0, start + length)


def test_an_infinite_rate_starts_every_session_at_0():
    trace = generate("multi-turn", request_rate=math.inf)
    _, first = np.unique(trace.session_id, return_index=True)
    assert trace.arrival_time[first].max() == 0
    assert trace.arrival_time.max() > 0


# -- texts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sharegtp", "unknown workload 'sharegtp'; did you mean sharegpt or shared-prefix?"),
        ("", "a name must come first, as in NAME+KEY=VALUE"),
        ("fixed+prompt", "prompt needs a value, as in KEY=VALUE"),
        ("fixed+prompt=", "'prompt=' must be KEY or KEY=VALUE"),
        ("fixed+prompt=1+prompt=2", "prompt is given twice"),
        ("fixed+length=5", "workload 'fixed' has no parameter 'length' (its parameters: num-req"),
        ("fixed+prompt=long", "workload 'fixed': prompt=long: must be a whole number"),
        ("fixed+prompt=0", "lengths must be 1 to 16,777,216 tokens"),
        ("uniform+prompt-min=9+prompt-max=8", "the lowest first, got 9 to 8"),
        ("sharegpt+arrival=gama", "unknown arrival process 'gama'; did you mean gamma?"),
        ("sharegpt+cv=3", "workload 'sharegpt' has no parameter 'cv'"),
        ("sharegpt+arrival=gamma+cv=0", "cv must be finite and above 0, got 0"),
        ("sharegpt+arrival=gamma+cv=x", "arrival process 'gamma': cv=x: must be a number"),
        ("sharegpt+arrival=onoff+on-duration=-1", "on_duration must be finite and above 0, got"),
        ("sharegpt+request-rate=0", "request_rate must be above 0, got 0"),
        ("sharegpt+request-rate=nan", "request_rate must be above 0, got nan"),
        ("sharegpt+num-requests=0", "num_requests must be at least 1, got 0"),
        ("sharegpt+seed=-1", "seed must be at least 0, got -1"),
        ("empirical", "workload 'empirical' needs a file: empirical+trace=PATH"),
        ("empirical+trace=nowhere.csv", "nowhere.csv: cannot be read: No such file"),
        ("shared-prefix+num-prefixes=0", "num_prefixes and prefix must be at least 1"),
        ("shared-prefix+zipf=-1", "zipf must be finite and at least 0, got -1"),
        ("shared-prefix+sigma=9", "sigma must be 0 to 4, got 9"),
        ("shared-prefix+suffix=0", "a mean length must be 1 to 2,097,152 tokens, got 0"),
        ("multi-turn+turns=0.5", "turns must be finite and at least 1, got 0.5"),
        ("multi-turn+system=-1", "system must be at least 0 tokens, got -1"),
        ("multi-turn+max-prompt=0", "max_prompt must be at least 1 token, got 0"),
        ("multi-turn+think-time=inf", "think_time must be finite and at least 0, got inf"),
        ("multi-turn+output=inf", "a mean length must be 1 to 2,097,152 tokens, got inf"),
        ("multi-turn+num-requests=0", "num_requests must be at least 1, got 0"),
    ],
)
def test_wrong_texts_are_refused_in_one_line(spec, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        generate(spec)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_of_the_text_wins_over_the_argument():
    assert len(generate("fixed+num-requests=7")) == 7
    assert generate("fixed+request-rate=inf").duration == 0


def test_the_text_says_the_same_as_the_function():
    by_text = generate("sharegpt+arrival=gamma+cv=3", seed=5)
    by_call = workloads.sharegpt(num_requests=200, request_rate=8.0, seed=5, arrival="gamma+cv=3")
    assert by_text.digest == by_call.digest


def test_a_third_party_workload_runs_by_its_path(monkeypatch):
    def mine(*, num_requests: int = 1, request_rate: float = 1.0, seed: int = 0, size: int = 5):
        return Trace.from_arrays(np.arange(num_requests), [size] * num_requests, [1] * num_requests)

    monkeypatch.setattr(workloads, "mine", mine, raising=False)
    assert generate("workloads:mine+size=9", 2).num_prompt_tokens.tolist() == [9, 9]


def test_importing_workloads_imports_nothing_heavy():
    heavy = "('pandas', 'matplotlib', 'numba', 'pyarrow', 'pydantic', 'simpy')"
    code = f"import sys, workloads; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_random_is_the_client_of_serving_benchmarks() -> None:
    spec = "random+input-len=1000+output-len=500+range-ratio=0.8"
    trace = workloads.generate(spec, num_requests=4000, request_rate=math.inf, seed=0)
    assert not trace.arrival_time.any()
    for lengths, longest in ((trace.num_prompt_tokens, 1000), (trace.num_output_tokens, 500)):
        assert (lengths.min(), lengths.max()) == (0.8 * longest, longest)
        assert lengths.mean() == pytest.approx(0.9 * longest, rel=0.01)
    both = workloads.random(input_len=1000, range_ratio=0.5, symmetric=True, num_requests=4000)
    assert (both.num_prompt_tokens.min(), both.num_prompt_tokens.max()) == (500, 1500)
    for symmetric in (False, True):
        same = workloads.random(input_len=7, output_len=1, num_requests=3, symmetric=symmetric)
        assert same.num_prompt_tokens.tolist() == [7, 7, 7]
    with pytest.raises(ValueError, match=r"range_ratio must be 0 to 1, got 1\.5"):
        workloads.random(range_ratio=1.5)


def test_random_comes_all_at_once_unless_told_otherwise() -> None:
    def last(**options: object) -> float:
        config = RunConfig.build(workload="random+output-len=2", num_requests=20, **options)
        return float(requests_of(config)[0].arrival_time[-1])

    assert last() == 0
    assert last(request_rate=2.0) == pytest.approx(10)
