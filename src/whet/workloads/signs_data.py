"""Read the photos of sign_digits.tar, and make clips of moving hands whose optical flow is known exactly.

The archive is that of github.com/ardamavi/Sign-Language-Digits-Dataset (Apache-2.0): 2,062 photos of 100 x 100 pixels
in which some 220 people show the digits 0 to 9. A photo's place says its digit, and its number says when it was taken:
Dataset/7/IMG_1125.JPG. A clip shows one photo from a moving, turning and zooming window. The window's corners are an
affine function of the frame's pixels, so that the flow between two frames is one too.

Shape suffixes: N photos, B clips, T frames, C channels, H height, W width.
"""

import io
import math
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whet.errors import MissingExtra, OptionError, TargetError, reason
from whet.models.diffusion.colour import seen_in_grey

FRAME = 64  # pixels of a colour frame, each way
GREY = 16  # pixels of a grey camera frame, each way
NUM_DIGITS = 10
SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}  # shares of the people

_PHOTO = 100  # pixels of a photo, each way
_MEMBER = re.compile(r"(?:.*/)?(\d)/IMG_(\d+)\.JPG", re.IGNORECASE)
_OVERSAMPLED = 2  # samples of a photo for each pixel of a frame, each way


@dataclass(frozen=True)
class Photos:
    """Hold photos in the order in which they were taken.

    Attributes:
        images_NCHW: The photos, uint8 [N, 3, 100, 100].
        digits_N: The digit that each shows, int64 [N].
        people_N: The number of the person who shows it, int64 [N]; it counts from 0.
    """

    images_NCHW: Tensor
    digits_N: Tensor
    people_N: Tensor

    def __len__(self) -> int:
        return len(self.digits_N)

    def of(self, people: Sequence[int]) -> "Photos":
        kept_N = torch.isin(self.people_N, torch.tensor(people, dtype=torch.int64))
        return Photos(self.images_NCHW[kept_N], self.digits_N[kept_N], self.people_N[kept_N])


