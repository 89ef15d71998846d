"""What the figures of benchmarks/stream_peers.py come to: goals, verdicts, claims, lines of docs/results.md.

Everything is computed from the measured figures. Goals are those of goals.py. A claim of the guide *holds* where the
whole interval reaches what it claims, and *does not hold* where no part of it does.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from goals import goal_claim

from whet.measure.stats import mean_interval

DIFFUSERS, OPENVINO = "diffusers, eager", "OpenVINO int8, plain loop"
GOALS = {DIFFUSERS: 3.0, OPENVINO: 1.1}
_MOST_OVERHEAD = 0.05
_MOST_GROWTH = 0.01  # of the resident memory, from the first reading to the last
_CLAIMED_SPEEDUP, _CLAIMED_LESS_MEMORY, _CLAIMED_FPS = 1.96, 0.984, 3891
_CLAIMED_SAVED_MS, _CLAIMED_TENSORRT, _GUIDE_STEPS = 2.0, 1.5, 4
_SAID = {"reached": "holds", "missed": "does not hold", "open": "open"}
_NOT_HERE = "not measurable here"

Rounds = Sequence[Mapping[str, Mapping[str, Mapping[str, float]]]]


def judge_pairs(rounds: Rounds) -> list[dict[str, Any]]:
    """Return each goal beside a peer, for each of whet's sides and each number of steps.

    Args:
        rounds: What each round measured, by the number of steps and the side.
    """
    claims = []
    for steps in rounds[0]:
        for ours in rounds[0][steps]:
            for peer, goal in GOALS.items():
                if ours not in GOALS and peer in rounds[0][steps]:
                    what = f"{ours}, {_steps(steps)}, over {peer}"
                    claims.append(goal_claim(what, _seconds(rounds, steps, peer), _seconds(rounds, steps, ours), goal))
    return claims


def judge_overhead(rounds: Rounds) -> list[dict[str, Any]]:
    """Return what a stream adds to the time of its model, for each of whet's sides and each number of steps."""
    found = []
    for steps in rounds[0]:
        for side, first in rounds[0][steps].items():
            if "overhead" not in first:
                continue
            shares = [answers[steps][side]["overhead"] for answers in rounds]
            whole = [answers[steps][side]["with_hand_over"] for answers in rounds]
            low, high = mean_interval(shares) if len(shares) > 1 else (shares[0], shares[0])
            verdict = "reached" if high <= _MOST_OVERHEAD else "missed" if low > _MOST_OVERHEAD else "open"
            found.append(
                {
                    "side": side,
                    "steps": steps,
                    "overhead": statistics.fmean(shares),
                    "ci95": [low, high],
                    "with_hand_over": statistics.median(whole),
                    "verdict": verdict,
                }
            )
    return found


def judge_memory(readings: Mapping[str, int]) -> dict[str, Any]:
    """Return how resident memory grew from the first reading to the last, and whether that counts as constant."""
    frames = sorted(readings, key=int)
    first, last = readings[frames[0]], readings[frames[-1]]
    growth = last / first - 1
    return {
        "from": int(frames[0]),
        "to": int(frames[-1]),
        "growth": growth,
        "bytes_a_frame": (last - first) / max(1, int(frames[-1]) - int(frames[0])),
        "verdict": "reached" if growth <= _MOST_GROWTH else "missed",
    }


def why_not_held(report: Mapping[str, Any]) -> str:
    """Return why a stream did not hold its budget, in words; "" where it did.

    Args:
        report: A stream's report, as `StreamReport.to_dict` returns it.
    """
    budget_s = report["budget_s"]
    model, frame = report["model"], report["frame"]
    if report["verdict"] == "held":
        return ""
    if report["busy"]:
        return f"the machine was busy: {report['busy']}"
    if frame is None or report["verdict"] == "inconclusive":
        return "too few frames"
    if model["p50"] > budget_s:
        return f"the model alone takes {1e3 * model['p50']:.1f} ms at the median"
    if report["levels"]:
        return f"the stream did less for each frame {len(report['levels'])} times, and ended at {report['ended_at']}"
    if model["p99"] > budget_s:
        return f"one call of the model in 100 took more than {1e3 * model['p99']:.1f} ms"
    if frame["p99"] > budget_s:
        return f"the work around the model took the rest: one frame in 100 took {1e3 * frame['p99']:.1f} ms"
    dropped = report["counts"].get("dropped", 0)
    return f"{report['late_share']:.2%} of the frames were late or dropped ({dropped} dropped)"


