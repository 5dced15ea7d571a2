"""Train PyTorch models with dtrain: the same bits on any number of ranks, and no step lost when one of them dies.

    import torch, torch.nn.functional as F, dtrain

    def model():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    def loss(net, batch):
        x, y = batch
        return F.cross_entropy(net(x), y, reduction="sum"), len(y)

    if __name__ == "__main__":
        dtrain.train(model, data=my_dataset, loss=loss, optimizer=dtrain.AdamW(lr=2e-3), epochs=20)

``python train.py`` trains on all cores of this host, or on its GPUs where they can be used (the banner says why not); ``python train.py --help`` has the rest.
Nothing of PyTorch is imported before it is needed.
"""

from __future__ import annotations

from ._checkpoints import load
from ._curves import average_precision, roc_auc
from ._examples import examples
from ._optimizers import SGD, AdamW, Lion, Muon, Optimizer, torch_optimizer
from ._steps import Micro, Step, steps
from ._train import Result, train

try:
    from ._native import revision as _revision

    __version__: str = _revision().split(" ")[0]
except ImportError:  # the sources, without the extension module
    __version__ = "0.0.0"

__all__ = ["SGD", "AdamW", "Lion", "Micro", "Muon", "Optimizer", "Result", "Step", "__version__", "average_precision", "examples", "load", "roc_auc", "steps", "torch_optimizer", "train"]
