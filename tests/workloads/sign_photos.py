"""Make photos and archives of photos in which nothing is a hand, for the tests of signs-stream."""

import io
import tarfile

import pytest
import torch

from whet.workloads.signs_data import Photos


def ramps(num_people=4):
    """Return photos in which each colour is an affine function of the place, which bilinear interpolation keeps."""
    count = 10 * num_people
    down, right = torch.randint(-1, 2, (2, count, 3, 1, 1), generator=torch.Generator().manual_seed(0))
    from_centre = torch.arange(100) - 50
    return Photos(
        (120 + down * from_centre[:, None] + right * from_centre).byte(),
        torch.arange(10).repeat(num_people),
        torch.arange(num_people).repeat_interleave(10),
    )


def archive(path, entries):
    """Write an archive of grey photos, given as pairs of a name and a brightness."""
    image = pytest.importorskip("PIL.Image")
    with tarfile.open(path, "w") as written:
        for name, brightness in entries:
            content = io.BytesIO()
            if isinstance(brightness, bytes):
                content.write(brightness)
            else:
                image.new("RGB", (100, 100), (brightness,) * 3).save(content, "JPEG")
            member = tarfile.TarInfo(name)
            member.size = content.tell()
            content.seek(0)
            written.addfile(member, content)
    return path
