"""What processes do in the tests of pipelines: train a decoder, and return what must not depend on their number."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from decoder_jobs import FAMILIES, add_dropout
from stage_jobs import IGNORED, count
from torch import Tensor, nn

from whet.core.workload import TrainingWorkload
from whet.errors import OptionError
from whet.models.decoder.fresh import fresh_decoder
from whet.models.decoder.reference import Decoder, DecoderConfig
from whet.parallel.division import Division, division_of
from whet.parallel.pieces import whole_of
from whet.parallel.pipeline.pipeline_trainer import PipelineTrainer
from whet.parallel.pipeline.stages import later_copies, stages_of
from whet.parallel.plan import ParallelPlan
from whet.parallel.rank_trainer import RankTrainer
from whet.parallel.ranks import Ranks
from whet.parallel.wire import WireCount

VOCAB = 23


@dataclass(frozen=True)
class Case:
    """Say what is trained; the plan says by whom."""

    family: str = "qwen2"
    layers: int = 5
    kv_heads: int = 2
    length: int = 9
    dropout: float = 0.0
    tied: bool = False
    packed: bool = False
    dtype: str = "float64"
    rows: int = 8
    num_parts: int = 1
    steps: int = 3
    clip_norm: float = 0.05  # so low that every step is clipped


def decoder(case: Case) -> Decoder:
    """Return a decoder with what its family has, such as a window, whose weights do not depend on the process."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": case.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": case.kv_heads,
        "head_dim": 4,
        "max_position_embeddings": 32,
    }
    config = DecoderConfig.model_validate({**sizes, **FAMILIES[case.family], "tie_word_embeddings": case.tied})
    made: Decoder = fresh_decoder(config, torch.Generator().manual_seed(3))
    with torch.no_grad():
        for p in made.parameters():  # as drawn, the layers hardly change the stream
            if p.dim() == 2:
                p.mul_(8)
    add_dropout(made, case.dropout)
    return made.to(getattr(torch, case.dtype))


def batches(case: Case) -> list[dict[str, Tensor]]:
    """Return batches whose rows have different numbers of targets, one of them none, and several documents each."""
    generator, length = torch.Generator().manual_seed(5), case.length
    found = []
    for step in range(case.steps):
        ids, targets = (torch.randint(VOCAB, (case.rows, length), generator=generator) for _ in range(2))
        for row in range(case.rows):
            targets[row, (3 * row + step) % length + 1 :] = IGNORED
        targets[step] = IGNORED
        batch = {"ids": ids, "targets": targets}
        if case.packed:
            begins = torch.tensor([2 + row % 4 for row in range(case.rows)])
            places = torch.arange(length).expand(case.rows, length)
            batch["documents"] = (places >= begins[:, None]).long()
            batch["positions"] = torch.where(batch["documents"] > 0, places - begins[:, None], places)
        found.append(batch)
    return found


def arguments(batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    if "documents" not in batch:
        return batch["ids"], {}
    n = batch["documents"]
    length = n.shape[1]
    mask = (n[:, :, None] == n[:, None, :]) & torch.ones(length, length, dtype=torch.bool).tril()
    return batch["ids"], {"positions_BT": batch["positions"], "mask_B1TT": mask[:, None]}


def summed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    ids, named = arguments(batch)
    return summed(model(ids, **named), batch["targets"]) / max(1, count(batch))


def tally(model: nn.Module, batch: dict[str, Tensor]) -> list[float]:
    return [float(loss_of(model, batch)) * count(batch), float(count(batch))]


def _trainer(division: Division, case: Case) -> tuple[RankTrainer, list[Any]]:
    """Return the trainer of this process's part of a new model, and its rows of each batch."""
    model = decoder(case)
    number, rank = division.degrees.data, division.data_rank
    share = slice(rank * case.rows // number, (rank + 1) * case.rows // number)
    mine = [{name: x[share] for name, x in batch.items()} for batch in batches(case)]
    stages = stages_of(model, division) if division.degrees.pipeline > 1 else []
    division.share(model, stages)
    workload = TrainingWorkload(
        model=model,
        loss=loss_of,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        batches=mine,
        clip_norm=case.clip_norm,
    )
    if not stages:
        return RankTrainer(workload, division, count, num_parts=case.num_parts), mine
    made = PipelineTrainer(
        workload,
        division,
        count,
        stages=stages,
        arguments=arguments,
        loss=summed,
        ignored=IGNORED,
        rows=-(-case.rows // division.degrees.data),
        num_parts=case.num_parts,
    )
    return made, mine


def trained(ranks: Ranks, plan: dict[str, Any], case: Case) -> dict[str, Any]:
    """Make steps, and return losses, norms, gradients of the first step, weights at the end, and held-out sums."""
    division = division_of(ParallelPlan(**plan), ranks, torch.device("cpu"))
    trainer, mine = _trainer(division, case)
    model = trainer.model
    losses, norms = [], []
    gradients: dict[str, list[float]] = {}
    for step in range(case.steps):
        if not step:
            losses.append(float(trainer.compute([mine[step]], updates=False)))
            gradients = {n: whole_of(p.grad).flatten().tolist() for n, p in model.named_parameters()}  # type: ignore[arg-type]
            trainer.update()
        else:
            losses.append(float(trainer.step_on([mine[step]])))
        norms.append(float(trainer.gradient_norm))  # type: ignore[arg-type]
    weights = {name: whole_of(p.detach()).flatten().tolist() for name, p in model.named_parameters()}
    return {
        "losses": losses,
        "norms": norms,
        "gradients": gradients,
        "weights": weights,
        **_held_out(trainer, batches(case)[0]),
    }


def _held_out(trainer: RankTrainer, batch: dict[str, Tensor]) -> dict[str, Any]:
    ids, named = arguments(batch)
    trainer.model.eval()
    with torch.no_grad():
        if isinstance(trainer, PipelineTrainer):
            return {"held_out": trainer.tally(tally, batch), "logits": trainer.relay(ids, **named).flatten().tolist()}
        return {"held_out": tally(trainer.model, batch), "logits": trainer.model(ids, **named).flatten().tolist()}


def all_trained(ranks: Ranks, work: list[tuple[dict[str, Any], Case]]) -> list[dict[str, Any]]:
    """Do several trainings one after the other, since processes take long to start."""
    return [trained(ranks, plan, case) for plan, case in work]


def sent(ranks: Ranks, plan: dict[str, Any], case: Case) -> int:
    """Return the bytes that this process sends to those of other stages in the second step."""
    trainer, mine = _trainer(division_of(ParallelPlan(**plan), ranks, torch.device("cpu")), case)
    trainer.step_on([mine[0]])
    with WireCount() as wire:
        trainer.step_on([mine[1]])
    assert not wire.uncounted
    return wire.num_bytes["send"]


def cut(ranks: Ranks) -> dict[str, Any]:
    """Return the names that a process holds, those of copies, and the refusal of another model."""
    division = division_of(ParallelPlan(pipeline_parallel_degree=2), ranks, torch.device("cpu"))
    model = decoder(Case(tied=True))
    stages_of(model, division)
    names = {".".join(name.split(".")[:2]) for name in model.state_dict()}
    refusal = ""
    try:
        stages_of(nn.Linear(2, 2), division)
    except OptionError as error:
        refusal = str(error)
    return {"names": sorted(names), "copies": sorted(later_copies(model, division)), "refusal": refusal}
