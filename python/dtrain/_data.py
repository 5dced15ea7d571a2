"""Data of a program: samples by number, read here or by processes that read ahead.

What a micro-batch holds follows from its place in the run alone: random numbers that reading draws, of ``random``, NumPy and PyTorch, are
seeded for each micro-batch. It does not know ranks.
"""

from __future__ import annotations

import collections
import functools
import os
import random
import sys
import threading
import traceback
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

#: A micro-batch of the training: its step, and its number in it.
Place = Tuple[int, int]

#: For whom random numbers are drawn.
READING, COMPUTING, MAKING = 1, 2, 3


def seed_of(seed: int, use: int, place: Place) -> int:
    """One number from a few, with all bits mixed (SplitMix64)."""
    mask = (1 << 64) - 1
    value = seed & mask
    for part in (use, *place):
        value = (value ^ part) * 0x9E3779B97F4A7C15 & mask
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
        value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
        value ^= value >> 31
    return value


@functools.lru_cache(maxsize=None)
def _has_devices() -> bool:
    """Whether PyTorch has generators beside that of the host."""
    import torch

    return torch.accelerator.is_available()


def seed_all(value: int) -> None:
    """Seeds every generator that programs use."""
    import torch

    # PyTorch takes 64 bits with a sign. For devices that are not in use yet it notes who called, which takes half a millisecond.
    (torch.manual_seed if _has_devices() else torch.default_generator.manual_seed)(value >> 1)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFF_FFFF)


