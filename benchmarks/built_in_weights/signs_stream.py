"""Train signs-stream: a teacher that denoises frames, and a student that does so in 1 to 4 steps.

    python -m benchmarks.built_in_weights signs-stream --data sign_digits.tar --minutes 30 --distil-minutes 20

It trains in stages: the classifier that judges frames, the teacher, regression if asked for, and the student. Each
writes its state into the directory --run every two minutes, so that the same command goes on after it was cut off. In
the end it writes the weights, and prints the quality of frames of people whom no network has seen.

On a machine that does other work too, set OMP_WAIT_POLICY=passive. Otherwise, PyTorch's threads spin while they wait
for one of them that the other work holds up, and two threads can be slower than one.
"""

import argparse
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from whet.errors import OptionError
from whet.files import usable_directory
from whet.models.config_file import FILE as CONFIG
from whet.models.diffusion.unet import FrameUNet, UNetConfig, load_unet
from whet.models.samplers import Steps
from whet.workloads import WEIGHTS
from whet.workloads import signs_classifier as judge
from whet.workloads.signs_data import Photos, read_photos, split_photos

from .resumable import Limit, Stage, fit
from .signs_noise import draw_frames, student_steps, teacher_steps
from .signs_quality import Draw, FrameQuality, UnseenClips, bicubic, drawn, measured
from .signs_stages import (
    classifier_stage,
    regressed,
    regression_stage,
    student_stage,
    teacher_stage,
)
from .tokenizer import write_json
from .writing import save_weights, write_directory

NAME = "signs-stream"
TEACHER = "signs-stream-teacher"
REGRESSION = "signs-stream-regression"
QUALITY = "quality.json"

_FRAMES = 3  # of each clip that is drawn for the quality


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Say how long each stage takes, and what all have in common.

    Attributes:
        classifier: The limit of the classifier.
        teacher: The limit of the teacher, and that of regression.
        student: The limit of the student.
        with_regression: Whether the same U-Net is trained in one pass too.
        batch_size: Samples of a step; the classifier takes four times as many.
        seed: Chooses the weights and the samples.
    """

    classifier: Limit
    teacher: Limit
    student: Limit
    with_regression: bool = False
    batch_size: int = 16
    seed: int = 0


def main(arguments: list[str] | None = None) -> int:
    """Train as the command line says, and return the exit code.

    Raises:
        WhetError: An option, the data or a state file cannot be used.
    """
    options = _parser().parse_args(arguments)
    if min(options.batch, options.threads, options.photos) < 1:
        raise OptionError("--batch, --threads and --photos take numbers from 1")
    plan = Plan(
        classifier=Limit(minutes=options.classifier_minutes, steps=options.steps),
        teacher=Limit(minutes=options.minutes, steps=options.steps),
        student=Limit(minutes=options.distil_minutes, steps=options.steps),
        with_regression=options.regression,
        batch_size=options.batch,
        seed=options.seed,
    )
    torch.set_num_threads(options.threads)
    run, out = usable_directory(options.run), usable_directory(options.out)
    photos = split_photos(read_photos(options.data))
    train_all(photos["train"], plan, run, out)
    clips = UnseenClips.of(photos["test"], num_photos=options.photos, num_frames=_FRAMES)
    found = qualities(clips, out, with_regression=plan.with_regression)
    _say_table(found)
    write_json(run / QUALITY, {name: _finite(quality) for name, quality in found.items()})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.built_in_weights {NAME}", description="Train signs-stream."
    )
    parser.add_argument("--data", type=Path, required=True, help="sign_digits.tar")
    parser.add_argument(
        "--out", type=Path, default=WEIGHTS, help="where the weights are written (default: the package)"
    )
    parser.add_argument("--run", type=Path, default=Path("signs-stream-run"), help="where the stages' state is written")
    parser.add_argument("--minutes", type=float, default=30, help="minutes of the teacher (default 30)")
    parser.add_argument("--distil-minutes", type=float, default=20, help="minutes of the student (default 20)")
    parser.add_argument("--classifier-minutes", type=float, default=5, help="minutes of the classifier (default 5)")
    parser.add_argument("--regression", action="store_true", help="train the same U-Net in one pass too, for --minutes")
    parser.add_argument("--steps", type=int, help="end each stage after so many optimiser steps, if that is earlier")
    parser.add_argument("--batch", type=int, default=16, help="samples of a step (default 16)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads (default: all cores)")
    parser.add_argument("--photos", type=int, default=192, help="test photos for the quality (default 192)")
    parser.add_argument("--seed", type=int, default=0, help="chooses weights and samples (default 0)")
    return parser


def train_all(photos: Photos, plan: Plan, run: Path, out: Path) -> None:
    """Train all stages from where they are, and write the weights of each as soon as it has ended.

    Args:
        photos: The photos of the people to learn from.
        plan: How long the stages take.
        run: The directory of the stages' state.
        out: The directory of the weights.
    """
    batch_size, seed = plan.batch_size, plan.seed
    torch.manual_seed(seed)
    classifier = judge.new_classifier()
    fit(classifier_stage(classifier, photos, batch_size=4 * batch_size, seed=seed), plan.classifier, run)
    write_directory(out / judge.NAME, lambda directory: save_weights(classifier.state_dict(), directory))

    teacher = teacher_stage(_new_unet(seed), photos, batch_size=batch_size, seed=seed)
    fit(teacher, plan.teacher, run)
    _write_average(teacher, out / TEACHER)

    if plan.with_regression:
        regression = regression_stage(_new_unet(seed), photos, batch_size=batch_size, seed=seed)
        fit(regression, plan.teacher, run)
        _write_average(regression, out / REGRESSION)

    student = student_stage(_average(teacher), photos, batch_size=batch_size, seed=seed)
    fit(student, plan.student, run)
    _write_average(student, out / NAME)


def _new_unet(seed: int) -> FrameUNet:
    """Return a U-Net with random weights."""
    torch.manual_seed(seed)
    return _channels_last(FrameUNet(UNetConfig()))


def _channels_last(network: FrameUNet) -> FrameUNet:
    """Lay a network's kernels out with the channels last, in place, and return it."""
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _average(stage: Stage) -> FrameUNet:
    """Return the average of a stage's weights."""
    mean = stage.modules["average"]
    assert isinstance(mean, FrameUNet)
    return mean


