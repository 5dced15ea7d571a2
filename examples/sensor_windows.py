#!/usr/bin/env python3
"""Activities from windows of sensors, with whole subjects held out: a network on flat windows, or one on sequences.

    python examples/sensor_windows.py                   # an LSTM over time
    MODE=flatten python examples/sensor_windows.py      # fully connected layers on 9 x 128 numbers

The signals are made here, in the form of UCI-HAR: 9 channels, 128 readings a window, 6 activities, 30 subjects, each with a gait of
their own. With real files `windows()` is what changes.
"""

import os

import torch
import torch.nn.functional as F
from torch import nn

import dtrain

CHANNELS, READINGS, ACTIVITIES, SUBJECTS, EACH = 9, 128, 6, 30, 40
MODE = os.environ.get("MODE", "sequences")


def windows():
    generator = torch.Generator().manual_seed(3)
    rand = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    activity = torch.randint(ACTIVITIES, (SUBJECTS, EACH), generator=generator)
    pace = 1 + 0.2 * rand(SUBJECTS, 1)
    time = torch.arange(READINGS) / READINGS
    speed = (pace * (1 + activity))[..., None] * time + rand(SUBJECTS, EACH, 1)
    phase = torch.arange(CHANNELS)[:, None] / CHANNELS
    signal = torch.sin(6.28 * (speed[:, :, None] + phase)) + 0.5 * torch.randn(SUBJECTS, EACH, CHANNELS, READINGS, generator=generator)
    subject = torch.arange(SUBJECTS)[:, None].expand(-1, EACH)
    return signal.flatten(0, 1), activity.flatten(), subject.flatten()


class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(CHANNELS, 48, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(96, ACTIVITIES))

    def forward(self, x):
        return self.head(self.lstm(x.transpose(1, 2))[0].mean(1))


def model():
    if MODE == "flatten":
        return nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * READINGS, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, ACTIVITIES))
    return Sequences()


def loss(net, batch):
    x, y = batch
    return F.cross_entropy(net(x), y, reduction="sum"), len(y)


def accuracy(net, batch):
    x, y = batch
    return (net(x).argmax(1) == y).sum(), len(y)


if __name__ == "__main__":
    x, y, subject = windows()
    # Nobody is measured on a subject that was trained on.
    held_out = subject >= SUBJECTS * 4 // 5
    dtrain.train(
        model, data=(x[~held_out], y[~held_out]), val=(x[held_out], y[held_out]), loss=loss, metrics={"accuracy": accuracy},
        optimizer=dtrain.AdamW(lr=2e-3, clip_norm=1.0), epochs=8, global_batch=64, micro_batch=16, name=f"sensors-{MODE}",
    )  # fmt: skip
