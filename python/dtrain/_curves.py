"""Metrics that follow from the order of all held-out samples, and from no sum over batches: areas under curves."""

from __future__ import annotations

from typing import Any, Callable, Tuple, Union

#: More classes are not ranked.
_MOST = 16

#: Nor more than these in all of the metrics of a program: what a rank tells of a validation has its limit.
MOST_OF_ALL = 64

#: What the extension module takes of a batch: its classes, and the outputs of each sample as float32, one for each class.
Ordered = Tuple[bytes, bytes]


class Curve:
    """A metric of :func:`dtrain.roc_auc` or :func:`dtrain.average_precision`."""

    def __init__(self, kind: str, scores: Callable[[Any, Any], Any], classes: int) -> None:
        if not callable(scores):
            raise TypeError(f"{kind}: what gives the scores is a {type(scores).__name__}, and has to be a function")
        if not isinstance(classes, int) or not 2 <= classes <= _MOST:
            raise ValueError(f"{kind}: classes={classes}, and it is for 2 to {_MOST} of them")
        #: What it is, as the extension module knows it.
        self.kind = kind
        self.scores, self.classes = scores, classes

    def ordered(self, given: Any) -> Ordered:
        """What was given of a batch. *Raises* ``TypeError`` or ``ValueError`` where it makes no sense."""
        import torch

        if not (isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, torch.Tensor) for part in given)):
            raise TypeError("has to give two tensors, the scores and the labels of a batch")
        scores, labels = (part.detach() for part in given)
        if scores.ndim == 2 and scores.shape[1] == 1:
            scores = scores[:, 0]
        if scores.ndim == 1 and self.classes == 2:
            # The odds of one of two classes are those of its score against nothing.
            scores = torch.stack((torch.zeros_like(scores), scores), dim=1)
        if scores.ndim != 2 or scores.shape[1] != self.classes:
            wanted = "[n] or [n, 2]" if self.classes == 2 else f"[n, {self.classes}]"
            raise ValueError(f"scores have the shape {list(scores.shape)}, and should have {wanted}")
        labels = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
        if labels.shape != scores.shape[:1]:
            raise ValueError(f"labels have the shape {list(labels.shape)}, and should have [{scores.shape[0]}]")
        labels = labels.to("cpu")
        classes = labels.to(torch.int64)
        if not torch.equal(classes.to(labels.dtype), labels) or (len(classes) and not 0 <= classes.min() <= classes.max() < self.classes):
            raise ValueError(f"labels are numbers of classes, from 0 to {self.classes - 1}")
        return classes.to(torch.int32).numpy().tobytes(), scores.to("cpu", torch.float32).contiguous().numpy().tobytes()


#: What a metric may be.
Metric = Union[Callable[[Any, Any], Any], Curve]


def roc_auc(scores: Callable[[Any, Any], Any], classes: int = 2) -> Curve:
    """The area under the receiver operating characteristic, as a metric: ``metrics={"auc": dtrain.roc_auc(f)}``.

    ``f(net, batch)`` gives scores and labels of the samples of a batch. Scores are logits, what stands in front of the sigmoid or the softmax:
    ``[n]``, or ``[n, classes]``. Labels are ``[n]``, numbers of classes. Of two classes it is the area of class 1, of more the mean over all
    that occur. It is counted in steps of a thirtieth of the odds, so that it is the same on any ranks.
    """
    return Curve("roc_auc", scores, classes)


def average_precision(scores: Callable[[Any, Any], Any], classes: int = 2) -> Curve:
    """The area under precision over recall, by steps, as a metric; scores and labels are as for :func:`roc_auc`. It suits rare classes."""
    return Curve("average_precision", scores, classes)
