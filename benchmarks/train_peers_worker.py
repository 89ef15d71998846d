"""One contender of train_peers.py in a process of its own: it trains, and stops after each step until it is asked.

    python train_peers_worker.py CONTENDER [RECIPE]

It prints "answer ready" after its warm-up. For each line "go N" it makes N steps, and prints their median time in
seconds and the peak of its memory above what was resident after the imports, in bytes. Peers need no whet.
"""

import contextlib
import gc
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from torch.utils.data import DataLoader
from train_peers_model import LEARNING_RATE, NUM_BATCHES, WEIGHT_DECAY, make_model, make_rows, shape

WARM_UP = 3


class Ended(Exception):
    pass


def _status(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


class Asked:
    """Call it after each optimiser step; it waits until the next steps are asked for."""

    def __init__(self):
        gc.collect()
        self._resident = _status("VmRSS")
        self._times, self._left, self._warm = [], 0, WARM_UP
        self._began = 0.0

    def __call__(self):
        now = time.perf_counter()
        if self._warm:
            self._warm -= 1
            if self._warm:
                return
            print("answer ready", flush=True)
            self._wait()
            return
        self._times.append(now - self._began)
        self._left -= 1
        if not self._left:
            peak = _status("VmHWM") - self._resident
            print("answer " + json.dumps({"step_s": statistics.median(self._times), "peak_bytes": peak}), flush=True)
            self._wait()
        self._began = time.perf_counter()

    def _wait(self):
        line = sys.stdin.readline().split()
        if line[:1] != ["go"]:
            raise Ended
        self._times, self._left = [], int(line[1])
        Path("/proc/self/clear_refs").write_text("5")
        self._began = time.perf_counter()


def _adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, **options)


def by_hand(asked, *, autocast=False, fused=False, compiled=False, bfloat16=False, compiled_step=False):
    model = make_model()
    if bfloat16:
        model = model.bfloat16()
    optimizer = _adamw(model, fused=True) if fused else _adamw(model)
    call = torch.compile(model) if compiled else model
    update = torch.compile(optimizer.step) if compiled_step else optimizer.step
    for ids in _endless():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = call(input_ids=ids, labels=ids).loss
        loss.backward()
        update()
        asked()


def _endless():
    batches = make_rows(NUM_BATCHES * shape()["rows"]).split(shape()["rows"])
    return itertools.cycle(batches)


def by_whet(asked, recipe):
    import whet

    model = make_model()
    windows = make_rows(NUM_BATCHES * shape()["rows"])
    loader = DataLoader(windows, batch_size=shape()["rows"])
    model, optimizer, loader = whet.prepare(model, _adamw(model), loader, recipe=recipe)
    while True:
        for ids in loader:
            optimizer.zero_grad()
            for part in whet.micro_batches(model, ids):
                model(input_ids=part, labels=part).loss.backward()
            optimizer.step()
            asked()


class _Windows(torch.utils.data.Dataset):
    def __init__(self):
        self._windows = make_rows(NUM_BATCHES * shape()["rows"])

    def __len__(self):
        return len(self._windows)

    def __getitem__(self, index):
        return {"input_ids": self._windows[index], "labels": self._windows[index]}


def by_trainer(asked):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Callback(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            asked()

    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            per_device_train_batch_size=shape()["rows"],
            bf16=True,
            use_cpu=True,
            max_steps=10**6,
            learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            max_grad_norm=0.0,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        Trainer(make_model(), arguments, train_dataset=_Windows(), callbacks=[Callback()]).train()


def by_lightning(asked):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = make_model()

        def training_step(self, batch, index):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return _adamw(self.model)

    class Callback(lightning.Callback):
        def on_train_batch_end(self, *args, **kwargs):
            asked()

    trainer = lightning.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_steps=10**6,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Callback()],
    )
    trainer.fit(Module(), DataLoader(_Windows(), batch_size=shape()["rows"], shuffle=True))


BY_HAND = {
    "fp32": {},
    "fp32, fused": {"fused": True},
    "autocast, fused": {"fused": True, "autocast": True},
    "autocast, fused, compile": {"fused": True, "autocast": True, "compiled": True},
    "autocast, compile of model and step": {"autocast": True, "compiled": True, "compiled_step": True},
    "bf16 parameters, fused, compile": {"fused": True, "bfloat16": True, "compiled": True},
}
TRAINER, LIGHTNING = "HF Trainer bf16", "Lightning bf16-mixed"


def main():
    contender, recipe = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    import transformers  # noqa: F401 - what all of them import counts for none of them
    from transformers import LlamaForCausalLM  # noqa: F401

    if recipe:
        import whet  # noqa: F401
    elif contender == TRAINER:
        from transformers import Trainer  # noqa: F401
    elif contender == LIGHTNING:
        import lightning  # noqa: F401
    asked = Asked()
    with contextlib.suppress(Ended):
        if recipe:
            by_whet(asked, recipe)
        elif contender == TRAINER:
            by_trainer(asked)
        elif contender == LIGHTNING:
            by_lightning(asked)
        else:
            by_hand(asked, **BY_HAND[contender])


if __name__ == "__main__":
    main()
