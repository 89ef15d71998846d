"""The tables of results about measuring: the gate, busy machines, what watching costs, auditing, judging recipes."""

from collections.abc import Callable
from typing import Any

Report = dict[str, Any]


def _busy(report: Report) -> list[str]:
    commands = {"compare": "`bench --compare`", "against": "`bench --against`", "tune": "`tune`"}
    rows = report["rows"]
    num, num_wrong, num_far = (sum(row[key] for row in rows) for key in ("num", "num_wrong", "num_far"))
    num_ratios = sum(row["num_ratios"] for row in rows)
    lines = [
        "## Verdicts on a busy machine",
        f"Of {num} verdicts beside other work, with {report['wait']} of waiting for quiet, {num_wrong} were wrong. "
        f"Of {num_ratios} claimed ratios, {num_far} differed by more than 15% from the ratio on the quiet machine.",
        "",
        "| command | beside it ran | verdicts | wrong | inconclusive: busy | inconclusive: scatter | ratios claimed "
        "| off by > 15 % | largest distance | seconds (median) |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        largest = "—" if row["largest_distance"] is None else f"{row['largest_distance']:.1%}"
        lines.append(
            f"| {commands[row['command']]} | {row['load']} | {row['num']} | **{row['num_wrong']}** "
            f"| {row['num_busy']} | {row['num_unclear']} | {row['num_ratios']} | {row['num_far']} | {largest} "
            f"| {row['median_seconds']:.0f} |"
        )
    return lines


def _gate(report: Report) -> list[str]:
    first = report["cases"][0]
    lines = [
        "## The regression gate",
        f"The share of comparisons that called the new code slower. Each row has {first['num_rounds']} comparisons by "
        f"whet's gate, and {first['num_single_rounds']} by the common ways.",
        "",
        "| benchmark | whet's gate | not clear | pairs (median) | seconds (median) "
        "| scatter, in turns | min:5% | Mann–Whitney | scatter, one after the other |",
        "|---" * 9 + "|",
    ]
    lines += [
        f"| {case['what']} | **{case['fail']:.0%}** | {case['inconclusive']:.0%} | {case['median_pairs']} "
        f"| {case['median_seconds']:.0f} | {case['scatter']:.1%} | {case['min_5_percent']:.0%} "
        f"| {case['mann_whitney']:.0%} | {case['single_scatter']:.1%} |"
        for case in report["cases"]
    ]
    return lines


def _overhead(report: Report) -> list[str]:
    lines = ["## What measuring costs", "| one use, nothing in it | µs |", "|---|---|"]
    lines += [f"| {name} | {us:.2f} |" for name, us in report["uses_us"].items()]
    lines += [
        "",
        f"The overhead is measured on a training step of {report['step_ms']:.1f} ms on one core, in "
        f"{report['num_pairs']} interleaved pairs of blocks of {report['steps_per_block']} steps. The other columns "
        "show the µs that are added to an almost empty step, with caches as they are, and with caches that each step "
        "empties. The blocks leave out work that is done later for many steps at once, and by the monitor's thread "
        "every second; the table above has it.",
        "",
        "| watched by | overhead (95%) | µs a step | caches emptied |",
        "|---|---|---|---|",
    ]
    for name, row in report["steps"].items():
        low, high = row["ci95"]
        middle, least, most = row["added_cold_us"]
        added = f"{row['added_us']:.0f} | {middle:.0f} ({least:.0f} to {most:.0f})"
        lines.append(f"| {name} | **{row['overhead']:+.2%}** ({low:+.2%} to {high:+.2%}) | {added} |")
    lines += [
        "",
        "The accuracy of the figures: the sum of the layers' times over the whole call's, FLOPs over FlopCounterMode's",
        "(with attention as plain matrix products), and peak memory over what another process saw.",
        "",
        "| workload | layers / call | FLOPs | peak |",
        "|---|---|---|---|",
    ]
    for row in report["accuracy"]:
        ratios = (row["layers_over_call"], row["flops_over_counted"], row["peak_over_kernel"])
        lines.append(f"| {row['target']} | " + " | ".join(f"{ratio:.3f}" for ratio in ratios) + " |")
    return lines


def _trace_reading(report: Report) -> list[str]:
    lines = [
        "## Reading a trace",
        "`whet profile --trace`, beside `json.load` alone on the same file:",
        "",
        "| file | events | size | read and analysed | memory | json.load | its memory |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['file']} | {row['num_events']:,} | {row['size_bytes'] / 1e6:.0f} MB "
        f"| **{row['read_s'] + row['analyse_s']:.2f} s** | {row['peak_bytes'] / 1e6:.0f} MB "
        f"| {row['json_load_s']:.2f} s | {row['json_load_peak_bytes'] / 1e6:.0f} MB |"
        for row in report["files"]
    ]
    return lines


def _audit_speed(report: Report) -> list[str]:
    tools = list(next(iter(report["packages"].values()))["seconds"])
    lines = [
        "## Auditing",
        f"Milliseconds per 1,000 lines on one core: medians of {report['rounds']} rounds in which the tools take "
        f"turns, start-up included. `whet audit` of an empty file takes {report['start_ms']:.0f} ms.",
        "",
        f"| package | lines | {' | '.join(tools)} |",
        f"|---|---|{'---|' * len(tools)}",
    ]
    for name, row in report["packages"].items():
        times = " | ".join(f"{row['ms_per_1000_lines'][tool]:,.1f}" for tool in tools)
        lines.append(f"| {name} | {row['lines']:,} | {times} |")
    return lines


def _judged(report: Report) -> list[str]:
    """The recipes that other tables show, judged anew: whole outputs, and the column that differs most."""
    lines = [
        "## Published recipes, judged anew",
        "Recipes of other tables were built, saved, loaded, and judged as a trial is, by their worst column too. A "
        f"drop of {report['max_drop']:.0%} is allowed. One that was not judged takes long where bfloat16 is emulated. "
        "Each row names the chip that it was judged on; the line above is of the last ones.",
        "",
        "| model | recipe | judged by | drop | cosine | worst column | verdict | chip |",
        "|---" * 8 + "|",
    ]
    for row in report["rows"]:
        if row["status"] == "not judged":
            lines.append(f"| {row['name']} | {row['recipe']} | — | — | — | — | not judged | — |")
            continue
        drop = "—" if row["drop"] is None else f"{row['drop']:.2%}"
        verdict = "kept" if row["status"] == "done" else f"**{row['status']}**: {row['words']}"
        lines.append(
            f"| {row['name']} | {row['recipe']} | {row['judged_by']} | {drop} | {row['cosine']:.5f} "
            f"| {row['column'] or '—'} | {verdict} | {row['chip']} |"
        )
    return lines


def _drift_alarms(report: Report) -> list[str]:
    low, high = report["ci95"]
    lines = [
        "## False alarms of the drift test",
        f"Of faithful streams of {report['num_windows']} windows of real footage, {report['frames']} frames each, "
        f"**{report['num_alarms']} of {report['num']}** were called drift ({low:.1%} to {high:.1%}, by window); whet's "
        f"goal is at most {report['goal']:.0%}.",
        "",
        "| stream | judged | called drift |",
        "|---|---|---|",
    ]
    for name in dict.fromkeys(row["stream"] for row in report["rows"]):
        own = [row["verdict"] for row in report["rows"] if row["stream"] == name and row["verdict"] != "inconclusive"]
        lines.append(f"| {name} | {len(own)} | {own.count('drift')} |")
    return lines


def _startup(report: Report) -> list[str]:
    lines = [
        "## What it takes to answer",
        f"Seconds of CPU time of the quickest of {report['runs']} runs; whet's goal is at most {report['aim_s']:g}.",
        "",
        "| command | --help | a wrong option | a wrong name |",
        "|---|---|---|---|",
    ]
    for row in report["commands"]:
        times = " | ".join(f"{row[key]:.2f}" for key in ("help_s", "wrong_option_s", "wrong_name_s"))
        lines.append(f"| {row['command']} | {times} |")
    return lines


def _search_replay(report: Report) -> list[str]:
    counts = [str(count) for count in report["counts"]]
    tables = ", ".join(f"{table['target']} ({table['recipes']} recipes)" for table in report["tables"])
    lines = [
        "## How soon the search finds what is best",
        f"Searches replayed against recorded trials: {tables}. The regret is how far the best recipe found so far is "
        f"from the best of its table, after so many trials; in brackets the worst of {report['seeds']} seeds. The "
        "screening of a recipe scatters by 10 to 15 %, so that smaller regrets say little. The compiler of trainings "
        "is left out, and the order in which whet tries recipes was chosen with these tables at hand.",
        "",
        "| workload | objective | strategy | " + " | ".join(f"after {count}" for count in counts) + " |",
        "|---" * (3 + len(counts)) + "|",
    ]
    for row in report["rows"]:
        drawn = not row["strategy"].startswith("whet")
        regrets = [
            f"{row['median'][count]:.0%}" + (f" ({row['worst'][count]:.0%})" if drawn else "") for count in counts
        ]
        lines.append(f"| {row['workload']} | {row['objective']} | {row['strategy']} | {' | '.join(regrets)} |")
    return lines


MEASURING: dict[str, Callable[[Report], list[str]]] = {
    "gate": _gate,
    "busy": _busy,
    "overhead": _overhead,
    "trace_reading": _trace_reading,
    "audit_speed": _audit_speed,
    "judge_recipes": _judged,
    "drift_alarms": _drift_alarms,
    "startup": _startup,
    "search_replay": _search_replay,
}
