"""Train docs-ssm's model by whet's operators, beside the same model in transformers and in compiled PyTorch.

    python benchmarks/families_training.py [--rounds 8] [--batch 8] [--trial]

Everyone has the same weights, the same batches of rows of 128 tokens, AdamW, and clipped gradients. A contender is:

- whet: the model of whet train, in float32, or in autocast (bfloat16), as docs-ssm was trained;
- transformers: MambaForCausalLM on a CPU, where it has no kernels and goes through the tokens in Python;
- compiled: the same model of whet with its scan in chunks, or token by token, and its convolution in PyTorch, each
  block by torch.compile.

In each round everyone makes one step, in random order; a ratio is the geometric mean over the rounds of one process.
The limit of a step is the time of its matrix products at the measured peak, of the scan's arithmetic at that of
float32, and of the optimiser's bytes at the measured bandwidth; activations are not in it.

Writes docs/results/families_training.MACHINE.json; benchmarks/results.py makes the table. --trial asks for no quiet
machine, and writes nothing.
"""

import argparse
import contextlib
import json
import math
import random
import statistics
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from built_in_weights.docs_ssm import CONFIG
from circumstances import circumstances
from families_training_table import training_lines
from kept_pages import keep_pages
from quietly import quiet_machine
from torch import Tensor, nn

from whet.core.workload import measure_quality
from whet.core.workload.plain_parameters import plain_parameters
from whet.files import write_whole
from whet.kernels.selective_scan.reference import ScanInputs, outputs_of, scan_states
from whet.measure.machine import describe, load_limits
from whet.measure.stats import paired_ratio
from whet.models.selective import Selective, SelectiveConfig, mixer
from whet.models.selective.forms import scan_chunked
from whet.models.selective.fresh import TRAINABLE, fresh_selective
from whet.workloads import resolve

RESULTS = Path(__file__).parents[1] / "docs" / "results"
WHET, AUTOCAST = "whet, float32", "whet, autocast"
TOKENS, VOCABULARY = 128, 2048
GOAL = 3.0
CHUNKS = (16,)
_SCAN_FLOP = (5 + 12) + (18 + 12)  # of a state and token, forward and backward, an exponential counted as 12
_OPTIMISER_BYTES = 28  # of a parameter: weight and two moments are read and written, the gradient is read

Step = Callable[[Tensor], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8, help="rows of a step")
    parser.add_argument("--trial", action="store_true", help="try the script on a busy machine; write nothing")
    arguments = parser.parse_args()
    keep_pages()
    steps, model = _contenders()
    ids = torch.randint(VOCABULARY, (arguments.rounds + 2, arguments.batch, TOKENS + 1))
    losses = {name: step(ids[0]) for name, step in steps.items()}  # this compiles, too
    _check(losses)
    with contextlib.nullcontext() if arguments.trial else quiet_machine():
        seconds = _timed(steps, ids[1:])
    report = _report(seconds, losses, model, arguments)
    print("\n".join(training_lines(report)))
    if not arguments.trial:
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_whole(RESULTS / f"families_training.{describe().fingerprint}.json", json.dumps(report, indent=1) + "\n")


def _contenders() -> tuple[dict[str, Step], Selective]:
    """Return everyone's step, and the model."""
    given = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["model"]
    config = SelectiveConfig.model_validate({**given, "vocab_size": VOCABULARY})

    def fresh() -> Selective:
        return fresh_selective(config, torch.Generator().manual_seed(0)).train()

    steps = {WHET: _step(fresh()), AUTOCAST: _step(fresh(), in_bfloat16=True)}
    forms: dict[str, Callable[[ScanInputs], tuple[Tensor, Tensor]]] = {
        **{f"compiled, chunks of {size}": lambda x, size=size: scan_chunked(x, size) for size in CHUNKS},  # type: ignore[misc]
        "compiled, token by token": _sequential,
    }
    for name, form in forms.items():
        model = fresh()
        for block in model.layers:
            block.compile(dynamic=False)
        steps[name] = _in_torch(_step(model), form)
    with tempfile.TemporaryDirectory() as directory:
        model = fresh()
        TRAINABLE.write(config, Path(directory), {}, model.state_dict(), {})
        steps["transformers"] = _step(_of_transformers(Path(directory)))
    return steps, model