def read_photos(archive: Path | str) -> Photos:
    """Return all photos of the archive. Nothing is written to the disk.

    Raises:
        MissingExtra: Pillow is not installed.
        TargetError: The archive is missing, damaged, or holds no photos.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("pillow", "stream", "reading the photos of signs-stream") from error
    found: list[tuple[int, int, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]] = []
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                match, file = _MEMBER.fullmatch(member.name), opened.extractfile(member)
                if match is None or file is None:
                    continue
                photo = Image.open(io.BytesIO(file.read())).convert("RGB").resize((_PHOTO, _PHOTO))
                found.append((int(match[2]), int(match[1]), np.asarray(photo)))
    except (OSError, tarfile.TarError, KeyError, SyntaxError, ValueError) as error:  # Pillow raises SyntaxError too
        raise TargetError(f"{archive} cannot be read: {reason(error)}; name the file sign_digits.tar") from error
    if not found:
        raise TargetError(f"{archive} holds no photos such as Dataset/7/IMG_1125.JPG; name the file sign_digits.tar")
    found.sort(key=lambda one: one[0])
    digits = [digit for _, digit, _ in found]
    images_NHWC = torch.from_numpy(np.stack([image for _, _, image in found]))
    return Photos(images_NHWC.permute(0, 3, 1, 2).contiguous(), torch.tensor(digits), torch.tensor(people(digits)))


def runs(digits: Sequence[int]) -> list[list[int]]:
    """Return the runs of photos in which the digit rises: the places of the photos of each run, in order.

    Each person shows the digits from 0 to 9, so a new run mostly is a new person.
    """
    found: list[list[int]] = []
    for place, digit in enumerate(digits):
        if place == 0 or digit <= digits[place - 1]:
            found.append([])
        found[-1].append(place)
    return found


def people(digits: Sequence[int]) -> list[int]:
    """Return the number of the person in each photo, given the digits in the order of the photos.

    Some people showed a digit twice in a row or went back to one that they had left out, which begins a run too. So a
    run belongs to the person before it where its first digit repeats the last one, or where that person has shown none
    of its digits. Two people can become one by that, but one person hardly ever becomes two.
    """
    numbers: list[int] = []
    shown: set[int] = set()
    for run in runs(digits):
        new = {digits[place] for place in run}
        is_same = bool(numbers) and (digits[run[0]] == digits[run[0] - 1] or not new & shown)
        shown = shown | new if is_same else new
        number = 0 if not numbers else numbers[-1] + (not is_same)
        numbers += [number] * len(run)
    return numbers


def split_photos(photos: Photos, seed: int = 0) -> dict[str, Photos]:
    """Divide photos by person at random into "train", "validation" and "test"; raise OptionError for under 3 people."""
    everybody = torch.unique(photos.people_N)
    if len(everybody) < len(SPLITS):
        raise OptionError(f"photos of at least {len(SPLITS)} people are needed; got {len(everybody)}")
    order = everybody[torch.randperm(len(everybody), generator=seeded(seed))].tolist()
    num_each = {name: max(1, round(share * len(order))) for name, share in SPLITS.items() if name != "train"}
    parts, end = {}, len(order)
    for name, count in num_each.items():
        parts[name] = photos.of(order[end - count : end])
        end -= count
    return {"train": photos.of(order[:end]), **parts}


@dataclass(frozen=True)
class Clips:
    """Hold frames of clips. Images are float32 in [-1, 1].

    Attributes:
        frames_BTCHW: The colour frames, [B, T, 3, 64, 64].
        grey_BTCHW: The camera's frames, [B, T, 1, 16, 16]: means of 4 x 4 pixels of the frames' brightness.
        digits_B: The digits, int64 [B].
        windows_BT23: What maps a frame's place (x, y, 1) to a place in the photo, both in [-1, 1] from edge to edge,
            [B, T, 2, 3].
    """

    frames_BTCHW: Tensor
    grey_BTCHW: Tensor
    digits_B: Tensor
    windows_BT23: Tensor


class ClipMaker:
    """Make clips of photos. A clip depends on its number and on the seed of its window's moves alone, and has no end.

    Clip number i shows photo i modulo the number of photos. The window's place, angle and size swing
    around means, each with its own amplitude and speed. Every second clip, on average, is mirrored.
    """

    def __init__(self, photos: Photos, seed: int = 0) -> None:
        self._photos, self._seed = photos, seed

    def make(self, clips_B: Sequence[int], times_BT: Tensor) -> Clips:
        """Return the frames whose numbers are `times_BT`, [B, T], of the clips with the numbers `clips_B`, from 0."""
        rows_B = torch.tensor([number % len(self._photos) for number in clips_B])
        moves = torch.stack([_draw_moves(self._seed, number) for number in clips_B])
        windows_BT23 = _windows(moves, times_BT)
        photos_BCHW = self._photos.images_NCHW[rows_B].float() / 127.5 - 1
        frames_BTCHW = _seen(photos_BCHW, windows_BT23)
        return Clips(frames_BTCHW, camera_frames(frames_BTCHW), self._photos.digits_N[rows_B], windows_BT23)


def camera_frames(frames_BTCHW: Tensor) -> Tensor:
    """Return what the grey camera sees: [B, ..., 3, 64, 64] -> [B, ..., 1, 16, 16], in the same range."""
    return seen_in_grey(frames_BTCHW, FRAME // GREY)


def seeded(*numbers: int) -> torch.Generator:
    """Return a generator whose state depends on some numbers."""
    state = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def _draw_moves(seed: int, clip: int) -> Tensor:
    """Return mean, amplitude, speed and phase of x, y, angle and log size, and -1 to mirror: [4 * 4 + 1].

    Speeds are in radians a frame. Places are in half widths of the photo, and angles in radians.
    """
    draw = torch.rand(17, generator=seeded(seed, clip), dtype=torch.float64)
    mean, amplitude, speed, phase = draw[:16].view(4, 4)
    spread = torch.tensor([0.06, 0.06, 0.12, 0.08], dtype=torch.float64)
    centre = torch.tensor([0.0, 0.0, 0.0, math.log(0.82)], dtype=torch.float64)
    largest = torch.tensor([0.14, 0.14, 0.25, 0.12], dtype=torch.float64)
    parts = [centre + spread * (2 * mean - 1), largest * amplitude, 0.05 + 0.2 * speed, 2 * math.pi * phase]
    return torch.cat([*parts, (draw[16:] < 0.5).double() * 2 - 1])


def _windows(moves: Tensor, times_BT: Tensor) -> Tensor:
    """Return the affine maps from frames to photos, float64 [B, T, 2, 3]."""
    mean, amplitude, speed, phase = moves[:, None, :16].unflatten(-1, (4, 4)).unbind(-2)
    x, y, angle, log_size = (mean + amplitude * torch.sin(speed * times_BT.double()[..., None] + phase)).unbind(-1)
    cos, sin, mirror = log_size.exp() * angle.cos(), log_size.exp() * angle.sin(), moves[:, 16:].expand_as(x)
    rows = [torch.stack([mirror * cos, -sin, x], -1), torch.stack([mirror * sin, cos, y], -1)]
    return torch.stack(rows, -2)


def _places(dtype: torch.dtype, size: int = FRAME) -> Tensor:
    """Return the centres of a frame's pixels, (x, y) in [-1, 1] from edge to edge, [size, size, 2]."""
    one = (2 * torch.arange(size, dtype=dtype) + 1) / size - 1
    return torch.stack(torch.meshgrid(one, one, indexing="xy"), -1)


def _apply(maps: Tensor, places_HW2: Tensor) -> Tensor:
    """Return where affine maps, [..., 2, 3], lead from places, [H, W, 2]: [..., H, W, 2]."""
    turned: Tensor = torch.einsum("...ij,hwj->...hwi", maps[..., :2], places_HW2)
    return turned + maps[..., None, None, :, 2]


def _seen(photos_BCHW: Tensor, windows_BT23: Tensor) -> Tensor:
    """Return what windows show of photos, mirrored beyond their edges: means of 2 x 2 samples, [B, T, C, 64, 64]."""
    size = FRAME * _OVERSAMPLED
    num_clips, num_frames = windows_BT23.shape[:2]
    grid = _apply(windows_BT23, _places(windows_BT23.dtype, size)).float()  # [B, T, size, size, 2]
    tall = grid.reshape(num_clips, num_frames * size, size, 2)
    sampled = F.grid_sample(photos_BCHW, tall, mode="bilinear", padding_mode="reflection", align_corners=False)
    frames: Tensor = F.avg_pool2d(sampled, _OVERSAMPLED).unflatten(2, (num_frames, FRAME))
    return frames.transpose(1, 2).contiguous()
