"""Publish the engine's figures for Prometheus, under names that dashboards for vLLM use after their prefix.

Source: prometheus.io/docs/practices/naming; the names are vLLM's, with another prefix.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from whet.server.engine import Engine
from whet.server.request import FinishReason

_GAUGES = {
    "num_requests_running": ("num_running", "Requests that are running"),
    "num_requests_waiting": ("num_waiting", "Requests in the queue"),
    "kv_cache_usage_perc": ("kv_cache_usage", "Share of the KV cache's blocks in use, 0 to 1"),
}
_COUNTERS = {
    "prompt_tokens": ("prompt_tokens_total", "Tokens of prompts"),
    "generation_tokens": ("generation_tokens_total", "Generated tokens"),
    "prefix_cache_queries": ("prefix_cache_queries", "Tokens of prompts that were looked up in the prefix cache"),
    "prefix_cache_hits": ("prefix_cache_hits", "Tokens of prompts that were found in the prefix cache"),
    "num_preemptions": ("num_preemptions", "How often a request lost its cache blocks and had to start again"),
    "spec_decode_num_draft_tokens": ("num_draft_tokens", "Draft tokens of speculative decoding"),
    "spec_decode_num_accepted_tokens": ("num_accepted_tokens", "Accepted draft tokens of speculative decoding"),
}
_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)


class Metrics:
    """Collect the counts and times of one engine, in a registry of its own.

    It is an Observer of the engine, whose thread calls it.
    """

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)  # any object with a method `collect` is a collector
        self._first_token = self._histogram("time_to_first_token_seconds", "From arrival to the first token", _LONG_S)
        self._inter_token = self._histogram("inter_token_latency_seconds", "From one token to the next", _SHORT_S)
        self._e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the last token", _LONG_S)
        self._queue = self._histogram("request_queue_time_seconds", "From arrival to the first step", _LONG_S)
        engine.listen(self)

    def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics and their content type, in the format that an Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def first_token(self, seconds: float) -> None:
        """See the engine's Observer."""
        self._first_token.observe(seconds)

    def inter_token(self, seconds: float) -> None:
        """See the engine's Observer."""
        self._inter_token.observe(seconds)

    def finished(self, e2e_s: float, queue_s: float, reason: FinishReason) -> None:
        """See the engine's Observer."""
        self._e2e.observe(e2e_s)
        self._queue.observe(queue_s)

    def collect(self) -> Iterator[Metric]:
        """Yield the current gauges and counters. prometheus-client calls this at every scrape."""
        stats, model = self._engine.stats(), [self._model_name]
        for name, (of, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"whet:{name}", text, labels=["model_name"])
            gauge.add_metric(model, getattr(stats, of))
            yield gauge
        for name, (of, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"whet:{name}", text, labels=["model_name"])
            counter.add_metric(model, getattr(stats, of))
            yield counter
        ended = CounterMetricFamily("whet:request_success", "Ended requests", labels=["model_name", "finished_reason"])
        for reason, count in stats.request_success.items():
            ended.add_metric([self._model_name, reason], count)
        yield ended

    def _histogram(self, name: str, text: str, bounds_s: tuple[float, ...]) -> Histogram:
        family = Histogram(f"whet:{name}", text, ["model_name"], registry=self._registry, buckets=bounds_s)
        return family.labels(self._model_name)
