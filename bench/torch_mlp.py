#!/usr/bin/env python3
"""The MLP of bench/kill.py as a PyTorch program that dtrain trains: 784-1024-1024-10 with dropout, on numbers made here."""

import torch
import torch.nn.functional as F
from torch import nn

import dtrain

SAMPLES, HELD_OUT = 60_000, 10_000


def model():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def loss(net, batch):
    x, y = batch
    return F.cross_entropy(net(x), y, reduction="sum"), len(y)


def data(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(samples, 784, generator=generator)
    return x, (x[:, :10] + 0.1 * torch.rand(samples, 10, generator=generator)).argmax(1)


if __name__ == "__main__":
    dtrain.train(
        model, data=lambda: data(SAMPLES, 1), val=lambda: data(HELD_OUT, 2), loss=loss, name="torch-mlp",
        optimizer=dtrain.AdamW(lr=1e-3), steps=938, global_batch=128, micro_batch=16, warmup="none",
    )  # fmt: skip
