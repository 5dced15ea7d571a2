#!/usr/bin/env python3
"""PyTorch on one GPU: a workload in f32, in f32 with TF32 and with bf16 autocast, eager or compiled.

    bench/peers/torch_gpu.py --work gpt --mode eager

A line a precision: `rate WORK PRECISION MODE NUMBER UNIT batch BATCH NOTE`, or `lost WORK PRECISION MODE WHY`; one that fails
costs only itself, and the exit code is then 1. The number is the median of the windows, the note has the least and the most.
Compiled is `torch.compile(mode="reduce-overhead")`, the loss inside; where the compiler makes no CUDA graphs the note says so.
`bench/gpu.sh` runs it; `--device cpu --seconds 0` tries it where there is no GPU.
"""
import argparse
import gc
import sys
import time

import torch
import torch.nn.functional as F

import models

PRECISIONS = ("f32", "tf32", "bf16")
GPT2 = "gpt2"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=[*models.WORKS, GPT2], required=True)
    parser.add_argument("--mode", choices=["eager", "compiled"], default="eager")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, help="default: all; of gpt2 bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of one timed window")
    parser.add_argument("--batch", type=int, help="not the workload's own: eager and in bf16 only, unless it is gpt2")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 32, 16, 8], help="of gpt2: the first that fits")
    parser.add_argument("--context", type=int, default=1024, help="of gpt2")
    parser.add_argument("--warm", action="store_true", help="one step of each and no number: fills the compiler's cache")
    args = parser.parse_args()
    if args.batch and args.work != GPT2:
        if args.mode == "compiled":
            parser.error("only gpt2 is compiled for another batch")
        args.precisions = ["bf16"]
    args.precisions = args.precisions or (["bf16"] if args.work == GPT2 else list(PRECISIONS))
    return args


def trainer(work, args, precision):
    """What makes one step of `work`, and what its rows are called."""
    device = torch.device(args.device)
    model, x, y = work.model.to(device), work.x.to(device), work.y.to(device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)

    def loss_of(x, y):
        with torch.autocast(args.device, torch.bfloat16, enabled=precision == "bf16"):
            return F.cross_entropy(model(x), y)

    compiled = args.mode == "compiled"
    forward = torch.compile(loss_of, mode="reduce-overhead") if compiled else loss_of

    def step():
        """The loss, which the next step may write over: a graph has one place for it."""
        optimizer.zero_grad(set_to_none=True)
        if compiled:
            torch.compiler.cudagraph_mark_step_begin()
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def wait(args):
    if args.device == "cuda":
        torch.cuda.synchronize()


def timed(step, steps, args):
    """Seconds of `steps` steps, all work done."""
    wait(args)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait(args)
    return time.perf_counter() - start


def measure(work, rows, args, precision):
    """Rows a second of each window in order; none where only the compiler was to be warmed."""
    step = trainer(work, args, precision)
    first = float(step())
    if args.warm:
        wait(args)
        return []
    once = min(timed(step, 1, args) for _ in range(2 if args.seconds == 0 else 8))
    steps = max(1, int(args.seconds / once))
    rates = sorted(rows * steps / timed(step, steps, args) for _ in range(args.windows))
    last = float(step())
    # The batch never changes, so a step that really trains makes its loss smaller.
    if not last < first:
        raise ArithmeticError(f"the loss went from {first} to {last}")
    return rates


def misses():
    """Where the compiler counts what it could make no CUDA graph of; it tells nobody else."""
    return getattr(getattr(getattr(torch, "_dynamo", None), "utils", None), "counters", {}).get("inductor", {})


def is_short(error):
    """Whether there was no room; a compiler hides the error in another one."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error).lower()


def clean(args):
    """Nothing of what ran before stays: no memory, no graph, no shape that the compiler would make a variable of."""
    if args.mode == "compiled":
        torch.compiler.reset()
        misses().clear()
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def tell(args, precision, rates, unit, note):
    if args.device == "cuda":
        note += f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
        if args.mode == "compiled" and misses().get("cudagraph_skips"):
            note += ", without graphs"
    spread = f"{note} [{rates[0]:.0f}-{rates[-1]:.0f}]"
    print(f"rate {args.work} {precision} {args.mode} {rates[len(rates) // 2]:.1f} {unit} {spread}", flush=True)


def attempt(args, precision, batch):
    if args.work == GPT2:
        work, rows, unit = models.gpt2(batch, args.context), batch * args.context, "tokens/s"
    else:
        work, rows, unit = models.work(args.work, batch), batch, "samples/s"
    rates = measure(work, rows, args, precision)
    if rates:
        tell(args, precision, rates, unit, f"batch {batch}")


def run(args, precision):
    """Measures one precision; GPT-2 small with the largest batch that fits."""
    own = args.batches if args.work == GPT2 else [models.BATCH[args.work]]
    batches = [args.batch] if args.batch else own
    for batch in batches:
        try:
            return attempt(args, precision, batch)
        except Exception as error:
            if not is_short(error) or batch == batches[-1]:
                raise
        # Only here: the frames of the error held the model.
        clean(args)


def main():
    args = arguments()
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, Python {sys.version.split()[0]}", flush=True)
    lost = False
    for precision in args.precisions:
        clean(args)
        try:
            run(args, precision)
        except Exception as error:  # whatever a compiler or a driver raises: the other precisions are worth having
            lost = True
            words = (str(error).strip() or type(error).__name__).splitlines()[0]
            if is_short(error):
                words = f"no room: {words}"
            print(f"lost {args.work} {precision} {args.mode} {words}", flush=True)
    sys.exit(lost)


if __name__ == "__main__":
    main()
