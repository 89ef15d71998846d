"""Hold the report of a benchmark, and write it as JSON, with a line of CSV for each request."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from whet.core.slo import Slo
from whet.files import write_whole
from whet.server.load_test.calibration import Capacity
from whet.server.load_test.figures import Figures
from whet.server.load_test.record import Record
from whet.ui.notebook import Shown

FORMAT = 1
REPORT, REQUESTS = "report.json", "requests.csv"


@dataclass(frozen=True, kw_only=True)
class Report(Shown):
    """Hold one benchmark's report; see Options for fields of the same names. None means "not asked for" or "not known".

    Attributes:
        max_model_len: The most tokens of a request, as the server states it.
        source: The name of the trace, or the rate.
        started_at: When the replay began, as an ISO date and time in UTC.
        offered_per_s: Requests per second that were to be sent.
        load: `offered_per_s` as a share of the measured capacity.
        num_planned: Requests that were to be sent.
        num_cut: Requests that were cut to fit the server.
        prefix_hit_rate: The share of looked-up prompt tokens that were found in the server's cache, 0 to 1.
        is_partial: Whether it was ended before all requests were sent and answered.
        busy: What disturbed the replay, or "" on a quiet machine. A server on the same machine is no disturbance.
        notes: Sentences that a reader needs to interpret the figures.
    """

    url: str
    model: str
    max_model_len: int | None
    source: str
    seed: int
    started_at: str
    offered_per_s: float | None
    load: float | None
    capacity: Capacity | None
    length_scale: float
    time_scale: float | None
    num_planned: int
    num_cut: int
    max_in_flight: int | None
    shared_prefix: int
    slo: Slo | None
    figures: Figures
    prefix_hit_rate: float | None
    is_partial: bool
    busy: str = ""
    notes: tuple[str, ...] = ()
    format: int = FORMAT

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as a JSON object. With indent None, it is one line."""
        return json.dumps(asdict(self), indent=indent, ensure_ascii=False) + "\n"


def write_report(directory: Path, report: Report, records: Sequence[Record]) -> None:
    """Write report.json and requests.csv, each completely or not at all."""
    write_whole(directory / REPORT, report.to_json())
    write_whole(directory / REQUESTS, requests_csv(records))


def requests_csv(records: Sequence[Record]) -> str:
    """Return one line of CSV for each request. Times are in seconds; unknown values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("at_s", "sent_s", "num_input", "num_output_asked", "num_output", "ttft_s", "tpot_s", "e2e_s")
    writer.writerow([*names, "longest_gap_s", "failure"])
    for record in records:
        arrival = record.arrival
        figures = (record.ttft_s, record.tpot_s, record.e2e_s, max(record.inter_token_s, default=None))
        writer.writerow(
            [
                f"{arrival.at_s:.6f}",
                f"{record.sent_s:.6f}",
                arrival.num_input,
                arrival.num_output,
                record.num_output,
                *("" if figure is None else f"{figure:.6f}" for figure in figures),
                record.failure,
            ]
        )
    return text.getvalue()
