"""Put the metrics of several replicas into one text, each with the replica's name as a label."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families


class _All:
    """Collect the families of all replicas; any object with a method `collect` is a collector."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for replica, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                whole = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.samples.append(sample._replace(labels={**sample.labels, "replica": replica}))
        yield from merged.values()


def with_replica(texts: Mapping[str, str]) -> bytes:
    """Return the metrics of all replicas in Prometheus's text format.

    Args:
        texts: The metrics of each replica, by its name, in the same format.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_All(texts))
    return generate_latest(registry)
