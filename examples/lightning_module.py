#!/usr/bin/env python3
"""A LightningModule that dtrain trains: no loss and no optimizer beside it, for the module has both.

    pip install .[torch] lightning
    python examples/lightning_module.py                  # on all cores
    python examples/lightning_module.py ranks=3 epochs=5 # the same digest for any number of ranks

The data are dtrain's own digits. `Trainer(...).fit(Digits(), loader)` would train the same module.
"""

import gzip
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from torch import nn

import dtrain

DIGITS = Path(__file__).resolve().parent.parent / "crates" / "data" / "src" / "digits.csv.gz"


def digits():
    table = torch.tensor([[float(field) for field in line.split(",")] for line in gzip.open(DIGITS, "rt")])
    return table[:, :-1] / 16, table[:, -1].long()


class Digits(lightning.LightningModule):
    def __init__(self, width=128, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def accuracy(net, batch):
    x, y = batch
    return (net(x).argmax(1) == y).sum(), len(y)


if __name__ == "__main__":
    x, y = digits()
    held_out = torch.arange(len(x)) % 5 == 0
    result = dtrain.train(
        Digits, data=(x[~held_out], y[~held_out]), val=(x[held_out], y[held_out]), metrics={"accuracy": accuracy},
        epochs=10, global_batch=64, micro_batch=16, name="digits-lightning",
    )  # fmt: skip
    net = Digits()
    net.load_state_dict(result.load("last"))
    right, of = accuracy(net.eval(), (x[held_out], y[held_out]))
    print(f"PyTorch says {int(right) / of:.4f}, dtrain said {result.val_accuracy:.4f}")
