"""DenseNet (Huang et al., "Densely Connected Convolutional Networks"), for the guides' examples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    """[N, C, H, W] -> [N, C + growth, H, W]: what was there, and ``growth`` channels more."""

    def __init__(self, channels: int, growth: int, bottleneck: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(bottleneck * growth)
        self.conv1 = nn.Conv2d(channels, bottleneck * growth, 1, bias=False)
        self.conv2 = nn.Conv2d(bottleneck * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        new = self.conv1(F.relu(self.norm1(x), inplace=True))
        return torch.cat([x, self.conv2(F.relu(self.norm2(new), inplace=True))], 1)


class DenseNet(nn.Module):
    """Pictures [N, 3, H, W] -> logits [N, classes]; the defaults are DenseNet-121."""

    def __init__(
        self, growth: int = 32, blocks: Sequence[int] = (6, 12, 24, 16), channels: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        layers: list[nn.Module] = [*stem, nn.MaxPool2d(3, 2, 1)]
        for i, count in enumerate(blocks):
            layers += [Layer(channels + n * growth, growth) for n in range(count)]
            channels += count * growth
            layers.append(nn.BatchNorm2d(channels))
            if i + 1 < len(blocks):  # a transition
                layers += [nn.ReLU(inplace=True), nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                channels //= 2
        self.features, self.classifier = nn.Sequential(*layers), nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(F.relu(self.features(x)), 1), 1))
