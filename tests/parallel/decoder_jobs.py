"""What processes do in the tests of divided decoders, and a loop of one process that knows nothing of the wing."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor.debug import CommDebugMode

from whet.core.workload import TrainingWorkload
from whet.core.workload.training import seed_everything
from whet.models.decoder.reference import Attention, Decoder, DecoderConfig, GatedMLP
from whet.parallel.clipping import local_of
from whet.parallel.division import Division, division_of
from whet.parallel.dropout import dropped
from whet.parallel.pieces import whole_of
from whet.parallel.plan import ParallelPlan
from whet.parallel.rank_trainer import RankTrainer, seed_of
from whet.parallel.ranks import Ranks

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


@torch.no_grad()
def evaluated(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of evaluation, and leave the model in training."""
    found = logits_of(model.eval(), batch)
    model.train()
    return found


def count(batch: Batch) -> int:
    return int((batch["targets"] != IGNORED).sum())


def add_dropout(model: nn.Module, share: float) -> None:
    """Add dropout where whet train adds it: to the embedding, and to what blocks add to the stream."""

    def drop(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return dropped(output, share, is_training=module.training)

    for module in model.modules():
        if share and isinstance(module, nn.Embedding | Attention | GatedMLP):
            module.register_forward_hook(drop)


def alone(
    family: str, length: int = 7, *, is_packed: bool = False, dtype: str = "float64", dropout: float = 0.0, **sizes: int
) -> dict[str, Any]:
    """Return what a plain loop of one process finds."""
    model = decoder(family, getattr(torch, dtype), **sizes)
    add_dropout(model, dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses, norms = [], []
    gradients: dict[str, Tensor] = {}
    given = batches(length, is_packed=is_packed)
    logits = evaluated(model, given[0])
    torch.manual_seed(0)
    for batch in given:
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
    ranks: Ranks,
    plan: dict[str, Any],
    family: str,
    length: int = 7,
    *,
    is_packed: bool = False,
    dtype: str = "float64",
    dropout: float = 0.0,
    num_parts: int = 1,
    **sizes: int,
) -> dict[str, Any]:
    """Return what processes find that share a decoder by a plan."""
    division = division_of(ParallelPlan(**plan), ranks, torch.device("cpu"))
    model = decoder(family, getattr(torch, dtype), **sizes)
    add_dropout(model, dropout)
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
    logits = evaluated(model, mine[0])
    seed_everything(seed_of(0, division.data_rank))
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


def exchanges(ranks: Ranks, family: str, sequence_parallel: bool) -> dict[str, Any]:
    """Return how often processes exchange in forward and in backward, and which part of the matrices each holds."""
    plan = ParallelPlan(tensor_parallel_degree=ranks.world_size, sequence_parallel=sequence_parallel)
    model = decoder(family)
    whole = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    division_of(plan, ranks, torch.device("cpu")).share(model)
    [batch, *_] = batches(8, is_packed=False)
    found: dict[str, Any] = {}
    with CommDebugMode() as forward:
        loss = loss_of(model, batch)
    with CommDebugMode() as backward:
        loss.backward()  # type: ignore[no-untyped-call]
    for name, mode in (("forward", forward), ("backward", backward)):
        found[name] = {str(one).rpartition(".")[2]: number for one, number in mode.get_comm_counts().items()}
    held = sum(local_of(p.detach()).numel() for p in model.parameters() if p.dim() == 2)
    gradients = sum(local_of(p.grad).numel() for p in model.parameters() if p.dim() == 2 and p.grad is not None)
    return {**found, "held": held / whole, "gradients": gradients / whole}


def all_divided(ranks: Ranks, cases: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what `divided` finds for each of several cases: its plan, and its other arguments."""
    return [divided(ranks, plan, **given) for plan, given in cases]
