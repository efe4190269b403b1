"""ResNet-50 as layers that a pipeline can be cut between: stem, sixteen bottlenecks, classifier.

Sizes of He et al. 2015 (arXiv 1512.03385, table 1), the stride in the 3x3 convolution as in torchvision and
NVIDIA's v1.5.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from pipesim.executor.models import PipelineModel

BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))
EXPANSION = 4


def resnet50(microbatch_size: int = 4, image_size: int = 224, num_classes: int = 1000) -> PipelineModel:
    """Classify images of 224 x 224 pixels."""
    layers = [stem]
    channels = 64
    for stage, (width, number) in enumerate(BLOCKS):
        for block in range(number):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(partial(Bottleneck, channels, width, stride))
            channels = width * EXPANSION
    layers.append(partial(classifier, channels, num_classes))

    def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images = torch.randn(microbatch_size, 3, image_size, image_size, generator=generator)
        return images, torch.randint(num_classes, (microbatch_size,), generator=generator)

    return PipelineModel(layers, sample, functional.cross_entropy)


def resnet50_2k(microbatch_size: int = 4) -> PipelineModel:
    """Classify images of 2048 x 2048 pixels: the same weights, 84 times the activations."""
    return resnet50(microbatch_size, image_size=2048)


def stem() -> nn.Module:
    """Halve the image's sides twice."""
    return nn.Sequential(convolution(3, 64, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            convolution(channels, width, 1),
            nn.ReLU(inplace=True),
            convolution(width, width, 3, stride=stride),
            nn.ReLU(inplace=True),
            convolution(width, width * EXPANSION, 1),
        )
        changes = stride > 1 or channels != width * EXPANSION
        self.shortcut = convolution(channels, width * EXPANSION, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to four times `width` channels."""
        return functional.relu(self.path(x) + self.shortcut(x), inplace=True)


def convolution(channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Sequential:
    """Convolution without bias, and batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(channels, out_channels, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(out_channels),
    )


def classifier(channels: int, num_classes: int) -> nn.Module:
    """Average over the image, then one linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))
