"""How to measure: clock, memory, statistics, and measurements in processes of their own."""

from whet.measure.clock import Measurement, measure_calls, measure_pairs, quiet_collector, time_block, warm_up
from whet.measure.isolate import Failure, Outcome, run_isolated
from whet.measure.memory import cuda_peak_bytes, live_tensor_bytes, peak_rss_bytes, reset_peak_rss
from whet.measure.stats import MIN_SAMPLES_FOR_P99, Comparison, Verdict, compare, noise_floor, percentile

__all__ = [
    "MIN_SAMPLES_FOR_P99",
    "Comparison",
    "Failure",
    "Measurement",
    "Outcome",
    "Verdict",
    "compare",
    "cuda_peak_bytes",
    "live_tensor_bytes",
    "measure_calls",
    "measure_pairs",
    "noise_floor",
    "peak_rss_bytes",
    "percentile",
    "quiet_collector",
    "reset_peak_rss",
    "run_isolated",
    "time_block",
    "warm_up",
]