def judge_guide(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each claim of the guide, what was measured for it, and the verdict.

    Args:
        found: What `stream_guide.measure` returned on one device.
    """
    seconds, absent, on_gpu = found["seconds"], found["absent"], "graph" in found["seconds"]
    naive, fast = seconds["naive"], seconds["fast"]
    speedup = goal_claim("", naive, fast, _CLAIMED_SPEEDUP)
    rows = [
        _row("1.96x by float16, channels_last and SDPA", _SAID[speedup["verdict"]], _ratio(speedup)),
        _memory_row(found["memory"]),
    ]
    if on_gpu:
        per_frame = [_GUIDE_STEPS * time for time in seconds["graph"]]
        claim = goal_claim("", [1 / _CLAIMED_FPS] * len(per_frame), per_frame, 1.0)
        passes, frames = 1 / statistics.median(seconds["graph"]), 1 / statistics.median(per_frame)
        measured = f"{frames:,.0f} final frames/s at {_GUIDE_STEPS} steps; {passes:,.0f} passes of the U-Net a second"
        rows.append(_row("3,891 frames/s", _SAID[claim["verdict"]], measured))
        saved_ms = [1e3 * _GUIDE_STEPS * (a - b) for a, b in zip(fast, seconds["graph"], strict=True)]
        low, high = mean_interval(saved_ms)
        verdict = "holds" if low >= _CLAIMED_SAVED_MS else "does not hold" if high < _CLAIMED_SAVED_MS else "open"
        measured = f"{statistics.fmean(saved_ms):.2f} ms a frame of {_GUIDE_STEPS} steps ({low:.2f}–{high:.2f})"
        rows.append(_row("2 to 5 ms less a frame by CUDA graphs", verdict, measured))
    else:
        rows.append(_row("3,891 frames/s", _NOT_HERE, f"it is claimed for a GPU; {absent['graph']}"))
        rows.append(_row("2 to 5 ms less a frame by CUDA graphs", _NOT_HERE, absent["graph"]))
    what = "1.5x to 3x by TensorRT"
    if "TensorRT" in seconds:
        claim = goal_claim("", fast, seconds["TensorRT"], _CLAIMED_TENSORRT)
        return [*rows, _row(what, _SAID[claim["verdict"]], _ratio(claim))]
    return [*rows, _row(what, _NOT_HERE, absent["TensorRT"])]


def _memory_row(memory: Mapping[str, int | None]) -> dict[str, str]:
    what = "98.4 % less memory by the same"
    naive, fast = memory["naive"], memory["fast"]
    if not naive or not fast:
        return _row(what, _NOT_HERE, "the system does not tell the peak")
    less = 1 - fast / naive
    measured = f"{less:.1%} less ({naive / 1e6:,.0f} → {fast / 1e6:,.0f} MB, weights and one call)"
    return _row(what, "holds" if less >= _CLAIMED_LESS_MEMORY else "does not hold", measured)


def _row(claim: str, verdict: str, measured: str) -> dict[str, str]:
    return {"claim": claim, "verdict": verdict, "measured": measured}


def stream_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the heading, and the lines that follow on docs/results/stream_peers.MACHINE.json."""
    lines = [
        f"## Real-time diffusion beside diffusers and OpenVINO, on {report['machine']['chip']}",
        f"The U-Net of signs-stream (64 x 64 pixels); weights: {report['weights']}. Speed does not depend on them. "
        "Final frames a second, medians over the rounds. Each side has a process of its own; sides take turns, and "
        "some rounds have fresh processes. `benchmarks/stream_peers.py` says how it is measured.",
    ]
    if "pairs" in report:
        lines += _pair_lines(report["pairs"]["rounds"])
    if "holds" in report:
        lines += _hold_lines(report["holds"])
    if "memory" in report:
        lines += ["", _memory_line(report["memory"])]
    if "shaped" in report:
        lines += ["", *_shaped_lines(report["shaped"])]
    for found in report.get("guide", []):
        lines += _guide_lines(found)
    return lines


def _pair_lines(rounds: Rounds) -> list[str]:
    steps = list(rounds[0])
    lines = ["", "| side | " + " | ".join(_steps(count) for count in steps) + " |", "|---" * (len(steps) + 1) + "|"]
    for side in rounds[0][steps[0]]:
        rates = [f"{1 / statistics.median(_seconds(rounds, count, side)):.1f}" for count in steps]
        lines.append(f"| {side} | " + " | ".join(rates) + " |")
    lines += ["", "| ratio | goal | measured (95%) | |", "|---|---|---|---|"]
    for claim in judge_pairs(rounds):
        lines.append(f"| {claim['what']} | {claim['goal']:g}x | {_ratio(claim)} | {claim['verdict']} |")
    lines += [
        "",
        "What a stream adds to its model's time, with a synthetic source and no sink: conversions of frames, and in "
        f"the last column the hand-over between threads too. The goal is {_MOST_OVERHEAD:.0%}.",
        "",
        "| side | steps | overhead (95%) | | with hand-over |",
        "|---|---|---|---|---|",
    ]
    for row in judge_overhead(rounds):
        low, high = row["ci95"]
        lines.append(
            f"| {row['side']} | {row['steps']} | **{row['overhead']:.1%}** ({low:.1%} to {high:.1%}) "
            f"| {row['verdict']} | {row['with_hand_over']:.1%} |"
        )
    return lines


def _hold_lines(holds: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "",
        "Rates held from a source that gives frames at their times. A rate is held where the 99th percentile is within "
        "the interval, at most 0.1% of the frames are late or dropped, and the stream stays at its level.",
        "",
        "| rate | steps | side | for | p50 | p99 | latency p99 | late or dropped | levels changed | |",
        "|---" * 10 + "|",
    ]
    for row in holds:
        report, latency = row["report"], row["report"]["latency"]
        frame = report["frame"] or {"p50": float("nan"), "p99": float("nan")}
        why = why_not_held(report)
        lines.append(
            f"| {row['rate']:g} FPS | {row['steps']} | {row['side']} | {row['seconds']:.0f} s "
            f"| {1e3 * frame['p50']:.1f} ms | {1e3 * frame['p99']:.1f} ms "
            f"| {'—' if latency is None else format(1e3 * latency['p99'], '.1f') + ' ms'} "
            f"| {report['late_share'] or 0:.2%} | {len(report['levels'])} "
            f"| {report['verdict']}{': ' + why if why else ''} |"
        )
    return lines


def _memory_line(memory: Mapping[str, Any]) -> str:
    found = judge_memory(memory["readings"])
    first, last = (memory["readings"][str(found[name])] / 1e6 for name in ("from", "to"))
    return (
        f"Resident memory after {found['from']:,} and {found['to']:,} frames of one stream: {first:.1f} and {last:.1f} "
        f"MB, {found['growth']:+.2%} ({found['bytes_a_frame']:+.0f} bytes a frame). The goal, at most "
        f"{_MOST_GROWTH:.0%} more, is {found['verdict']}."
    )


def _shaped_lines(shaped: Mapping[str, Any]) -> list[str]:
    rounds, (peer, ours) = shaped["rounds"], shaped["sides"]
    claim = goal_claim(
        "", [row[peer]["s_per_frame"] for row in rounds], [row[ours]["s_per_frame"] for row in rounds], 1
    )
    rates = {side: 1 / statistics.median(row[side]["s_per_frame"] for row in rounds) for side in (peer, ours)}
    return [
        f"A U-Net of Stable Diffusion's layers (widths {', '.join(map(str, shaped['widths']))}) and a tiny "
        f"autoencoder, random weights, {shaped['pixels']} x {shaped['pixels']} pixels, {_steps(shaped['steps'])}: "
        f"{peer} {rates[peer]:.3g} FPS, {ours} {rates[ours]:.3g} FPS, {_ratio(claim)}."
    ]


def _guide_lines(found: Mapping[str, Any]) -> list[str]:
    lines = [
        "",
        f"Claims of a guide, measured again on {found['device']}:",
        "",
        "| claim | | measured |",
        "|---|---|---|",
    ]
    return lines + [f"| {row['claim']} | {row['verdict']} | {row['measured']} |" for row in judge_guide(found)]


def _seconds(rounds: Rounds, steps: str, side: str) -> list[float]:
    return [answers[steps][side]["s_per_frame"] for answers in rounds]


def _steps(count: str | int) -> str:
    return f"{count} step{'s' if int(count) > 1 else ''}"


def _ratio(claim: Mapping[str, Any]) -> str:
    low, high = claim["ci95"]
    return f"**{claim['ratio']:.2f}x** ({low:.2f}–{high:.2f})"
