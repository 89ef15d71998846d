"""Open the study of a search, new or resumed."""

from collections.abc import Sequence
from pathlib import Path

from whet.errors import OutputError, StudyError
from whet.tuner.facts import Facts, KnownFacts
from whet.tuner.kind import Kind
from whet.tuner.study import Study, default_storage

_SAME_LOSS = 1e-3  # relative: two runs of one seed differ by rounding at most


def open_study(kind: Kind, directory: Path) -> Study:
    """Open the study of a search, and check that a resumed one began with the same machine, model and weights.

    Raises:
        StudyError: The study cannot be used, or began with something else.
        OutputError: The output directory cannot be made.
    """
    asked, facts = kind.asked, kind.facts
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{directory} cannot be made: {error.strerror}; choose another --out") from error
    study = Study.open(asked.storage or default_storage(directory), kind.title(), must_exist=asked.resume)
    known = study.facts
    if known is None:
        study.facts = facts
    else:
        check_same(known, facts, asked.exclude)
    return study


def check_same(known: KnownFacts, facts: Facts, exclude: Sequence[str] = ()) -> None:
    """Check that what was found out about a target here goes with what its search knows.

    Raises:
        StudyError: The machine, the target, its weights or its losses are others, or a technique is excluded.
    """
    if known.fingerprint != facts.fingerprint:
        raise StudyError(
            f"this search was begun on another machine ({_differences(known, facts)}); times of different machines "
            "cannot be compared: give another --storage or --out"
        )
    if known.signature != facts.signature:
        raise StudyError("the target has changed since this search was begun; start anew with another --out")
    if known.weights != facts.weights:
        raise StudyError(
            "the model's weights are not those that this search was begun with; start anew with another --out. A "
            "function that draws weights at random must fix the seed"
        )
    if _train_apart(known.losses, facts.losses):
        raise StudyError(
            "the training has other losses than when this search was begun, so that its proofs tell nothing now: its "
            "code or its data have changed; start anew with another --out"
        )
    if there := {entry.technique for entry in known.applicable}.intersection(exclude):
        raise StudyError(
            f"this search was begun with {', '.join(sorted(there))} to be tried; leave --exclude out, or start anew "
            "with another --out"
        )


def _train_apart(known: Sequence[float], found: Sequence[float]) -> bool:
    """Return whether two trainings from one seed have other losses than rounding makes."""
    return any(abs(a - b) > _SAME_LOSS * max(abs(a), 1e-12) for a, b in zip(known, found, strict=False))


def _differences(known: KnownFacts, facts: Facts) -> str:
    """Return, in words, what differs between the machine that a search began on and this one."""
    found = facts.machine.differences(known.machine.facts()) if known.machine is not None else []
    return "; ".join(found) or f"fingerprint {known.fingerprint}, here {facts.fingerprint}"
