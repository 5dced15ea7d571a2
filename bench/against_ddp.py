#!/usr/bin/env python3
"""PyTorch models trained by dtrain and by DistributedDataParallel over gloo, in turn, each with two processes of one thread.

    pip install .[torch]
    python bench/against_ddp.py --rounds 5
"""

import argparse
import re
import statistics
import sys
import tempfile

from measure import ROOT, run, torch_result

PROGRAM = f"{ROOT}/bench/torch_works.py"
PEER = f"{ROOT}/bench/peers/torch_train.py"
LINE = re.compile(r"^dtrain .* samples/s ([0-9.]+) rss ([0-9]+) MB$", re.M)
#: What a step is about to take, so that both sides run for some seconds. *Units*: samples a second of two processes.
ABOUT = {"mlp": 10_000, "gpt": 50, "cnn": 1_400, "cnn3d": 650}
BATCH = {"mlp": 128, "gpt": 8, "cnn": 128, "cnn3d": 16}
RANKS = 2


def ours(args, work, parts):
    # Behind the first ten, as the peer's.
    steps = 10 + max(20, int(args.seconds * ABOUT[work] / (BATCH[work] * RANKS)))
    found = LINE.search(run([args.python, PROGRAM, work, parts, steps, RANKS]))
    return float(found[1]), int(found[2])


def theirs(args, work, parts):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    words = [args.python, *launcher, PEER, "--work", work, "--threads", 1, "--micro-batches", parts]
    return torch_result(run([*words, "--windows", int(args.seconds), "--seconds", 1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--works", nargs="*", default=["mlp", "gpt", "cnn", "cnn3d"])
    args = parser.parse_args()
    import os

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print("| work | micro-batches a rank | dtrain | DDP | ratio | memory of a rank |\n|---|---|---|---|---|---|", flush=True)
        for work in args.works:
            for parts in (1, 4):
                pairs = [(ours(args, work, parts), theirs(args, work, parts)) for _ in range(args.rounds)]
                ratios = sorted(one[0] / other[0] for one, other in pairs)
                middle = statistics.median
                rate, peer = (middle(pair[side][0] for pair in pairs) for side in (0, 1))
                memory, peers = (middle(pair[side][1] for pair in pairs) for side in (0, 1))
                print(
                    f"| {work} | {parts} | {rate:.0f} | {peer:.0f} | {middle(ratios):.2f} [{ratios[0]:.2f}-{ratios[-1]:.2f}] "
                    f"| {memory:.0f} / {peers:.0f} MiB |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
