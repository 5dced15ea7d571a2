"""``dtrain.train``: from a script to a run. In the process that a user starts it supervises the run; in a rank, which is the same script
again, it computes and never returns."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Union

from ._checkpoints import load
from ._curves import Metric
from ._optimizers import AdamW, Optimizer, TorchOptimizer

#: By which a process knows that it is a rank.
_RANK = "DTRAIN_RANK_HANDLES"


@dataclass(frozen=True)
class Result:
    """What a run came to. ``summary`` has all that ``--json`` says in its last line."""

    run: Path
    digest: str
    steps: int
    train_loss: Optional[float]
    val_loss: Optional[float]
    val_accuracy: Optional[float]
    metrics: Dict[str, float]
    summary: Dict[str, Any] = field(repr=False)

    def load(self, checkpoint: str = "best") -> "Dict[str, Any]":
        """The ``state_dict`` of a checkpoint: ``"best"`` (where none is marked, the newest), ``"last"``, or one by its name."""
        return load(self.run / checkpoint)


def train(
    model: Callable[[], Any],
    data: Any,
    loss: Optional[Callable[[Any, Any], Any]] = None,
    *,
    val: Any = None,
    metrics: Optional[Mapping[str, Metric]] = None,
    optimizer: Optional[Optimizer] = None,
    schedule: Optional[str] = None,
    warmup: Union[str, int, None] = None,
    epochs: Optional[int] = None,
    steps: Optional[int] = None,
    global_batch: Optional[int] = None,
    micro_batch: Optional[int] = None,
    seed: Optional[int] = None,
    name: Optional[str] = None,
    workers: int = 0,
    collate: Optional[Callable[[list], Any]] = None,
    buffers: Sequence[str] = (),
    bits: bool = True,
    settings: Optional[Mapping[str, Any]] = None,
    argv: Optional[Sequence[str]] = None,
    _loop: Any = None,
) -> Result:
    """Trains a PyTorch model on all devices of this host, or on those of several.

    ``model()`` makes the model, in each rank; all random numbers before it follow from the seed. ``data`` and ``val`` are anything with
    ``len()`` and ``[]``: a ``torch.utils.data.Dataset``, one of Hugging Face ``datasets``, a tuple of arrays or tensors of one length, or a
    function that opens one. ``loss(net, batch)`` gives the *summed* loss of a batch and its weight, such as ``len(y)``; a batch is what
    ``collate`` makes of a list of samples, by default PyTorch's ``default_collate``. ``metrics`` are asked on ``val``, each as
    ``metric(net, batch)``, which gives its sum over the batch and the weight of that: ``accuracy`` how many are right, and of how many. What is no
    sum is there as ``dtrain.roc_auc(f)`` and ``dtrain.average_precision(f)``. Each is
    shown, logged as ``val_NAME``, and a word for ``checkpoint.best`` and ``stop.metric``; ``-val_NAME`` where less is better.

    ``global_batch`` samples make a step, ``micro_batch`` of them one forward and backward pass: the bits of a run depend on both, and not
    on the number of ranks. ``workers`` is how many processes of a rank read samples ahead. ``buffers`` names, by patterns such as
    ``"*.mean"``, buffers that training changes beside those of batch norm: each is the mean of what a step's micro-batches leave behind.
    ``bits=False`` trains what does not compute the same twice, without the promise.

    A ``LightningModule`` (its class, or a function that makes one) needs no ``loss``: it is the mean that ``training_step`` gives, times the
    samples of the batch, and on ``val`` that of ``validation_step``. Where ``optimizer`` is not given, ``configure_optimizers`` says it, and
    the learning rate stays what it is. There is no ``Trainer``, and nobody keeps what is logged.

    ``settings`` are further keys, as ``dtrain help keys`` lists them. What stands on the command line (``sys.argv``, or ``argv``) wins over
    all of it: ``python train.py ranks=3 epochs=5 --resume``.

    It gives the result of a run that came to its end; otherwise the process ends with the exit code of ``dtrain train``. *Raises*
    ``TypeError`` and ``ValueError`` for arguments that make no sense.
    """
    _refuse_notebooks()
    from ._lightning import Steps
    from ._program import Program
    from . import _native

    is_rank = _RANK in os.environ
    for what, function in (("model", model), ("loss", loss)):
        if function is not None and not callable(function):
            raise TypeError(f"{what} is a {type(function).__name__}, and has to be a function")
    of_module = Steps(model)
    if loss is None and optimizer is None and is_rank:
        # It is told the options by the process that started the run.
        optimizer = of_module.torch_optimizer()
    elif loss is None and optimizer is None:
        optimizer, schedule, warmup = of_module.optimizer(), schedule or "constant", "none" if warmup is None else warmup
    given: Dict[str, Any] = {
        "epochs": epochs,
        "steps": steps,
        "global_batch": global_batch,
        "micro_batch": micro_batch,
        "seed": seed,
        "workers": workers,
        "schedule.kind": schedule,
        "schedule.warmup": f"{warmup} steps" if isinstance(warmup, int) else warmup,
    }
    if epochs is None and steps is not None:
        given["epochs"] = "none"
    words = [f"{key}={_value(value)}" for key, value in given.items() if value is not None]
    words += (optimizer or AdamW()).settings()
    # A rank imports PyTorch and more before it can join: minutes where the machine is busy.
    settings = {"join_timeout": "10m", **(settings or {})}
    words += [f"{key}={_value(value)}" for key, value in settings.items()]
    script = Path(sys.argv[0] or "train").stem
    program = Program(
        name=name or script,
        model=model if loss else of_module.model,
        data=data,
        val=val,
        loss=loss or of_module.training,
        val_loss=loss or of_module.validation,
        loss_was_mean=loss is None,
        metrics=metrics or {},
        collate=collate,
        buffers=tuple(buffers),
        bits=bits,
        optimizer=optimizer.make if isinstance(optimizer, TorchOptimizer) else None,
        loop=_loop,
    )
    if is_rank:
        _become_rank()
    python = (sys.executable, sys.orig_argv[1:])
    typed = list(sys.argv[1:] if argv is None else argv)
    with _signals_of_the_run():
        code, summary = _native.train(program, words, [sys.argv[0] or "train.py", *typed], python)
    sys.stdout.flush()
    sys.stderr.flush()
    if is_rank:
        # Without the interpreter's own end: threads of PyTorch and workers are not waited for.
        os._exit(code)
    if code or summary is None:
        sys.exit(code)
    told = json.loads(summary)
    return Result(
        run=Path(told["run"]),
        digest=told["digest"],
        steps=told["steps"],
        train_loss=told.get("train_loss"),
        val_loss=told.get("val_loss"),
        val_accuracy=told.get("val_accuracy"),
        metrics={metric.removeprefix("val_"): value for metric, value in told.get("metrics", {}).items()},
        summary=told,
    )


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextlib.contextmanager
def _signals_of_the_run() -> "Iterator[None]":
    """Ctrl-C is the run's: it saves a checkpoint. Python's own handler would raise beside it."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _become_rank() -> None:
    """What a rank's process has to be careful about."""
    import faulthandler
    import signal
    import threading

    # The supervisor asks a rank that hangs for its stacks before it ends it.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # Ctrl-C is for the supervisor, which ends its ranks.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _refuse_notebooks() -> None:
    main = sys.modules.get("__main__")
    if _RANK not in os.environ and (main is None or getattr(main, "__file__", None) is None):
        raise RuntimeError(
            "dtrain.train starts the ranks as this program again, and a notebook or a prompt is no program: write the cell to a file, "
            "with `%%writefile train.py` as its first line and `if __name__ == \"__main__\":` before dtrain.train, and run it with "
            "`!python train.py`; the result is then `dtrain.load(\"runs/train\")`"
        )
