"""How often the proof of a training cries wolf, and how often it finds a planted fault.

    python benchmarks/training_gate.py [--minutes 15] [--seeds 20]
    python benchmarks/training_gate.py --minutes 0        # only writes the page anew

Small training runs (training_gate_targets.py), whose weights and data are drawn anew for each seed, are changed by
techniques that are harmless, and by faults (tests/techniques/training/planted_faults.py). The whole proof of
`whet tune` judges each change: gradients, updates, data, and for what rounds the held-out loss. No time is measured, so
the machine may be busy.

Seeds are added to docs/results/training_gate.json as they are judged. A run cut off loses nothing, and the next one
goes on. Then docs/training-gate.md is written whole.
"""

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "training")]

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: threads that spin take a busy machine's cores

import torch
from circumstances import circumstances
from planted_faults import FAULTS, Fault
from training_gate_page import page

from whet.core.recipe import Step
from whet.files import write_whole
from whet.measure.isolate import Outcome
from whet.measure.machine import describe
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.prepared_trainer import PreparedTrainer, refusal
from whet.techniques.technique import Applies
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique
from whet.tuner.goal import MAX_DROP_TRAINING
from whet.tuner.training import trial
from whet.tuner.training.context import TrainingContext
from whet.tuner.training.examination import write_gradients
from whet.tuner.training.facts import KnownTraining, TrainingFacts
from whet.tuner.training.finals import prove_losses
from whet.tuner.training.opening import NUM_DIGESTS, digests, first_batches, open_training
from whet.tuner.training.proof import disproved, exactness_of

RESULTS = HERE.parent / "docs" / "results" / "training_gate.json"
PAGE = HERE.parent / "docs" / "training-gate.md"
SEED = "GATE_SEED"  # the environment variable that training_gate_targets.py reads
FAULT = "planted_fault"  # the name of the technique that plants one
AUTOCAST = "autocast"
LOSS_STEPS = {"gpt": 50, "cnn": 50, "mlp_adamw": 120, "mlp_sgd": 120}  # of each run for the held-out loss
HARMLESS: dict[str, tuple[Step, ...]] = {
    "unchanged": (),
    "two threads": (Step(technique="threads", options={"num_threads": 2}),),
    "fused optimiser": (Step(technique="fused_optimizer"),),
    "checkpointing": (Step(technique="checkpointing"),),
    "channels last": (Step(technique="channels_last"),),
    "loss in chunks": (Step(technique="chunked_loss"),),
    "autocast": (Step(technique=AUTOCAST),),
    "autocast, fused optimiser": (Step(technique=AUTOCAST), Step(technique="fused_optimizer")),
}
COMPILED = {"compile": (Step(technique="compile"),)}


