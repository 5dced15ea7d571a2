"""A module over dtrain's flat buffers: its parameters are views of the state, its gradients are written where dtrain wants them.

It knows the module's tensors and their places; it does not know losses, data or ranks.
"""

from __future__ import annotations

import ctypes
import fnmatch
import hashlib
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

#: What is told to be final comes in parts of so many floats at least.
_PART = 1 << 16

#: What is trained; the state has it in f32.
_TRAINED = (torch.float32, torch.float16, torch.bfloat16)


#: What went otherwise than when a micro-batch was tried.
_AS_IN_THE_TRIAL = (
    "{}, and did not when the first micro-batch was tried: what was sent already is not final\n"
    "hint: a pass of the training has to compute in the way of the first one; bits=False trains all the same, without the promise"
)


class _There:
    """Numbers at an address of a GPU, as PyTorch asks for them."""

    def __init__(self, address: int, length: int, kind: str) -> None:
        self.__cuda_array_interface__ = {"shape": (length,), "typestr": kind, "data": (address, False), "version": 3}


#: The kinds of numbers that are found by their addresses.
_KINDS = {torch.float32: ("<f4", ctypes.c_float), torch.float64: ("<f8", ctypes.c_double)}

_CPU = torch.device("cpu")


def at(address: int, length: int, device: torch.device = _CPU, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The numbers at an address, which somebody else keeps: no copy."""
    if length == 0:
        return torch.empty(0, device=device, dtype=dtype)
    there, here = _KINDS[dtype]
    if device.type == "cpu":
        return torch.frombuffer((here * length).from_address(address), dtype=dtype)
    return torch.as_tensor(_There(address, length, there), device=device)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def _add(one: Optional[torch.Tensor], other: Optional[torch.Tensor], to: torch.Tensor) -> None:
    """Writes the sum of two gradients, as numbers of the state. One that did not come is zeros, which make 0.0 of -0.0."""
    if one is not None and other is not None and one.dtype == other.dtype == to.dtype:
        torch.add(one, other, out=to)
        return
    if one is None:
        to.zero_()
    else:
        to.copy_(one)
    to.add_(0.0 if other is None else other)


def digest(tensor: torch.Tensor) -> str:
    """Eight letters that tell one tensor's bits from another's."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    made = hashlib.blake2b(digest_size=4)
    if flat.numel():
        made.update(flat.view(torch.uint8).numpy().data)
    return made.hexdigest()


def plain(name: str) -> str:
    """The name of a tensor without what ``torch.compile`` puts in front."""
    return name.replace("_orig_mod.", "")


class Buffer:
    """A buffer of a module, which may be exchanged for another tensor while it computes."""

    def __init__(self, module: torch.nn.Module, key: str, name: str) -> None:
        self.module, self.key, self.name = module, key, name

    @property
    def tensor(self) -> torch.Tensor:
        return self.module._buffers[self.key]  # type: ignore[return-value]

    def put(self, tensor: torch.Tensor) -> None:
        self.module._buffers[self.key] = tensor


class FlatModule:
    """See the top of the file."""

    def __init__(self, net: torch.nn.Module, patterns: Sequence[str]) -> None:
        self.net = net
        self.parameters: List[Tuple[str, torch.nn.Parameter]] = []
        self.frozen: List[Tuple[str, torch.nn.Parameter]] = []
        for name, parameter in net.named_parameters():
            if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
                raise ValueError(f"parameter {plain(name)} has no shape yet: let model() make a pass over a sample before it returns")
            if not parameter.requires_grad:
                self.frozen.append((plain(name), parameter))
            elif parameter.dtype in _TRAINED:
                self.parameters.append((plain(name), parameter))
            else:
                raise ValueError(
                    f"parameter {plain(name)} is {parameter.dtype}: the state of a run is float32; `net.float()`, or `requires_grad_(False)`"
                )
        if not self.parameters:
            raise ValueError("model() has no parameter with requires_grad")
        self.statistics: List[Buffer] = []
        self.counters: List[Tuple[Buffer, int]] = []
        self.constants: List[Buffer] = []
        self._sort_buffers(patterns)
        self.offsets: List[Tuple[int, int]] = []
        end = 0
        for _, parameter in self.parameters:
            self.offsets.append((end, end + parameter.numel()))
            end += parameter.numel()
        self.length = end
        self.stats_length = sum(buffer.tensor.numel() for buffer in self.statistics)
        #: Where the state lies, and gradients go.
        self.home = _CPU
        self._modes = [(module, module.training) for module in net.modules()]
        self._bound: Tuple[int, int] = (0, -1)
        self._slots: Dict[int, Tuple[List[torch.Tensor], torch.Tensor]] = {}
        self._views: List[torch.Tensor] = []
        self._seen = bytearray(len(self.parameters))
        self._flat_stats = torch.empty(0)
        self._versions: List[Tuple[Buffer, torch.Tensor, int]] = []
        self._in_place: List[bool] = []
        #: Hears from where on all of a gradient is final, while the pass goes on. None: it comes as a whole.
        self.settle: Optional[Callable[[int], None]] = None
        #: Whether the passes so far would have allowed it: each gradient came once, statistics were final before any of them.
        self.may_settle = True
        self._open, self._told = 0, 0
        self._first_gradient, self._stats_then = True, torch.empty(0)
        #: The gradient of a pass that is added to that of the next one, tensor by tensor, and its statistics.
        self._held: Optional[List[Optional[torch.Tensor]]] = None
        self._holds, self._held_sums = False, torch.empty(0)

    def _sort_buffers(self, patterns: Sequence[str]) -> None:
        unmet = set(patterns)
        seen = set()
        for prefix, module in self.net.named_modules():
            for key, tensor in module._buffers.items():
                if tensor is None or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                name = plain(f"{prefix}.{key}" if prefix else key)
                buffer = Buffer(module, key, name)
                of_norm = isinstance(module, torch.nn.modules.batchnorm._NormBase)
                asked = {pattern for pattern in patterns if fnmatch.fnmatch(name, pattern)}
                unmet -= asked
                if of_norm and key == "num_batches_tracked":
                    self.counters.append((buffer, int(tensor)))
                elif asked or (of_norm and key in ("running_mean", "running_var")):
                    if tensor.dtype != torch.float32:
                        raise ValueError(f"buffer {name} is {tensor.dtype}, and changes in training: the state of a run is float32")
                    self.statistics.append(buffer)
                else:
                    self.constants.append(buffer)
        if unmet:
            names = ", ".join(buffer.name for buffer in self.constants) or "none"
            raise ValueError(f"no buffer is called {sorted(unmet)[0]}; there are: {names}")

    # What is told of it.

    def trained(self) -> List[Tuple[str, List[int]]]:
        """Name and shape of what is trained."""
        return [(name, list(parameter.shape)) for name, parameter in self.parameters]

    def statistics_told(self) -> List[Tuple[str, List[int]]]:
        """Name and shape of the running statistics."""
        return [(buffer.name, list(buffer.tensor.shape)) for buffer in self.statistics]

    def first_values(self) -> Tuple[bytes, bytes]:
        """Parameters and statistics as little-endian f32."""

        def raw(tensors: List[torch.Tensor]) -> bytes:
            flat = [tensor.detach().cpu().float().reshape(-1) for tensor in tensors]
            return torch.cat(flat).numpy().tobytes() if flat else b""

        return raw([parameter for _, parameter in self.parameters]), raw([buffer.tensor for buffer in self.statistics])

    def agreement(self) -> List[Tuple[str, str]]:
        """What has to be the same in all processes of a run."""

        def told(tensor: torch.Tensor) -> str:
            return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} {digest(tensor)}"

        rows = [(f"parameter {name}", told(parameter)) for name, parameter in self.parameters]
        rows += [(f"frozen parameter {name}", told(parameter)) for name, parameter in self.frozen]
        buffers = self.statistics + [buffer for buffer, _ in self.counters] + self.constants
        return rows + [(f"buffer {buffer.name}", told(buffer.tensor)) for buffer in buffers]

    def state_keys(self) -> Dict[str, Tuple[str, Any]]:
        """Where each key of the module's ``state_dict`` is found: trained, constant, or a count of steps."""
        found: Dict[int, Tuple[str, Any]] = {}
        for name, parameter in self.parameters:
            found[id(parameter)] = ("trained", name)
        for name, parameter in self.frozen:
            found[id(parameter)] = ("constant", name)
        for buffer in self.statistics:
            found[id(buffer.tensor)] = ("trained", buffer.name)
        for buffer, first in self.counters:
            found[id(buffer.tensor)] = ("steps", first)
        for buffer in self.constants:
            found[id(buffer.tensor)] = ("constant", buffer.name)
        keys = self.net.state_dict(keep_vars=True)
        return {plain(key): found[id(tensor)] for key, tensor in keys.items() if id(tensor) in found}

    def constant_tensors(self) -> Dict[str, torch.Tensor]:
        """What training does not change."""
        wanted = {of for kind, of in self.state_keys().values() if kind == "constant"}
        named: Dict[str, torch.Tensor] = dict(self.frozen)
        named.update({buffer.name: buffer.tensor for buffer in self.constants})
        return {name: tensor.detach() for name, tensor in named.items() if name in wanted}

    # Passes.

    def prepare(self, device: torch.device, home: torch.device) -> None:
        """Takes its places on a device, and listens for gradients. The state is at home on that device, or on the host."""
        self.net.to(device)
        self.home = home
        self._in_place = [parameter.dtype == torch.float32 and parameter.device == home for _, parameter in self.parameters]
        self._flat_stats = torch.empty(self.stats_length, device=device)
        end = 0
        for buffer in self.statistics:
            old = buffer.tensor
            place = self._flat_stats[end : end + old.numel()].view(old.shape)
            place.copy_(old)
            buffer.put(place)
            end += old.numel()
        self._places = [buffer.tensor for buffer in self.statistics]
        self._versions = [(buffer, buffer.tensor, buffer.tensor._version) for buffer in self.constants]
        for number, (_, parameter) in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(number))

    def _hook(self, number: int) -> Any:
        def take(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            parameter.grad = None
            if gradient is None:
                return
            if gradient.layout != torch.strided:
                gradient = gradient.to_dense()
            if self._first_gradient and self.stats_length and self.settle is None:
                # Not by its version, which batch norm does not count.
                self._stats_then = self._flat_stats.clone()
            self._first_gradient = False
            if self._seen[number]:
                self.may_settle = False
                if self._told <= self.offsets[number][0] or self._held is not None:
                    raise ValueError(_AS_IN_THE_TRIAL.format(f"the gradient of {self.parameters[number][0]} comes in two parts"))
                self._views[number].add_(gradient)
                return
            self._seen[number] = 1
            if self._holds and self._held is not None:
                # It is nobody else's: PyTorch has made it in this pass.
                self._held[number] = gradient
                return
            if self._held is None:
                self._views[number].copy_(gradient)
            else:
                held, self._held[number] = self._held[number], None
                _add(held, gradient, self._views[number])
            if self.settle is not None and number + 1 == self._open:
                self._pass_on(self.settle)

        return take

    def _pass_on(self, settle: Callable[[int], None]) -> None:
        """Tells what became final, if it is enough to be worth it."""
        while self._open > 0 and self._seen[self._open - 1]:
            self._open -= 1
        begin = self.offsets[self._open][0]
        if self._told - begin >= _PART:
            if self._told > self.length and self.stats_length:
                self._sums.copy_(self._weighted_statistics())
            settle(begin)
            self._told = begin

    def read_state(self, applied: int, parameters: int, stats: int) -> None:
        """Turns to the state after so many updates, whose parameters and statistics lie at these addresses."""
        address, known = self._bound
        if address != parameters or known != applied:
            flat = at(parameters, self.length, self.home)
            moved = address != parameters
            for (_, parameter), (begin, end), in_place in zip(self.parameters, self.offsets, self._in_place):
                if in_place and moved:
                    parameter.data = flat[begin:end].view(parameter.shape)
                elif not in_place:
                    parameter.data.copy_(flat[begin:end].view(parameter.shape))
            self._bound = (parameters, applied)
        if self.stats_length:
            self._flat_stats.copy_(at(stats, self.stats_length, self.home))
        for buffer, first in self.counters:
            buffer.tensor.fill_(first + applied)

    def first_state(self) -> Tuple[torch.Tensor, torch.Tensor]:
        """Parameters and statistics, as model() made them, in memory of their own."""
        parameters = torch.cat([parameter.detach().float().to(self.home).reshape(-1) for _, parameter in self.parameters])
        return parameters, self._flat_stats.to(self.home).clone()

    def forget(self) -> None:
        """The memory of the last passes is no longer there."""
        self._bound = (0, -1)
        self._slots.clear()

    def begin(self, to: Optional[int], rows: int) -> None:
        """Gradients of the next pass go to this address, where those are added that are held; without one they are held. Statistics are
        weighted by the rows."""
        self._seen, self._rows = bytearray(len(self.parameters)), rows
        self._open, self._told, self._first_gradient = len(self.parameters), self.length + self.stats_length, True
        self._holds = to is None
        if to is None:
            self._held = [None] * len(self.parameters)
            return
        slot = self._slots.get(to)
        if slot is None:
            if len(self._slots) >= 256:
                self._slots.clear()
            flat = at(to, self.length + self.stats_length, self.home)
            views = [flat[begin:end].view(parameter.shape) for (_, parameter), (begin, end) in zip(self.parameters, self.offsets)]
            slot = self._slots[to] = (views, flat[self.length :])
        self._views, self._sums = slot

    def end(self) -> None:
        """The pass is over: what had no gradient gets zeros."""
        for number, seen in enumerate(self._seen):
            if seen or self._holds:
                continue
            if self._held is None:
                self._views[number].zero_()
            else:
                _add(self._held[number], None, self._views[number])
        if self.stats_length:
            for buffer, place in zip(self.statistics, self._places):
                if buffer.tensor is not place:
                    place.copy_(buffer.tensor)
                    buffer.put(place)
            if self.settle is None and not _same_bits(self._flat_stats, self._stats_then):
                self.may_settle = False
            sums = self._weighted_statistics()
            if self._holds:
                self._held_sums = sums
            elif self._told > self.length:
                self._sums.copy_(sums)
            elif not _same_bits(self._sums, sums):
                raise ValueError(_AS_IN_THE_TRIAL.format("a running statistic changes in the backward pass"))
        if not self._holds:
            self._held = None
        for buffer, tensor, version in self._versions:
            if buffer.tensor is not tensor or tensor._version != version:
                raise ValueError(
                    f"buffer {buffer.name} changed in training, and dtrain takes it for a constant\n"
                    f"hint: buffers=[{buffer.name!r}] makes it a running statistic: the mean of what the micro-batches of a step leave behind"
                )

    def _weighted_statistics(self) -> torch.Tensor:
        own = self._flat_stats * self._rows
        return own if self._holds or self._held is None else self._held_sums + own

    def evaluating(self) -> None:
        """Turns to evaluation."""
        self.net.eval()

    def training(self) -> None:
        """Turns back to how model() left each module."""
        for module, mode in self._modes:
            module.training = mode
