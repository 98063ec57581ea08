# SPDX-License-Identifier: Apache-2.0
"""ResNet v1.5 in plain PyTorch with torchvision's parameter names, to compare with Trireme's.

docs/reference/numerics.md and docs/reference/tensor_names.md describe it.
"""

import torch
from torch import nn
from torch.nn import functional

IMAGENET_DEPTHS = {
    18: ([2, 2, 2, 2], False),
    34: ([3, 4, 6, 3], False),
    50: ([3, 4, 6, 3], True),
    101: ([3, 4, 23, 3], True),
    152: ([3, 8, 36, 3], True),
}


def convolution(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class ResidualBlock(nn.Module):
    """A basic block (two 3x3) or bottleneck (1x1, 3x3 with the stride, 1x1 of four times the
    width)."""

    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            parts = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        else:
            parts = [(inputs, width, 3, stride), (width, width, 3, 1)]
        self.parts = len(parts)
        for number, part in enumerate(parts, 1):
            setattr(self, f"conv{number}", convolution(*part))
            setattr(self, f"bn{number}", nn.BatchNorm2d(part[1]))
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        residual = x if self.downsample is None else self.downsample(x)
        for number in range(1, self.parts + 1):
            x = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x))
            if number < self.parts:
                x = functional.relu(x, inplace=True)
        return functional.relu(x + residual, inplace=True)


class ResNet(nn.Module):
    """ResNet of depth 18, 34, 50, 101, 152, or 8, 14, 20, ...

    Depths 8, 14, 20, ... have three stages of (depth - 2) / 6 basic blocks. Stem "small" is a 3x3
    convolution without stride and pooling.
    """

    def __init__(self, depth, width=64, stem="small", channels=3, classes=10):
        super().__init__()
        counts, bottleneck = IMAGENET_DEPTHS.get(depth, ([(depth - 2) // 6] * 3, False))
        self.small = stem == "small"
        self.conv1 = convolution(channels, width, 3 if self.small else 7, 1 if self.small else 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.stages = len(counts)
        inputs = width
        for stage, count in enumerate(counts):
            blocks = []
            for index in range(count):
                blocks.append(
                    ResidualBlock(
                        inputs, width << stage, 2 if stage > 0 and index == 0 else 1, bottleneck
                    )
                )
                inputs = (width << stage) * (4 if bottleneck else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        if not self.small:
            x = functional.max_pool2d(x, 3, stride=2, padding=1)
        for stage in range(1, self.stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))
