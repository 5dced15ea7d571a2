"""Checkpoints of runs as state dicts. Tensors that training does not change lie in the folder of the run once, beside the checkpoints."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from pathlib import Path
from typing import Any, Dict, Tuple, Union

#: What the process that starts a run writes into its folder.
CONSTANTS = "constants.safetensors"
PROGRAM = "program.json"

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


def load(run: "Union[str, os.PathLike[str]]") -> "Dict[str, Any]":
    """The ``state_dict`` of ``"runs/x/best"``, ``"runs/x/last"`` or ``"runs/x/g1-s000460"``, for ``net.load_state_dict``.

    A run alone means its best checkpoint; where none is marked, best is the newest. Every digest is checked. *Raises* ``ValueError`` if
    there is no such run or checkpoint, or if it is damaged.
    """
    from . import _native

    with tempfile.TemporaryDirectory(prefix="dtrain-") as folder:
        out = Path(folder) / "model.safetensors"
        where = Path(_native.export(os.fspath(run), out))
        about, trained = read(out)
    for prefix in ("model.", "stats."):
        trained = {name.removeprefix(prefix) if name.startswith(prefix) else name: value for name, value in trained.items()}
    program = where / PROGRAM
    if not program.exists():
        return trained
    constants = read(where / CONSTANTS)[1] if (where / CONSTANTS).exists() else {}
    step = int(about["checkpoint"].rsplit("-s", 1)[1])
    keys = json.loads(program.read_text())["keys"]
    return {key: _value(kind, of, trained, constants, step) for key, (kind, of) in keys.items()}


def _value(kind: str, of: Any, trained: "Dict[str, Any]", constants: "Dict[str, Any]", step: int) -> Any:
    import torch

    if kind == "trained":
        return trained[of]
    if kind == "constant":
        return constants[of]
    if kind == "steps":
        # It counts steps, from what it was when the run began.
        return torch.tensor(of + step)
    raise ValueError(f"program.json has {kind!r}: another version of dtrain wrote it")


def read(path: Path) -> "Tuple[Dict[str, str], Dict[str, Any]]":
    """What a safetensors file says of itself, and its tensors."""
    import torch

    raw = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    about = header.pop("__metadata__", {})
    tensors: Dict[str, Any] = {}
    for name, tensor in header.items():
        dtype = getattr(torch, _DTYPES[tensor["dtype"]])
        begin, end = tensor["data_offsets"]
        shape = tensor["shape"]
        if begin == end:
            tensors[name] = torch.empty(shape, dtype=dtype)
            continue
        flat = torch.frombuffer(raw, dtype=torch.uint8, offset=8 + length + begin, count=end - begin)
        # Its own memory, which is aligned and does not keep the file.
        tensors[name] = flat.clone().view(dtype).reshape(shape)
    return about, tensors


def write(path: Path, tensors: "Dict[str, Any]") -> None:
    """Writes tensors as a safetensors file, whole or not at all."""
    import torch

    names = {getattr(torch, dtype): name for name, dtype in _DTYPES.items()}
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    replace(path, struct.pack("<Q", len(text)) + text, *map(_raw, tensors.values()))


def _raw(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def replace(path: Path, *parts: bytes) -> None:
    """Writes a file, whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with open(temporary, "wb") as out:
        for part in parts:
            out.write(part)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)
