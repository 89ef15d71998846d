"""Build, examine and profile a target. This runs once, in a child process, before a search."""

import hashlib
import sys
import time
from pathlib import Path

import torch
from pydantic import BaseModel
from torch import Tensor

from whet.core.artefact import program
from whet.core.workload import StreamWorkload, TrainingWorkload, Workload, examine, unseen_inputs
from whet.measure.machine import Limits, describe
from whet.measure.machine.limits import load_limits
from whet.measure.quiet import undisturbed
from whet.profiling.model import Profile, diagnose, profile_sizes
from whet.tuner.batch import with_free_batch
from whet.tuner.facts import TargetFacts
from whet.tuner.kind_options import KindWord
from whet.tuner.known_target import INPUTS, OUTPUTS, digest_of, digest_of_content, write_inputs, write_outputs
from whet.tuner.result import Diagnosed, LayerRow
from whet.tuner.space import applicable_techniques
from whet.workloads.target import inference_only, open_any

AGREEMENT = "agreement (cosine)"  # stands in for a quality where the workload has none


class ExaminationRequest(BaseModel, frozen=True):
    """Tell a process what to examine.

    Attributes:
        target: The target's name or address.
        directory: Where the inputs and the original's outputs are written.
    """

    target: str
    directory: Path
    exclude: tuple[str, ...] = ()


class Examination(BaseModel, frozen=True):
    """Hold what examining a target gave: its facts, or of which other kind it turned out to be."""

    facts: TargetFacts | None = None
    other: KindWord | None = None


def examine_any(request: ExaminationRequest) -> Examination:
    """Examine a target, unless it is a training or a stream once it is built.

    Raises:
        WhetError: The target cannot be tuned; the message says why.
    """
    started = time.perf_counter()
    workload = open_any(request.target)
    if isinstance(workload, TrainingWorkload):
        return Examination(other="training")
    if isinstance(workload, StreamWorkload):
        return Examination(other="stream")
    return Examination(facts=_examined(request, inference_only(workload, request.target), started))


def _examined(request: ExaminationRequest, workload: Workload, started: float) -> TargetFacts:
    open_s = time.perf_counter() - started
    examined, batch = with_free_batch(examine(workload))
    weights = weights_digest(workload)  # before the profile, since some buffers count the calls
    machine = describe()
    began = time.perf_counter()
    limits = load_limits(machine, device="cuda" if examined.device_type == "cuda" else "cpu")
    limits_s = time.perf_counter() - began  # each machine is measured once
    profiles, busy = undisturbed(lambda: profile_sizes(examined))
    profile = profiles[0][0]
    applicable, refused = applicable_techniques(examined, machine, limits, profile, exclude=request.exclude)
    write_inputs(examined, request.directory / INPUTS)
    is_written = write_outputs(examined.outputs, request.directory / OUTPUTS)
    quality = workload.quality
    return TargetFacts(
        name=workload.name,
        open_s=open_s,
        examined_s=time.perf_counter() - started - limits_s,
        limits_s=limits_s,
        signature=examined.signature,
        batch=batch,
        score=examined.score,
        sample_scores=examined.sample_scores,
        effects=examined.effects,
        shared=examined.shared,
        depends_on_grad_mode=examined.depends_on_grad_mode,
        content=digest_of_content(workload) if is_written else "",
        quality_name=quality.name if quality else AGREEMENT,
        higher_is_better=quality.higher_is_better if quality else True,
        weights=weights,
        model=architecture(workload),
        num_samples=workload.samples_per_batch,
        original_bytes=checkpoint_bytes(workload),
        applicable=tuple(applicable),
        refused=tuple(refused),
        no_graph=program.refusal(examined),
        hints=unseen_inputs(examined),
        exclude=request.exclude,
        limits=limits,
        profiles=tuple(profiles),
        diagnosis=_diagnosed(profile, limits, busy or limits.busy),
        machine=machine,
        fingerprint=machine.fingerprint,
        num_threads=torch.get_num_threads(),
        busy=busy,
        sys_path=tuple(str(Path(place).absolute()) for place in sys.path),
    )


def checkpoint_bytes(workload: Workload) -> int:
    """Return the size of the original's weights and buffers as safetensors; tied ones count once."""
    tensors = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in workload.model.state_dict().values()
        if isinstance(t, Tensor)
    }
    return sum(tensors.values())


def architecture(workload: Workload) -> str:
    """Return a digest of the names, shapes and dtypes of weights and buffers, which is the same after more training."""
    tensors = ((name, t) for name, t in workload.model.state_dict().items() if isinstance(t, Tensor))
    found = "\n".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors)
    return hashlib.blake2b(found.encode(), digest_size=8).hexdigest()


def weights_digest(workload: Workload) -> str:
    """Return a digest of the model's weights and buffers, so that a resumed search can check that they are the same."""
    state = workload.model.state_dict()
    return digest_of((name, tensor) for name, tensor in state.items() if isinstance(tensor, Tensor))


def _diagnosed(profile: Profile, limits: Limits, busy: str) -> Diagnosed:
    """Return a profile's diagnosis for the report. Times that `busy` disturbed say nothing of what bounds the model."""
    diagnosis = diagnose(profile, limits)
    if busy:
        sentence = f"What holds the model back is not known: {busy} while it was measured."
        return Diagnosed(sentence=sentence, bound=str(diagnosis.bound), shares={}, share_of_limit=None)
    return Diagnosed(
        sentence=diagnosis.sentence,
        bound=str(diagnosis.bound),
        shares={str(k): v for k, v in diagnosis.shares.items()},
        share_of_limit=diagnosis.share_of_limit,
        layers=_layer_rows(profile, limits),
    )


def _layer_rows(profile: Profile, limits: Limits) -> list[LayerRow]:
    rows = []
    for layer in profile.layers:
        alone = diagnose(Profile(total_s=layer.time_s, layers=(layer,), dtype=profile.dtype), limits)
        rows.append(
            LayerRow(
                name=layer.name,
                kind=layer.kind,
                calls=layer.calls,
                time_ms=layer.time_s * 1e3,
                flops=layer.flops,
                bytes=layer.weight_bytes + layer.activation_bytes,
                bound=str(alone.bound),
                share_of_limit=alone.share_of_limit,
            )
        )
    return rows
