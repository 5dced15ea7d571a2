#!/usr/bin/env python3
"""What small micro-batches cost: dtrain and PyTorch at one global batch, cut into more and more parts; prints a Markdown table.

    bench/micro_batches.py --python .venv/bin/python --pairs 3

A rank's batch is cut into M micro-batches: dtrain's bits are those of M, whatever the number of ranks; PyTorch accumulates the
gradients of as many parts, and its processes talk to each other once a step. In each round every M has its turn on both sides,
so that whatever else the machine does falls on all of them. "of M = 1" is a side's samples/s over its own with one
micro-batch in the same round.
"""
import argparse
import os
import sys

import measure
from measure import hundredths, rate, row, spread


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", default=measure.DTRAIN, help="the binary")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--peer", default=measure.STEPS_PEER)
    parser.add_argument("--work", nargs="+", default=["mlp", "cnn", "gpt"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--micro-batches", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--pairs", type=int, default=3, help="rounds")
    parser.add_argument("--seconds", type=int, default=3, help="what each run measures, after its warm-up")
    return parser.parse_args()


def rounds_of(args, work, ranks, cuts):
    cores = set(sorted(os.sched_getaffinity(0))[:ranks])
    rounds = []
    for number in range(args.pairs):
        ours = {M: measure.dtrain_result(measure.run(measure.dtrain_words(args, work, ranks, 1, M), cores))[0] for M in cuts}
        theirs = {M: measure.torch_result(measure.run(measure.torch_words(args, work, ranks, 1, M), cores))[0] for M in cuts}
        rounds.append((ours, theirs))
        print(f"{work} ranks {ranks} round {number + 1}: {ours} {theirs}", file=sys.stderr)
    return rounds


def main():
    args = arguments()
    rows = []
    for work in args.work:
        # A batch of 8 sequences has no more parts.
        cuts = [M for M in args.micro_batches if M <= (8 if work == "gpt" else 128)]
        for ranks in args.ranks:
            rounds = rounds_of(args, work, ranks, cuts)
            for M in cuts:
                of = lambda side: [found[side][M] for found in rounds]
                kept = lambda side: [found[side][M] / found[side][cuts[0]] for found in rounds]
                cells = [work, ranks, M, spread(of(0), rate), spread(kept(0), hundredths)]
                cells += [spread(of(1), rate), spread(kept(1), hundredths)]
                rows.append(row([*cells, spread((ours / theirs for ours, theirs in zip(of(0), of(1))), hundredths)]))
    print(measure.versions(args))
    print(f"{args.pairs} rounds of {args.seconds} s, one thread a rank; median [least-most]\n")
    names = "work, ranks, M, dtrain samples/s, of M = 1, PyTorch samples/s, of M = 1, dtrain to PyTorch"
    measure.table(names.split(", "), rows)


if __name__ == "__main__":
    main()
