"""Measure how far whet's techniques bring a training that waits for its data to the speed of its computation.

    python benchmarks/loader.py [--wait-ms 0] [--width 48] [--sets 3] [--rounds 8] [--steps 12] [--json FILE]

The planted slow loader decodes photographs (JPEG), turns, cuts, scales and flips them, in the loop's own thread. What
is drawn for a photograph comes from a generator that is seeded by its number, so the data set draws nothing and every
contender sees the same batches. With `--wait-ms`, each photograph waits as well, as a file on a network does; such a
loader takes no core from the computation.

The contenders: the loop as it is; with the technique `loader`; with `prefetch`; with both; with eight workers; with one
worker and one thread for the computation; and, for the limits, the computation alone, on batches that lie in memory,
with all threads and with one, and the reading alone.

What the cores allow follows from these three. Reading takes D of one core. The computation takes C on all n cores, and
C1 on one; its least time of cores is the smaller of C1 and n C. So no division of the work among the cores is faster
than (D + min(C1, n C)) / n, nor than C. A worker beside one thread takes max(C1, D) at least.

Each contender lives in a process of its own and makes a burst of steps in its turn, round after round, in random order.
The first steps of a burst are not timed: they use up what was read ahead while others had their turn. A pair is two
contenders' bursts in one round. Ratios are geometric means with their 95 % interval.

It reads ../shared/data/images/sign_digits.tar, which is not part of the repository. The target: 95 % of the speed of
the computation alone, or as far as the cores allow.
"""

import argparse
import io
import json
import random
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from circumstances import circumstances
from PIL import Image
from quietly import quiet_machine
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from whet.comparison.claim import claim_of
from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.core.workload.training import Trainer
from whet.files import write_whole
from whet.measure.machine import describe
from whet.techniques.applied import applied, unfit
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.training import TRAINING_TABLE

ARCHIVE = Path(__file__).parents[2] / "shared" / "data" / "images" / "sign_digits.tar"
SIZE, BATCH, NUM_PHOTOGRAPHS = 64, 32, 1024
UNTIMED = 20  # steps: more than any contender reads ahead
COMPUTE, COMPUTE_1, READING = "computation alone", "computation alone, one thread", "reading alone"
ONE_THREAD = Step(technique="threads", options={"num_threads": 1})
LOADER, PREFETCH = Step(technique="loader"), Step(technique="prefetch", options={"depth": 4})
CONTENDERS: dict[str, tuple[Step, ...]] = {
    "as it is": (),
    "loader": (LOADER,),
    "prefetch": (PREFETCH,),
    "loader and prefetch": (LOADER, PREFETCH),
    "loader, 8 workers": (Step(technique="loader", options={"num_workers": 8}),),
    "loader, one thread": (ONE_THREAD, LOADER),
    "prefetch, one thread": (ONE_THREAD, PREFETCH),
    COMPUTE: (),
    COMPUTE_1: (ONE_THREAD,),
    READING: (),
}


