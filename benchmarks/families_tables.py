"""What the rounds of benchmarks/families_peers.py come to: medians, what was asked for, lines of docs/results.md."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from goals import goal_claim

TASKS = {
    "decode": "decode, 1 sequence",
    "prefill": "prefill of 1,024",
    "one": "1 request",
    "many": "16 requests",
}
_SHARE_OF_LIMIT = 0.8
_OVER_LLAMA_CPP = {"decode": 1.4, "prefill": 3.0}
_OVER_TRANSFORMERS = {"decode": 6.0, "prefill": 5.0}
_OVER_ONE = {"mamba-130m": 4.0, "mamba2-130m": 2.8}
_OURS = "whet int8"


def judge(model: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each thing asked for of a model, with its ratio, its interval and the verdict."""
    rounds = found["rounds"]
    claims = [_share_of_limit(name, found) for name in found["bytes"]["weights"] if _has(rounds, "decode", name)]
    peers = [name for name in rounds[0]["decode"] if not name.startswith("whet")]
    for kind, goals in (("llama.cpp", _OVER_LLAMA_CPP), ("transformers", _OVER_TRANSFORMERS)):
        for task, goal in goals.items():
            rivals = [name for name in peers if name.startswith(kind) and _has(rounds, task, name)]
            if rivals and _has(rounds, task, _OURS):
                best = max(rivals, key=lambda name: statistics.median(_rates(rounds, task, name)))
                theirs, ours = _rates(rounds, task, best), _rates(rounds, task, _OURS)
                claims.append(_claim(f"{_OURS}: {TASKS[task]}, over {best}", theirs, ours, goal))
    for name in found["bytes"]["weights"]:
        if _has(rounds, "many", name):
            alone, together = _rates(rounds, "one", name), _rates(rounds, "many", name)
            claims.append(_claim(f"{name}: 16 requests at once, over one", alone, together, _OVER_ONE[model]))
    return claims


