"""Find which options of a technique a workload and a machine accept."""

from collections.abc import Mapping
from typing import Any

from whet.measure.machine import Machine
from whet.techniques.technique import AnyTechnique, Applies


def options_that_apply(
    technique: AnyTechnique, subject: Any, machine: Machine
) -> tuple[dict[str, list[Any]] | None, str, str]:
    """Find the values of each option that a technique accepts here, while the other options keep their defaults.

    Args:
        subject: What it would change: an examined workload, or the parts of a training loop.

    Returns:
        The accepted values of each option, the first to try before the others, None where the technique is refused with
        every value; what it would do, in words; and why the first choice is refused, "" where it is accepted.
    """
    favoured = technique.favours(subject) if technique.favours is not None else {}
    defaults = {**{name: values[0] for name, values in technique.space.items()}, **favoured}
    first = technique.check(subject, machine, technique.options(**defaults))
    if isinstance(first, Applies):
        return _accepted(technique, subject, machine, defaults), first.detail, ""
    # The first choice is refused; another value of one option may still be accepted (float32 without bf16).
    for name, kept in _accepted(technique, subject, machine, defaults).items():
        if kept:
            chosen = {**defaults, name: kept[0]}
            verdict = technique.check(subject, machine, technique.options(**chosen))
            detail = verdict.detail if isinstance(verdict, Applies) else ""
            return {**_accepted(technique, subject, machine, chosen), name: kept}, detail, first.reason
    return None, "", first.reason


def _accepted(
    technique: AnyTechnique, subject: Any, machine: Machine, others: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Return each option's accepted values, that of `others` first, while the other options are those of `others`."""
    return {
        name: [
            value
            for value in sorted(values, key=lambda value: value != others[name])
            if isinstance(technique.check(subject, machine, technique.options(**{**others, name: value})), Applies)
        ]
        for name, values in technique.space.items()
    }
