#!/usr/bin/env python3
"""PyTorch on one GPU: a workload in f32, in f32 with TF32 and with bf16 autocast, eager or compiled.

    bench/peers/torch_gpu.py --work gpt --mode eager

A line a precision: `rate WORK PRECISION MODE NUMBER UNIT batch BATCH NOTE`, or `lost WORK PRECISION MODE WHY`; one that fails
costs only itself, and the exit code is then 1. The number is the median of the windows, the note has the least and the most.
Compiled is `torch.compile(mode="reduce-overhead")`, the loss inside; where the compiler makes no CUDA graphs the note says so.
`bench/gpu.sh` runs it; `--device cpu --seconds 0` tries it where there is no GPU.

`--turns N` says `ready UNIT batch BATCH` and measures a window, `window NUMBER`, whenever a line of standard input asks for one, as dtrain's
`train_step` does; of one precision only.

`--curve FILE` trains gpt2 on the bytes of a text instead, from the start and on the batches of dtrain's `train_step --curve`, and
prints `loss STEP VALUE`.
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
VIT = "vit"
LLAMA = "llama"
# Those of which the largest batch that fits is taken.
LARGE = {GPT2: [64, 32, 16, 8], VIT: [256, 128, 64, 32], LLAMA: [32, 16, 8, 4]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=[*models.WORKS, *LARGE], required=True)
    parser.add_argument("--mode", choices=["eager", "compiled"], default="eager")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, help="default: all; of gpt2, vit and llama bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of one timed window")
    parser.add_argument("--batch", type=int, help="not the workload's own: eager and in bf16 only, unless it is gpt2, vit or llama")
    parser.add_argument("--turns", type=int, metavar="N", help="so many windows, each when a line of standard input asks for it")
    parser.add_argument("--fill", type=int, metavar="BATCH", help="behind the rest bf16 once more, with this batch")
    parser.add_argument("--batches", type=int, nargs="+", help="of gpt2, vit and llama: the first that fits")
    parser.add_argument("--context", type=int, default=1024, help="of gpt2")
    parser.add_argument("--curve", metavar="FILE", help="losses of gpt2 on a text, and no rate")
    parser.add_argument("--steps", type=int, default=60, help="of the curve")
    parser.add_argument("--width", type=int, help="of the curve: a small GPT-2, so many twelfths wide")
    parser.add_argument("--warm", action="store_true", help="one step of each and no number: fills the compiler's cache")
    args = parser.parse_args()
    if args.curve and args.work != GPT2:
        parser.error("only gpt2 learns a text")
    if args.turns and len(args.precisions or []) != 1:
        parser.error("windows in turn are of one precision: --precisions")
    if args.batch and args.work not in LARGE and not args.turns:
        if args.mode == "compiled":
            parser.error("only gpt2, vit and llama are compiled for another batch")
        args.precisions = ["bf16"]
    args.precisions = args.precisions or (["bf16"] if args.work in LARGE else list(PRECISIONS))
    args.batches = args.batches or LARGE.get(args.work) or [models.BATCH[args.work]]
    return args


def trainer(model, args, precision, rate=1e-3):
    """What makes one step of a model on a batch."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)

    def loss_of(x, y):
        with torch.autocast(args.device, torch.bfloat16, enabled=precision == "bf16"):
            return F.cross_entropy(model(x), y)

    compiled = args.mode == "compiled"
    forward = torch.compile(loss_of, mode="reduce-overhead") if compiled else loss_of

    def step(x, y):
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


def curve(args, precision):
    """Prints the losses of GPT-2 on a text: batches follow one another in it, row by row, and begin anew before its end."""
    size = models.Size(256, 16, 2, 12 * args.width, 12) if args.width else models.Size()
    with open(args.curve, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).to(args.device, torch.int64)
    rows, time, last = args.batch or 8, size.context, len(text) - size.context
    with torch.device(args.device):
        model = models.Gpt2(size)
        model.begin_alike()
    step = trainer(model, args, precision, rate=3e-4)
    for number in range(args.steps):
        starts = [(number * rows + row) * time % last for row in range(rows)]
        x, y = (torch.stack([text[at + behind :][:time] for at in starts]) for behind in (0, 1))
        print(f"loss {number + 1} {float(step(x, y.flatten())):.6f}", flush=True)


def timed(step, steps, args):
    """Seconds of `steps` steps, all work done."""
    wait(args)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait(args)
    return time.perf_counter() - start


def windows(step, rows, steps, args, ready):
    """Rows a second of each window: at once, or whenever a line of standard input asks for one."""
    if not args.turns:
        return [rows * steps / timed(step, steps, args) for _ in range(args.windows)]
    print(f"ready {ready}", flush=True)
    rates = []
    # Not `for line in sys.stdin`: that may wait for more than one.
    while len(rates) < args.turns and sys.stdin.readline():
        rates.append(rows * steps / timed(step, steps, args))
        print(f"window {rates[-1]:.1f}", flush=True)
    return rates


def measure(work, rows, args, precision, ready):
    """Rows a second of each window in order; none where only the compiler was to be warmed."""
    x, y = work.x.to(args.device), work.y.to(args.device)
    # Without a warm-up they learn nothing at the others' rate.
    train = trainer(work.model.to(args.device), args, precision, rate=1e-4 if args.work in (VIT, LLAMA) else 1e-3)
    step = lambda: train(x, y)
    first = float(step())
    if args.warm:
        wait(args)
        return []
    once = min(timed(step, 1, args) for _ in range(2 if args.seconds == 0 else 8))
    steps = max(10 if args.seconds else 1, int(args.seconds / once))
    rates = sorted(windows(step, rows, steps, args, ready))
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
    elif args.work == VIT:
        work, rows, unit = models.vit(batch), batch, "samples/s"
    elif args.work == LLAMA:
        work, rows, unit = models.llama(batch), batch * models.Llama.time, "tokens/s"
    else:
        work, rows, unit = models.work(args.work, batch), batch, "samples/s"
    rates = measure(work, rows, args, precision, f"{unit} batch {batch}")
    if rates and not args.turns:
        tell(args, precision, rates, unit, f"batch {batch}")


def run(args, precision, batches):
    """Measures one precision with the first batch that fits."""
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
    runs = [(precision, [args.batch] if args.batch else args.batches) for precision in args.precisions]
    runs += [("bf16", [args.fill])] if args.fill else []
    lost = False
    for precision, batches in runs:
        clean(args)
        try:
            curve(args, precision) if args.curve else run(args, precision, batches)
        except Exception as error:  # whatever a compiler or a driver raises: the other runs are worth having
            lost = True
            words = (str(error).strip() or type(error).__name__).splitlines()[0]
            short = "no room: " if is_short(error) else ""
            print(f"lost {args.work} {precision} {args.mode} {short}batch {batches[-1]}: {words}", flush=True)
    sys.exit(lost)


if __name__ == "__main__":
    main()
