#!/usr/bin/env python3
"""dtrain and PyTorch in turn on the same workload and the same cores; prints a Markdown table.

    bench/against_pytorch.py --python .venv/bin/python --pairs 7

Each pair is one run of each, one after the other, pinned to the same cores (as many as ranks), so that whatever else the
machine does falls on both. A ratio is dtrain's samples/s over PyTorch's in the same pair; above 1 dtrain is faster. Memory is
the peak of the largest rank process (dtrain's supervisor, some 10 MiB, is not counted).
"""
import argparse
import datetime
import json
import os
import re
import shlex
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEER_LINE = re.compile(r"^torch .* samples/s ([0-9.]+) .* rss ([0-9]+) MB$", re.M)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", default=os.path.join(ROOT, "target/release/dtrain"), help="the binary")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--peer", default=os.path.join(ROOT, "bench/peers/torch_train.py"))
    parser.add_argument("--work", nargs="+", default=["mlp", "gpt", "cnn", "cnn3d"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each rank, of both sides")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=5, help="what each run measures, after its warm-up")
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)), help="cores to pin to")
    return parser.parse_args()


def run(command, cores):
    """Standard output of a command that is pinned to `cores` with everything it starts."""
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    if done.returncode:
        sys.exit(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def dtrain(args, work, ranks, cores):
    words = [args.dtrain, "bench", "step", "--work", work, "--ranks", ranks, "--threads", args.threads]
    out = run([str(word) for word in [*words, "--seconds", args.seconds, "--json"]], cores)
    last = json.loads(out.splitlines()[-1])
    return last["samples_per_second"], last["peak_rss_mb"]


def torch(args, work, ranks, cores):
    launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    words = [args.python, *launcher, args.peer, "--work", work, "--threads", args.threads]
    out = run([str(word) for word in [*words, "--windows", args.seconds, "--seconds", 1]], cores)
    found = PEER_LINE.search(out)
    if not found:
        sys.exit(f"no result in the output of {args.peer}:\n{out}")
    return float(found[1]), float(found[2])


def spread(values, form):
    if len(values) == 1:
        return form(values[0])
    return f"{form(statistics.median(values))} [{form(min(values))}-{form(max(values))}]"


def measure(args, work, ranks):
    needed = ranks * args.threads
    if needed > len(args.cores):
        sys.exit(f"{ranks} ranks of {args.threads} threads need {needed} cores, there are {len(args.cores)}")
    cores = set(args.cores[:needed])
    pairs = []
    for pair in range(args.pairs):
        pairs.append((dtrain(args, work, ranks, cores), torch(args, work, ranks, cores)))
        (ours, _), (theirs, _) = pairs[-1]
        print(f"{work} ranks {ranks} pair {pair + 1}: {ours:.1f} {theirs:.1f} {ours / theirs:.3f}", file=sys.stderr)
    rate = lambda value: f"{value:,.0f}".replace(",", " ") if value >= 200 else f"{value:.1f}"
    of = lambda side, figure: [pair[side][figure] for pair in pairs]
    ratios = [ours[0] / theirs[0] for ours, theirs in pairs]
    memory = [statistics.median(of(side, 1)) for side in (0, 1)]
    cells = [work, ranks, spread(of(0, 0), rate), spread(of(1, 0), rate), spread(ratios, lambda x: f"{x:.2f}")]
    cells += [f"{memory[0]:.0f}", f"{memory[1]:.0f}", f"{memory[0] / memory[1]:.2f}"]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def cpu():
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else os.uname().machine}, {len(names) or os.cpu_count()} cores"


def main():
    args = arguments()
    versions = [args.python, "-c", "import torch, platform; print(torch.__version__, 'Python', platform.python_version())"]
    rows = [measure(args, work, ranks) for ranks in args.ranks for work in args.work]
    everything = set(args.cores)
    print(f"{datetime.date.today()} · {cpu()} · {run([args.dtrain, '--version'], everything).strip()} · "
          f"PyTorch {run(versions, everything).strip()}")
    print(f"{args.pairs} pairs of {args.seconds} s, {args.threads} thread(s) a rank; median [least-most]\n")
    print("| work | ranks | dtrain samples/s | PyTorch samples/s | ratio of a pair | dtrain MiB | PyTorch MiB | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