def _write_average(stage: Stage, directory: Path) -> None:
    """Write the average of a stage's weights with its configuration."""
    mean = _average(stage)

    def write(partial: Path) -> None:
        save_weights(mean.state_dict(), partial)
        write_json(partial / CONFIG, mean.config.as_json())

    write_directory(directory, write)


def qualities(clips: UnseenClips, weights: Path, *, with_regression: bool) -> dict[str, FrameQuality]:
    """Return the quality of each way to draw frames, with the weights as written.

    Args:
        clips: The clips to draw.
        weights: The directory of the weights.
        with_regression: Whether the U-Net of one pass is there too.
    """
    classifier = judge.load_classifier(weights)
    teacher, student = load_unet(weights / TEACHER), load_unet(weights / NAME)
    ways: dict[str, Draw] = {"bicubic": bicubic}
    if with_regression:
        ways["regression, one pass"] = _by_regression(load_unet(weights / REGRESSION))
    ways["teacher, 20 steps"] = _by(teacher, teacher_steps(20))
    for num in (1, 2, 4):
        ways[f"distilled, {num} step{'s' if num > 1 else ''}"] = _by(student, student_steps(num))
    found = {"true frames": measured(clips.frames_BTCHW, clips, classifier)}
    return found | {name: measured(drawn(clips, draw), clips, classifier) for name, draw in ways.items()}


def _by(network: FrameUNet, steps: Steps) -> Draw:
    """Return how a network draws frames with a sampler. The noise is the same for every way to draw."""
    network = _channels_last(network)
    generator = torch.Generator().manual_seed(0)

    def draw(grey_BCHW: Tensor, previous_BCHW: Tensor, digit_B: Tensor) -> Tensor:
        return draw_frames(network, steps, (grey_BCHW, previous_BCHW, digit_B), generator)

    return draw


def _by_regression(network: FrameUNet) -> Draw:
    def draw(grey_BCHW: Tensor, previous_BCHW: Tensor, digit_B: Tensor) -> Tensor:
        with torch.no_grad():
            return regressed(network, grey_BCHW, previous_BCHW, digit_B)

    return draw


def _finite(quality: FrameQuality) -> dict[str, float | None]:
    """Return a quality as JSON can hold it. The PSNR of the true frames is infinite, and becomes null."""
    return {name: value if math.isfinite(value) else None for name, value in asdict(quality).items()}


def _say_table(found: dict[str, FrameQuality]) -> None:
    """Print a line for each way to draw frames."""
    lines = [f"{'test people':22} {'PSNR (dB)':>9} {'SSIM':>6} {'sharpness':>9} {'recognised':>10}"]
    for name, one in found.items():
        lines.append(f"{name:22} {one.psnr_db:9.2f} {one.ssim:6.3f} {one.sharpness:9.2f} {one.accuracy:10.1%}")
    sys.stdout.write("\n".join(lines) + "\n")
