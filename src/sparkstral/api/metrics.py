"""GET /metrics: counts and times in Prometheus' text format, under our names and under those that dashboards know.

Owns the names. Everything is served twice, as sparkstral_… and, for what vLLM's dashboards and llama-swap read, as
vllm:… with their labels. Counts of the engine begin anew when it is restarted, which Prometheus takes as a reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sparkstral.engine.client import EngineClient
from sparkstral.serving.admission import Admission
from sparkstral.types import EnginePhase, EngineStats, MemoryLedger

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OURS = "sparkstral_"
ALIASES = {
    "requests_running": "num_requests_running",
    "requests_waiting": "num_requests_waiting",
    "kv_cache_usage_ratio": "kv_cache_usage_perc",  # theirs is a share of 1 too
    "prompt_tokens": "prompt_tokens",
    "generated_tokens": "generation_tokens",
    "preemptions": "num_preemptions",
    "prompt_tokens_looked_up": "prefix_cache_queries",
    "prompt_tokens_cached": "prefix_cache_hits",
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_latency_seconds",
    "drafts": "spec_decode_num_drafts",
    "draft_tokens": "spec_decode_num_draft_tokens",
    "draft_tokens_accepted": "spec_decode_num_accepted_tokens",
    "request_seconds": "e2e_request_latency_seconds",
}
# Each about 1.6 times the one before: an error of a quarter in a percentile that is read from them.
_TOKEN_BUCKETS = (0.002, 0.003, 0.005, 0.008, 0.012, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5, 0.8, 1.2, 2, 3, 5)
_REQUEST_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 600, 1200)


class Metrics(Collector):
    """All metrics of one application. The `Observer` of its requests and of its engine's steps."""

    def __init__(self, client: EngineClient, admission: Admission, served_model_name: str) -> None:
        self._client = client
        self._admission = admission
        self._labels = {"model_name": served_model_name, "engine": "0"}

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(OURS + name, text, buckets=buckets, registry=None)

        self._ttft = histogram("time_to_first_token_seconds", "From the request to its first token", _REQUEST_BUCKETS)
        self._itl = histogram("inter_token_latency_seconds", "From one token to the next", _TOKEN_BUCKETS)
        self._e2e = histogram("request_seconds", "From the request to its end", _REQUEST_BUCKETS)
        self._step = histogram("step_seconds", "What a step takes the device", _TOKEN_BUCKETS)
        self._ended = Counter(OURS + "requests", "Requests that ended, by how", ["outcome"], registry=None)
        self._repairs = Counter(
            OURS + "repairs", "Message lists that were taken with a repair, by repair", ["repair"], registry=None
        )
        self._last_step = 0
        client.watch_steps(self._on_step)
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        ProcessCollector(f"{OURS}engine", lambda: client.process_id or "none", registry=self.registry)

    # ---- what is told ------------------------------------------------------------------------------------------

    def first_token(self, ttft_s: float) -> None:
        self._ttft.observe(ttft_s)

    def more_tokens(self, num_tokens: int, itl_s: float) -> None:
        for _ in range(num_tokens):
            self._itl.observe(itl_s)

    def repaired(self, repairs: Sequence[str]) -> None:
        for repair in dict.fromkeys(repairs):
            self._repairs.labels(repair).inc()

    def ended(self, outcome: str, e2e_s: float) -> None:
        self._e2e.observe(e2e_s)
        self._ended.labels(outcome).inc()

    def _on_step(self, stats: EngineStats) -> None:
        if stats.step != self._last_step:  # else an idle engine's sign of life
            self._last_step = stats.step
            self._step.observe(stats.last_step_s)

    # ---- what is served ----------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        for metric in self._own():
            yield metric
            alias = ALIASES.get(metric.name.removeprefix(OURS))
            if alias is not None:
                yield self._alias(metric, f"vllm:{alias}")

    def _own(self) -> Iterable[Metric]:
        stats = self._client.stats()
        status = self._client.status()
        is_known = status.phase in (EnginePhase.READY, EnginePhase.SHORT_OF_MEMORY, EnginePhase.STALLED)
        num_usable = self._client.info.num_usable_blocks if is_known else 0
        usage = 1 - stats.num_free_blocks / num_usable if num_usable else 0.0
        yield _gauge("ready", "1 if requests are served", float(status.phase is EnginePhase.READY))
        yield _gauge("requests_in_flight", "Requests between the door and their end", self._admission.num_in_flight)
        yield _count("requests_refused", "Requests that found the house full (429)", self._admission.num_refused)
        yield _gauge("requests_running", "Requests that hold KV blocks", stats.num_running)
        yield _gauge("requests_waiting", "Requests that wait for KV blocks or a place", stats.num_waiting)
        yield _gauge("kv_cache_usage_ratio", "Share of the KV blocks in use, 0 to 1", usage)
        yield _gauge("kv_blocks_reusable", "KV blocks that a prompt's prefix can hit", stats.num_cached_blocks)
        yield _count("steps", "Steps of the engine", stats.step)
        yield _count("prompt_tokens", "Tokens of prompts", stats.num_prompt_tokens)
        yield _count("prompt_tokens_looked_up", "Tokens looked up in the prefix cache", stats.num_prompt_tokens)
        yield _count("prompt_tokens_cached", "Of these, found there", stats.num_cached_prompt_tokens)
        yield _count("generated_tokens", "Tokens that were sampled", stats.num_generated_tokens)
        yield _count("preemptions", "Requests that gave their KV blocks to another", stats.num_preemptions)
        yield _count("sick_requests", "Requests that ended because of NaN or Inf", stats.num_sick_requests)
        yield _count("draft_steps", "Steps in which drafts were verified", stats.num_draft_steps)
        yield _count("drafts", "Guesses of a request's next tokens that were verified", stats.num_drafts)
        yield _count("draft_tokens", "Tokens in them", stats.num_draft_tokens)
        yield _count("draft_tokens_accepted", "Of these, those that the model chose itself", stats.num_accepted_tokens)
        if (pressure := self._client.memory_pressure()) is not None:
            text = "Of the host, as the kernel counts what programs could still take"
            yield _gauge("host_memory_available_bytes", text, pressure.available_bytes)
            text = "0: calm, 1: caches are dropped, 2: requests are refused, 3: the engine is ended"
            yield _gauge("memory_pressure", text, pressure.level)
        if is_known and (ledger := self._client.info.memory) is not None:
            yield _memory_of(ledger)
        for instrument in (self._ttft, self._itl, self._e2e, self._step, self._ended, self._repairs):
            for metric in instrument.collect():
                metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
                yield metric

    def _alias(self, metric: Metric, name: str) -> Metric:
        alias = Metric(name, metric.documentation, metric.type)
        alias.samples = [
            sample._replace(name=name + sample.name.removeprefix(metric.name), labels={**self._labels, **sample.labels})
            for sample in metric.samples
        ]
        return alias


def _memory_of(ledger: MemoryLedger) -> Metric:
    text = "The engine's memory when it was ready, by part: as planned and as found"
    metric = GaugeMetricFamily(OURS + "memory_bytes", text, labels=["part", "kind"])
    for line in ledger.lines:
        metric.add_metric([line.name, "planned"], line.planned_bytes)
        if line.actual_bytes is not None:
            metric.add_metric([line.name, "actual"], line.actual_bytes)
    metric.add_metric(["all", "planned"], ledger.planned_bytes)
    metric.add_metric(["all", "actual"], ledger.taken_bytes)
    metric.add_metric(["without a name", "actual"], ledger.residual_bytes)
    return metric


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(OURS + name, text, value)


def _count(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(OURS + name, text, value)


def metrics_router(metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/metrics", response_class=Response)
    async def get_metrics() -> Any:
        """Counts and times in Prometheus' text format; they are there in every phase of the engine."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE)

    return router
