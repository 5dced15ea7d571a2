#!/usr/bin/env python3
"""What one GPU reaches by PyTorch's libraries, where nothing else runs: its ceilings, and the parts of a step of GPT-2 small.

    bench/peers/torch_ceilings.py --batch 64

`ceilings PRODUCT,COPY` in TFLOP/s and TB/s, as `dtrain bench gpu-plan --ceilings` takes them: an 8192 x 8192 x 8192 product of bf16, and
a copy on the device, which reads and writes each byte. Then a line a part: milliseconds, TFLOP/s, its name. Each number is the median of
windows that an event began and ended. Only a product whose operands are random tells something: zeros cost less power.
"""
import argparse
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def milliseconds(work, repeats=10, windows=7):
    for _ in range(3):
        work()
    taken = []
    for _ in range(windows):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        for _ in range(repeats):
            work()
        ended.record()
        ended.synchronize()
        taken.append(begun.elapsed_time(ended) / repeats)
    return statistics.median(taken)


def halves(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def told(name, work, operations):
    try:
        ms = milliseconds(work)
    except Exception as error:  # One part that fails costs only itself.
        print(f"part lost {name}: {str(error).splitlines()[0]}", flush=True)
        return
    print(f"part {ms:.3f} ms {operations / ms / 1e9:.0f} TFLOP/s {name}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="sequences of 1 024 tokens")
    args = parser.parse_args()
    a, b = halves(8192, 8192), halves(8192, 8192)
    product = 2 * 8192**3 / milliseconds(lambda: a @ b) / 1e9
    x, y = (torch.empty(1 << 30, device="cuda", dtype=torch.int32) for _ in range(2))
    copy = 2 * x.numel() * 4 / milliseconds(lambda: y.copy_(x)) / 1e9
    print(f"ceilings {product:.0f},{copy:.2f}", flush=True)
    del a, b, x, y

    rows = args.batch * 1024
    for name, inputs, outputs in [
        ("qkv", 768, 2304), ("out", 768, 768), ("up", 768, 3072), ("down", 3072, 768), ("head", 768, 50304),
    ]:
        x, w, dy = halves(rows, inputs), halves(outputs, inputs), halves(rows, outputs)
        operations = 2 * rows * inputs * outputs
        told(f"{name} y", lambda: x @ w.t(), operations)
        told(f"{name} dx", lambda: dy @ w, operations)
        told(f"{name} dw", lambda: dy.t() @ x, operations)
        del x, w, dy

    heads, time, head = 12, 1024, 64
    q, k, v = (halves(args.batch, heads, time, head).requires_grad_() for _ in range(3))
    dy = halves(args.batch, heads, time, head)
    pairs = 2 * args.batch * heads * time * time * head
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        for again in (False, True):
            torch.use_deterministic_algorithms(again, warn_only=True)
            with sdpa_kernel(backend):
                name = f"attention {backend.name.lower()}{' repeatable' if again else ''}"
                told(f"{name} y", lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), pairs)
                try:
                    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    told(f"{name} dqkv", lambda: torch.autograd.grad(out, (q, k, v), dy, retain_graph=True), 5 * pairs / 2)
                except Exception as error:
                    print(f"part lost {name} dqkv: {str(error).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
