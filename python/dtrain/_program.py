"""The program of a script, as the extension module asks for it: lengths of the data, the model, passes.

Whatever the script raises comes out as one text, its traceback without the frames of this package.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from . import _checkpoints
from ._curves import MOST_OF_ALL, Curve, Metric, Ordered
from ._data import COMPUTING, MAKING, Place, Reader, ReaderFailed, as_dataset, collated, seed_all, seed_of

_HERE = os.path.dirname(os.path.abspath(__file__))
#: What dtrain carries of a failure. *Units*: bytes.
_LONGEST = 3_600
#: It goes on with the last line of a traceback, which is what the run says in one line.
_LESS_MEMORY = "; hint: a smaller micro_batch takes less memory (and gives other bits), and so do fewer ranks, or torch.utils.checkpoint"
#: What dtrain itself measures.
_TAKEN = ("loss", "f1", "precision", "recall", "rmse", "mae", "r2", "perplexity")
#: A variable of the tests: GPUs are those of a stand-in, whose memory PyTorch reaches on the CPU. Where it is ``amd``, they are AMD's.
_STAND_IN = "DTRAIN_TEST_STAND_IN_GPUS"
#: How many updates a state has, and where its parameters and its statistics lie.
State = Tuple[int, int, int]
#: What is counted of a metric in a batch: its sum and the weight of that, or samples in an order.
Counted = Union[Tuple[float, float], Ordered]
#: The oldest PyTorch that will do.
_TORCH = (2, 6)


class ProgramError(Exception):
    """What a script did wrong, as a text for people."""


def _told(error: BaseException) -> str:
    """The traceback of an error of the script, or the sentence of one of ours."""
    if isinstance(error, (ProgramError, ReaderFailed)):
        return str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_HERE)]
    if not frames:
        return f"{error}" if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: {error}"
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames), *traceback.format_exception_only(error)]
    text = "".join(lines).rstrip()
    if len(text.encode()) > _LONGEST:
        text = "Traceback (the end of it):\n" + text.encode()[-_LONGEST:].decode(errors="ignore").split("\n", 1)[1]
    return text + (_LESS_MEMORY if _is_want_of_memory(error) else "")


def _is_want_of_memory(error: BaseException) -> bool:
    import torch

    # On a CPU PyTorch says it in words alone.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def _in_own_words(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(*args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:
            raise ProgramError(_told(error)) from None

    return guarded


class Program:
    """See the top of the file."""

    def __init__(
        self,
        *,
        name: str,
        model: Callable[[], Any],
        data: Any,
        val: Any,
        loss: Callable[[Any, Any], Any],
        val_loss: Callable[[Any, Any], Any],
        loss_was_mean: bool,
        metrics: Mapping[str, Metric],
        collate: Optional[Callable[[list], Any]],
        buffers: Tuple[str, ...],
        bits: bool,
        optimizer: Optional[Callable[[Any], Any]] = None,
        loop: Any = None,
    ) -> None:
        import torch

        version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        if version < _TORCH:
            raise ImportError(f"PyTorch {torch.__version__} is too old: dtrain.train wants {_TORCH[0]}.{_TORCH[1]} or later")
        for metric, given in metrics.items():
            if metric in _TAKEN or not re.fullmatch(r"\w+", metric):
                raise ValueError(f"metrics: {metric!r} is no name for one of yours; a word such as my_{metric.strip('_') or 'metric'} is")
            if not callable(given) and not isinstance(given, Curve):
                raise TypeError(f"metrics: {metric} is a {type(given).__name__}, and has to be a function, dtrain.roc_auc(...) or dtrain.average_precision(...)")
            if metric == "accuracy" and isinstance(given, Curve):
                raise ValueError("metrics: accuracy is the share of those that are right, and no area")
        curves = {metric: given for metric, given in metrics.items() if isinstance(given, Curve)}
        if sum(curve.classes for curve in curves.values()) > MOST_OF_ALL:
            raise ValueError(f"metrics: {', '.join(curves)} have more than {MOST_OF_ALL} classes together")
        #: Those that dtrain adds up beside loss and accuracy, in an order that all ranks have: the name, the kind, and of how many classes.
        self.own_metrics = [
            (metric, curves[metric].kind, curves[metric].classes) if metric in curves else (metric, "mean", 0) for metric in metrics if metric != "accuracy"
        ]
        self.name, self.model, self.loss, self.metrics = name, model, loss, metrics
        self.val_loss, self.loss_was_mean = val_loss, loss_was_mean
        self.collate, self.buffers, self.bits = collate, buffers, bits
        self.optimizer = optimizer
        self._data, self._val = data, val
        self.loop = loop
        if loop is not None:
            loop.program = self
        self._opened: Optional[Tuple[Any, Any]] = None
        self.updates: Any = None
        #: Whether the state lies where the passes are made, and not with the host; the stream on which they are then.
        self.there, self.stream = False, None  # type: bool, Any

    def _datasets(self) -> Tuple[Any, Any]:
        if self._opened is None:
            val = None if self._val is None else as_dataset(self._val, "val")
            self._opened = (as_dataset(self._data, "data"), val)
        return self._opened

    @_in_own_words
    def lengths(self) -> Tuple[int, Optional[int]]:
        """Samples to train on, and samples held out."""
        data, val = self._datasets()
        return len(data), None if val is None else len(val)

    @property
    def built_for(self) -> str:
        """Whose GPUs this PyTorch computes on. No GPU is asked."""
        import torch

        stand_in = os.environ.get(_STAND_IN)
        if stand_in:
            return "amd" if stand_in == "amd" else "nvidia"
        if not torch.backends.cuda.is_built():
            return "cpus"
        # ROCm's PyTorch says ``cuda`` too.
        return "amd" if torch.version.hip else "nvidia"

    @_in_own_words
    def why_no_gpu(self) -> Optional[str]:
        """Why this PyTorch computes on no GPU of this host, if it does not. Nothing is left on one: they are counted."""
        import torch

        if os.environ.get(_STAND_IN) or torch.cuda.is_available():
            return None
        if not torch.backends.cuda.is_built():
            return f"PyTorch {torch.__version__} is a build for CPUs"
        return f"PyTorch {torch.__version__} finds none that it can use: it may not suit the driver"

    @_in_own_words
    def build(self, setup: Dict[str, Any]) -> Dict[str, Any]:
        """Makes the model, and tells all of it; for a rank it also tries what it computes."""
        import torch

        self.seed = setup["seed"]
        net = self._module()
        from ._flat import FlatModule

        flat = FlatModule(net, self.buffers)
        self.flat = flat
        told = {
            "trained": flat.trained(),
            "statistics": flat.statistics_told(),
            "kept": [],
            "agreement": [("PyTorch", torch.__version__), *flat.agreement()],
            "parameters": flat.first_values()[0],
            "stats": flat.first_values()[1],
        }
        gpu = setup["gpu"]
        self._on_gpu = gpu is not None
        if gpu is not None and os.environ.get(_STAND_IN):
            # dtrain's driver is the stand-in that its tests have: the memory of its GPUs is this process's.
            gpu, self.there = None, setup["stream"] is not None
        elif gpu is not None and not torch.cuda.is_available():
            raise ProgramError(
                f"PyTorch {torch.__version__} cannot use cuda:{gpu}: it is a build for CPUs, or does not suit the driver\n"
                "hint: devices=cpu, or a build of PyTorch for your driver's CUDA"
            )
        elif setup["stream"] is not None:
            self.there = True
            self.stream = torch.cuda.ExternalStream(setup["stream"], device=gpu)
        self.device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
        threads = setup["threads"]
        if setup["trains"]:
            self.threads = threads
            self._told = threading.local()
            self._set_threads()
        if setup["updates"]:
            with self._on_stream():
                self._updates_by(flat, told)
        where = "cpu" if gpu is None else torch.cuda.get_device_name(gpu).replace(" ", "-")
        capability = torch.backends.cpu.get_cpu_capability().replace(" ", "-") if gpu is None else "cuda"
        told["device"] = f"cpu, PyTorch {torch.__version__}" if gpu is None else f"cuda:{gpu} {torch.cuda.get_device_name(gpu)}"
        name = f"torch-{torch.__version__}-{where}-{capability}-{threads}t"
        if not setup["trains"]:
            told["fingerprint"] = (name, bytes(32))
            return told
        self.reader = Reader(self._datasets()[0], self.collate, self.seed, setup["workers"])
        with self._on_stream():
            self._try_out(setup, name, told)
        return told

    def _try_out(self, setup: Dict[str, Any], name: str, told: Dict[str, Any]) -> None:
        """Tries what a rank will compute, and tells by what others know it."""
        import torch

        flat = self.flat
        flat.prepare(self.device, self._home())
        halves = {"bf16": torch.bfloat16, "f16": torch.float16}.get(setup["precision"])
        self.autocast = halves
        if setup["precision"] == "tf32":
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
        # The parameters lie in it until the first micro-batch of the training.
        first = flat.first_state()
        self._kept: Any = first
        if _compiles() and self.loop is None:
            self._compile(setup["micro_batch"], *first)
        computed = hashlib.blake2b(self.updates.tried_again() if self.updates and self.bits else b"", digest_size=32)
        if self.bits and self.loop is None:
            computed.update(self._try(setup["micro_batch"], *first))
            told["fingerprint"] = (name, computed.digest())
        elif self.bits and self.updates:
            told["fingerprint"] = (name, computed.digest())
        else:
            # What a loop of one's own computes is known when it does.
            told["fingerprint"] = (name if self.bits else "torch-whatever-it-computes", bytes(32))

    @property
    def on_queue(self) -> bool:
        """Whether what is computed is put on the stream of dtrain's device."""
        return self.stream is not None

    def _home(self) -> Any:
        """Where the state lies."""
        import torch

        return self.device if self.there else torch.device("cpu")

    def _on_stream(self) -> "contextlib.AbstractContextManager[Any]":
        import torch

        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _module(self) -> Any:
        import torch

        if isinstance(self.model, torch.nn.Module):
            return self.model
        seed_all(seed_of(self.seed, MAKING, (0, 0)))
        net = self.model()
        if not isinstance(net, torch.nn.Module):
            raise ProgramError(f"model() gives a {type(net).__name__}, and has to give a torch.nn.Module: does it say `return`?")
        return net

    def _updates_by(self, flat: Any, told: Dict[str, Any]) -> None:
        from ._torch_optimizer import TorchOptimizer

        if self.optimizer is None:
            raise ProgramError("optimizer.kind is torch, and the program has none\nhint: optimizer=dtrain.torch_optimizer(...)")
        self.updates = TorchOptimizer(self.optimizer, flat.parameters, self._home())
        told["kept"] = self.updates.tensors()
        told["agreement"] += self.updates.options

    @_in_own_words
    def update(self, lr: float, scale: float, places: Tuple[int, int, int]) -> None:
        """An update by the program's own optimizer."""
        self._set_threads()
        with self._on_stream():
            self.updates.update(lr, scale, places)

    @_in_own_words
    def begun(self, folder: str) -> None:
        """Writes what a checkpoint does not hold into the folder of a run."""
        constants = self.flat.constant_tensors()
        if constants:
            _checkpoints.write(Path(folder) / _checkpoints.CONSTANTS, constants)
        told = {"samples": len(self._datasets()[0]), "keys": self.flat.state_keys()}
        _checkpoints.replace(Path(folder) / _checkpoints.PROGRAM, json.dumps(told).encode())

    @_in_own_words
    def announce(self, step: int, micro_batch: int, indices: List[int]) -> None:
        """These samples will be asked for."""
        self.reader.announce((step, micro_batch), indices)

    @property
    def at_once(self) -> int:
        """How many micro-batches :meth:`compute` is given: two, where the trial has shown that their gradients can be added as they come up."""
        return 2 if self.flat.settle is not None and self.device.type == "cpu" else 1

    @_in_own_words
    def compute(self, given: List[Tuple[Place, List[int]]], state: State, to: int, scale: float) -> List[Tuple[float, float, int, int]]:
        """A micro-batch of the training, or two: the sum of their gradients goes to an address of the host."""
        told = []
        for left, (place, indices) in zip(reversed(range(len(given))), given):
            loss, weight = self._computed(place, state, to if left == 0 else None, None if scale == 1.0 else scale, indices)
            told.append((loss.item(), float(weight), 0, 0))
        return told

    @_in_own_words
    def compute_there(self, place: Place, state: State, places: Tuple[int, int, Optional[int]], indices: List[int]) -> None:
        """A micro-batch of the training, on the device where the state is: so are the places for the gradient, for what the loss comes to, and
        of what it is multiplied by. Nobody waits for the device."""
        import torch
        from ._flat import at

        to, sums, scale = places
        with self._on_stream():
            factor = None if scale is None else at(scale, 1, self.device)[0]
            loss, weight = self._computed(place, state, to, factor, indices)
            told = at(sums, 3, self.device, torch.float64)
            told[0].copy_(loss.detach().reshape(()))
            if isinstance(weight, torch.Tensor):
                told[1].copy_(weight.detach().reshape(()))
            else:
                told[1].fill_(weight)
            told[2].fill_(0.0)

    def _computed(self, place: Place, state: State, to: Optional[int], scale: Any, indices: List[int]) -> Tuple[Any, Any]:
        self._set_threads()
        self.flat.read_state(*state)
        self._kept = None
        self._applied = state[0]
        return self._pass(place, self.reader.take(place, indices), to, scale, len(indices))

    def _pass(self, place: Place, batch: Any, to: Optional[int], scale: Any, rows: int) -> Tuple[Any, Any]:
        """Loss and weight of a micro-batch, and its gradient at an address, or held. ``scale`` is what the loss is multiplied by before, if it is."""
        self.flat.begin(to, rows)
        seed_all(seed_of(self.seed, COMPUTING, place))
        self._scale = scale
        if self.loop is None:
            loss, weight = self.passed(*self._loss(batch))
        else:
            on_device = moved(batch, self.device) if self.device.type != "cpu" else batch
            loss, weight = self.loop.loss_of(place, on_device, self._applied)
        self.flat.end()
        return loss, weight

    def enter(self) -> None:
        """Has this thread, on which a loop of one's own runs, compute where dtrain's does."""
        import torch

        if not hasattr(self._told, "threads") and self.stream is not None:
            torch.cuda.set_stream(self.stream)
        self._set_threads()

    def passed(self, loss: Any, weight: Any) -> Tuple[Any, Any]:
        """The backward pass of a loss; the two as they are."""
        if not loss.requires_grad:
            raise ProgramError("the loss is a number that no parameter is behind: is it detached, or under torch.no_grad()?")
        (loss if self._scale is None else loss * self._scale).backward()
        return loss, weight

    def _loss(self, batch: Any, of: Optional[Callable[[Any, Any], Any]] = None) -> Tuple[Any, Any]:
        import torch

        batch = moved(batch, self.device) if self.device.type != "cpu" else batch
        if self.autocast is None:
            given = (of or self.loss)(self.flat.net, batch)
        else:
            with torch.autocast(self.device.type, self.autocast):
                given = (of or self.loss)(self.flat.net, batch)
        try:
            loss, weight = given
        except (TypeError, ValueError):
            raise ProgramError(
                f"loss() gives a {type(given).__name__}, and has to give two things: the summed loss and its weight\n"
                'hint: `return F.cross_entropy(net(x), y, reduction="sum"), len(y)`'
            ) from None
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ProgramError(f'the loss is {shape}, and has to be one number: reduction="sum", or .sum()')
        # A number that is on a GPU stays there.
        return loss, weight if isinstance(weight, torch.Tensor) else float(weight)

    @_in_own_words
    def evaluate(self, state: State, indices: List[int]) -> Tuple[Tuple[float, float, int, int], List[Counted]]:
        """The loss of held-out samples, how many are right of how many, and what is counted of the other metrics."""
        with self._on_stream():
            return self._evaluated(state, indices)

    def _evaluated(self, state: State, indices: List[int]) -> Tuple[Tuple[float, float, int, int], List[Counted]]:
        import torch

        self._set_threads()
        self.flat.read_state(*state)
        seed_all(seed_of(self.seed, COMPUTING, (0, 0)))
        batch = collated(self._datasets()[1], self.collate, indices)
        self.flat.evaluating()
        try:
            with torch.no_grad():
                loss, weight = self._loss(batch, self.val_loss)
                correct: float = 0
                counted: float = 0
                on_device = moved(batch, self.device) if self.metrics and self.device.type != "cpu" else batch
                if "accuracy" in self.metrics:
                    correct, counted = self._mean("accuracy", on_device)
                own = [self._counted(metric, on_device) for metric, *_ in self.own_metrics]
        finally:
            self.flat.training()
        return (loss.item(), float(weight), int(counted), int(correct)), own

    def _counted(self, metric: str, batch: Any) -> Counted:
        curve = self.metrics[metric]
        if not isinstance(curve, Curve):
            return self._mean(metric, batch)
        given = curve.scores(self.flat.net, batch)
        try:
            return curve.ordered(given)
        except (TypeError, ValueError) as error:
            raise ProgramError(f"metric {metric}: {error}\nhint: `return net(x).squeeze(-1), y`: logits, and the numbers of classes") from None

    def _mean(self, metric: str, batch: Any) -> Tuple[float, float]:
        given = self.metrics[metric](self.flat.net, batch)
        try:
            value, weight = given
            return float(value), float(weight)
        except (TypeError, ValueError):
            raise ProgramError(
                f"metric {metric} gives a {type(given).__name__}, and has to give two numbers: its sum over the batch and the weight of that\n"
                "hint: `return (net(x) - y).abs().sum(), len(y)`"
            ) from None

    def _set_threads(self) -> None:
        """What PyTorch keeps for each thread is told to each that computes."""
        import torch

        if not hasattr(self._told, "threads"):
            self._told.threads = self.threads
            torch.set_num_threads(self.threads)
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            if _compiles():
                import torch._dynamo

                # A compiled function serves one size. Those for several, into which PyTorch turns them as it meets sizes, would compute
                # what depends on the sizes that a rank met before.
                torch._dynamo.config.automatic_dynamic_shapes = False

    # The trial.

    def _compile(self, micro_batch: int, parameters: Any, stats: Any) -> None:
        """Makes a pass of each size that will come, where PyTorch compiles: later it would look as if the rank hung."""
        import torch

        data, val = self._datasets()
        to = torch.empty(self.flat.length + self.flat.stats_length, device=self.flat.home)
        at = (parameters.data_ptr(), stats.data_ptr())
        for size in _sizes(len(data), micro_batch):
            self.flat.read_state(0, *at)
            self._pass((0, 0), collated(data, self.collate, list(range(size))), to.data_ptr(), None, size)
        for size in _sizes(len(val) if val is not None else 0, micro_batch):
            self.evaluate((0, *at), list(range(size)))
        self.flat.forget()

    def _try(self, micro_batch: int, parameters: Any, stats: Any) -> bytes:
        """Computes one micro-batch twice, and gives a digest of its gradient, by which ranks find out whether they compute alike.

        *Raises* if the two differ, or if the loss is a mean.
        """
        import torch

        flat, data = self.flat, self._datasets()[0]
        indices = list(range(min(micro_batch, len(data))))
        place = (0, 0)

        to = torch.empty(flat.length + flat.stats_length, device=flat.home)

        def once() -> float:
            seed_all(seed_of(self.seed, 1, place))
            batch = collated(data, self.collate, indices)
            # What the pass does not write is not taken for what the one before wrote.
            to.fill_(float("nan"))
            flat.read_state(0, parameters.data_ptr(), stats.data_ptr())
            loss = self._pass(place, batch, to.data_ptr(), None, len(indices))[0].item()
            flat.forget()
            return loss

        def told() -> bytes:
            return hashlib.blake2b(to.cpu().numpy(), digest_size=32).digest()

        loss, one = once(), told()
        again, other = once(), told()
        # A loss that is no number twice is the same: training says of which step it is.
        if one != other or repr(loss) != repr(again):
            # In place of both gradients their digests were kept: which tensors differ is looked for where it matters.
            kept, further = to.clone(), once()
            raise ProgramError(self._difference(kept, to, (loss, again, further)))
        self._refuse_means(data, indices, parameters, stats)
        flat.forget()
        if flat.may_settle:
            from . import _native

            flat.settle = _native.settle
        return one

    def _difference(self, one: Any, other: Any, losses: Tuple[float, ...]) -> str:
        names = []
        begin = 0
        for name, shape in self.flat.trained() + self.flat.statistics_told():
            size = 1
            for side in shape:
                size *= side
            if not bool((one[begin : begin + size] == other[begin : begin + size]).all()):
                names.append(name)
            begin += size
        first = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        on_cores = ", and devices=cpu trains on the cores, where most are" if self._on_gpu else ""
        told = list(dict.fromkeys(repr(loss) for loss in losses))
        of_losses = f"the loss is {told[0]}, and then {told[1]}" if len(told) > 1 else "the gradient differs now and then"
        what = f"the gradient of {first} differs" if names else of_losses
        return (
            f"one micro-batch, computed twice, did not give the same bits: {what}\n"
            "hint: random numbers come from random, numpy.random and torch alone, which are seeded before each pass (a generator of one's own "
            "is not); a pass may leave nothing behind that the next one sees; torch.use_deterministic_algorithms(True) names operations "
            f"that are not repeatable{on_cores}. bits=False trains all the same, without the promise"
        )

    def _refuse_means(self, data: Any, indices: List[int], parameters: Any, stats: Any) -> None:
        """A mean instead of a sum is noticed by two sizes of batch."""
        import torch

        half = len(indices) // 2
        if half == 0:
            return
        self.flat.read_state(0, parameters.data_ptr(), stats.data_ptr())
        self.flat.evaluating()
        try:
            # Sizes that the training does not have are not worth a compilation.
            eager = torch.compiler.set_stance("force_eager") if _compiles() else contextlib.nullcontext()
            with torch.no_grad(), eager:
                parts = []
                for part in (indices, indices[:half], indices[half:]):
                    seed_all(seed_of(self.seed, 1, (0, 0)))
                    loss, weight = self._loss(collated(data, self.collate, part))
                    parts.append((loss.item(), float(weight)))
        finally:
            self.flat.training()
        (whole, weight), *halves = parts
        sums = sum(loss for loss, _ in halves)
        mean = sum(loss * of for loss, of in halves) / max(sum(of for _, of in halves), 1e-30)
        if abs(whole - mean) < 0.02 * abs(whole) and abs(whole - sums) > 0.2 * abs(whole):
            raise ProgramError(
                f"the loss looks like a mean: {whole:.6g} for {len(indices)} samples, {halves[0][0]:.6g} for the first {half} of them\n"
                'hint: dtrain divides once, by the weights of all micro-batches: `reduction="sum"`, or the mean times its weight: '
                "`return loss * n, n`"
            )
        # A sum that was taken for a mean grows as the square.
        squares = sum(loss / max(of, 1e-30) for loss, of in halves) * weight
        if self.loss_was_mean and abs(whole - squares) < 0.02 * abs(whole) and abs(whole - sums) > 0.2 * abs(whole):
            raise ProgramError(
                f"training_step looks like a sum: {whole / weight:.6g} for {len(indices)} samples, {halves[0][0] / halves[0][1]:.6g} for the "
                f"first {half} of them\nhint: it gives the mean over the samples of the batch, which is multiplied by their number"
            )


def _compiles() -> bool:
    """Whether something asked for ``torch.compile``, which loads this; it takes a while."""
    return "torch._dynamo" in sys.modules


def _sizes(samples: int, micro_batch: int) -> List[int]:
    """How many samples the micro-batches of so many have."""
    return [size for size in (min(samples, micro_batch), samples % micro_batch) if size]


def moved(batch: Any, device: Any) -> Any:
    """A batch on a device: tensors in tuples, lists and dicts."""
    import torch

    if isinstance(batch, torch.Tensor) and batch.device.type == "cpu" and device.type == "cuda":
        # From memory that stays where it is nobody waits for the copy.
        return batch.pin_memory().to(device, non_blocking=True)
    if isinstance(batch, torch.Tensor) or hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(moved(value, device) for value in batch)
    return batch
