#!/usr/bin/env python3
"""dtrain and PyTorch in turn on the same workload and the same cores; prints a Markdown table.

    bench/against_pytorch.py --python .venv/bin/python --pairs 7

Each pair is one run of each, one after the other, pinned to the same cores (as many as ranks), so that whatever else the
machine does falls on both. A ratio is dtrain's samples/s over PyTorch's in the same pair; above 1 dtrain is faster. Memory is
the peak of the largest rank process (dtrain's supervisor, some 10 MiB, is not counted).
"""
import argparse
import os
import statistics
import sys

import measure
from measure import hundredths, rate, row, spread


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", default=measure.DTRAIN, help="the binary")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--peer", default=measure.STEPS_PEER)
    parser.add_argument("--work", nargs="+", default=["mlp", "gpt", "cnn", "cnn3d"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each rank, of both sides")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="bf16: autocast on PyTorch's side")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=5, help="what each run measures, after its warm-up")
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)), help="cores to pin to")
    return parser.parse_args()


def pairs_of(args, work, ranks):
    needed = ranks * args.threads
    if needed > len(args.cores):
        sys.exit(f"{ranks} ranks of {args.threads} threads need {needed} cores, there are {len(args.cores)}")
    cores = set(args.cores[:needed])
    ours, theirs = (words(args, work, ranks, args.threads, precision=args.precision) for words in (measure.dtrain_words, measure.torch_words))
    pairs = []
    for pair in range(args.pairs):
        found = measure.dtrain_result(measure.run(ours, cores)), measure.torch_result(measure.run(theirs, cores))
        pairs.append(found)
        (dtrain, _), (torch, _) = found
        print(f"{work} ranks {ranks} pair {pair + 1}: {dtrain:.1f} {torch:.1f} {dtrain / torch:.3f}", file=sys.stderr)
    return pairs


def line(work, ranks, pairs):
    of = lambda side, figure: [pair[side][figure] for pair in pairs]
    ratios = [ours[0] / theirs[0] for ours, theirs in pairs]
    memory = [statistics.median(of(side, 1)) for side in (0, 1)]
    cells = [work, ranks, spread(of(0, 0), rate), spread(of(1, 0), rate), spread(ratios, hundredths)]
    return row([*cells, f"{memory[0]:.0f}", f"{memory[1]:.0f}", hundredths(memory[0] / memory[1])])


def main():
    args = arguments()
    rows = [line(work, ranks, pairs_of(args, work, ranks)) for ranks in args.ranks for work in args.work]
    print(measure.versions(args))
    print(f"{args.pairs} pairs of {args.seconds} s, {args.precision}, {args.threads} thread(s) a rank; median [least-most]\n")
    names = "work, ranks, dtrain samples/s, PyTorch samples/s, ratio of a pair, dtrain MiB, PyTorch MiB, ratio"
    measure.table(names.split(", "), rows)


if __name__ == "__main__":
    main()
