"""docs/results/recall.json and memory_table.MACHINE.json as lines of docs/results.md."""

from collections import defaultdict
from typing import Any

import scipy.stats


def recall_lines(report: dict[str, Any]) -> list[str]:
    """Return the heading, and the lines that follow on what models remember."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in report["runs"]:
        runs[run["task"], run["arm"]].append(run)
    sizes = sorted({run["parameters"] for run in report["runs"]})
    lines = [
        "## What small models remember",
        f"Models of two layers, 64 wide, with {sizes[0]:,} to {sizes[-1]:,} parameters, each trained on at most "
        f"{report['tokens'] / 1e6:g} million tokens, or until it had learned. Attention sees a segment of 32 tokens, "
        "but for full attention. A distance is the segments from what is told to the question: 16 is 16 times the "
        "window. A "
        "cell is the share of right answers over all seeds, with its 95% interval (Wilson, with answers taken as "
        "independent), and the shares of the single seeds where they differ. *Memory of others*: each row of the test "
        "reads what was remembered of another row.",
    ]
    if report["absent"]:
        lines += ["", f"Not measured, because it was not installed: {', '.join(report['absent'])}."]
    for task, about in report["tasks"].items():
        arms = {arm: found for (name, arm), found in runs.items() if name == task}
        if not arms:
            continue
        tests = list(next(iter(arms.values()))[0]["tests"])
        is_shuffled = any(run["shuffled"] for found in arms.values() for run in found)
        columns = [*tests, *(["memory of others"] if is_shuffled else []), "learning rate", "tokens read"]
        lines += ["", f"**{task}**; chance is {about['chance']:.2%} ({about['says']}).", ""]
        lines += [f"| arm | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for arm, found in arms.items():
            cells = [_share([run["tests"][test] for run in found]) for test in tests]
            if is_shuffled:
                cells.append(_share([run["shuffled"] for run in found]) if found[0]["shuffled"] else "")
            read = " / ".join(f"{run['tokens_read'] / 1e6:.1f}" for run in found)
            lines.append(f"| {arm} | {' | '.join(cells)} | {found[0]['lr']:g} | {read} million |")
    return [*lines, "", *_findings(report, runs)]


def share_interval(right: int, answers: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    found = scipy.stats.binomtest(right, answers).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def _share(tests: list[dict[str, int]]) -> str:
    right, answers = (sum(test[key] for test in tests) for key in ("right", "answers"))
    low, high = share_interval(right, answers)
    shares = [test["right"] / test["answers"] for test in tests]
    seeds = f"; {' / '.join(f'{share:.0%}' for share in shares)}" if max(shares) - min(shares) > 0.02 else ""
    return f"{right / answers:.1%} ({low:.1%}–{high:.1%}{seeds})"


def _findings(report: dict[str, Any], runs: dict[tuple[str, str], list[dict[str, Any]]]) -> list[str]:
    """Say of each arm whether it answers above chance at 16 times the window, and of the control that it cannot."""
    lines = []
    for (task, arm), found in runs.items():
        far = [run["tests"]["distance 16"] for run in found if "distance 16" in run["tests"]]
        if task != "recall" or not far:
            continue
        low, _ = share_interval(sum(test["right"] for test in far), sum(test["answers"] for test in far))
        says = "above chance" if low > report["tasks"][task]["chance"] else "not above chance"
        control = ""
        if all(run["ignores_the_first_segment"] for run in found):
            control = " Another first segment changes no bit of its outputs behind it."
        lines.append(f"- recall at 16 times the window, {arm}: {says}.{control}")
    return lines


def memory_lines(report: dict[str, Any]) -> list[str]:
    """Return the heading, and the lines that follow on memory by length."""
    lines = [
        "## Memory by the length of a text",
        f"Models of {report['layers']} layer{'s' if report['layers'] > 1 else ''}, {report['width']} wide, with "
        f"{report['heads']} heads, a vocabulary of {report['vocabulary']:,}, {report['dtype']}, batch 1, and "
        f"{report['parameters'][0]:,} to {report['parameters'][1]:,} parameters. Each figure is the peak of a process "
        "of its own above what it held with the model built: what training, or reading, takes. "
        "*Naive* attention keeps its scores; beyond "
        f"{report['longest_naive']:,} tokens it is extrapolated by its fitted exponent, and marked. The window is "
        f"{report['segment']} tokens, the bank has {report['slots']} slots.",
    ]
    for mode in ("training", "inference"):
        arms = [row for row in report["rows"] if row["mode"] == mode]
        lengths = report["lengths"]
        lines += ["", f"{mode.capitalize()}, MB{', and seconds a call' if report['is_timed'] else ''}:", ""]
        lines += [f"| arm | {' | '.join(f'{length:,}' for length in lengths)} | exponent (95%) |"]
        lines += ["|---" * (len(lengths) + 2) + "|"]
        for row in arms:
            cells = [_memory_cell(row, str(length), report["is_timed"]) for length in lengths]
            low, high = row["exponent_ci95"]
            lines.append(f"| {row['arm']} | {' | '.join(cells)} | **{row['exponent']:.2f}** ({low:.2f}–{high:.2f}) |")
    marked = {
        (row["arm"], row["mode"]): {n for n, p in row["points"].items() if p.get("extrapolated")}
        for row in report["rows"]
    }
    lines += ["", f"The guide of the LTM Transformer claims {_claims(report)} of the standard's memory.", ""]
    lines += ["| arm | mode | over | tokens | times less memory | the guide | |", "|---" * 7 + "|"]
    for claim in report["claims"]:
        for length, ratio, holds in zip(claim["lengths"], claim["ratios"], claim["holds"], strict=True):
            measured = str(length) not in marked[claim["over"], claim["mode"]] | marked[claim["arm"], claim["mode"]]
            said = ("holds" if holds else "does not hold") if measured else "not measured at this length"
            lines.append(
                f"| {claim['arm']} | {claim['mode']} | {claim['over']} | {length:,} "
                f"| {f'**{ratio:,.1f}x**' if measured else '—'} | {report['claimed'][str(length)]:g}x | {said} |"
            )
    return [*lines, "", *_remembered(report["recall"])]


def _claims(report: dict[str, Any]) -> str:
    claimed = report["claimed"].items()
    return ", ".join(f"1/{ratio:g} at {int(length):,} tokens" for length, ratio in claimed)


def _memory_cell(row: dict[str, Any], length: str, is_timed: bool) -> str:
    found = row["points"].get(length)
    if found is None:
        return ""
    text = f"{found['bytes'] / 1e6:,.1f}"
    if found.get("extrapolated"):
        return f"{text} (extrapolated)"
    return f"{text}, {found['seconds']:.2f} s" if is_timed else text


def remembered_at(report: dict[str, Any] | None, segments: list[int]) -> dict[str, dict[str, str]]:
    """Return what each arm recalls of a text of so many segments, from the figures of benchmarks/recall.py.

    Args:
        report: The figures; None where there are none.
        segments: The segments of the texts.

    Returns:
        For each arm, the share of right answers by segments, as text. It is empty without figures.
    """
    found: dict[str, dict[str, str]] = {}
    for arm in dict.fromkeys(run["arm"] for run in (report or {"runs": []})["runs"]):
        tests = [run["tests"] for run in (report or {})["runs"] if run["task"] == "recall" and run["arm"] == arm]
        found[arm] = {
            f"{num}": _share([test[f"distance {num}"] for test in tests])
            if tests and all(f"distance {num}" in test for test in tests)
            else "not measured"
            for num in segments
        }
    return found


def _remembered(recall: dict[str, dict[str, str]]) -> list[str]:
    """Say how much is recalled at each length."""
    if not recall:
        return ["What is recalled has not been measured yet (`benchmarks/recall.py`)."]
    segments = list(next(iter(recall.values())))
    lines = [
        "How much of the first segment is recalled so many segments later (the models and the segments of the table on "
        "recall):",
        "",
        f"| arm | {' | '.join(f'{num} segments' for num in segments)} |",
        "|---" * (len(segments) + 1) + "|",
    ]
    return [*lines, *(f"| {arm} | {' | '.join(cells.values())} |" for arm, cells in recall.items())]
