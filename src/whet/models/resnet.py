"""Classify small images with a residual network of basic blocks (He et al., 2015, arXiv:1512.03385).

Shape suffixes: B batch, C channels, H height, W width, K classes.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Apply two 3x3 convolutions and a shortcut: [B, in_channels, H, W] -> [B, out_channels, H/stride, W/stride]."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x_BCHW: Tensor) -> Tensor:
        residual_BCHW = self.shortcut(x_BCHW)
        x_BCHW = F.relu(self.bn1(self.conv1(x_BCHW)))
        x_BCHW = self.bn2(self.conv2(x_BCHW))
        return F.relu(x_BCHW + residual_BCHW)


class ResNet(nn.Module):
    """Classify images with a stem of stride 2, stages of basic blocks, a mean over the image, and a linear head.

    Every stage from the second on halves height and width. The defaults give 2.8 million parameters: ResNet-18 at half
    its width.

    Args:
        widths: The channels of each stage.
        depths: The number of blocks in each stage.
    """

    def __init__(
        self,
        in_channels: int = 1,
        num_classes: int = 10,
        widths: Sequence[int] = (32, 64, 128, 256),
        depths: Sequence[int] = (2, 2, 2, 2),
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, widths[0], 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(),
        )
        stages = []
        channels = widths[0]
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            first = BasicBlock(channels, width, stride=1 if i == 0 else 2)
            stages.append(nn.Sequential(first, *(BasicBlock(width, width) for _ in range(depth - 1))))
            channels = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Map images [B, in_channels, H, W] to logits [B, num_classes]."""
        x_BCHW = self.stages(self.stem(x_BCHW))
        logits_BK: Tensor = self.head(x_BCHW.mean(dim=(2, 3)))
        return logits_BK
