"""One tiny training in loops that clip, accumulate, pass closures, or belong to a library or several processes.

Each cell compares a loop with one technique to the untouched loop: right, refused by name, or wrong.
"""

import contextlib
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from loop_models import RATE, STEPS, Net, net, optimizer_for, reference_optimizer, rows
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import whet
from whet.core.recipe import Recipe, Step
from whet.errors import WhetError
from whet.measure.machine import Machine
from whet.parallel.joining import joined
from whet.techniques.applied import applied
from whet.techniques.mechanisms import offloaded_activations
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import Use
from whet.techniques.training import TRAINING_TABLE, fp8, optimizer_offload
from whet.techniques.training_technique import Exactness

# Their checks ask for a GPU, or for what this loop does already; they are applied all the same, emulated on the CPU.
UNCHECKED = {"activation_offload", "optimizer_offload", "fp8", "cudnn_benchmark", "aligned_dimensions", "set_to_none"}
UNCHECKED |= {"threads"}
APART = ("chunked_loss", "fp8", "optimizer_in_backward")  # tried with a last layer in a shard group of its own
LATE = ("optimizer_in_backward", "bf16_parameters", "checkpointing")  # recipes before processes, wrappers and shards
OPTIONS = {"autocast_fp16": {"init_scale": 2.0**10}}
MOST = {Exactness.EXACT: 1e-4, Exactness.ROUNDED: 5e-2, Exactness.OTHER: 2e-2}  # of the way that the parameters go


@contextlib.contextmanager
def emulated() -> Iterator[None]:
    """Let every technique run on this CPU, compile by nothing but tracing, and put the process's settings back."""
    import torch._functorch.config as functorch

    threads, budget = torch.get_num_threads(), functorch.activation_memory_budget
    products, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (Machine, "computes_bfloat16", lambda *_: True),
            (Machine, "computes_float16", lambda *_: True),
            (torch, "compile", partial(torch.compile, backend="eager")),
            (fp8.Float8Forward, "emulates", True),
            (offloaded_activations, "LEAST_BYTES", 0),
            (offloaded_activations, "offloading", partial(offloaded_activations.offloading, device_type="cpu")),
            (optimizer_offload.UpdatesOnHost, "is_exchanged", lambda *_: True),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        stack.enter_context(mock.patch("whet.techniques.training.allocator.keep_all_memory", lambda: None))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision(products)
            functorch.activation_memory_budget, torch.backends.cudnn.benchmark = budget, cudnn


def step_of(name: str) -> Step:
    return Step(technique=name, options=OPTIONS.get(name, {}))


def prepared(name: str, model: nn.Module, optimizer: Any, loader: Any) -> Parts:
    if name in UNCHECKED:
        return applied(Parts(model, optimizer, loader), [step_of(name)], TRAINING_TABLE)
    return whet.prepare(model, optimizer, loader, recipe=Recipe(kind="training", steps=(step_of(name),)))


def own_loop(use: Use | None, name: str, *, changed: bool) -> Tensor:
    """Train in a loop of its own."""
    is_split, model = use in (Use.ACCUMULATION, Use.ACCELERATE), net()
    optimizer: Any = optimizer_for(name, model.parameters()) if changed else reference_optimizer(name, model)
    loader: Any = DataLoader(rows(8), batch_size=4 if is_split else 8)  # type: ignore[arg-type]
    schedule = (
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)) if use is Use.SCHEDULE else None
    )
    if changed:
        model, optimizer, loader = prepared(name, model, optimizer, loader)  # type: ignore[assignment]
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=use is Use.SCALER)
    batches, num_batches = iter(loader), 2 if is_split else 1
    for _ in range(STEPS):

        def compute() -> Tensor:
            optimizer.zero_grad()
            loss = torch.zeros(())
            for _ in range(num_batches):
                for part in whet.micro_batches(model, next(batches), factor=scaler.get_scale() / num_batches):
                    loss = Net.loss(model(part), part)
                    scaler.scale(loss / num_batches).backward()
            return loss

        if use is Use.CLOSURE:
            optimizer.step(compute)
            continue
        compute()
        if use is Use.CLIPPING:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        if schedule is not None:
            schedule.step()
    return flat(model)


