"""Tune a model or a training, whichever the target is: whet.tune."""

import os
from collections.abc import Sequence

from torch import nn

from whet.core.signature import Batch
from whet.core.workload import Quality, TrainingWorkload, Workload
from whet.errors import OptionError, StreamTarget, TargetError
from whet.measure.quiet import WAIT_S, OnBusy, QuietWait
from whet.tuner.asked import Asked
from whet.tuner.driver import run
from whet.tuner.goal import BUDGET_S, MAX_SLOWDOWN, Goal, Objective
from whet.tuner.kind import OtherKind
from whet.tuner.kind_options import check_nproc, ray_address
from whet.tuner.kinds import kind_of
from whet.tuner.listener import Listener
from whet.tuner.prepared_target import prepared, workload_of
from whet.tuner.result import Result
from whet.ui.units import duration_s
from whet.workloads.target_name import check_name, is_training, with_training


def tune(
    target: str | nn.Module | Workload | TrainingWorkload,
    inputs: Batch | Sequence[Batch] | None = None,
    *,
    quality: Quality | None = None,
    calibration: Sequence[Batch] = (),
    training: str | TrainingWorkload | None = None,
    objective: Objective = "latency",
    max_drop: float | None = None,
    max_slowdown: float = MAX_SLOWDOWN,
    allow_batch: bool = False,
    nproc: int | None = None,
    max_memory_bytes: int | None = None,
    budget_s: float | str = BUDGET_S,
    out: str | os.PathLike[str] | None = None,
    storage: str | None = None,
    workers: str | None = None,
    resume: bool = False,
    exclude: Sequence[str] = (),
    trial_limit_s: float | str = 300.0,
    memory_limit_bytes: int | None = None,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float | str = WAIT_S,
    listener: Listener | None = None,
) -> Result:
    """Find the fastest recipe for a model on this machine, and prove it.

    Args:
        target: A built-in workload's name, "hf:DIR", "FILE.py:FUNCTION", "package.module:FUNCTION", a Workload or a
            module.
        inputs: For a module, one batch (a tensor, a tuple, a dict) or a list of batches.
        quality: How outputs are scored. Without one, their agreement with the original's outputs is judged.
        calibration: Batches for quantisers, and for comparing outputs; `inputs` by default.
        training: The training that the model came from, or its name, for techniques that prune the model and train it
            further. Without one, nothing is pruned.
        objective: What to improve: "latency", "throughput", "memory" or "size".
        max_drop: The allowed drop in quality, as a fraction of the original's; 0.01 by default. Without a quality: the
            allowed distance of the outputs from the original's (records.Agreement.distance). For a training: the
            allowed rise of the held-out loss, 0.0025 by default.
        max_slowdown: For the memory of a training: how many times the original's time a step may take.
        allow_batch: For a training: also measure larger batches, after equal numbers of samples, with the learning rate
            that is customary for them. They are no part of the recipe.
        nproc: For a training: how many processes of this machine share it. The original is then DDP with its defaults,
            and the plan of sharing is searched too.
        max_memory_bytes: Allowed peak resident memory of the whole process; for a training, what a step may take above
            what the process held before the model was built.
        budget_s: Seconds for everything, or text such as "5m", from the examination of the model to the report. After
            1.25 times the budget and 10 s nothing runs any more. If the budget is too small for a verdict, the verdict
            is "inconclusive", and `needed_s` is a budget that is large enough. Waiting for a quiet machine comes on
            top.
        out: A new directory for recipe, report, result and model; for a model in memory a temporary one by default.
        storage: An Optuna URL, for several machines of one kind to share a search.
        workers: "ray" or "ray=ADDRESS", for the nodes of a Ray cluster to make the trials, where they are machines of
            this kind. The finals run here.
        resume: Go on with the search that `out` or `storage` holds.
        exclude: Techniques not to be tried.
        trial_limit_s: The time limit of each trial in seconds, unless the budget leaves less.
        memory_limit_bytes: The memory limit of each trial; nearly all of the machine's memory by default.
        on_busy: What to do where other processes disturb the measurements. "wait" waits for a quiet machine, and gives
            no verdict if it stays busy. "inconclusive" gives no verdict, without waiting. "go-on" uses the measurements
            as they are.
        busy_wait_s: Seconds to wait for a quiet machine in all.
        listener: Is told of the progress.

    Raises:
        WhetError: Anything the user can mend, before anything is written.
    """
    budget_s, trial_limit_s = duration_s("budget_s", budget_s), duration_s("trial_limit_s", trial_limit_s)
    busy_wait_s = duration_s("busy_wait_s", busy_wait_s, may_be_zero=True)
    if workers is not None:
        ray_address(workers)
        if not isinstance(target, str) or isinstance(training, TrainingWorkload):
            raise OptionError("workers take a target, and a training, by its name, by which their nodes can open it")
    if isinstance(target, str):
        target = _checked_name(target, inputs, training)
    elif not isinstance(target, Workload | TrainingWorkload):
        target = workload_of(target, inputs, quality, calibration)
    goal = Goal.checked(objective, max_drop, max_memory_bytes, budget_s, max_slowdown, allow_batch=allow_batch)
    place = "" if out is None else os.fspath(out)
    limits = (trial_limit_s, memory_limit_bytes)
    asked = Asked(goal, budget_s, place, storage or "", resume, tuple(exclude), *limits, workers or "")
    listener = listener or Listener()
    patience = QuietWait(OnBusy.checked(on_busy), busy_wait_s, report=listener.waiting)
    check_nproc(nproc)
    is_a_training = isinstance(target, TrainingWorkload) or is_training(target) or nproc is not None
    if is_a_training and training is not None:
        raise OptionError("training goes with a model to run; this target is a training itself")
    found: Result | OtherKind = OtherKind("training")
    if not is_a_training:
        may_be_training = isinstance(target, str) and ":" in target and not target.startswith("hf:")
        of_model = kind_of("inference", asked, prepared(target, training), may_be_training=may_be_training)
        found = run(of_model, patience, listener)
    if isinstance(found, OtherKind) and found.word == "training":
        found = run(kind_of("training", asked, prepared(target), nproc=nproc), patience, listener)
    if isinstance(found, OtherKind):
        raise StreamTarget(f"{target} is a StreamWorkload; here whet takes an InferenceWorkload")
    if found.kind == "inference" and isinstance(target, Workload):
        found.keep_original(target.model)
    return found


def _checked_name(target: str, inputs: object, training: str | TrainingWorkload | None) -> str:
    """Return the name of a target, with that of the training that it came from.

    Raises:
        TargetError: There is no such target, or inputs came with it.
        OptionError: It names a training already.
    """
    target = with_training(target, training) if isinstance(training, str) else target
    check_name(target)
    if inputs is not None:
        raise TargetError("inputs go with a model in memory; a named target brings its own")
    return target
