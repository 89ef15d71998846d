"""Write metrics as a page for Prometheus, also those of several processes.

Source: prometheus.io/docs/instrumenting/exposition_formats, the text format; sums over the label `replica` are those of
the whole.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

REPLICA = "replica"
"""The label that says which process a sample comes from."""


def encoded(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics and their content type, in the format that an Accept header asks for."""
    try:
        encode, content_type = choose_encoder(accept)
    except Exception:  # noqa: BLE001 - it raises errors of many kinds on a header that it cannot read
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


class _Families:
    """Hand out metrics, as a collector of prometheus-client."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> list[Metric]:
        return self._families


def registry_of(families: Iterable[Metric]) -> CollectorRegistry:
    """Return a registry that prometheus-client can write as a page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return registry


def joined(pages: Mapping[int, str] | Mapping[str, str]) -> list[Metric]:
    """Return the metrics of several pages in Prometheus's text format, each sample with the replica of its page."""
    found: dict[str, Metric] = {}
    for replica, page in pages.items():
        for family in text_string_to_metric_families(page):
            into = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = {**sample.labels, REPLICA: str(replica)}
                into.samples.append(Sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar))
    return list(found.values())
