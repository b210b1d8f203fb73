"""The metrics of a live engine, under vLLM's names and with vLLM's buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from kvsim.results.buckets import LATENCY, PER_TOKEN, STEP_TOKENS, TTFT, token_counts
from kvsim.serve.admission import TURNED_AWAY
from kvsim.serve.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client import Metric

    from kvsim.serve.live import Live
    from kvsim.stepping.engine import Engine
    from kvsim.stepping.steps import EngineStep

LABELS = ("engine", "model_name")
HISTOGRAMS = {
    "time_to_first_token_seconds": TTFT,
    "inter_token_latency_seconds": PER_TOKEN,
    "request_time_per_output_token_seconds": PER_TOKEN,
    "e2e_request_latency_seconds": LATENCY,
    "request_queue_time_seconds": LATENCY,
    "request_inference_time_seconds": LATENCY,
    "request_prefill_time_seconds": LATENCY,
    "request_decode_time_seconds": LATENCY,
    "request_params_n": (1.0, 2.0, 5.0, 10.0, 20.0),
    "request_num_preemptions": (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    "iteration_tokens_total": STEP_TOKENS,
}
#: Histograms of tokens: 1, 2, 5, 10 ... up to max_model_len.
OF_TOKENS = (
    *("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens"),
    *("request_max_num_generation_tokens", "request_prefill_kv_computed_tokens"),
)
COUNTERS = (
    *("prompt_tokens", "generation_tokens", "num_preemptions", "prefix_cache_queries"),
    *("prefix_cache_hits", "prompt_tokens_cached", "nixl_num_kv_expired_reqs"),
    *("external_prefix_cache_queries", "external_prefix_cache_hits"),
    # Always 0; dashboards query them.
    *("mm_cache_queries", "mm_cache_hits"),
)


def text_of(name: str) -> str:
    """Return the text of a metric's HELP line."""
    return name.replace("_", " ").capitalize() + "."


