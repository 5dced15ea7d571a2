#!/usr/bin/env python3
"""A 3-D CNN on clips of 17 frames, read by processes of their own: which way something moves.

    python examples/clips_3d.py                 # 17 x 32 x 32
    SIDE=256 python examples/clips_3d.py        # 17 x 256 x 256

The clips are made as they are read; with videos `Clips.__getitem__` is what changes.
"""

import os

import torch
import torch.nn.functional as F
from torch import nn

import dtrain

FRAMES, SIDE, WAYS = 17, int(os.environ.get("SIDE", "32")), 4


class Clips(torch.utils.data.Dataset):
    """Blobs that move left, right, up or down; a clip's numbers follow from its own."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        way = index % WAYS
        x, y = (torch.rand(2, generator=generator) * 0.4 + 0.3) * SIDE
        moved = torch.linspace(-0.25, 0.25, FRAMES) * SIDE * (1 if way % 2 else -1)
        xs, ys = (x + moved, y.expand(FRAMES)) if way < 2 else (x.expand(FRAMES), y + moved)
        grid = torch.arange(SIDE, dtype=torch.float32)
        blob = torch.exp(-((grid[None, None] - xs[:, None, None]) ** 2 + (grid[None, :, None] - ys[:, None, None]) ** 2) / (0.02 * SIDE**2))
        return (blob + 0.1 * torch.randn(FRAMES, SIDE, SIDE, generator=generator))[None], way


def model():
    def block(inputs, outputs):
        return [nn.Conv3d(inputs, outputs, 3, padding=1), nn.BatchNorm3d(outputs), nn.ReLU(), nn.MaxPool3d((1, 2, 2))]

    return nn.Sequential(*block(1, 8), *block(8, 16), nn.AdaptiveAvgPool3d((4, 4, 4)), nn.Flatten(), nn.Linear(16 * 64, WAYS))


def loss(net, batch):
    x, y = batch
    return F.cross_entropy(net(x), y, reduction="sum"), len(y)


def accuracy(net, batch):
    x, y = batch
    return (net(x).argmax(1) == y).sum(), len(y)


if __name__ == "__main__":
    dtrain.train(
        model, data=Clips(256, seed=1), val=Clips(64, seed=2), loss=loss, metrics={"accuracy": accuracy}, workers=1,
        optimizer=dtrain.AdamW(lr=2e-3), epochs=6, global_batch=16, micro_batch=4, name="clips",
    )  # fmt: skip
