"""Loops of one's own: ``for step in dtrain.steps(...)``.

In a rank the loop runs on the main thread, and dtrain on another one, which asks for one micro-batch after the other. In the process that a
user starts there is nothing to compute: the loop is over when the run is.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from typing import Any, Callable, Iterator, Optional, Tuple

from ._train import _RANK, train


class Micro:
    """A micro-batch: its ``batch``, and its ``number`` in the step."""

    def __init__(self, number: int, batch: Any) -> None:
        self.number, self.batch = number, batch


class Step:
    """An optimizer step, as far as this rank makes it: its ``number``, from 1, and the module ``net``.

    Iterate over it for the micro-batches that are this rank's, and give each one's loss to :meth:`backward`.
    """

    def __init__(self, loop: "_Loop", number: int, net: Any) -> None:
        self._loop, self.number, self.net = loop, number, net
        self._made = False

    def __iter__(self) -> "Iterator[Micro]":
        while True:
            (step, number), batch, applied = self._loop.asked()
            if step != self.number or self._loop.is_repeated(number):
                self._made = applied >= self.number
                return
            self._loop.begin(number)
            yield Micro(number, batch)
            self._loop.check_answered()

    def backward(self, loss: Any, weight: float) -> None:
        """Computes the gradient of a *summed* loss. ``weight`` is what it is divided by in the end, over all ranks: ``len(y)``, say."""
        self._loop.answer(loss, weight)

    def commit(self) -> bool:
        """Whether the step was made. One that was broken off, because a rank was lost, comes again."""
        return self._made


class _Loop:
    """Hands micro-batches from the thread of dtrain to that of the program, and losses back."""

    def __init__(self) -> None:
        self.requests: "queue.Queue[Any]" = queue.Queue()
        self.answers: "queue.Queue[Any]" = queue.Queue()
        self.request: Optional[Tuple[Tuple[int, int], Any, int]] = None
        self.waiting = False
        self.last: Optional[int] = None
        self.program: Any = None

    # On the thread of dtrain.

    def loss_of(self, place: Tuple[int, int], batch: Any, applied: int) -> Tuple[Any, float]:
        self.requests.put((place, batch, applied))
        while True:
            try:
                answer = self.answers.get(timeout=0.5)
            except queue.Empty:
                if threading.main_thread().is_alive():
                    continue
                answer = ValueError("the loop over dtrain.steps was left before the run was over: give steps= or epochs=, and no break")
            if isinstance(answer, BaseException):
                raise answer
            return answer

    # On the thread of the program.

    def asked(self) -> "Tuple[Tuple[int, int], Any, int]":
        if self.request is None:
            self.request = self.requests.get()
        return self.request

    def is_repeated(self, number: int) -> bool:
        return self.last is not None and number <= self.last

    def begin(self, number: int) -> None:
        self.last, self.request, self.waiting = number, None, True
        self.program.enter()

    def answer(self, loss: Any, weight: float) -> None:
        if not self.waiting:
            raise RuntimeError("step.backward() is called once for each micro-batch of a step")
        self.waiting = False
        self.answers.put(self.program.passed(loss, weight))

    def check_answered(self) -> None:
        if self.waiting:
            raise RuntimeError("a micro-batch of the step had no step.backward()")


def steps(model: Callable[[], Any], data: Any, *, loss: Optional[Callable[[Any, Any], Any]] = None, **options: Any) -> "Iterator[Step]":
    """The steps of a run, for a loop of one's own. Everything else is as in :func:`dtrain.train`.

        for step in dtrain.steps(model, data, optimizer=dtrain.AdamW(lr=1e-3), epochs=20, global_batch=256, micro_batch=32):
            for micro in step:
                x, y = micro.batch
                step.backward(F.cross_entropy(step.net(x), y, reduction="sum"), len(y))
            step.commit()

    ``loss`` is only needed for ``val``. A step that is broken off, because a rank was lost, comes again with the same number.
    """
    if loss is None and options.get("val") is not None:
        raise TypeError("val needs loss=..., by which it is measured")
    if _RANK not in os.environ:
        train(model, data, loss or _no_loss, **options)
        return
    loop = _Loop()
    serving = threading.Thread(target=train, args=(model, data, loss or _no_loss), kwargs={**options, "_loop": loop})

    def failed(kind: type, error: BaseException, trace: Any) -> None:
        # It is the run's to say, once; the thread of dtrain ends this process.
        loop.answers.put(error)
        serving.join()

    sys.excepthook = failed
    serving.start()
    while True:
        (number, _), _, _ = loop.asked()
        loop.last = None
        yield Step(loop, number, loop.program.flat.net)


def _no_loss(net: Any, batch: Any) -> Any:
    raise TypeError("there is no loss to validate with: loss=...")
