"""Publish the models' figures for Prometheus, under names that dashboards for vLLM use after their prefix.

Source: prometheus.io/docs/practices/naming; the names are vLLM's, with another prefix.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from whet.server.artefacts.served_artefact import ServedArtefact
from whet.server.engine import Engine
from whet.server.http.exposition import encoded
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
_BATCHER_GAUGES = {"infer_samples_waiting": ("num_waiting", "Samples that wait")}
_BATCHER_COUNTERS = {
    "infer_samples": ("num_samples", "Samples that were run"),
    "infer_batches": ("num_batches", "Batches that were run"),
    "infer_wait_seconds": ("wait_s", "From the arrival of samples to the start of their batches, all together"),
    "infer_samples_failed": ("num_failed", "Samples that the model failed on"),
    "infer_samples_cancelled": ("num_cancelled", "Samples whose clients left"),
    "infer_samples_refused": ("num_refused", "Samples that were refused because too many waited"),
}
_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_TIMES = (  # in the order of the fields of _EngineTimes
    ("time_to_first_token_seconds", "From arrival to the first token", _LONG_S),
    ("inter_token_latency_seconds", "From one token to the next", _SHORT_S),
    ("e2e_request_latency_seconds", "From arrival to the last token", _LONG_S),
    ("request_queue_time_seconds", "From arrival to the first step", _LONG_S),
)


class Metrics:
    """Collect the counts and times of all models of a server, in a registry of its own."""

    def __init__(self, engines: Mapping[str, Engine], artefacts: Mapping[str, ServedArtefact]) -> None:
        self._engines, self._artefacts = engines, artefacts
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)  # any object with a method `collect` is a collector
        times = [
            Histogram(f"whet:{name}", text, ["model_name"], registry=self._registry, buckets=bounds_s)
            for name, text, bounds_s in (_TIMES if engines else ())
        ]
        for name, engine in engines.items():
            engine.listen(_EngineTimes(*(one.labels(name) for one in times)))

    def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics and their content type, in the format that an Accept header asks for."""
        return encoded(self._registry, accept)

    def collect(self) -> Iterator[Metric]:
        """Yield the current gauges and counters. prometheus-client calls this at every scrape."""
        if self._engines:
            stats = {name: engine.stats() for name, engine in self._engines.items()}
            yield from _families(GaugeMetricFamily, _GAUGES, stats)
            yield from _families(CounterMetricFamily, _COUNTERS, stats)
            labels = ["model_name", "finished_reason"]
            ended = CounterMetricFamily("whet:request_success", "Ended requests", labels=labels)
            for model, one in stats.items():
                for reason, count in one.request_success.items():
                    ended.add_metric([model, reason], count)
            yield ended
        if self._artefacts:
            batchers = {name: artefact.stats() for name, artefact in self._artefacts.items()}
            yield from _families(GaugeMetricFamily, _BATCHER_GAUGES, batchers)
            yield from _families(CounterMetricFamily, _BATCHER_COUNTERS, batchers)


def _families(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    described: Mapping[str, tuple[str, str]],
    stats: Mapping[str, object],
) -> Iterator[Metric]:
    """Yield the metrics of one kind. `described` has the field of the statistics and the text for each name."""
    for name, (of, text) in described.items():
        family = kind(f"whet:{name}", text, labels=["model_name"])
        for model, one in stats.items():
            family.add_metric([model], getattr(one, of))
        yield family


@dataclass(frozen=True)
class _EngineTimes:
    """Record the times of one engine. It is an Observer of the engine, whose thread calls it."""

    first: Histogram
    inter: Histogram
    e2e: Histogram
    queue: Histogram

    def first_token(self, seconds: float) -> None:
        self.first.observe(seconds)

    def inter_token(self, seconds: float) -> None:
        self.inter.observe(seconds)

    def finished(self, e2e_s: float, queue_s: float, reason: FinishReason) -> None:
        self.e2e.observe(e2e_s)
        self.queue.observe(queue_s)
