"""Write docs/training-gate.md from what training_gate.py judged."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from scipy import stats

_HEAD = """# How far the proof of a training can be trusted

`whet tune` on a training run proves that a changed training stays the same ([training.md](training.md)). How often that
proof is wrong was measured: on changes that are harmless, and on planted faults.

## What was done

Four small training runs were changed: a Llama-shaped decoder and a network of convolutions, which are the built-in
workloads made narrow (`gpt`, `cnn`), and a small network of linear layers, trained by AdamW and by SGD with momentum
(`mlp_adamw`, `mlp_sgd`). Each seed draws other weights and another order of the data. Each change went through the
whole proof of `whet tune`: gradients, updates, data, and for what rounds the held-out loss. *Exact* changes promise the
same numbers, rounding aside. *Rounded* changes are made beside autocast to bfloat16, or round by themselves.

Intervals are exact 95 % intervals of a binomial share (Clopper–Pearson).
"""
_TAIL = """## What the proof does not see

- Faults that begin later. Three batches of gradients, three updates, and six batches of two passes are compared.
- What another optimiser does (`adafactor`, `adamw_8bit`): its updates are other ones, so the held-out loss alone can
  tell.
- Gradients between backward and update, for a model with dropout, and where several batches are accumulated and
  clipped.
- A lost weight decay that is less than a thousandth of each parameter's update.
- A fault that is smaller than the allowance for rounding. Where an input of a ReLU lies next to 0, rounding alone
  moves gradients by percents. The examination measures that: it moves the original's parameters by 1e-5 and by 2^-8,
  and allows four times as much as the gradients move. For such a model a small fault is found in its last layers alone.
"""


_HARMLESS = "Of {n} harmless changes, {k} were rejected: {share}. At most 5 % was the goal."
_FOUND = "Of {n} planted faults, {k} were found: {share}. At least 90 % was the goal."


def page(report: dict[str, Any]) -> str:
    """Return the page."""
    rows = report["rows"]
    harmless = [row for row in rows if not row["is_fault"]]
    faults = [row for row in rows if row["is_fault"]]
    machine, versions = report["machine"], report["versions"]
    seeds = {target: len({row["seed"] for row in rows if row["target"] == target}) for target in _targets(rows)}
    where = ", ".join(f"{name} {version}" for name, version in versions.items() if name in ("whet", "python", "torch"))
    parts = [
        _HEAD,
        f"`{report['command']}` on {machine['chip']}, {machine['cores']} cores; {where}. Seeds: "
        + ", ".join(f"{number} of `{target}`" for target, number in seeds.items())
        + ".\n",
        "## Harmless changes\n",
        _sentence(harmless, "rejected", _HARMLESS),
        _open_sentence(harmless),
        _table(harmless, "rejected", "rejected", with_proofs=False),
        "## Planted faults\n",
        _sentence(faults, "rejected", _FOUND),
        _table(faults, "rejected", "found", with_proofs=True),
        _exceptions(rows),
        _TAIL,
    ]
    return "\n".join(part for part in parts if part)


def _targets(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(["gpt", "cnn", "mlp_adamw", "mlp_sgd", *(row["target"] for row in rows)]))


def _interval(k: int, n: int) -> str:
    found = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    return f"{k / n:.1%} ({found.low:.1%}–{found.high:.1%})"


def _sentence(rows: Sequence[dict[str, Any]], verdict: str, words: str) -> str:
    k = sum(row["verdict"] == verdict for row in rows)
    found = stats.binomtest(k, len(rows)).proportion_ci(0.95, method="exact")
    is_shown = found.high <= 0.05 if words is _HARMLESS else found.low >= 0.9
    more = "" if is_shown else " The interval does not show that yet: more seeds are needed."
    return words.format(n=len(rows), k=k, share=_interval(k, len(rows))) + more + "\n"


def _open_sentence(rows: Sequence[dict[str, Any]]) -> str:
    judged = [row for row in rows if row["by"] == "held-out loss"]
    undecided = sum(row["verdict"] == "open" for row in judged)
    return (
        f"For {undecided} of the {len(judged)} that went on to the held-out loss, its pairs did not tell: `whet tune` "
        "then asks for a larger budget. That is no false alarm, and no recipe either.\n"
    )


def _table(rows: Sequence[dict[str, Any]], verdict: str, word: str, *, with_proofs: bool) -> str:
    last = "by which proof" if with_proofs else "open"
    lines = [f"| change | judged as | cases | {word} | share (95 %) | {last} |", "|---|---|---|---|---|---|"]
    groups: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["case"], row["is_rounded"]), []).append(row)
    for (name, is_rounded), group in groups.items():
        k = sum(row["verdict"] == verdict for row in group)
        proofs = Counter(row["by"] for row in group if row["verdict"] == verdict)
        told = ", ".join(f"{proof} {number}" for proof, number in proofs.most_common()) or "—"
        if not with_proofs:
            told = str(sum(row["verdict"] == "open" for row in group))
        kind = "rounded" if is_rounded else "exact"
        lines.append(f"| {name} | {kind} | {len(group)} | {k} | {_interval(k, len(group))} | {told} |")
    return "\n".join([*lines, ""])


def _exceptions(rows: Sequence[dict[str, Any]]) -> str:
    """Return each wrong verdict with its words."""
    wrong = [row for row in rows if (row["verdict"] == "rejected") != row["is_fault"] and row["verdict"] != "open"]
    wrong += [row for row in rows if row["is_fault"] and row["verdict"] == "open"]
    if not wrong:
        return ""
    lines = ["## Wrong verdicts\n", "| run | seed | change | verdict | words |", "|---|---|---|---|---|"]
    lines += [
        f"| `{row['target']}` | {row['seed']} | {row['case']} | {row['verdict']} | {row['words'] or '—'} |"
        for row in wrong
    ]
    return "\n".join([*lines, ""])
