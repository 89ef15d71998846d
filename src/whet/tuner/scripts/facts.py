"""Hold what the examination of a script found out, and the space that it gives."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.core.recipe import Step
from whet.measure.machine import describe
from whet.profiling.step.phases import Phase
from whet.scripts.injection.messages import ScriptRecord
from whet.scripts.injection.script_command import ScriptCommand
from whet.techniques.costs.memory import StepMemory
from whet.techniques.proof.loss_proof import TRAINING_LOSS
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import TrainingStage, TrainingTechnique
from whet.tuner.facts import Facts
from whet.tuner.result import Diagnosed, RefusedTechnique
from whet.tuner.scripts.examination import Examined
from whet.tuner.space import ApplicableTechnique, Variant
from whet.tuner.training.words import diagnosed

# What is left of forward and backward by each technique, as a rule of thumb: a script's layers are not known.
_LEFT = {"autocast": 0.5, "compile": 0.6, "chunked_loss": 0.8, "channels_last": 0.8}
_LEFT_BY_OTHERS = 0.9
_LEAST_LEFT = 0.05  # of a step, whatever a technique promises


class ScriptFacts(Facts, frozen=True):
    """Hold what was found out about a script; `memory` is what a step's is made of, None where that was not seen."""

    memory: StepMemory | None = None


def facts_of(command: ScriptCommand, examined: Examined, exclude: Sequence[str], examined_s: float) -> ScriptFacts:
    machine, watched = describe(), examined.watched
    reasons = watched.refused | _without_masks(watched)
    refused = [RefusedTechnique(technique=name, reason=why) for name, why in reasons.items()]
    left_out = {step.technique for step in watched.applicable}.intersection(exclude) - reasons.keys()
    refused += [RefusedTechnique(technique=name, reason="left out by --exclude") for name in sorted(left_out)]
    return ScriptFacts(
        name=command.name,
        machine=machine,
        fingerprint=machine.fingerprint,
        applicable=applicable_techniques(watched, exclude, examined.memory),
        refused=tuple(refused),
        weights=_digest(command, watched),
        exclude=tuple(exclude),
        peak_bytes=examined.memory.peak_bytes if examined.memory is not None else 0,
        unit="steps",
        quality_name=TRAINING_LOSS,
        higher_is_better=False,
        diagnosis=_diagnosed(watched, examined.timed.seconds),
        examined_s=examined_s,
        losses=tuple(loss for loss in watched.losses if loss is not None),
        memory=examined.memory,
    )


def applicable_techniques(
    record: ScriptRecord, exclude: Sequence[str], memory: StepMemory | None = None
) -> tuple[ApplicableTechnique, ...]:
    """Return the techniques that apply to a script, with the choices that the process of a watched run has accepted."""
    choices = defaultdict[str, list[Step]](list)
    left_out = {*exclude, *_without_masks(record)}
    for step in record.applicable:
        if step.technique not in left_out:
            choices[step.technique].append(step)
    return tuple(_applicable(record, memory, TRAINING_TABLE[name], steps) for name, steps in choices.items())


def _without_masks(record: ScriptRecord) -> dict[str, str]:
    """Return why the masks of the first step rule techniques out, by their names."""
    if record.within_documents is None:
        return {}
    checks = {step.technique: TRAINING_TABLE[step.technique].check_masks for step in record.applicable}
    reasons = {name: check(record.within_documents) for name, check in checks.items() if check is not None}
    return {name: why for name, why in reasons.items() if why}


def _applicable(
    record: ScriptRecord, memory: StepMemory | None, technique: TrainingTechnique, steps: Sequence[Step]
) -> ApplicableTechnique:
    """Describe a technique whose first choice that was accepted is tried first."""
    options: dict[str, tuple[Any, ...]] = {
        name: tuple(dict.fromkeys(step.options[name] for step in steps)) for name in steps[0].options
    }
    shrinks = [1.0 if memory is None else technique.shrink(memory, technique.options(**step.options)) for step in steps]
    bound = _promise(record, technique)
    variants = tuple(
        Variant(step=step, bound=bound, shrink=shrink) for step, shrink in zip(steps, shrinks, strict=True)
    )
    return ApplicableTechnique(
        technique=technique.name, detail="", groups=tuple(sorted(technique.groups)), options=options, variants=variants
    )


def _promise(record: ScriptRecord, technique: TrainingTechnique) -> float:
    """Return by how much a technique may make a step faster, from the phases that it changes: a rule of thumb."""
    update, data = record.shares.get("optimiser", 0.0), record.shares.get(Phase.DATA.label, 0.0)
    compute = sum(record.shares.get(name, 0.0) for name in ("forward", "backward", "rest"))
    if technique.changes_batches:
        saved = min(data, 1 - data)  # they are read beside the rest
    elif technique.stage is TrainingStage.OPTIMIZER:
        saved = update
    elif technique.stage is TrainingStage.MEMORY:
        saved = 0.0  # it costs time
    else:
        saved = compute * (1 - _LEFT.get(technique.name, _LEFT_BY_OTHERS))
    return 1 / max(1 - saved, _LEAST_LEFT)


def _diagnosed(record: ScriptRecord, step_s: float) -> Diagnosed | None:
    """Return where the time of a step goes, in words; None where no phase was seen."""
    shares = {name: share for name, share in record.shares.items() if share > 0}
    return diagnosed(step_s, shares, share_of_limit=None) if shares else None


def _digest(command: ScriptCommand, record: ScriptRecord) -> str:
    """Return a digest of what a search belongs to: the command, its script, and what trains there."""
    found = hashlib.sha256(repr((command.words[1:], record.model, record.num_parameters, record.optimizer)).encode())
    script = Path(command.words[command.script])
    if script.is_file():
        found.update(script.read_bytes())
    return found.hexdigest()[:16]
