#!/usr/bin/env python3
"""What training together costs: a run of N ranks beside N runs of one rank at the same time; prints a Markdown table.

    bench/together.py --pairs 5

The runs of one rank share caches and memory as the ranks do, and nothing else: no all-reduce, no barrier, no common supervisor.
Each pair is one after the other on the same cores. The ratio is the samples/s of the run of N over the sum of the others.

Cores that are not equally fast at every moment cost whoever waits for the slower one in every step, whatever the trainer does. With
--limit that is measured too, as often as there are pairs and behind all of them, because whatever runs straight after it is slow
for a while: threads that only multiply, waiting for one another as often as steps end, beside threads that do not wait
(`cargo build --release -p dtrain-engine --example lockstep`).
"""
import argparse
import os
import sys

import measure
from measure import hundredths, rate, row, spread


# Samples in a rank's batch; `dtrain bench step` has the same.
BATCH = {"mlp": 128, "gpt": 8, "cnn": 128, "cnn3d": 16}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", default=measure.DTRAIN, help="the binary")
    parser.add_argument("--work", nargs="+", default=["mlp", "gpt", "cnn", "cnn3d"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5, help="what each run measures, after its warm-up")
    parser.add_argument("--limit", metavar="LOCKSTEP", help="the binary of the example lockstep")
    return parser.parse_args()


def limit(args, steps, cores):
    """What waiting for the slower core costs: the ratio of threads that multiply in step to those on their own."""
    words = [args.limit, str(args.ranks), str(max(1, round(1000 / steps))), str(2 * args.seconds)]
    return float(measure.run(words, cores).split()[1])


def main():
    args = arguments()
    args.python = None
    cores = sorted(os.sched_getaffinity(0))[: args.ranks]
    if len(cores) < args.ranks:
        sys.exit(f"{args.ranks} ranks need as many cores, there are {len(cores)}")
    rows = []
    for work in args.work:
        pairs = []
        for pair in range(args.pairs):
            together = measure.dtrain_result(measure.run(measure.dtrain_words(args, work, args.ranks), set(cores)))[0]
            alone = [measure.start(measure.dtrain_words(args, work), {core}) for core in cores]
            alone = sum(measure.dtrain_result(measure.output(process))[0] for process in alone)
            pairs.append((together, alone))
            print(f"{work} pair {pair + 1}: {together:.1f} {alone:.1f} {together / alone:.3f}", file=sys.stderr)
        shown = [spread((pair[side] for pair in pairs), rate) for side in (0, 1)]
        shown.append(spread((together / alone for together, alone in pairs), hundredths))
        if args.limit:
            waits = [limit(args, together / args.ranks / BATCH[work], set(cores)) for together, _ in pairs]
            shown.append(spread(waits, hundredths))
        rows.append(row([work, *shown]))
    print(measure.versions(args))
    print(f"{args.pairs} pairs of {args.seconds} s; median [least-most]\n")
    names = ["work", f"{args.ranks} ranks, samples/s", f"{args.ranks} runs of one rank, sum", "ratio of a pair"]
    if args.limit:
        names.append("only multiplying")
    measure.table(names, rows)


if __name__ == "__main__":
    main()