def _share_of_limit(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    limits = [_limit(name, found, answers["read_bandwidth"]) for answers in found["rounds"]]
    what = f"{name}: decode, share of the limit of {statistics.median(limits):,.0f} tok/s"
    return _claim(what, limits, _rates(found["rounds"], "decode", name), _SHARE_OF_LIMIT)


def _limit(name: str, found: Mapping[str, Any], bandwidth: float) -> float:
    """Return the tokens a second at which memory is all that is waited for."""
    return float(bandwidth / (found["bytes"]["weights"][name] + 2 * found["bytes"]["state"]))


def _claim(what: str, before: Sequence[float], after: Sequence[float], goal: float) -> dict[str, Any]:
    """Return the ratio of two rates, one pair a round."""
    return goal_claim(what, [1 / rate for rate in before], [1 / rate for rate in after], goal)


def _has(rounds: Sequence[Mapping[str, Any]], task: str, name: str) -> bool:
    return all(name in answers[task] for answers in rounds)


def _rates(rounds: Sequence[Mapping[str, Any]], task: str, name: str) -> list[float]:
    return [answers[task][name]["tokens_per_s"] for answers in rounds]


def family_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the heading, and the lines that follow on docs/results/families_peers.MACHINE.json."""
    lines = [
        f"## State-space models beside other engines, on {report['machine']['chip']}",
        "Models of 130 million random weights; each engine has two threads and a process of its own, and they take "
        f"turns. whet's build: {report['build']}. Tokens a second, medians over the rounds; *requests* have 16 tokens "
        "and get 33, their prompts included in the time. `benchmarks/families_peers.py` says how it is measured. "
        "The limit is the bandwidth measured at the start of a round over the bytes of weights and twice the state; a "
        "share above 1 means that a round read faster than that. *First tokens*: of how many of 16 prompts the first "
        "token is that of transformers in float32; weights are random, so that rounding decides between tokens that "
        "are nearly as likely.",
    ]
    for model, found in report["models"].items():
        lines += _lines_of(model, found)
    if "ltm" in report:
        lines += _ltm_lines(report["ltm"])
    return lines


def family_summary(report: Mapping[str, Any]) -> list[str]:
    """Return the README's lines on state-space models beside other engines."""
    machine = report["machine"]
    lines = [
        f"State-space models of 130 million random weights, on {machine['chip']}, {machine['cores']} cores:",
        "",
        "| model | whet's engine | times as fast (95%) |",
        "|---|---|---|",
    ]
    for model, found in report["models"].items():
        for claim in found["claims"]:
            what, _, rival = claim["what"].rpartition(", over ")
            if rival in found["agreement"]:  # an engine
                ratio = _interval(claim["ratio"], claim["ci95"], ".2f")
                lines.append(f"| {model} | {what.removeprefix('whet ')}, over {rival} | {ratio} |")
    return lines


def _ltm_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the lines on what ltm_costs.py measured."""
    token, training, goals = found["token"], found["training"], found["goals"]
    grows = _interval(token["exponent"], token["ci95"], ".3f")
    times = " | ".join(f"{ms:.2f} ms" for ms in token["ms"].values())
    sizes = " | ".join(f"{size / 1e3:,.0f} kB" for size in token["state_bytes"].values())
    return [
        "",
        f"A long-term-memory decoder of {found['parameters'] / 1e6:.1f} million weights, segments of "
        f"{found['shape']['attention_block_size']} tokens, {found['shape']['memory_slots']} slots a layer, in PyTorch. "
        "A token's time is the mean over a segment. It grows as context^exponent: 0 means that it does not grow.",
        "",
        f"| after | {' | '.join(f'{int(n):,}' for n in token['ms'])} | exponent (95%) | whet's goal | |",
        "|---" * (len(token["ms"]) + 4) + "|",
        f"| a token | {times} | {grows} | ≤ {goals['exponent']:g} | {_at_most(token['ci95'], goals['exponent'])} |",
        f"| state | {sizes} | | | |",
        "",
        f"A training step of {training['rows']} x {training['tokens']} tokens, by the width of slots over the model's:",
        "",
        "| width | with the bank | without | times as long (95%) | whet's goal | |",
        "|---|---|---|---|---|---|",
        *(
            f"| {width} | {found['bank_s']:.3f} s | {found['window_s']:.3f} s | "
            f"{_interval(found['ratio'], found['ci95'], '.2f')} | ≤ {goals['overhead']:g} | "
            f"{_at_most(found['ci95'], goals['overhead'])} |"
            for width, found in training["widths"].items()
        ),
    ]


def _interval(value: float, ci95: Sequence[float], form: str) -> str:
    return f"**{value:{form}}** ({ci95[0]:{form}}–{ci95[1]:{form}})"


def _at_most(ci95: Sequence[float], goal: float) -> str:
    return "reached" if ci95[1] <= goal else "missed" if ci95[0] > goal else "open"


def _lines_of(model: str, found: Mapping[str, Any]) -> list[str]:
    rounds = found["rounds"]
    bandwidth = statistics.median(answers["read_bandwidth"] for answers in rounds)
    lines = [
        "",
        f"{model}, {len(rounds)} rounds, a state of {found['bytes']['state'] / 1e6:.1f} MB, memory read at "
        f"{bandwidth / 1e9:.1f} GB/s:",
        "",
        f"| engine | {' | '.join(TASKS.values())} | first tokens as transformers float32 |",
        "|---" * (len(TASKS) + 2) + "|",
    ]
    expected = found["agreement"].get("transformers float32")
    for name, tokens in found["agreement"].items():
        rates = [statistics.median(_rates(rounds, task, name)) if _has(rounds, task, name) else None for task in TASKS]
        cells = ["" if rate is None else f"{rate:,.0f}" for rate in rates]
        same = (
            "" if expected is None else f"{sum(a == b for a, b in zip(tokens, expected, strict=True))} of {len(tokens)}"
        )
        lines.append(f"| {name} | {' | '.join(cells)} | {same} |")
    lines += [f"| {name} | absent: {why} |" + " |" * len(TASKS) for name, why in found["absent"].items()]
    lines += ["", f"| {model} | ratio (95%) | whet's goal | |", "|---|---|---|---|"]
    for claim in found["claims"]:
        low, high = claim["ci95"]
        ratio = f"**{claim['ratio']:.2f}** ({low:.2f}–{high:.2f})"
        lines.append(f"| {claim['what']} | {ratio} | ≥ {claim['goal']:g} | {claim['verdict']} |")
    return lines
