"""What processes do in the tests of divided decoders, and a loop of one process that knows nothing of the wing."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.core.workload import TrainingWorkload
from whet.models.decoder.reference import Decoder, DecoderConfig
from whet.parallel.division import Division, division_of
from whet.parallel.pieces import whole_of
from whet.parallel.plan import ParallelPlan
from whet.parallel.rank_trainer import RankTrainer
from whet.parallel.ranks import Ranks
from whet.trainer.model import TrainedModel, add_dropout

IGNORED = -100
STEPS, ROWS, CLIP, RATE = 3, 5, 0.5, 1e-2
Batch = dict[str, Tensor]

# Each family has what the others lack. None of the sizes of tokens and vocabulary is a multiple of the degrees.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "sliding_window": 3},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
}


def decoder(family: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Decoder:
    """Return a decoder of drawn weights, the same ones in each dtype."""
    sizes = {
        "vocab_size": 19,
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
    }
    model = Decoder(DecoderConfig.model_validate({**sizes, **FAMILIES[family], **changes})).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(1.0 if p.dim() == 1 else 0.0, 0.3, generator=generator)
    return model.to(dtype)


def batches(length: int, *, is_packed: bool, vocab: int = 19) -> list[Batch]:
    """Return batches whose rows have different numbers of targets, the first row of one none."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for step in range(STEPS):
        ids = torch.randint(vocab, (ROWS, length), generator=generator)
        targets = torch.randint(vocab, (ROWS, length), generator=generator)
        for row in range(ROWS):
            targets[row, (3 * row + step) % length + 1 :] = IGNORED
        if step == 1:
            targets[0] = IGNORED
        found.append({"ids": ids, "targets": targets, **(_two_documents(length) if is_packed else {})})
    return found


def _two_documents(length: int) -> Batch:
    """Return positions and masks of rows that hold two documents each, which are cut at other places."""
    cuts_R1 = torch.arange(ROWS)[:, None] % (length - 1) + 1
    place_T = torch.arange(length)
    is_second_RT = place_T >= cuts_R1
    positions_RT = torch.where(is_second_RT, place_T - cuts_R1, place_T)
    mask_RTT = (is_second_RT[:, :, None] == is_second_RT[:, None, :]) & (place_T[:, None] >= place_T)
    return {"positions": positions_RT, "mask": mask_RTT[:, None]}


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    found: Tensor = model(batch["ids"], batch.get("positions"), batch.get("mask"))
    return found


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(logits_of(model, batch).flatten(0, 1), batch["targets"].flatten(), ignore_index=IGNORED)


def count(batch: Batch) -> int:
    return int((batch["targets"] != IGNORED).sum())


def with_dropout(model: nn.Module, share: float) -> None:
    named = TrainedModel(model, "", 19, None, lambda *given: model(given[1]), lambda *given: None)
    add_dropout(TrainedModel(**{**named.__dict__, "dropped": ("Attention", "GatedMLP")}), share)


def alone(family: str, length: int, *, is_packed: bool, dtype: str = "float64", **changes: Any) -> dict[str, Any]:
    """Return what a plain loop of one process finds."""
    model = decoder(family, getattr(torch, dtype), **changes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses, norms = [], []
    gradients: dict[str, Tensor] = {}
    for step, batch in enumerate(batches(length, is_packed=is_packed)):
        if not step:
            logits = logits_of(model, batch).detach()
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        losses.append(loss.item())
        gradients = gradients or {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return {
        "logits": logits.numpy(),
        "losses": losses,
        "norms": norms,
        "gradients": _arrays(gradients),
        "weights": _arrays(weights),
    }


def divided(
    ranks: Ranks, plan: dict[str, Any], family: str, length: int, *, is_packed: bool, dtype: str, num_parts: int = 1
) -> dict[str, Any]:
    """Return what processes find that share a decoder by a plan."""
    division = division_of(ParallelPlan(**plan), ranks, torch.device("cpu"))
    model = decoder(family, getattr(torch, dtype))
    division.share(model)
    mine = [_rows(batch, division) for batch in batches(length, is_packed=is_packed)]
    workload = TrainingWorkload(
        model=model,
        loss=loss_of,
        optimizer=division.optimizer(lambda parameters: torch.optim.AdamW(parameters, lr=RATE)),
        batches=mine,
        clip_norm=CLIP,
    )
    trainer = RankTrainer(workload, division, count, num_parts=num_parts)
    with torch.no_grad():
        logits = logits_of(model, mine[0])
    losses, norms = [], []
    gradients: dict[str, Tensor] = {}
    for batch in mine:
        losses.append(float(trainer.step_on([batch])))
        norms.append(float(trainer.gradient_norm))
        gradients = gradients or {n: whole_of(p.grad) for n, p in model.named_parameters() if p.grad is not None}
    weights = {name: whole_of(p.detach()) for name, p in model.named_parameters()}
    first = _rows({"ids": torch.arange(ROWS)}, division)["ids"].tolist()
    is_tied = model.lm_head.weight is model.embed_tokens.weight
    return {
        "logits": (first, logits.numpy()),
        "losses": losses,
        "norms": norms,
        "gradients": _arrays(gradients),
        "weights": _arrays(weights),
        "is_tied": is_tied,
    }


def _arrays(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}  # a pipe sends tensors as open files


def _rows(batch: Batch, division: Division) -> Batch:
    rank, number = division.data_rank, division.degrees.data
    return {name: x[rank * ROWS // number : (rank + 1) * ROWS // number] for name, x in batch.items()}


def all_divided(ranks: Ranks, cases: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what `divided` finds for each of several cases: its plan, and its other arguments."""
    return [divided(ranks, plan, **given) for plan, given in cases]
