#!/usr/bin/env python3
"""A PyTorch model that dtrain trains: a network with dropout and batch norm on the digits of dtrain's own examples.

    pip install .[torch]
    python examples/train_pytorch.py                    # on all cores
    python examples/train_pytorch.py ranks=3 epochs=5   # the same digest for any number of ranks
"""

import gzip
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import dtrain

DIGITS = Path(__file__).resolve().parent.parent / "crates" / "data" / "src" / "digits.csv.gz"


def digits():
    rows = [[float(field) for field in line.split(",")] for line in gzip.open(DIGITS, "rt")]
    table = torch.tensor(rows)
    return table[:, :-1] / 16, table[:, -1].long()


def model():
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))


def loss(net, batch):
    x, y = batch
    return F.cross_entropy(net(x), y, reduction="sum"), len(y)


def accuracy(net, batch):
    x, y = batch
    return (net(x).argmax(1) == y).sum(), len(y)


if __name__ == "__main__":
    x, y = digits()
    held_out = torch.arange(len(x)) % 5 == 0
    result = dtrain.train(
        model, data=(x[~held_out], y[~held_out]), val=(x[held_out], y[held_out]), loss=loss, metrics={"accuracy": accuracy},
        optimizer=dtrain.AdamW(lr=2e-3), epochs=20, global_batch=64, micro_batch=16, name="digits-torch",
    )  # fmt: skip
    net = model()
    net.load_state_dict(result.load("last"))
    net.eval()
    right, of = accuracy(net, (x[held_out], y[held_out]))
    print(f"PyTorch says {int(right) / of:.4f}, dtrain said {result.val_accuracy:.4f}")
