"""Conversations that ``dtrain tokenize --chat`` made token ids of, as data of a program.

It does not know what becomes of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Tuple, Union

#: What a class is that no loss counts, to PyTorch and to transformers.
IGNORED = -100
#: The bits of a mask: a token that is learnt, and one that an example begins with.
LEARNT, BEGINS = 1, 2
#: So many bytes of a mask are looked at at once.
PIECE = 1 << 22


class Examples:
    """What :func:`examples` gives."""

    def __init__(self, file: Path, context: int) -> None:
        import torch

        mask = file.with_suffix(".mask")
        for path in (file, mask):
            if not path.is_file():
                raise FileNotFoundError(f"{path} is not there: `dtrain tokenize --chat` writes it, and the other one of both")
        tokens, bytes_of_ids = mask.stat().st_size, file.stat().st_size
        width = bytes_of_ids // tokens if tokens else 0
        if tokens == 0 or bytes_of_ids != tokens * width or width not in (2, 4):
            raise ValueError(f"{file} has {bytes_of_ids} bytes, and {mask} {tokens}: they were not made together")
        # Mapped: what is read of them is the system's to keep.
        self._ids = torch.from_file(str(file), size=tokens, dtype=torch.int16 if width == 2 else torch.int32)
        self._mask = torch.from_file(str(mask), size=tokens, dtype=torch.uint8)
        self._beyond = (1 << 8 * width) - 1
        self.context = context
        begins, teaches = self._found(tokens)
        if len(begins) == 0 or begins[0] != 0:
            raise ValueError(f"{mask}: no example begins with its first byte")
        ends = torch.minimum(torch.cat([begins[1:], torch.tensor([tokens])]), begins + context)
        teaches = teaches < ends
        #: Examples that have nothing to learn within the context.
        self.left_out = int((~teaches).sum())
        self._begins, self._ends = begins[teaches], ends[teaches]
        if len(self._begins) == 0:
            raise ValueError(f"no example of {file} has anything to learn in its first {context} tokens")

    def _found(self, tokens: int) -> Tuple[Any, Any]:
        """Where examples begin, and the first token behind that of each that is learnt; of the mask piece by piece, from its end."""
        import torch

        begins, firsts, next_learnt = [], [], tokens
        for start in reversed(range(0, tokens, PIECE)):
            piece = self._mask[start : start + PIECE]
            if int(piece.max()) > LEARNT | BEGINS:
                raise ValueError(f"the mask has a byte of {int(piece.max())}, expected 0 to 3")
            here = torch.nonzero(piece & BEGINS).flatten() + start
            learnt = torch.cat([torch.nonzero(piece & LEARNT).flatten() + start, torch.tensor([next_learnt])])
            # The first token of an example is never predicted.
            begins.append(here)
            firsts.append(learnt[torch.searchsorted(learnt, here + 1).clamp(max=len(learnt) - 1)])
            next_learnt = int(learnt[0])
        begins.reverse(), firsts.reverse()
        return torch.cat(begins), torch.cat(firsts)

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, index: int) -> Dict[str, Any]:
        import torch

        begin, end = int(self._begins[index]), int(self._ends[index])
        ids = self._ids[begin:end].to(torch.int64) & self._beyond
        learnt = (self._mask[begin:end] & LEARNT).bool()
        sample = {
            "input_ids": torch.zeros(self.context, dtype=torch.int64),
            "attention_mask": torch.zeros(self.context, dtype=torch.int64),
            "labels": torch.full((self.context,), IGNORED),
        }
        sample["input_ids"][: end - begin] = ids
        sample["attention_mask"][: end - begin] = 1
        sample["labels"][: end - begin] = torch.where(learnt, ids, IGNORED)
        return sample


def examples(path: Union[str, "os.PathLike[str]"], context: int = 1024, part: str = "train") -> Examples:
    """Examples of a folder that ``dtrain tokenize --chat`` wrote, or of a file of ids in it, for models of transformers.

    A sample is a dictionary of int64 tensors ``[context]``: ``input_ids``, ``attention_mask``, and ``labels``, which are -100 for what is not
    learnt. A model shifts labels itself. An example that is longer loses its end; one that has nothing to learn before that is left out.

    ``part`` is ``"train"`` or ``"val"``. Files are mapped; the mask is looked through once. *Raises* ``FileNotFoundError``, ``ValueError`` with the reason.
    """
    if not isinstance(context, int) or context < 2:
        raise ValueError(f"context={context}: it is a whole number of at least 2")
    path = Path(path)
    return Examples(path / f"{part}.bin" if path.is_dir() else path, context)
