"""Hold what a load test is asked for, and check it before anything heavy is imported."""

from collections.abc import Sequence
from dataclasses import dataclass

from whet.core.slo import Slo
from whet.errors import OptionError
from whet.server.load_test.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Options:
    """Say which requests to send.

    Attributes:
        trace: The traffic to replay. Give either this or rate.
        source: The name of the trace, for the report.
        rate: Requests per second, for random arrivals.
        num_requests: The most requests.
        duration_s: How long requests are sent, in seconds.
        load: The rate of a trace, as a share of the rate that the server can do. Give this or time_scale, not both.
        time_scale: The factor of a trace's gaps.
        length_scale: The factor of a trace's lengths.
        max_input: The most tokens of a prompt.
        max_output: The most tokens of an output.
        input_len: The range of prompt lengths of random arrivals, in tokens, ends included.
        output_len: The range of output lengths of random arrivals, in tokens, ends included.
        max_in_flight: The most requests at the same time.
        shared_prefix: How many first tokens all prompts share.
        seed: The seed of prompts and random arrivals.
        slo: The limits for goodput.

    Raises:
        OptionError: The options contradict each other, or one is out of range.
    """

    trace: Trace | None = None
    source: str = ""
    rate: float | None = None
    num_requests: int | None = None
    duration_s: float | None = None
    load: float | None = None
    time_scale: float | None = None
    length_scale: float | None = None
    max_input: int | None = None
    max_output: int | None = None
    input_len: tuple[int, int] = (16, 255)
    output_len: tuple[int, int] = (32, 127)
    max_in_flight: int | None = None
    shared_prefix: int = 0
    seed: int = 0
    slo: Slo | None = None

    def __post_init__(self) -> None:
        if (self.trace is None) == (self.rate is None):
            raise OptionError("give the traffic: either --trace FILE or --rate REQUESTS_PER_SECOND")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise OptionError(f"--rate {self.rate:g}: give a number of requests per second above 0")
        of_a_trace = (self.load, self.time_scale, self.length_scale)
        if self.rate is not None and any(value is not None for value in of_a_trace):
            raise OptionError(
                "--load, --time-scale and --length-scale need --trace: leave them out, or leave out --rate"
            )
        if self.load is not None and self.time_scale is not None:
            raise OptionError("--load finds the time scale by itself: give it or --time-scale, not both")
        for name in ("load", "time_scale", "length_scale", "num_requests", "max_input", "max_output", "max_in_flight"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                option = name.replace("max_in_flight", "concurrency").replace("_", "-")
                raise OptionError(f"--{option} {value:g}: give a number above 0")
        for name in ("input_len", "output_len"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise OptionError(f"--{name.replace('_', '-')} {low}-{high}: write two lengths as 16-255, from 1 up")
        if self.shared_prefix < 0 or self.seed < 0:
            raise OptionError(f"--shared-prefix {self.shared_prefix} and --seed {self.seed}: give 0 or more for both")


def check_serve_options(target: str, serve_options: Sequence[str]) -> None:
    """Raise OptionError for options of whet serve beside a URL: they go with a model's directory alone."""
    if "://" in target and serve_options:
        raise OptionError(f"{' '.join(serve_options)}: options of whet serve go with a DIR or a NAME, not with a URL")
