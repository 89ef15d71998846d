"""Publish the metrics of all replicas on one page, each with the number of its replica, and those of the proxy.

Source: prometheus.io/docs/instrumenting/exposition_formats, the text format; sums over the label `replica` are those of
the whole.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from whet.server.replicas.fleet import Fleet

_SCRAPE_S = 5.0
_LABEL = "replica"


class FleetMetrics:
    """Collect what the replicas and the proxy count."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics and their content type, in the format that an Accept header asks for.

        A replica that does not answer within 5 s is left out.
        """
        replicas = self._fleet.all
        pages = await asyncio.gather(*(one.get("/metrics", timeout_s=_SCRAPE_S) for one in replicas))
        found = {one.number: page.decode() for one, page in zip(replicas, pages, strict=True) if page is not None}
        try:
            encode, content_type = choose_encoder(accept)
        except Exception:  # noqa: BLE001 - it raises errors of many kinds on a header that it cannot read
            encode, content_type = choose_encoder("")
        return encode(registry_of([*joined(found), *self._own()])), content_type

    def _own(self) -> Iterator[Metric]:
        counts = self._fleet.counts
        up = GaugeMetricFamily("whet:replica_up", "Whether a replica takes requests, 1 or 0", labels=[_LABEL])
        taking = {one.number for one in self._fleet.taking}
        for number in range(self._fleet.num_replicas):
            up.add_metric([str(number)], float(number in taking))
        open_ = GaugeMetricFamily("whet:replica_requests", "Requests that a replica works on", labels=[_LABEL])
        for one in self._fleet.all:
            open_.add_metric([str(one.number)], one.num_open)
        deaths = CounterMetricFamily("whet:replica_deaths", "Ends that nobody asked for", labels=[_LABEL])
        for number, count in counts.deaths.items():
            deaths.add_metric([str(number)], count)
        chosen = CounterMetricFamily("whet:proxy_requests", "Requests by what chose the replica", labels=["chosen_by"])
        for reason, count in counts.chosen.items():
            chosen.add_metric([reason], count)
        yield from (up, open_, deaths, chosen)
        for name, value, text in (
            ("proxy_sent_again", counts.sent_again, "Requests that were sent to another replica"),
            ("proxy_broken_streams", counts.broken_streams, "Streams that ended since their replica died"),
            ("proxy_given_up", counts.given_up, "Requests on which two replicas died"),
            ("replica_updates", counts.updates, "Replicas that an update replaced"),
        ):
            yield CounterMetricFamily(f"whet:{name}", text, value=value)


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
                labels = {**sample.labels, _LABEL: str(replica)}
                into.samples.append(Sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar))
    return list(found.values())
