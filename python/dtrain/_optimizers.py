"""Optimizers: dtrain's own. But for Muon they update a state that the ranks of a host share, each its part."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple, Union


class Optimizer:
    """How parameters move. Its options are keys of the configuration, so that the command line can change them."""

    def settings(self) -> "list[str]":
        """The options as ``key=value``."""
        raise NotImplementedError


def _decays(decay: str) -> str:
    if decay not in ("all", "matrices"):
        raise ValueError(f"decay is {decay!r}: 'all' lets every parameter decay, as torch.optim does, 'matrices' no bias and no norm")
    return f"optimizer.decays={decay}"


def _or_none(number: Optional[float]) -> str:
    return "none" if number is None else repr(number)


def _shared(optimizer: "Union[AdamW, Lion, Muon, SGD]") -> "list[str]":
    """What dtrain's own optimizers have in common."""
    rules = [f"{pattern}={factor!r}" for pattern, factor in optimizer.lr_factors.items()]
    return [
        f"optimizer.clip_norm={_or_none(optimizer.clip_norm)}",
        f"ema={_or_none(optimizer.ema)}",
        f"optimizer.lr_factors={json.dumps(rules)}",
        f"optimizer.no_decay={json.dumps(list(optimizer.no_decay))}",
        _decays(optimizer.decay),
    ]


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay, as ``torch.optim.AdamW``.

    ``clip_norm``: the largest norm of the whole gradient. ``decay``: what decays, ``'all'`` or ``'matrices'``.
    ``ema``: how much of the moving average of the parameters a step leaves, such as 0.999; it is what is validated and loaded.
    ``lr_factors``: groups of parameters by patterns of their names, ``{'body.*': 0.1}``, and what the learning rate of each is multiplied
    by; the first that fits counts. ``no_decay``: patterns of what never decays, ``['*.bias', '*norm*']``.
    """

    lr: float = 1e-3
    betas: Tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip_norm: Optional[float] = None
    decay: str = "all"
    ema: Optional[float] = None
    lr_factors: Mapping[str, float] = field(default_factory=dict)
    no_decay: Sequence[str] = ()

    def settings(self) -> "list[str]":
        return [
            "optimizer.kind=adamw",
            f"optimizer.lr={self.lr!r}",
            f"optimizer.beta1={self.betas[0]!r}",
            f"optimizer.beta2={self.betas[1]!r}",
            f"optimizer.eps={self.eps!r}",
            f"optimizer.weight_decay={self.weight_decay!r}",
            *_shared(self),
        ]


@dataclass(frozen=True)
class Lion(Optimizer):
    """The sign of a momentum, with decoupled weight decay; it wants some tenth of the learning rate of AdamW, and ten times its decay."""

    lr: float = 1e-4
    betas: Tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1
    clip_norm: Optional[float] = None
    decay: str = "all"
    ema: Optional[float] = None
    lr_factors: Mapping[str, float] = field(default_factory=dict)
    no_decay: Sequence[str] = ()

    def settings(self) -> "list[str]":
        return [
            "optimizer.kind=lion",
            f"optimizer.lr={self.lr!r}",
            f"optimizer.beta1={self.betas[0]!r}",
            f"optimizer.beta2={self.betas[1]!r}",
            f"optimizer.weight_decay={self.weight_decay!r}",
            *_shared(self),
        ]


@dataclass(frozen=True)
class Muon(Optimizer):
    """Matrices of hidden layers by a momentum made orthogonal, as ``torch.optim.Muon`` (in float32, where that rounds to bfloat16); all else by AdamW.

    ``lr``, ``momentum``, ``nesterov``, ``ns_steps``, ``ns_coefficients``, ``ns_eps`` and ``adjust_lr_fn`` (``'original'`` or
    ``'match_rms_adamw'``) are Muon's; AdamW has ``betas``, ``eps`` and the learning rate ``lr * adamw_lr_factor``; ``weight_decay`` is of both.
    ``matrices``: patterns of the names of what Muon updates, ``['blocks.*']``, of which it takes what has two dimensions. Without them it takes
    all matrices but embeddings (a part of whose name has ``emb``, or is ``wte`` or ``wpe``) and the output layer (the last matrix, if
    nothing but its bias follows). An embedding with another name wants ``matrices``.

    Each rank makes the whole update and keeps a state of its own.
    """

    lr: float = 0.02
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1
    ns_steps: int = 5
    ns_coefficients: Tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    ns_eps: float = 1e-7
    adjust_lr_fn: str = "original"
    adamw_lr_factor: float = 0.1
    betas: Tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    matrices: Sequence[str] = ()
    clip_norm: Optional[float] = None
    decay: str = "all"
    ema: Optional[float] = None
    lr_factors: Mapping[str, float] = field(default_factory=dict)
    no_decay: Sequence[str] = ()

    def settings(self) -> "list[str]":
        return [
            "optimizer.kind=muon",
            f"optimizer.lr={self.lr!r}",
            f"optimizer.momentum={self.momentum!r}",
            f"optimizer.nesterov={str(self.nesterov).lower()}",
            f"optimizer.weight_decay={self.weight_decay!r}",
            f"optimizer.ns_steps={self.ns_steps!r}",
            f"optimizer.ns_coefficients={json.dumps(list(self.ns_coefficients))}",
            f"optimizer.ns_eps={self.ns_eps!r}",
            f"optimizer.adjust_lr_fn={self.adjust_lr_fn}",
            f"optimizer.adamw_lr_factor={self.adamw_lr_factor!r}",
            f"optimizer.beta1={self.betas[0]!r}",
            f"optimizer.beta2={self.betas[1]!r}",
            f"optimizer.eps={self.eps!r}",
            f"optimizer.matrices={json.dumps(list(self.matrices))}",
            *_shared(self),
        ]


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent with momentum, as ``torch.optim.SGD``; weight decay is an L2 penalty."""

    lr: float = 0.05
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: Optional[float] = None
    decay: str = "all"
    ema: Optional[float] = None
    lr_factors: Mapping[str, float] = field(default_factory=dict)
    no_decay: Sequence[str] = ()

    def settings(self) -> "list[str]":
        return [
            "optimizer.kind=sgd",
            f"optimizer.lr={self.lr!r}",
            f"optimizer.momentum={self.momentum!r}",
            f"optimizer.nesterov={str(self.nesterov).lower()}",
            f"optimizer.weight_decay={self.weight_decay!r}",
            *_shared(self),
        ]


