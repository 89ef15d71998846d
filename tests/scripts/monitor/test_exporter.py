"""What Prometheus reads, read by prometheus-client's own parser."""

import pytest
from made_runs import feed, make_run
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from whet.scripts.monitor.exporter import Exporter
from whet.scripts.monitor.run import Run


def samples_of(run: Run) -> dict[tuple[str, ...], float]:
    text, _ = Exporter(run).scrape()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_counters_gauges_and_the_histogram() -> None:
    run = make_run()
    feed(run, steps_ms=20, num_steps=5, gpu=True)
    feed(run, steps_ms=200, num_steps=1, gpu=True)
    samples = samples_of(run)
    assert samples["whet_steps_total",] == 6
    assert samples["whet_samples_total",] == 6 * 32
    assert samples["whet_tokens_total",] == 6 * 4096
    assert samples["whet_step_duration_seconds_bucket", "0.01"] == 0
    assert samples["whet_step_duration_seconds_bucket", "0.1"] == 5
    assert samples["whet_step_duration_seconds_bucket", "+Inf"] == 6
    assert samples["whet_step_duration_seconds_sum",] == pytest.approx(0.3)
    assert samples["whet_phase_seconds_total", "data_wait"] == pytest.approx(0.12)
    assert samples["whet_cpu_utilization_ratio",] == pytest.approx(0.55)
    assert samples["whet_resident_memory_bytes",] == 3 << 30
    assert samples["whet_gpu_utilization_ratio", "0"] == pytest.approx(0.83)
    assert samples["whet_cuda_fragmentation_ratio", "0"] == pytest.approx(0.035)
    assert samples["whet_run", "made <run>", "7"] == 1


def test_what_was_not_measured_has_no_metric() -> None:
    samples = samples_of(make_run())
    assert set(samples) == {("whet_run", "made <run>", "7")}
    run = make_run()
    feed(run)
    assert not [name for name, *_ in samples_of(run) if "gpu" in name or "cuda" in name]


def test_a_run_that_has_ended() -> None:
    run = make_run()
    run.end(0)
    assert samples_of(run)["whet_run", "made <run>", "7"] == 0


def test_openmetrics_for_who_asks() -> None:
    run = make_run()
    feed(run)
    text, content_type = Exporter(run).scrape("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(text.decode())} >= {"whet_steps", "whet_step_duration_seconds"}
