"""What a benchmark of a server found: types, written as JSON, and a line for each request as CSV."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from whet.files import usable_directory, write_whole
from whet.load_test.calibration import Capacity
from whet.load_test.figures import Figures
from whet.load_test.record import Record
from whet.slo import Slo

FORMAT = 1
REPORT, REQUESTS = "report.json", "requests.csv"


@dataclass(frozen=True, kw_only=True)
class Report:
    """One benchmark. None: not asked for, or not known.

    source: the trace's name, or the rate. load: offered_per_s over what the calibration measured. length_scale,
    time_scale: what the trace's lengths and gaps were multiplied with. num_cut: requests cut to fit the server.
    prefix_hit_rate: share of the looked-up prompt tokens that were found in the server's cache. is_partial: it was
    ended before all requests had been sent and answered. busy: what disturbed the replay, on a busy machine; the server
    belongs to the measurement where it runs on the same one.
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

    def _repr_html_(self) -> str:
        from whet.load_test.notebook import report_html

        return report_html(self)

    def to_json(self, indent: int | None = 2) -> str:
        """All of it as one JSON object. indent: None puts it on one line."""
        return json.dumps(asdict(self), indent=indent, ensure_ascii=False) + "\n"


def make_directory(out: Path) -> Path:
    """Make the directory for the report now. Raises OutputError where it cannot be made or written to."""
    return usable_directory(out)


def write_report(directory: Path, report: Report, records: Sequence[Record]) -> None:
    """report.json and requests.csv, each whole or not at all."""
    write_whole(directory / REPORT, report.to_json())
    write_whole(directory / REQUESTS, requests_csv(records))


def requests_csv(records: Sequence[Record]) -> str:
    """One line a request, times in seconds; what is not known stays empty."""
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