@dataclass(frozen=True)
class TorchOptimizer(Optimizer):
    """What :func:`torch_optimizer` gives."""

    make: Callable[[Sequence[Any]], Any]
    clip_norm: Optional[float] = None
    ema: Optional[float] = None

    def settings(self) -> "list[str]":
        return [
            "optimizer.kind=torch",
            f"optimizer.clip_norm={_or_none(self.clip_norm)}",
            f"ema={_or_none(self.ema)}",
        ]


def torch_optimizer(make: Callable[[Sequence[Any]], Any], *, clip_norm: Optional[float] = None, ema: Optional[float] = None) -> TorchOptimizer:
    """Any optimizer of PyTorch: ``dtrain.torch_optimizer(lambda params: torch.optim.RMSprop(params, lr=1e-3))``.

    ``make`` is given all trained parameters, in the order of ``net.parameters()``, and gives a ``torch.optim.Optimizer`` of all of them, in
    groups if it likes. They are in f32, whatever the model computes in: on the CPU, or on the GPU where the state is there. The schedule is dtrain's (``schedule=``, ``warmup=``): it
    multiplies the learning rate of each group, ``optimizer.lr=0.5`` on the command line halves them all.

    What it keeps is found by two steps on a copy of the parameters, and is copied and saved with them: tensors, and numbers in its groups.
    It has to keep the same from then on. Each rank makes the whole update and keeps a state of its own; dtrain's own optimizers but for Muon
    share both among the ranks of a host.
    """
    return TorchOptimizer(make, clip_norm, ema)
