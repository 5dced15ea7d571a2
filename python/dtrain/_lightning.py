"""Modules of Lightning: their steps as a loss, their optimizer as one of dtrain's.

A module is known by what it has: Lightning itself is not imported. There is no ``Trainer``, and of what it would do only the steps are done.
It does not know runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._optimizers import SGD, AdamW, Optimizer, TorchOptimizer

#: Hooks between a batch and its update that dtrain does not call: what they do would be missing from the result.
_NOT_CALLED = (
    "backward",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "on_after_backward",
    "on_after_batch_transfer",
    "on_before_backward",
    "on_before_batch_transfer",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_end",
    "on_train_batch_start",
    "optimizer_step",
    "optimizer_zero_grad",
    "transfer_batch_to_device",
)
_HINT = "hint: `optimizer=dtrain.AdamW(...)` or `optimizer=dtrain.SGD(...)`, and `schedule=`, stand for configure_optimizers"


class Steps:
    """What a program is made of: the module, the loss of its ``training_step``, and that of its ``validation_step``."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self._logged: Dict[str, Any] = {}

    def model(self) -> Any:
        """The module, which logs to nobody. *Raises* ``TypeError`` if it is none of Lightning's, or does what dtrain would leave out."""
        import torch

        made = self.make if isinstance(self.make, torch.nn.Module) else self.make()
        if not isinstance(made, torch.nn.Module):
            return made
        net: Any = made
        if not all(hasattr(net, name) for name in ("training_step", "configure_optimizers", "log")):
            raise TypeError(
                f"loss is missing: only a LightningModule has a loss of its own, and model() gives a {type(net).__name__}\n"
                "hint: `loss=` is a function of the module and a batch"
            )
        if not net.automatic_optimization:
            raise TypeError("the module optimizes by hand (automatic_optimization=False): a loop of your own is `dtrain.steps`")
        for name in _NOT_CALLED:
            if _is_own(net, name):
                raise TypeError(
                    f"{type(net).__name__} has {name}, which dtrain does not call: the result would not be what the module says\n"
                    "hint: what it does belongs into training_step, collate= or optimizer=, as `dtrain.AdamW(clip_norm=1.0)`"
                )
        # A place for layers that some modules use; it may be called more than once.
        net.configure_model()
        net.log, net.log_dict = self._log, self._log_dict
        return net

    def optimizer(self) -> Optional[Optimizer]:
        """What ``configure_optimizers`` gives, as one of dtrain's. *Raises* ``TypeError`` for what dtrain has not."""
        net = self.model()
        # What is no module is told where all models are looked at.
        if not hasattr(net, "configure_optimizers"):
            return None
        # dtrain's own where it has the same: ranks of a host share what they keep.
        return _ours(net, _configured(net)) or self.torch_optimizer()

    def torch_optimizer(self) -> TorchOptimizer:
        """What ``configure_optimizers`` gives, as it is."""
        return TorchOptimizer(self._exchanged)

    def _exchanged(self, parameters: Any) -> Any:
        """What ``configure_optimizers`` gives of a module, with these parameters in the place of its own."""
        net = self.model()
        own = [parameter for parameter in net.parameters() if parameter.requires_grad]
        instead = {id(parameter): other for parameter, other in zip(own, parameters)}
        made = _configured(net)
        for group in made.param_groups:
            group["params"] = [instead.get(id(parameter), parameter) for parameter in group["params"]]
        for parameter in [parameter for parameter in made.state if id(parameter) in instead]:
            made.state[instead[id(parameter)]] = made.state.pop(parameter)
        return made

    def training(self, net: Any, batch: Any) -> Tuple[Any, int]:
        """The summed loss of a batch, and its samples."""
        given = self._step("training_step", net.training_step, batch)
        if given is None:
            raise TypeError("training_step gives nothing, and has to give the mean loss of the batch: does it say `return`?")
        return self._summed(given, batch)

    def validation(self, net: Any, batch: Any) -> Tuple[Any, int]:
        """As :meth:`training`, of held-out samples: what ``validation_step`` returns, or else logs as ``val_loss``."""
        if not _is_own(net, "validation_step"):
            return self.training(net, batch)
        given = self._step("validation_step", net.validation_step, batch)
        if given is None:
            given = self._logged.get("val_loss")
        if given is None:
            raise TypeError("validation_step has no loss: it has to return it, or to log it as val_loss")
        return self._summed(given, batch)

    def _step(self, name: str, step: Callable[..., Any], batch: Any) -> Any:
        self._logged.clear()
        # The number of a batch in its epoch is not known where it is computed.
        given = step(batch, 0)
        if isinstance(given, Mapping):
            if "loss" not in given:
                raise TypeError(f"{name} gives a dict without `loss`")
            given = given["loss"]
        return given

    def _summed(self, loss: Any, batch: Any) -> Tuple[Any, int]:
        count = samples(batch)
        return loss * count, count

    def _log(self, name: str, value: Any, *_: Any, **__: Any) -> None:
        self._logged[name] = value

    def _log_dict(self, values: Any, *_: Any, **__: Any) -> None:
        self._logged.update(values)


