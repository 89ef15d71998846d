"""Publish the metrics of all replicas on one page, each with the number of its replica, and those of the proxy."""

import asyncio
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from whet.server.http.exposition import REPLICA, encoded, joined, registry_of
from whet.server.replicas.fleet import Fleet

_SCRAPE_S = 5.0


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
        return encoded(registry_of([*joined(found), *self._own()]), accept)

    def _own(self) -> Iterator[Metric]:
        counts = self._fleet.counts
        up = GaugeMetricFamily("whet:replica_up", "Whether a replica takes requests, 1 or 0", labels=[REPLICA])
        taking = {one.number for one in self._fleet.taking}
        for number in range(self._fleet.num_replicas):
            up.add_metric([str(number)], float(number in taking))
        open_ = GaugeMetricFamily("whet:replica_requests", "Requests that a replica works on", labels=[REPLICA])
        for one in self._fleet.all:
            open_.add_metric([str(one.number)], one.num_open)
        deaths = CounterMetricFamily("whet:replica_deaths", "Ends that nobody asked for", labels=[REPLICA])
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
