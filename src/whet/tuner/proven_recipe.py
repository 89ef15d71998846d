"""Make the recipe of a result, with the evidence for it."""

from whet.core.recipe import Evidence, Recipe
from whet.tuner.result import Result


def recipe_of(result: Result) -> Recipe:
    """Return the winning recipe with its evidence."""
    best, baseline = result.best, result.baseline
    return Recipe(
        kind="training" if result.kind == "script" else result.kind,
        target=result.target,
        model=result.model,
        fingerprint=result.fingerprint,
        machine={k: list(v) if isinstance(v, tuple | list) else v for k, v in result.machine.items()},
        versions=result.versions,
        evidence=Evidence(
            verdict=result.verdict,
            objective=result.objective,
            speedup=best.speedup,
            speedup_ci95=best.speedup_ci95,
            baseline_latency_ms=baseline.latency_ms,
            latency_ms=best.latency_ms,
            num_pairs=len(best.process_latencies_ms),
            quality_name=result.quality_name,
            quality_baseline=1.0 if baseline.quality is None else baseline.quality,
            quality=1.0 if best.quality is None else best.quality,
            max_drop=result.max_drop,
            size_bytes_baseline=baseline.size_bytes,
            size_bytes=best.size_bytes,
            peak_bytes_baseline=baseline.peak_bytes,
            peak_bytes=best.peak_bytes,
            share_of_limit=best.share_of_limit,
        ),
        steps=best.steps,
    )