class Arrays:
    """Arrays or tensors of one length, as a data set: a sample is a tuple of their rows."""

    def __init__(self, arrays: Tuple[Any, ...]) -> None:
        import torch

        self.tensors = tuple(array if isinstance(array, torch.Tensor) else torch.as_tensor(array) for array in arrays)
        lengths = {len(tensor) for tensor in self.tensors}
        if len(lengths) != 1:
            raise TypeError(f"data of a tuple have one length, and these have {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> Tuple[Any, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def batch(self, indices: List[int]) -> Tuple[Any, ...]:
        """The rows of several samples, without a detour over each."""
        import torch

        rows = torch.tensor(indices)
        return tuple(tensor[rows] for tensor in self.tensors)


def as_dataset(data: Any, what: str) -> Any:
    """``data`` as something with ``len`` and ``[]``. *Raises* ``TypeError`` with the reason and a way out."""
    if callable(data) and not hasattr(data, "__getitem__"):
        data = data()
    if isinstance(data, tuple) and all(hasattr(array, "shape") for array in data):
        return Arrays(data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        if len(data) == 0:
            raise TypeError(f"{what} has no sample")
        return data
    kind = type(data).__name__
    if type(data).__module__.startswith("torch.utils.data") and hasattr(data, "dataset"):
        raise TypeError(f"{what} is a {kind}: give its data set itself, `{what}=loader.dataset`; dtrain says which samples make a batch")
    if hasattr(data, "__iter__"):
        raise TypeError(
            f"{what} is a {kind} without len() or []: which samples make a micro-batch must not depend on who reads, so they are read by "
            "number; write the stream to a file or an array first"
        )
    raise TypeError(f"{what} is a {kind}: a data set has len() and []")


def collated(dataset: Any, collate: Optional[Callable[[list], Any]], indices: List[int]) -> Any:
    """The batch of these samples."""
    if collate is None and type(dataset) is Arrays:
        return dataset.batch(indices)
    if collate is None:
        from torch.utils.data import default_collate

        collate = default_collate
    many = getattr(dataset, "__getitems__", None)
    samples = many(indices) if many is not None else [dataset[index] for index in indices]
    return collate(samples)


class ReaderFailed(Exception):
    """What a process that reads samples raised; the text is its traceback."""


class Reader:
    """Reads the batches of micro-batches: here when they are asked for, or ahead in processes."""

    def __init__(self, dataset: Any, collate: Optional[Callable[[list], Any]], seed: int, workers: int) -> None:
        self.dataset, self.collate, self.seed = dataset, collate, seed
        self.workers = [_Worker(number, dataset, collate) for number in range(workers)]
        self.ahead: Dict[Place, Tuple[_Worker, int]] = {}
        self.tickets = 0
        # Micro-batches are announced by another thread than that which takes them.
        self.lock = threading.Lock()

    def announce(self, place: Place, indices: List[int]) -> None:
        """Has a process begin with a micro-batch."""
        if not self.workers:
            return
        with self.lock:
            if place in self.ahead:
                return
            ticket = self.tickets
            worker = self.workers[ticket % len(self.workers)]
            self.ahead[place] = (worker, ticket)
            self.tickets += 1
        worker.begin(ticket, seed_of(self.seed, READING, place), indices)

    def take(self, place: Place, indices: List[int]) -> Any:
        """The batch of a micro-batch. *Blocks* until it is read."""
        with self.lock:
            found = self.ahead.pop(place, None)
            # What lies behind was read for nothing: another rank has it now.
            for old in [old for old in self.ahead if old < place]:
                worker, ticket = self.ahead.pop(old)
                worker.forget(ticket)
        if found is None:
            seed_all(seed_of(self.seed, READING, place))
            return collated(self.dataset, self.collate, indices)
        worker, ticket = found
        return worker.result(ticket)


class _Worker:
    """A process that reads samples. It ends with the process that started it."""

    def __init__(self, number: int, dataset: Any, collate: Optional[Callable[[list], Any]]) -> None:
        import torch.multiprocessing

        # A copy of this process: the data need not be opened anew, nor be of a kind that can be sent.
        context = torch.multiprocessing.get_context("fork")
        self.ours, theirs = context.Pipe()
        self.number = number
        self.process = context.Process(target=_read_until_the_end, args=(theirs, self.ours, dataset, collate), daemon=True)
        self.process.start()
        theirs.close()
        self.sending = threading.Lock()
        self.done: Dict[int, Any] = {}
        self.unwanted: set = set()

    def begin(self, ticket: int, seed: int, indices: List[int]) -> None:
        with self.sending:
            try:
                self.ours.send((ticket, seed, indices))
            except OSError:
                pass  # Whoever waits for the result is told how it ended.

    def forget(self, ticket: int) -> None:
        if self.done.pop(ticket, None) is None:
            self.unwanted.add(ticket)

    def result(self, ticket: int) -> Any:
        while ticket not in self.done:
            try:
                other, worked, value = self.ours.recv()
            except (EOFError, OSError):
                self.process.join(1)
                # An accident, as if the rank itself had been hit: it is started again, with all of its workers.
                print(
                    f"worker {self.number} (pid {self.process.pid}), which reads samples, ended with exit code {self.process.exitcode}; "
                    "-9 is often want of memory, and workers=0 reads in the rank itself",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)
            if other in self.unwanted:
                self.unwanted.discard(other)
            else:
                self.done[other] = (worked, value)
        worked, value = self.done.pop(ticket)
        if not worked:
            raise ReaderFailed(value)
        return value


def _read_until_the_end(link: Any, other_end: Any, dataset: Any, collate: Optional[Callable[[list], Any]]) -> None:
    import ctypes
    import signal

    import torch

    # PR_SET_PDEATHSIG, SIGKILL.
    ctypes.CDLL(None).prctl(1, 9)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    other_end.close()
    torch.set_num_threads(1)
    todo: Deque[Tuple[int, int, List[int]]] = collections.deque()
    while True:
        try:
            todo.append(link.recv())
        except (EOFError, OSError):
            return
        ticket, seed, indices = todo.popleft()
        try:
            seed_all(seed)
            answer = (ticket, True, collated(dataset, collate, indices))
        except BaseException:
            answer = (ticket, False, traceback.format_exc())
        try:
            link.send(answer)
        except OSError:
            return