def _is_own(net: Any, name: str) -> bool:
    """Whether a module says itself what Lightning has a default for."""
    own = getattr(type(net), name, None)
    home = getattr(own, "__module__", "")
    return own is not None and not home.startswith(("lightning.pytorch.", "pytorch_lightning."))


def samples(batch: Any) -> int:
    """How many samples a batch has: the length of its first tensor. *Raises* ``TypeError`` if it has none."""
    tensors = _tensors(batch)
    if not tensors:
        raise TypeError(
            f"the batch is a {type(batch).__name__} without a tensor, so its samples cannot be counted\n"
            "hint: `loss=lambda net, batch: (net.training_step(batch, 0) * n, n)` says how many there are"
        )
    return len(tensors[0])


def _tensors(batch: Any) -> List[Any]:
    import torch

    if isinstance(batch, torch.Tensor):
        return [batch] if batch.dim() else []
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return [tensor for part in batch for tensor in _tensors(part)]
    return []


def _configured(net: Any) -> Any:
    try:
        return _only(net.configure_optimizers())
    except RuntimeError as error:
        # What Lightning says where a module asks for one.
        if "attached to a `Trainer`" not in str(error):
            raise
        raise TypeError(f"configure_optimizers asks for a Trainer, and there is none\n{_HINT}") from None


def _ours(net: Any, made: Any) -> Optional[Optimizer]:
    """The optimizer of dtrain's that does what this one does."""
    import torch

    if len(made.param_groups) != 1:
        return None
    (group,) = made.param_groups
    held = {id(parameter) for parameter in group["params"]}
    if any(parameter.requires_grad and id(parameter) not in held for parameter in net.parameters()):
        return None
    if any(group.get(option) for option in ("amsgrad", "maximize", "dampening")):
        return None
    lr, decay = float(group["lr"]), float(group["weight_decay"]) if "weight_decay" in group else 0.0
    kind = type(made)
    # Adam without a decay is AdamW without one.
    if kind is torch.optim.AdamW or (kind is torch.optim.Adam and (decay == 0.0 or group.get("decoupled_weight_decay"))):
        beta1, beta2 = group["betas"]
        return AdamW(lr=lr, betas=(float(beta1), float(beta2)), eps=float(group["eps"]), weight_decay=decay)
    if kind is torch.optim.SGD:
        return SGD(lr=lr, momentum=float(group["momentum"]), nesterov=bool(group["nesterov"]), weight_decay=decay)
    return None


def _only(given: Any) -> Any:
    """The one optimizer of what ``configure_optimizers`` may give."""
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, list) for part in given):
        given = {"optimizer": given[0], "lr_scheduler": given[1]}
    if isinstance(given, Mapping):
        if given.get("lr_scheduler"):
            raise _unknown("a schedule of the learning rate", "`optimizer=` with `schedule=` and `warmup=`")
        given = given["optimizer"]
    if isinstance(given, (list, tuple)):
        if len(given) != 1:
            raise _unknown(f"{len(given)} optimizers")
        return _only(given[0])
    if not hasattr(given, "param_groups"):
        raise _unknown(f"a {type(given).__name__}")
    return given


def _unknown(what: str, instead: Optional[str] = None) -> TypeError:
    told = f"configure_optimizers gives {what}; dtrain takes one optimizer of torch.optim, of all trained parameters"
    return TypeError(f"{told}\n{_HINT}" + (f"; {instead}" if instead else ""))