@dataclass(frozen=True)
class Case:
    """A change of a training run. `is_rounded` says whether it is made beside autocast, and judged as such."""

    name: str
    steps: tuple[Step, ...]
    fault: Fault | None = None

    @property
    def is_rounded(self) -> bool:
        with planted(self.fault):
            return exactness_of(self.steps) is not Exactness.EXACT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="to add seeds for; 0 only writes the page")
    parser.add_argument("--seeds", type=int, default=20, help="of each training run, those judged before included")
    parser.add_argument("--targets", default=",".join(LOSS_STEPS), help="comma-separated: %(default)s")
    parser.add_argument("--compile", action="store_true", help="try torch.compile too; takes much longer")
    parser.add_argument("--only", help="cases whose name holds this; prints, and writes nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.only is not None:
        _look_into(arguments.targets.split(","), arguments.only, arguments.seeds, arguments.compile)
        return
    rows = _known()
    ends = time.monotonic() + 60 * arguments.minutes
    for seed in range(1, arguments.seeds + 1):
        for target in arguments.targets.split(","):
            if any(row["target"] == target and row["seed"] == seed for row in rows):
                continue
            if time.monotonic() < ends:
                rows += judge_seed(target, seed, _cases(arguments.compile))
                _write(rows)
                print(f"seed {seed} of {target}: {sum(row['target'] == target for row in rows)} changes", flush=True)
    if rows:
        write_whole(PAGE, page(json.loads(RESULTS.read_text(encoding="utf-8"))))


def _cases(compiles: bool) -> list[Case]:
    harmless = {**HARMLESS, **(COMPILED if compiles else {})}
    cases = [Case(name, steps) for name, steps in harmless.items()]
    planted_step = Step(technique=FAULT)
    for name, fault in FAULTS.items():
        cases.append(Case(name, (planted_step,), fault))
        if name != "fp16 without a scaler":  # one precision at a time
            cases.append(Case(name, (Step(technique=AUTOCAST), planted_step), fault))
    return cases


def judge_seed(target: str, seed: int, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Examine a training run once, then judge each change of it that applies."""
    os.environ[SEED] = str(seed)
    address = f"{HERE / 'training_gate_targets.py'}:{target}"
    num_threads = torch.get_num_threads()
    rows = []
    with tempfile.TemporaryDirectory(prefix="whet-training-gate-") as scratch:
        known = _examined(address, Path(scratch))
        for case in cases:
            with planted(case.fault):
                verdict = _judged(case, known, LOSS_STEPS[target])
            torch.set_num_threads(num_threads)
            if verdict is not None:
                name, proof, words = verdict
                kind = {"case": case.name, "is_fault": case.fault is not None, "is_rounded": case.is_rounded}
                rows.append({"target": target, "seed": seed, **kind, "verdict": name, "by": proof, "words": words})
    return rows


def _examined(address: str, directory: Path) -> KnownTraining:
    workload = open_training(address)
    first, later = (digests(first_batches(workload, NUM_DIGESTS, later=later)) for later in (0, 1))
    write_gradients(workload, directory)
    return KnownTraining(target=address, directory=directory, batches=first, next_batches=later)


def _judged(case: Case, known: KnownTraining, num_steps: int) -> tuple[str, str, str] | None:
    """Return the verdict, the proof that it came from, and its words; None where a technique does not apply."""
    workload = trial.open_training(known.target)
    parts = Parts(workload.model, workload.optimizer(workload.model.parameters()), workload.batches)
    if refusal(workload, parts, case.steps, describe()):
        return None
    prepared = PreparedTrainer(workload, case.steps)
    why, evidence = disproved(workload, prepared.trainer, exactness_of(case.steps), known)
    if why:
        no_gradients = evidence.gradients is None or not evidence.gradients.is_same
        no_updates = evidence.updates is not None and not evidence.updates.is_same
        return "rejected", "gradients" if no_gradients else "updates" if no_updates else "data", why
    if exactness_of(case.steps) is Exactness.EXACT:
        return "passed", "", ""
    facts = TrainingFacts.model_construct(quality_name="held-out loss", higher_is_better=False)
    context = TrainingContext(known.target, facts, known.directory, _run_here(case.fault))
    proof = prove_losses(context, case.steps, num_steps, allowed=MAX_DROP_TRAINING, left_s=lambda: math.inf)
    assert proof is not None
    verdict = "passed" if proof.is_same else "rejected" if proof.is_same is False else "open"
    return verdict, "held-out loss", proof.words


def _run_here(fault: Fault | None) -> Callable[..., Outcome]:
    """Return a runner that calls functions in this process; the fault is in the runs with a recipe alone."""

    def run(function: Any, request: Any, directory: Path, limit_s: float) -> Outcome:
        with planted(fault if request.steps else None):
            return Outcome(value=function(request).model_dump(), failure=None, seconds=0.0, peak_rss_bytes=0)

    return run


@contextlib.contextmanager
def planted(fault: Fault | None) -> Iterator[None]:
    """Let the technique `planted_fault` plant this fault, and workloads have its loss."""
    if fault is None:
        with mock.patch.object(trial, "open_training", open_training):
            yield
        return

    def opened(target: str, **options: Any) -> Any:
        workload = open_training(target, **options)
        return replace(workload, loss=fault.loss(workload.loss))

    technique = TrainingTechnique(
        name=FAULT,
        stage=TrainingStage.RUNTIME,
        order=99,
        card="Plant a fault.",
        options=_NoOptions,
        exactness=fault.exactness,
        check=lambda parts, machine, options: Applies("planted"),
        predict=lambda profile, limits, options: 1.0,
        apply=lambda parts, options: fault.change(parts),
    )
    with (
        mock.patch.dict(TRAINING_TABLE, {FAULT: technique}),
        mock.patch.object(trial, "open_training", opened),
    ):
        yield


@dataclass(frozen=True, kw_only=True)
class _NoOptions:
    pass


def _known() -> list[dict[str, Any]]:
    """The rows that were judged before, on this machine."""
    if not RESULTS.exists():
        return []
    report = json.loads(RESULTS.read_text(encoding="utf-8"))
    return list(report["rows"]) if report["machine"]["id"] == describe().fingerprint else []


def _write(rows: list[dict[str, Any]]) -> None:
    report = {**circumstances("python benchmarks/training_gate.py"), "rows": rows}
    write_whole(RESULTS, json.dumps(report, indent=1) + "\n")


def _look_into(targets: list[str], text: str, num_seeds: int, compiles: bool) -> None:
    for seed in range(1, num_seeds + 1):
        for target in targets:
            cases = [case for case in _cases(compiles) if text in case.name]
            for row in judge_seed(target, seed, cases):
                print(
                    *(row[name] for name in ("target", "seed", "case", "is_rounded", "verdict", "by", "words")),
                    flush=True,
                )


if __name__ == "__main__":
    main()
