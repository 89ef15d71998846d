"""Write docs/planner.md: how a prediction is made, and each published run beside what is predicted of it."""

from collections.abc import Callable, Sequence

from planner_intervals import Pair, covered, covered_unseen, memory_miss, step_miss
from planner_runs import GIB

from whet.planner.curves import Spread

TARGETS = {"step": (0.04, 0.09), "rate": (0.10, 0.10), "memory": (0.05, 0.05)}

HEAD = """# The planner's predictions, judged

`python benchmarks/planner.py` writes this page and the constants in `src/whet/planner/fitted.toml`; no figure is typed
by hand. The published runs, each with its source, stand in `benchmarks/planner_points.toml`.
"""

METHOD = """## How a prediction is made

- **Memory** follows from formulas: state by ZeRO's stages (Rajbhandari et al., 2020), activations by Megatron's
  formulas (Korthikanti et al., 2022), logits by what the loss keeps, and what is gathered at a time. One constant is
  fitted: what the allocator holds beside what is used.
- **Time of a layer** is the operations of its matrices over the chip's peak times a fitted share, with the bytes that
  they move beside it; attention by its own share; and the bytes of elementwise operators over the memory's bandwidth.
- **Messages** take the time of rings over nodes. Tensor-parallel ones stand in the way, those of state travel during
  backward and slow it down.
- **The pipeline** waits (p-1)/(mv) of the step (Narayanan et al., 2021), and the slowest stage decides.
- **All chips wait for the slowest**: their times differ by a fitted share, and the largest of n is √(2 ln n) deviations
  above the mean.
- **A chip with less power** than the one that was fitted computes slower by the cube root of it.

The constants are few and have bounds that physics sets. Those of *all* are shared by all families of programs.
"""

WRONG = """## Where it goes wrong

- **Runs on the fewest GPUs that hold the model.** llm-foundry's 30b with rows of 8192 tokens on 8 GPUs, 13b on 8 A100
  with 40 GB, and 70b on 64 of these are 10 to 25 % slower than the same models elsewhere. The memory is nearly full
  there, and PyTorch's allocator of that time frees and asks again. No rule of the predicted memory tells these runs
  from others that are as full and lose nothing (docs/log.md), so that this time is not predicted.
- **405b in torchtitan's plain pipeline** is 10 % slower than predicted, while 70b without pipelines is 8 % faster.
- **Experts**: runs of six layouts and several releases of the same programs, which differ by a fifth and more; expect
  errors of 20 %.
- **Rows of 512,000 tokens and more** on 16 and 32 context-parallel chips in NeMo are 11 % faster than predicted.
- **Memory of 405b** in torchtitan's pipelines is predicted 9 % too low to 13 % too high. Its two tables give 82.5 and
  75.3 GiB for the same degrees, micro-batches, and tokens of a micro-batch, which need the same by the formulas.
- Activations in figure 1 of Korthikanti et al. are values of their formulas, not measured; they are tests, no points.
"""


COVERAGE = """Nineteen of twenty published figures should lie within. The last column takes each interval from the
other runs, so that no run widens its own:
"""

ASIDE = """## Runs that are set aside

These runs are neither fitted nor counted in any total above, since their publication contradicts itself:

"""

