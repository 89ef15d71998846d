"""Write the section of docs/results.md on signs-stream: its quality, and what whet tune makes of it."""

from collections.abc import Mapping
from typing import Any

_FIGURES = {"psnr_db": "PSNR (dB)", "ssim": "SSIM", "sharpness": "sharpness", "accuracy": "recognised"}


def signs_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the heading, and the lines that follow on docs/results/signs_stream.MACHINE.json."""
    lines = [f"## signs-stream, on {report['machine']['chip']}"]
    if "quality" in report:
        lines += _quality_lines(report["quality"])
    for result in report.get("tuned", {}).values():
        lines += ["", *_tuned_lines(result)]
    return lines


def _quality_lines(quality: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    lines = [
        "Frames of people whom no network has seen, each drawn with the drawn frame before it. Sharpness is beside "
        "that of the true frames. *Recognised* is by the classifier that was trained on the same people as the stream.",
        "",
        f"| drawn by | {' | '.join(_FIGURES.values())} |",
        f"|---|{'---|' * len(_FIGURES)}",
    ]
    for name, figures in quality.items():
        lines.append(f"| {name} | {' | '.join(_figure(key, figures.get(key)) for key in _FIGURES)} |")
    return lines


def _tuned_lines(result: Mapping[str, Any]) -> list[str]:
    what = "the most frames of the same quality"
    if result["budget_s"] is not None:
        what = f"the best quality within {result['budget_s'] * 1e3:g} ms a frame"
    found = result["best"] if result["verdict"] == "gain" else (result["rejected"] or [result["best"]])[0]
    lines = [
        f"`whet tune` for {what}: {result['sentence']} The search took {result['seconds']:.0f} s.",
        "",
        f"| | frames/s | P99 | {' | '.join(_FIGURES.values())} | U-Net |",
        f"|---|---|---|{'---|' * len(_FIGURES)}---|",
    ]
    for name, point in (("original", result["original"]), ("found", found)):
        figures = point["figures"] or {}
        rate = "–" if point["fps"] is None else f"{point['fps']:.1f}"
        p99 = "–" if point["p99_s"] is None else f"{point['p99_s'] * 1e3:.1f} ms"
        recipe = point["models"].get("U-Net", "as it is")
        cells = " | ".join(_figure(key, figures.get(key)) for key in _FIGURES)
        lines.append(f"| {name}: {point['label']} | {rate} | {p99} | {cells} | {recipe} |")
    return lines


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1%}" if name == "accuracy" else f"{value:.3f}" if name == "ssim" else f"{value:.2f}"