class Photographs(Dataset[tuple[Tensor, int]]):
    """Decode a photograph of a hand, and cut, flip and scale it to 3 x 64 x 64."""

    def __init__(self, archive: Path, wait_s: float = 0.0) -> None:
        self.wait_s = wait_s
        with tarfile.open(archive) as tar:
            members = sorted((m for m in tar.getmembers() if m.name.endswith(".JPG")), key=lambda m: m.name)
            chosen = members[:: max(1, len(members) // NUM_PHOTOGRAPHS)][:NUM_PHOTOGRAPHS]
            self.files = [(_bytes(tar, m), int(Path(m.name).parent.name)) for m in chosen]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        data, label = self.files[index]
        time.sleep(self.wait_s)
        draw = random.Random(index)
        photograph = Image.open(io.BytesIO(data)).convert("RGB")
        side = draw.randint(60, 100)
        left, top = (draw.randint(0, max(0, length - side)) for length in photograph.size)
        photograph = photograph.rotate(draw.uniform(-10, 10), Image.Resampling.BICUBIC)
        photograph = photograph.resize((SIZE, SIZE), Image.Resampling.LANCZOS, (left, top, left + side, top + side))
        pixels = torch.frombuffer(bytearray(photograph.tobytes()), dtype=torch.uint8)
        x = pixels.reshape(SIZE, SIZE, 3).permute(2, 0, 1).float().div_(255).sub_(0.5).div_(0.25)
        return x.flip(2) if draw.random() < 0.5 else x, label


def _bytes(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def training(width: int, *, in_memory: bool, wait_s: float = 0.0) -> TrainingWorkload:
    """Return a small network of convolutions on photographs, read while it trains or before.

    Args:
        width: The channels of its first convolution.
        in_memory: Whether the batches are read before.
        wait_s: What each photograph waits.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )
    loader = DataLoader(Photographs(ARCHIVE, wait_s), batch_size=BATCH, shuffle=True, drop_last=True)
    return TrainingWorkload(
        model=model,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        batches=list(loader) if in_memory else loader,
        num_samples=BATCH,
    )


def photographs() -> TrainingWorkload:
    """Return the training for `whet tune benchmarks/loader.py:photographs`, which finds what fits it by itself."""
    return training(48, in_memory=False)


def main() -> None:
    arguments = _arguments()
    if arguments.worker is not None:
        _serve(arguments)
        return
    if not ARCHIVE.is_file():
        sys.exit(f"{ARCHIVE} is not here")
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(arguments.sets):
        with quiet_machine():
            one_set = _one_set(arguments, number)
        for name, seconds in one_set.items():
            times[name] += seconds
    rows = [_row(name, times) for name in times if times[name]]
    for row in rows:
        print(
            f"{row['contender']:<22} {row['step_ms']:8.1f} ms a step   over the original {_told(row['over_original'])}"
            f"   share of the computation's speed {_told(row['share_of_compute'])}"
        )
    limits = _limits({row["contender"]: row["step_ms"] for row in rows}, describe().cores, arguments.wait_ms)
    print(
        f"a step takes {limits['cores_ms']:.1f} ms at least on these cores, and {limits['beside_ms']:.1f} ms with one "
        "worker beside one thread"
    )
    if arguments.json is not None:
        command = f"python benchmarks/loader.py --wait-ms {arguments.wait_ms:g} --width {arguments.width}"
        command += f" --sets {arguments.sets} --rounds {arguments.rounds} --steps {arguments.steps}"
        sizes = {"wait_ms": arguments.wait_ms, "width": arguments.width}
        report = {**circumstances(command), **sizes, "limits": limits, "contenders": rows}
        write_whole(arguments.json, json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wait-ms", type=float, default=0.0, help="what each photograph waits, in milliseconds")
    parser.add_argument("--width", type=int, default=48, help="channels of the first convolution")
    parser.add_argument("--sets", type=int, default=3, help="groups of fresh processes")
    parser.add_argument("--rounds", type=int, default=8, help="bursts of each contender in a set")
    parser.add_argument("--steps", type=int, default=12, help="timed steps of a burst")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def _limits(step_ms: dict[str, float], cores: int, wait_ms: float) -> dict[str, float]:
    """Return the least times of a step, in milliseconds, that the cores allow.

    Args:
        step_ms: The time of a step of each contender.
        cores: The cores.
        wait_ms: What a photograph waits, which takes no core.
    """
    reading = step_ms[READING] - BATCH * wait_ms
    least = min(step_ms[COMPUTE_1], cores * step_ms[COMPUTE])
    return {
        "cores_ms": max(step_ms[COMPUTE], (reading + least) / cores),
        "beside_ms": max(step_ms[COMPUTE_1], step_ms[READING]),
    }


def _row(name: str, times: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "contender": name,
        "step_ms": 1e3 * statistics.median(times[name]),
        "over_original": _ratio(times["as it is"], times[name]),
        "share_of_compute": _ratio(times[COMPUTE], times[name]),
    }


def _ratio(old: list[float], new: list[float]) -> dict[str, Any]:
    claim = claim_of(old, new)
    return {"ratio": claim.ratio, "ci95": list(claim.ci95), "num_pairs": claim.num_pairs}


def _told(ratio: dict[str, Any]) -> str:
    low, high = ratio["ci95"]
    return f"{ratio['ratio']:.2f} ({low:.2f}-{high:.2f})"


def _one_set(arguments: argparse.Namespace, seed: int) -> dict[str, list[float]]:
    """Start a process for each contender, then ask them for bursts in turn."""
    order = random.Random(seed)
    workers = {}
    for name in order.sample(list(CONTENDERS), len(CONTENDERS)):
        asked = ["--worker", name, "--steps", str(arguments.steps), "--wait-ms", str(arguments.wait_ms)]
        asked += ["--width", str(arguments.width)]
        command = [sys.executable, __file__, *asked]
        workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _answer(name, workers[name])
    times: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(arguments.rounds):
        for name in order.sample(list(workers), len(workers)):
            worker = workers[name]
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
            times[name].append(float(_answer(name, worker)))
    for worker in workers.values():
        worker.communicate("stop\n")
    return times


def _answer(name: str, worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith("answer "):
            return line.removeprefix("answer ").strip()
    sys.exit(f"the process of {name!r} ended")


def _serve(arguments: argparse.Namespace) -> None:
    """Make bursts of steps whenever asked, and answer with the seconds of a step."""
    num_steps, steps = arguments.steps, CONTENDERS[arguments.worker]
    in_memory = arguments.worker in (COMPUTE, COMPUTE_1)
    workload = training(arguments.width, in_memory=in_memory, wait_s=arguments.wait_ms / 1e3)
    trainer = Trainer(workload, keeps_losses=False, change=lambda m, o, b: _changed(Parts(m, o, b), steps))
    step = trainer.next_batches if arguments.worker == READING else trainer.step
    step()
    print("answer ready", flush=True)
    for line in sys.stdin:
        if line.strip() != "go":
            return
        for _ in range(UNTIMED):
            step()
        began = time.perf_counter()
        for _ in range(num_steps):
            step()
        print(f"answer {(time.perf_counter() - began) / num_steps:.9f}", flush=True)


def _changed(parts: Parts, steps: tuple[Step, ...]) -> Parts:
    """Apply a recipe, and end where a technique refuses."""
    for step, verdict in unfit(parts, steps, TRAINING_TABLE, describe()):
        sys.exit(f"{step.technique} does not apply: {verdict.reason}")
    return applied(parts, steps, TRAINING_TABLE)


if __name__ == "__main__":
    main()