TIME_HEAD = ["run", "kind", "published, s", "predicted, s", "published MFU", "predicted MFU", "error", "in interval"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _errors(pairs: Sequence[Pair], kind: str, is_left_out: bool) -> list[float]:
    chosen = [pair for pair in pairs if pair[0].is_left_out == is_left_out]
    if kind == "memory":
        return [run.memory_error(prediction) for run, prediction in chosen if run.memory_gib is not None]
    return [run.error(prediction) for run, prediction in chosen if run.kind == kind]


NAMES = {
    "step": "time of a step, whole layout given",
    "rate": "time of a step, part of it assumed",
    "memory": "memory",
}


def _summary(pairs: Sequence[Pair]) -> str:
    rows = []
    for kind, (mean, worst) in TARGETS.items():
        for is_left_out in (False, True):
            errors = [abs(error) for error in _errors(pairs, kind, is_left_out)]
            if not errors:
                continue
            reached = sum(errors) / len(errors) <= mean and max(errors) <= worst
            rows.append(
                [
                    NAMES[kind],
                    "left out" if is_left_out else "fitted",
                    str(len(errors)),
                    f"{sum(errors) / len(errors):.1%}",
                    f"{max(errors):.1%}",
                    f"{mean:.0%}, {worst:.0%}",
                    "reached" if reached else "missed",
                ]
            )
    head = ["what", "runs", "number", "mean error", "worst", "target: mean, worst", "verdict"]
    return _table(head, rows)


def _by_family(pairs: Sequence[Pair]) -> str:
    rows = []
    for family in sorted({run.family for run, _ in pairs}):
        row = [family]
        for is_left_out in (False, True):
            errors = [
                abs(run.error(prediction))
                for run, prediction in pairs
                if run.family == family and run.is_left_out == is_left_out
            ]
            row += [
                str(len(errors)),
                f"{sum(errors) / len(errors):.1%}" if errors else "",
                f"{max(errors):.1%}" if errors else "",
            ]
        rows.append(row)
    head = ["family", "fitted", "mean error", "worst", "left out", "mean error", "worst"]
    return _table(head, rows)


def _runs(pairs: Sequence[Pair], show: Callable[[Pair], list[str]], head: Sequence[str]) -> str:
    return _table(head, [show(pair) for pair in pairs])


def _time_row(pair: Pair) -> list[str]:
    run, prediction = pair
    published = prediction.step_s.value / (1 + run.error(prediction))
    mfu = prediction.mfu * prediction.step_s.value / published
    inside = prediction.step_s.low <= published <= prediction.step_s.high
    return [
        run.name,
        run.kind,
        f"{published:.3g}",
        f"{prediction.step_s.value:.3g}",
        f"{mfu:.1%}",
        f"{prediction.mfu:.1%}",
        f"{run.error(prediction):+.1%}",
        "yes" if inside else "**no**",
    ]


def _memory_row(pair: Pair) -> list[str]:
    run, prediction = pair
    return [
        run.name,
        f"{run.memory_gib:.1f}",
        f"{prediction.memory_total.value / GIB:.1f}",
        f"{run.memory_error(prediction):+.1%}",
    ]


def _coverage(pairs: Sequence[Pair], spread: Spread) -> str:
    """Return how many published figures lie within the intervals."""
    left_out, fitted = ([step_miss(pair) for pair in pairs if pair[0].is_left_out == one] for one in (True, False))
    memory = [memory_miss(pair) for pair in pairs if pair[0].memory_gib is not None]
    rows = []
    for what, runs, misses, share, decides in (
        ("time of a step", "left out", left_out, spread.step, True),
        ("time of a step", "fitted", fitted, spread.step, False),
        ("memory", "all", memory, spread.memory, True),
    ):
        number = len(misses)
        inside, unseen = (
            f"{found} ({found / number:.0%})" for found in (covered(misses, share), covered_unseen(misses))
        )
        rows.append([what, runs, str(number), inside, unseen if decides else ""])
    return _table(["what", "runs", "number", "within the interval", "without the run itself"], rows)


def page(pairs: Sequence[Pair], constants: Sequence[tuple[str, float]], spread: Spread) -> str:
    """Return the page.

    Args:
        constants: The fitted constants by their names.
        spread: The half widths of intervals.
    """
    aside = [pair for pair in pairs if pair[0].set_aside]
    pairs = [pair for pair in pairs if not pair[0].set_aside]
    parts = [HEAD, "## Summary\n", _summary(pairs)]
    parts.append(
        f"An interval of nineteen in twenty is ±{spread.step:.1%} of a step's time, by the runs that were left out, "
        f"and ±{spread.memory:.1%} of the memory, by all runs, of which one constant alone is fitted. It is twice as "
        "wide where a plan lies outside of the fitted range.\n"
    )
    parts += [COVERAGE, _coverage(pairs, spread)]
    parts += ["By families of programs and generations of chips, both kinds together:\n", _by_family(pairs), METHOD]
    parts.append(_table(["constant", "value"], [[name, f"{value:.4g}"] for name, value in constants]))
    for title, is_left_out in (("left out", True), ("fitted", False)):
        chosen = [pair for pair in pairs if pair[0].is_left_out == is_left_out]
        if is_left_out:
            parts.append(WRONG)
        parts.append(f"## Time of a step, runs {title}\n")
        parts.append(_runs(chosen, _time_row, TIME_HEAD))
        parts.append(f"## Memory, runs {title}\n")
        remembered = [pair for pair in chosen if pair[0].memory_gib is not None]
        parts.append(_runs(remembered, _memory_row, ["run", "published, GiB", "predicted, GiB", "error"]))
    if aside:
        parts.append(f"{ASIDE}{_runs(aside, _time_row, TIME_HEAD)}")
        parts += [f"- {run.name}: {run.set_aside}.\n" for run, _ in aside]
    parts.append("## Sources\n")
    for source in dict.fromkeys(run.source for run, _ in [*pairs, *aside]):
        parts.append(f"- {source}\n")
    return "\n".join(parts)
