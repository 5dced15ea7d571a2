"""An optimizer of PyTorch over dtrain's flat buffers: it steps on views of the parameters, and all that it keeps lies in one flat buffer
too, so that ranks copy and save it with the rest of the state.

What an optimizer keeps is found by two steps on a copy of the parameters. This file does not know models, losses or ranks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch

from ._flat import at, digest

#: The name of the first thing that is kept: how many updates were made.
_UPDATES = "updates"
#: A number of Python takes so many floats.
_NUMBER = 2
#: What the learning rate of a group is multiplied from; the schedule is dtrain's.
_LR = "lr"


@dataclass(frozen=True)
class Kept:
    """One thing that an optimizer keeps: of a parameter by its number, or of a group by minus its number less one; under which key."""

    name: str
    of: int
    key: str
    shape: Tuple[int, ...]
    #: None: a number of Python.
    dtype: Any
    kind: Any = None
    #: Whether the optimizer has it on the CPU, wherever the parameters are.
    on_cpu: bool = False

    @property
    def floats(self) -> int:
        """Floats that it takes."""
        if self.dtype is None:
            return _NUMBER
        size: int = torch.empty(0, dtype=self.dtype).element_size()
        count = 1
        for side in self.shape:
            count *= side
        return (size * count + 3) // 4


class TorchOptimizer:
    """See the top of the file. ``make`` is the program's function of parameters."""

    def __init__(
        self, make: Callable[[Sequence[Any]], Any], parameters: Sequence[Tuple[str, Any]], home: torch.device = torch.device("cpu")
    ) -> None:
        self.make = make
        #: Where the state lies.
        self.home = home
        self.names = [name for name, _ in parameters]
        self.shapes = [tuple(parameter.shape) for _, parameter in parameters]
        self._first = [parameter for _, parameter in parameters]
        #: Options, that all processes must have alike.
        self.options: List[Tuple[str, str]] = []
        self.kept, self._digest = self._tried()
        self.length = _NUMBER + sum(kept.floats for kept in self.kept)
        self._bound: Tuple[int, int, int] = (0, 0, -1)

    def tried_again(self) -> bytes:
        """A digest of its first updates, by which ranks find out whether they compute alike. *Raises* if it does not repeat them."""
        found = self._tried()
        if found != (self.kept, self._digest):
            raise ValueError(
                "the optimizer, tried twice on the same gradients, did not give the same bits\n"
                "hint: an update may follow from parameters, gradients and what the optimizer keeps, and from nothing else; bits=False "
                "trains all the same, without the promise"
            )
        return self._digest.encode()

    def tensors(self) -> List[Tuple[str, List[int]]]:
        """What is kept, as a state has it."""
        rows = [(_UPDATES, [_NUMBER])]
        for kept in self.kept:
            is_plain = kept.dtype == torch.float32
            rows.append((kept.name, list(kept.shape) if is_plain else [kept.floats]))
        return rows

    # The trial.

    def _tried(self) -> Tuple[List[Kept], str]:
        """What is kept after two steps, and a digest of the parameters then."""
        masters = [torch.nn.Parameter(values.detach().float().to(self.home).clone()) for values in self._first]
        made = self._made(masters)
        options = [{key: value for key, value in group.items() if key != "params"} for group in _groups(made)]
        noise = torch.Generator().manual_seed(1)
        for _ in range(2):
            for master in masters:
                master.grad = (torch.randn(master.shape, generator=noise) * 1e-3).to(self.home)
            self._step(made)
        homes = _homes(made, masters)
        found: List[Kept] = []
        for number, master in enumerate(masters):
            for key, value in homes[number].state[master].items():
                if value is not None:
                    found.append(self._kept(f"{self.names[number]}.{key}", number, key, value))
        for number, (group, before) in enumerate(zip(_groups(made), options)):
            for key, value in group.items():
                if key in ("params", _LR) or (key in before and _is_same(before[key], value)):
                    continue
                found.append(self._kept(f"group {number}.{key}", -1 - number, key, value))
        self.options = [("the optimizer", ", ".join(type(one).__name__ for one in made))]
        self.options += [(f"the options of group {number}", _words(group)) for number, group in enumerate(options)]
        return found, digest(torch.cat([master.detach().reshape(-1) for master in masters]))

    def _kept(self, name: str, of: int, key: str, value: Any) -> Kept:
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.is_complex():
                raise ValueError(f"the optimizer keeps {name}, a tensor that is sparse or complex, which no state of dtrain holds")
            return Kept(name, of, key, tuple(value.shape), value.dtype, on_cpu=value.device.type == "cpu" and self.home.type != "cpu")
        if isinstance(value, (bool, int, float)):
            return Kept(name, of, key, (), None, type(value))
        raise ValueError(
            f"the optimizer keeps {name}, a {type(value).__name__}: a state of dtrain holds tensors and numbers"
        )

    def _made(self, masters: List[Any]) -> List[Any]:
        given = self.make(masters)
        made = list(given) if isinstance(given, (list, tuple)) else [given]
        for one in made:
            if not isinstance(one, torch.optim.Optimizer):
                raise ValueError(f"torch_optimizer's function gives a {type(one).__name__}, and has to give a torch.optim.Optimizer, or some")
        held = [id(parameter) for group in _groups(made) for parameter in group["params"]]
        for name, master in zip(self.names, masters):
            if held.count(id(master)) != 1:
                what = "twice" if id(master) in held else "nowhere"
                raise ValueError(f"the optimizer has {name} {what}: it is to be given each parameter once; requires_grad_(False) in model() freezes one")
        if len(held) != len(masters):
            raise ValueError("the optimizer has parameters that torch_optimizer's function was not given")
        return made

    def _step(self, made: List[Any]) -> None:
        for one in made:
            try:
                one.step()
            except TypeError as error:
                if "closure" not in str(error):
                    raise
                what = f"{type(one).__name__} computes the loss again within a step, which a run cannot"
                raise ValueError(f"{what}\nhint: take another optimizer") from None

    # Updates.

    def update(self, factor: float, scale: float, places: Tuple[int, int, int]) -> None:
        """Makes an update: the gradient, the parameters and what is kept lie at these addresses."""
        gradient, parameters, kept = places
        flat = at(kept, self.length, self.home)
        updates = _read_number(flat)
        if self._bound[:2] != (parameters, kept) or self._bound[2] != updates:
            self._bind(parameters, flat, int(updates))
        torch.mul(at(gradient, self.size, self.home), scale, out=self._gradient)
        for group, lr in zip(self._groups, self._lrs):
            group[_LR] = lr * factor
        self._step(self.optimizers)
        self._put(flat)
        _write_number(flat, updates + 1)
        self._bound = (parameters, kept, int(updates) + 1)

    def _bind(self, parameters: int, flat: torch.Tensor, updates: int) -> None:
        """Turns to a state that lies at other places, or became another one."""
        self.size = sum(_count(shape) for shape in self.shapes)
        self._gradient = torch.empty(self.size, device=self.home)
        values = at(parameters, self.size, self.home)
        masters, end = [], 0
        for shape in self.shapes:
            begin, end = end, end + _count(shape)
            master = torch.nn.Parameter(values[begin:end].view(shape))
            master.grad = self._gradient[begin:end].view(shape)
            masters.append(master)
        self.masters = masters
        self.optimizers = self._made(masters)
        self._groups, self._homes = _groups(self.optimizers), _homes(self.optimizers, masters)
        self._lrs = [float(group[_LR]) for group in self._groups]
        if updates == 0:
            return
        for kept, place in self._places(flat):
            value = _taken(kept, place)
            self._holder(kept)[kept.key] = value

    def _holder(self, kept: Kept) -> Any:
        """Where an optimizer has it."""
        return self._groups[-1 - kept.of] if kept.of < 0 else self._homes[kept.of].state[self.masters[kept.of]]

    def _places(self, flat: torch.Tensor) -> "List[Tuple[Kept, torch.Tensor]]":
        places, end = [], _NUMBER
        for kept in self.kept:
            begin, end = end, end + kept.floats
            places.append((kept, flat[begin:end]))
        return places

    def _put(self, flat: torch.Tensor) -> None:
        """Writes what is kept to where it belongs; a tensor of floats stays there from then on."""
        for kept, place in self._places(flat):
            of = self._holder(kept)
            value = of.get(kept.key)
            if kept.dtype is None:
                if not isinstance(value, (bool, int, float)):
                    raise _other(kept, value)
                _write_number(place, float(value))
            elif not isinstance(value, torch.Tensor) or tuple(value.shape) != kept.shape or value.dtype != kept.dtype:
                raise _other(kept, value)
            elif value.data_ptr() != place.data_ptr():
                if kept.dtype == torch.float32:
                    view = place.view(kept.shape)
                    view.copy_(value)
                    if not kept.on_cpu:
                        of[kept.key] = view
                else:
                    raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
                    place.view(torch.uint8)[: raw.numel()].copy_(raw)


