"""One tiny training run in the loops of several libraries, with and without whet.prepare."""

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tiny_training import TinyLM, adamw, loss_of, tiny_workload
from torch import Tensor, nn
from torch.utils.data import DataLoader

import whet
from whet.core.recipe import Recipe

NUM_STEPS = 4
HALF = 2


@dataclass
class Ran:
    """What a run did: the loss and the learning rate of each step, and its model."""

    model: nn.Module
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def note(self, loss: Tensor, optimizer: Any) -> None:
        self.losses.append(float(loss.detach()))
        self.rates.append(float(optimizer.param_groups[0]["lr"]))


def falling(optimizer: Any) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))


def data() -> Tensor:
    return torch.cat(list(tiny_workload().batches))


def halves(begin: int, end: int) -> DataLoader[Any]:
    """The batches from step `begin` to step `end`."""
    return DataLoader(data()[4 * begin : 4 * end], batch_size=4)  # type: ignore[arg-type]


def plain(recipe: Recipe | None, directory: Path, begin: int, end: int) -> Ran:
    model = tiny_workload().model
    optimizer: Any = adamw(model.parameters())
    loader: Any = halves(begin, end)
    if recipe is not None:
        model, optimizer, loader = whet.prepare(model, optimizer, loader, recipe=recipe)
    schedule = falling(optimizer)
    if begin:
        states = torch.load(directory / "plain.pt")
        for part, state in zip((model, optimizer, schedule), states, strict=True):
            part.load_state_dict(state)
    ran = Ran(model)
    for batch in loader:
        optimizer.zero_grad()
        losses, parts = [], whet.micro_batches(model, batch)
        for part in parts:
            loss = loss_of(model, part)
            loss.backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        ran.note(parts.whole(losses), optimizer)
        optimizer.step()
        schedule.step()
    torch.save([part.state_dict() for part in (model, optimizer, schedule)], directory / "plain.pt")
    return ran


def with_accelerate(recipe: Recipe | None, directory: Path, begin: int, end: int) -> Ran:
    from accelerate import Accelerator

    model = tiny_workload().model
    optimizer: Any = adamw(model.parameters())
    loader: Any = halves(begin, end)
    if recipe is not None:
        model, optimizer, loader = whet.prepare(model, optimizer, loader, recipe=recipe)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, falling(optimizer))
    if begin:
        accelerator.load_state(str(directory / "accelerate"))
    ran = Ran(accelerator.unwrap_model(model))
    for batch in loader:
        optimizer.zero_grad()
        losses, parts = [], whet.micro_batches(model, batch)
        for part in parts:
            loss = loss_of(model, part)
            accelerator.backward(loss)
            losses.append(loss.detach())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        ran.note(parts.whole(losses), optimizer)
        optimizer.step()
        schedule.step()
    accelerator.save_state(str(directory / "accelerate"))
    return ran


def with_fabric(recipe: Recipe | None, directory: Path, begin: int, end: int) -> Ran:
    from lightning import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = tiny_workload().model
    optimizer: Any = adamw(model.parameters())
    loader: Any = halves(begin, end)
    if recipe is not None:
        model, optimizer, loader = whet.prepare(model, optimizer, loader, recipe=recipe)
    schedule = falling(optimizer)
    ran = Ran(model)
    model, optimizer = fabric.setup(model, optimizer)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule}
    if begin:
        fabric.load(directory / "fabric.ckpt", state)
    for batch in fabric.setup_dataloaders(loader):
        optimizer.zero_grad()
        losses, parts = [], whet.micro_batches(model, batch)
        for part in parts:
            loss = loss_of(model, part)
            fabric.backward(loss)
            losses.append(loss.detach())
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        ran.note(parts.whole(losses), optimizer)
        optimizer.step()
        schedule.step()
    fabric.save(directory / "fabric.ckpt", state)
    return ran


def with_lightning(recipe: Recipe | None, directory: Path, begin: int, end: int) -> Ran:
    from lightning import LightningModule, Trainer

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Lit(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny_workload().model

        def training_step(self, batch: Tensor, number: int) -> Tensor:
            loss = loss_of(self.net, batch)
            ran.note(loss, self.optimizers())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer: Any = adamw(self.net.parameters())
            if recipe is not None:
                _, optimizer, _ = whet.prepare(self.net, optimizer, (), recipe=recipe)
            return [optimizer], [{"scheduler": falling(optimizer), "interval": "step"}]

    lit = Lit()
    ran = Ran(lit.net)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=end,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(lit, halves(begin, end), ckpt_path=str(directory / "lit.ckpt") if begin else None, weights_only=False)
    trainer.save_checkpoint(directory / "lit.ckpt")
    return ran


class LanguageModel(TinyLM):
    """Return the loss as the models of transformers do."""

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        logits = super().forward(ids)
        if labels is None:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def with_transformers(recipe: Recipe | None, directory: Path, begin: int, end: int) -> Ran:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    torch.manual_seed(0)
    model = LanguageModel()
    ran = Ran(model)

    class Rates(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, optimizer: Any, **kwargs: Any) -> None:
            ran.rates.append(float(optimizer.param_groups[0]["lr"]))

    class Noted(Trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            ran.losses.append(float(loss.detach()))
            return loss

        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    args = TrainingArguments(
        output_dir=str(directory / "hf"),
        per_device_train_batch_size=4,
        max_steps=NUM_STEPS,
        save_steps=HALF,
        learning_rate=1e-3,
        weight_decay=0.1,
        lr_scheduler_type="linear",
        optim="adamw_torch",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    rows = [{"ids": row, "labels": row} for row in data()]
    trainer = Noted(model=model, args=args, train_dataset=rows, callbacks=[Rates()])
    if recipe is not None:
        trainer = whet.prepare_trainer(trainer, recipe=recipe)
    trainer.train(resume_from_checkpoint=str(directory / "hf" / f"checkpoint-{begin}") if begin else None)
    return ran


Loop = Callable[[Recipe | None, Path, int, int], Ran]
LOOPS: dict[str, Loop] = {
    "plain": plain,
    "accelerate": with_accelerate,
    "fabric": with_fabric,
    "lightning": with_lightning,
    "transformers": with_transformers,
}


def quietly(loop: Loop, recipe: Recipe | None, directory: Path, begin: int = 0, end: int = NUM_STEPS) -> Ran:
    """Run a loop. What other libraries warn of is theirs."""
    directory.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return loop(recipe, directory, begin, end)
