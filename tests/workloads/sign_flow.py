"""Compute the optical flow of clips of signs from the windows that show their photos."""

import torch
from torch import Tensor

from whet.workloads.signs_data import _PHOTO, FRAME, Clips, _apply, _places


def flow(clips: Clips) -> Tensor:
    """Return where each pixel of a frame goes until the next frame, (x, y) in pixels, [B, T-1, 2, 64, 64].

    So frame t at (x, y) shows what frame t+1 shows at (x, y) + flow, where that is within the frame and both
    places are within the photo; `is_inside` says where that is so.
    """
    places_BTHW2 = _next_places(clips)
    here_HW2 = _places(clips.windows_BT23.dtype)
    return ((places_BTHW2 - here_HW2) * (FRAME / 2)).permute(0, 1, 4, 2, 3)


def is_inside(clips: Clips) -> Tensor:
    """Return where the flow leads to a pixel of the next frame, and both are in the photo: bool [B, T-1, 64, 64].

    Pixels of the outermost rows and columns have no neighbours to interpolate with, and do not count.
    """
    edge = 1 - 1 / FRAME
    stays_BTHW = (_next_places(clips).abs() <= edge).all(-1)
    photo_BTHW2 = _apply(clips.windows_BT23[:, :-1], _places(clips.windows_BT23.dtype))
    return stays_BTHW & (photo_BTHW2.abs() <= 1 - 4 / _PHOTO).all(-1)


def _next_places(clips: Clips) -> Tensor:
    """Return where each pixel is in the next frame, (x, y) in [-1, 1] from edge to edge, [B, T-1, 64, 64, 2]."""
    now, following = _square(clips.windows_BT23[:, :-1]), _square(clips.windows_BT23[:, 1:])
    return _apply(torch.linalg.solve(following, now)[..., :2, :], _places(now.dtype))


def _square(windows_BT23: Tensor) -> Tensor:
    """Return affine maps as matrices [B, T, 3, 3], whose last row is (0, 0, 1)."""
    last = torch.tensor([0.0, 0.0, 1.0], dtype=windows_BT23.dtype).expand(*windows_BT23.shape[:-2], 1, 3)
    return torch.cat([windows_BT23, last], -2)