def _groups(made: List[Any]) -> List[Dict[str, Any]]:
    return [group for one in made for group in one.param_groups]


def _homes(made: List[Any], masters: List[Any]) -> List[Any]:
    """Which optimizer has each parameter."""
    has = {id(parameter): one for one in made for group in one.param_groups for parameter in group["params"]}
    return [has[id(master)] for master in masters]


def _other(kept: Kept, value: Any) -> ValueError:
    what = f"{list(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else repr(value)
    return ValueError(f"the optimizer's {kept.name} became {what}: what it keeps has to have the same shape and type after every step")


def _taken(kept: Kept, place: torch.Tensor) -> Any:
    if kept.dtype is None:
        return kept.kind(_read_number(place))
    if kept.dtype == torch.float32 and not kept.on_cpu:
        return place.view(kept.shape)
    size = torch.empty(0, dtype=kept.dtype).element_size() * _count(kept.shape)
    value = place.view(torch.uint8)[:size].clone().view(kept.dtype).view(kept.shape)
    return value.cpu() if kept.on_cpu else value


def _count(shape: Sequence[int]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count


def _read_number(place: torch.Tensor) -> float:
    number: float = struct.unpack("<d", place[:_NUMBER].cpu().contiguous().numpy().tobytes())[0]
    return number


def _write_number(place: torch.Tensor, number: float) -> None:
    place[:_NUMBER].view(torch.uint8).copy_(torch.frombuffer(bytearray(struct.pack("<d", number)), dtype=torch.uint8))


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return bool(one == other)


def _words(options: Dict[str, Any]) -> str:
    return ", ".join(f"{key} {digest(value) if isinstance(value, torch.Tensor) else value!r}" for key, value in sorted(options.items()))