def accelerate_loop(use: Use | None, name: str, *, changed: bool) -> Tensor:
    """Train with accelerate, which clips and accumulates where the technique bears it."""
    from accelerate import Accelerator

    model, refuses = net(), TRAINING_TABLE[name].refuses
    num = 1 if Use.ACCUMULATION in refuses else 2
    optimizer: Any = optimizer_for(name, model.parameters()) if changed else reference_optimizer(name, model)
    loader: Any = DataLoader(rows(8), batch_size=8 // num)  # type: ignore[arg-type]
    if changed:
        model, optimizer, loader = prepared(name, model, optimizer, loader)  # type: ignore[assignment]
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num)
    made, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(made):
            for part in whet.micro_batches(made, batch, factor=1 / num):
                accelerator.backward(Net.loss(made(part), part))
            if accelerator.sync_gradients and Use.CLIPPING not in refuses:
                accelerator.clip_grad_norm_(made.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
    return flat(model)


def lightning_loop(use: Use | None, name: str, *, changed: bool) -> Tensor:
    """Train with Lightning's Trainer, which passes closures, and clips and accumulates where the technique bears it."""
    from lightning import LightningModule, Trainer

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    refuses = TRAINING_TABLE[name].refuses
    num = 1 if Use.ACCUMULATION in refuses else 2

    class Lit(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Tensor, number: int) -> Tensor:
            return Net.loss(self.net(batch), batch)

        def configure_optimizers(self) -> Any:
            if not changed:
                return reference_optimizer(name, self.net)
            return prepared(name, self.net, optimizer_for(name, self.net.parameters()), ()).optimizer

    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=num,
        gradient_clip_val=None if Use.CLIPPING in refuses else 0.05,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    lit = Lit()
    trainer.fit(lit, DataLoader(rows(8), batch_size=8 // num))  # type: ignore[arg-type]
    return flat(lit.net)


def trainer_loop(use: Use | None, name: str, *, changed: bool) -> Tensor:
    """Train with transformers' Trainer, which clips and accumulates where the technique bears it."""
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    refuses = TRAINING_TABLE[name].refuses
    num = 1 if Use.ACCUMULATION in refuses else 2
    model = net()
    with tempfile.TemporaryDirectory() as directory:
        args = TrainingArguments(
            output_dir=directory,
            per_device_train_batch_size=8 // num,
            gradient_accumulation_steps=num,
            max_grad_norm=0 if Use.CLIPPING in refuses else 0.05,
            max_steps=STEPS,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            log_level="error",
        )
        data = [{"ids": row, "labels": row} for row in rows(8)]
        own = (optimizer_for(name, model.parameters()) if changed else reference_optimizer(name, model), None)
        trainer = InOrder(model=model, args=args, train_dataset=data, optimizers=own)
        if changed and name in UNCHECKED:
            trainer.optimizer = prepared(name, model, trainer.optimizer, ()).optimizer
        elif changed:
            trainer = whet.prepare_trainer(trainer, recipe=Recipe(kind="training", steps=(step_of(name),)))
        trainer.train()
    return flat(model)


LOOPS: dict[Use | None, Callable[..., Tensor]] = {
    Use.ACCELERATE: accelerate_loop,
    Use.LIGHTNING: lightning_loop,
    Use.TRAINER: trainer_loop,
}


def parallel_loop(
    use: Use, name: str, *, changed: bool, wrapped_first: bool = False, head_apart: bool = False
) -> Tensor:
    """Train in several processes, each on its share of every batch."""
    from torch.distributed.fsdp import fully_shard

    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    model: Any = net()
    called: Any = model
    if use is Use.FSDP2:
        for part in (*model.blocks, *([model.head] if head_apart else [])):
            fully_shard(part)
        fully_shard(model)
    if wrapped_first:
        model = called = DistributedDataParallel(model)
    optimizer: Any = optimizer_for(name, model.parameters()) if changed else reference_optimizer(name, model)
    loader: Any = DataLoader(rows(8)[rank::world_size], batch_size=8 // world_size)  # type: ignore[arg-type]
    if changed:
        model, optimizer, loader = prepared(name, model, optimizer, loader)
    if use is Use.DDP and not wrapped_first:
        called = DistributedDataParallel(model)
    for batch in loader:
        optimizer.zero_grad()
        for part in whet.micro_batches(model, batch):
            Net.loss(called(part), part).backward()
        if Use.CLIPPING not in TRAINING_TABLE[name].refuses:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return flat(getattr(model, "module", model))


def flat(model: nn.Module) -> Tensor:
    """Return all parameters as one vector, in float32."""
    whole = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in model.state_dict().values()]
    return torch.cat([value.detach().float().flatten() for value in whole])


def reference_name(name: str) -> str:
    """Return one technique for all those whose untouched loops are the same."""
    technique = TRAINING_TABLE[name]
    is_own = technique.exactness is Exactness.OTHER or name == "fused_optimizer" or technique.updates_early
    return name if is_own else "set_to_none"


@cache
def untouched(use: Use | None, name: str, how: tuple[str, ...] = ()) -> Tensor:
    """Return where the untouched loop ends."""
    loop = LOOPS.get(use, parallel_loop if use in (Use.DDP, Use.FSDP2) else own_loop)
    return loop(use, name, changed=False, **dict.fromkeys(how, True))


def cell(name: str, changed: Callable[[], Tensor], untouched: Callable[[], Tensor]) -> str:
    """Return "right", "refused: why" or "wrong: how"."""
    try:
        found = changed()
    except WhetError as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - whatever another library says is no word of whet's
        return f"wrong: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    wanted, began = untouched(), flat(net())
    apart = float((found - wanted).norm() / (wanted - began).norm())
    most = MOST[TRAINING_TABLE[name].exactness]
    return (
        "right" if math.isfinite(apart) and apart <= most else f"wrong: {apart:.2g} of the way apart; {most:g} allowed"
    )


def in_one_process(use: Use | None, name: str) -> str:
    """Return the cell of a technique in one process."""
    loop = partial(LOOPS.get(use, own_loop), use, name)
    with emulated():
        return cell(name, partial(loop, changed=True), partial(untouched, use, reference_name(name)))


def in_two_processes(names: list[str]) -> dict[str, Any]:
    """Return the cells of all techniques with DDP and FSDP2; a child of `run_together` calls this."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, str]] = {}
    kinds: dict[str, tuple[Use, tuple[str, ...]]] = {
        "DDP": (Use.DDP, ()),
        "DDP before": (Use.DDP, ("wrapped_first",)),
        "FSDP2": (Use.FSDP2, ()),
    }
    with joined():
        for name in names:
            found[name] = {}
            apart = {"FSDP2 with the head apart": (Use.FSDP2, ("head_apart",))} if name in APART else {}
            for kind, (use, how) in (kinds | apart).items():
                changed = partial(parallel_loop, use, name, changed=True, **dict.fromkeys(how, True))
                with emulated():
                    found[name][kind] = cell(name, changed, partial(untouched, use, reference_name(name), how))
                distributed.barrier()
        found["late"] = {f"{name} {kind}": what for name in LATE for kind, what in late(name).items()}
    return found


def late(name: str) -> dict[str, str]:
    """Return what becomes of processes, wrappers and shards that come after a recipe was applied."""
    from torch.distributed.fsdp import fully_shard

    def shard(model: nn.Module) -> nn.Module:
        fully_shard(model)
        return model

    found = {}
    for kind, wrap, is_new in (("DDP", DistributedDataParallel, False), ("FSDP2", shard, False), ("new", shard, True)):
        with emulated():
            model = net()
            optimizer: Any = optimizer_for(name, model.parameters())
            with mock.patch("whet.techniques.mechanisms.uses.num_processes", lambda: 1):  # none had been started then
                model, optimizer, _ = prepared(name, model, optimizer, [rows(8)[:8]])  # type: ignore[assignment]
            called: Any = wrap(model)
            if is_new:
                optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            try:
                Net.loss(called(rows(8)[:8]), rows(8)[:8]).backward()
                optimizer.step()
                found[kind] = "went on"
            except WhetError as error:
                found[kind] = str(error)
            except Exception as error:  # noqa: BLE001 - no word of whet's
                found[kind] = f"wrong: {type(error).__name__}: {error}"
        distributed.barrier()
    return found