def _of_transformers(directory: Path) -> nn.Module:
    """Return transformers' model of a directory; it returns logits alone."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).train()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor) -> Tensor:
            found: Tensor = self.model(input_ids=ids, use_cache=False).logits
            return found

    return Logits()


def _step(model: nn.Module, *, in_bfloat16: bool = False) -> Step:
    """Return a function that makes an optimiser step, and returns the loss."""
    plain = plain_parameters(model)
    decays = [p for p in model.parameters() if p.dim() >= 2 and id(p) not in plain]
    others = [p for p in model.parameters() if p.dim() < 2 or id(p) in plain]
    optimizer = torch.optim.AdamW([{"params": decays}, {"params": others, "weight_decay": 0.0}], lr=1e-3)

    def step(ids_BT: Tensor) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
            logits_BTV = model(ids_BT[:, :-1])
        loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), ids_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def _sequential(x: ScanInputs) -> tuple[Tensor, Tensor]:
    states = scan_states(x)
    return outputs_of(x, states[1:])[0], states[-1]


def _in_torch(step: Step, form: Callable[[ScanInputs], tuple[Tensor, Tensor]]) -> Step:
    """Return a step whose mixers have the scan in this form, and the convolution, in PyTorch."""

    def scan(
        u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, bias: Tensor, start: None
    ):  # type: ignore[no-untyped-def]
        of_head = [part[:, :, None] for part in (u, delta)]
        x = ScanInputs(
            *of_head,
            A[None],
            B[:, :, None],
            C[:, :, None],
            D[None],
            z[:, :, None],
            bias[None],
            start,
            True,
            0.0,
            math.inf,
        )
        out, last = form(x)
        return out[:, :, 0], last[:, 0]

    def convolution(
        x_BLC: Tensor, weight_CK: Tensor, bias_C: Tensor, initial: None, *, silu: bool
    ) -> tuple[Tensor, Tensor]:
        assert silu, "the mixers of this benchmark have it"
        num_channels, taps = weight_CK.shape
        padded = F.pad(x_BLC.transpose(1, 2), (taps - 1, 0))
        return F.silu(F.conv1d(padded, weight_CK[:, None], bias_C, groups=num_channels)).transpose(1, 2), x_BLC

    @contextlib.contextmanager
    def exchanged() -> Iterator[None]:
        before = mixer.selective_scan, mixer.causal_conv
        mixer.selective_scan, mixer.causal_conv = scan, convolution  # type: ignore[assignment]
        try:
            yield
        finally:
            mixer.selective_scan, mixer.causal_conv = before

    def in_torch(ids_BT: Tensor) -> float:
        with exchanged():
            return step(ids_BT)

    return in_torch


def _check(losses: dict[str, float]) -> None:
    """Check that everyone computes the same."""
    for name, loss in losses.items():
        far = 2e-2 if name == AUTOCAST else 1e-3
        if abs(loss - losses[WHET]) > far:
            raise SystemExit(f"{name} has the loss {loss}, and whet {losses[WHET]}")


def _timed(steps: dict[str, Step], ids: Tensor) -> dict[str, list[float]]:
    """Return the seconds of each step of all rounds but the first."""
    draw, seconds = random.Random(0), {name: [] for name in steps}  # type: dict[str, list[float]]
    for batch in ids:
        for name in draw.sample(sorted(steps), len(steps)):
            began = time.perf_counter()
            steps[name](batch)
            seconds[name].append(time.perf_counter() - began)
    return {name: times[1:] for name, times in seconds.items()}


def _score(name: str) -> float:
    """Return the bits per byte of held-out text of a model that comes with whet."""
    workload = resolve(name)
    assert workload.quality is not None
    return measure_quality(workload.quality, workload.model)


def _report(
    seconds: dict[str, list[float]], losses: dict[str, float], model: Selective, arguments: argparse.Namespace
) -> dict[str, Any]:
    limits, tokens = load_limits(describe()), arguments.batch * TOKENS
    config = model.config
    products = sum(p.numel() for name, p in model.named_parameters() if name.endswith("weight") and p.dim() == 2)
    states = config.num_hidden_layers * config.intermediate_size * config.state_size
    num_parameters = sum(p.numel() for p in model.parameters())

    def limit_s(dtype: str) -> dict[str, float]:
        return {
            "products": 6 * products * tokens / limits.gemm[dtype],
            "scan": _SCAN_FLOP * states * tokens / limits.gemm["float32"],
            "optimiser": _OPTIMISER_BYTES * num_parameters / limits.read_bandwidth,
        }

    rows = []
    for name, times in seconds.items():
        over = {}
        for ours in (WHET, AUTOCAST):
            if name not in (WHET, AUTOCAST):
                ratio, ci95 = paired_ratio(times, seconds[ours])
                over[ours] = {"ratio": ratio, "ci95": ci95}
        rows.append({"name": name, "ms": 1e3 * statistics.median(times), "over": over, "loss": losses[name]})
        rows[-1]["tokens_per_s"] = tokens / statistics.median(times)
        if name in (WHET, AUTOCAST):
            dtype = "bfloat16" if name == AUTOCAST and "bfloat16" in limits.gemm else "float32"
            rows[-1]["limit_ms"] = {part: 1e3 * one for part, one in limit_s(dtype).items()}
    return {
        **circumstances(
            f"python benchmarks/families_training.py --rounds {arguments.rounds} --batch {arguments.batch}"
        ),
        "goal": GOAL,
        "bits_per_byte": {name: _score(name) for name in ("docs-gpt", "docs-ssm")},
        "model": f"Mamba, {num_parameters / 1e6:.2f} million parameters",
        "batch": [arguments.batch, TOKENS],
        "rows": rows,
    }


if __name__ == "__main__":
    main()