class Metrics:
    """Counters, gauges and histograms of one engine."""

    def __init__(self, engine: Engine, model: str, longest: int, facts: dict[str, Any]) -> None:
        self.registry = CollectorRegistry()
        self._engine = engine
        self._labels = ("0", model)
        self._new_tokens = 0  # since the last scrape
        self._total = max(1, engine.num_free_blocks)
        self._last_token: dict[int, float] = {}
        self._arrival: dict[int, float] = {}
        self._external: dict[int, int] = {}
        self.is_connected = False  #: Prompts may have KV at other replicas.
        self._counters = {name: self._made(Counter, name) for name in COUNTERS}
        of_tokens = dict.fromkeys(OF_TOKENS, token_counts(longest))
        self._histograms = {
            name: self._histogram(name, bounds) for name, bounds in (HISTOGRAMS | of_tokens).items()
        }
        self._gauges = {
            name: self._made(Gauge, name)
            for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        }
        self._success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        for reason in ("stop", "length", "abort"):
            self._success.labels(*self._labels, reason)
        self._turned_away = Counter(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            ("model_name", "reason"),
            registry=self.registry,
        )
        for reason in TURNED_AWAY:
            self._turned_away.labels(model, reason)
        info = {"engine": "0", **{name: str(value) for name, value in facts.items()}}
        gauge = Gauge(
            "vllm:cache_config_info",
            "The configuration of the KV cache.",
            list(info),
            registry=self.registry,
        )
        gauge.labels(**info).set(1)

    def _made(self, kind: Any, name: str) -> Any:
        metric = kind(f"vllm:{name}", text_of(name), LABELS, registry=self.registry)
        return metric.labels(*self._labels)

    def _histogram(self, name: str, bounds: Sequence[float]) -> Histogram:
        labels = dict(zip(LABELS, self._labels, strict=True))
        return Histogram(f"vllm:{name}", text_of(name), labels, bounds, self.registry)

    def record_asked(self, num_samples: int) -> None:
        self._histograms["request_params_n"].observe(num_samples)

    def note_step(self, step: EngineStep) -> None:
        if step.num_scheduled_tokens:
            number = sum(step.num_scheduled_tokens.values())
            self._histograms["iteration_tokens_total"].observe(number)
        self._counters["num_preemptions"].inc(len(step.preempted))

    def record_expired(self) -> None:
        """Count a prompt whose blocks no decode replica read before the lease ended."""
        self._counters["nixl_num_kv_expired_reqs"].inc()

    def record_turned_away(self, reason: str) -> None:
        """Count a request that exceeds a limit of the server."""
        self._turned_away.labels(self._labels[1], reason).inc()

    def record_external(self, request: int, num_tokens: int) -> None:
        """Record the number of tokens of a prompt that come from another replica. Mutates."""
        self._external[request] = num_tokens

    def record_arrival(self, request: int, max_tokens: int, now: float) -> None:
        self._arrival[request] = now
        self._histograms["request_params_max_tokens"].observe(max_tokens)

    def record_tokens(self, request: int, count: int, time: float) -> None:
        """Count output tokens, and observe the TTFT or the gap before them."""
        if not count:
            return
        last = self._last_token.get(request)
        if last is None:
            first = max(0.0, time - self._arrival.get(request, time))
            self._histograms["time_to_first_token_seconds"].observe(first)
        else:
            self._histograms["inter_token_latency_seconds"].observe((time - last) / count)
        self._last_token[request] = time
        self._new_tokens += count

    def record_next(self, requests: Iterable[int], time: float) -> None:
        """Count the next output token of each of some requests that have a first one. Mutates."""
        last = self._last_token
        gaps = [time - last[request] for request in requests]
        last.update(dict.fromkeys(requests, time))
        self._histograms["inter_token_latency_seconds"].observe_all(gaps)
        self._new_tokens += len(gaps)

    def record_end(self, row: dict[str, Any], reason: str) -> None:
        request = row["request_id"]
        self._last_token.pop(request, None)
        arrival = self._arrival.pop(request, row["arrival_time"])
        external = self._external.pop(request, 0)
        self._success.labels(*self._labels, reason).inc()
        if reason in ("abort", "error"):
            return
        size = row["num_prompt_tokens"]
        # If all of a prompt's KV is external, its last token is computed again; it is no local hit.
        hit = size - external if external else row["num_cached_tokens"]
        counts = {
            "prompt_tokens": size,
            "prefix_cache_queries": size,
            "prefix_cache_hits": hit,
            "prompt_tokens_cached": row["num_cached_tokens"],
            "external_prefix_cache_queries": (size - hit) * self.is_connected,
            "external_prefix_cache_hits": external,
        }
        for name, count in counts.items():
            self._counters[name].inc(count)
        first, begun, end = row["first_token_time"], row["first_scheduled_time"], row["finish_time"]
        outputs = row["num_output_tokens"]
        seen = {
            "e2e_request_latency_seconds": end - arrival,
            "request_queue_time_seconds": begun - arrival,
            "request_prefill_time_seconds": first - begun,
            "request_decode_time_seconds": end - first,
            "request_inference_time_seconds": end - begun,
            "request_prompt_tokens": row["num_prompt_tokens"],
            "request_generation_tokens": outputs,
            "request_max_num_generation_tokens": outputs,
            "request_prefill_kv_computed_tokens": row["num_prompt_tokens"]
            - row["num_cached_tokens"],
            "request_num_preemptions": row["num_preemptions"],
        }
        if outputs > 1:
            seen["request_time_per_output_token_seconds"] = (end - first) / (outputs - 1)
        for name, value in seen.items():
            if value == value:  # noqa: PLR0124 - a stop text ends a request before its own end
                self._histograms[name].observe(max(0.0, value))

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as they are now."""
        engine = self._engine
        self._counters["generation_tokens"].inc(self._new_tokens)
        self._new_tokens = 0
        self._gauges["num_requests_running"].set(engine.num_running)
        self._gauges["num_requests_waiting"].set(engine.num_waiting)
        self._gauges["kv_cache_usage_perc"].set(1 - engine.num_free_blocks / self._total)
        return self.registry.collect()


def metrics_text(lives: Sequence[Live]) -> bytes:
    """Return the metrics of all engines as Prometheus text, with the label ``engine``."""
    return bytes(generate_latest(_Together(lives)))


class _Together:
    """A registry of several engines with the same metrics."""

    def __init__(self, lives: Sequence[Live]) -> None:
        self._lives = lives

    def collect(self) -> Iterator[Metric]:
        for one in self._lives:
            one.advance()
        for same in zip(*(one.metrics.collect() for one in self._lives), strict=True):
            same[0].samples = [
                sample._replace(labels=sample.labels | {"engine": str(number)})
                for number, metric in enumerate(same)
                for sample in metric.samples
            ]
            yield same[0]
