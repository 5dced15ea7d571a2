#!/usr/bin/env python3
"""dtrain's all-reduce in turn with gloo and Open MPI on the same cores; prints a Markdown table.

    bench/collectives.py --python .venv/bin/python --pairs 5 --ranks 2 4

Each round runs dtrain (exact, then ring), gloo and Open MPI one after the other, so that whatever else the machine does falls
on all of them. The ranks of dtrain and of Open MPI stay on a core each; gloo's are where the system puts them, because it
has threads of its own. All rewrite their buffers before each operation, time the operation alone, take the slowest rank of
each sample and check every element. Open MPI is first tried with several algorithms; each size is held against the best of
them. A ratio is the peer's time over dtrain's in the same round; above 1 dtrain is faster. "of memory" is the time of reading
and writing the same bytes without adding them, measured in the same run, over dtrain's.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import measure
from measure import run, spread

PEERS = os.path.join(measure.ROOT, "bench/peers")
PEER_LINE = re.compile(r"^(?:gloo|mpi) ranks \d+ bytes (\d+) median_us ([0-9.]+)$", re.M)
RULES = "--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm "
# Its own choice; recursive doubling, ring, Rabenseifner; and without copies by the kernel.
MPI_WAYS = ["", RULES + "3", RULES + "4", RULES + "6", "--mca btl_vader_single_copy_mechanism none"]
SIZES = "4KiB,64KiB,1MiB,16MiB,64MiB,256MiB"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", default=measure.DTRAIN, help="the binary")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch; none: no gloo", nargs="?", const="")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2])
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--pairs", type=int, default=5, help="rounds")
    parser.add_argument("--samples", type=int, default=0, help="operations of each size and run [default: by size]")
    parser.add_argument("--no-mpi", action="store_true", help="leave Open MPI out")
    return parser.parse_args()


def in_bytes(size):
    return int(size[:-3]) * UNITS[size[-3:]]


def shown(size):
    return next(f"{size // scale} {unit}" for unit, scale in reversed(UNITS.items()) if size >= scale)


class Machine:
    """What can be measured here, and how."""

    def __init__(self, args, folder):
        self.args, self.sizes = args, [in_bytes(size) for size in args.sizes.split(",")]
        found = shutil.which(args.python) if args.python else None
        self.gloo = bool(found) and subprocess.run([found, "-c", "import torch"], capture_output=True).returncode == 0
        self.mpi = None
        if not args.no_mpi and shutil.which("mpicc"):
            self.mpi = os.path.join(folder, "mpi_allreduce")
            run(["mpicc", "-O3", "-march=native", "-o", self.mpi, os.path.join(PEERS, "mpi_allreduce.c")])
        for name, there in [("gloo (no PyTorch)", self.gloo), ("Open MPI (no mpicc)", self.mpi)]:
            if not there:
                print(f"left out: {name}", file=sys.stderr)

    def dtrain(self, ranks, mode):
        words = [self.args.dtrain, "bench", "collectives", "--json", "--pin", "--ranks", ranks, "--mode", mode, "--sizes", self.args.sizes]
        words += ["--limit"] * (mode == "exact") + ["--samples", self.args.samples] * (self.args.samples > 0)
        return {line["bytes"]: line for line in map(json.loads, run(words).splitlines())}

    def peer(self, words):
        sizes = ",".join(map(str, self.sizes))
        found = {int(size): float(time) for size, time in PEER_LINE.findall(run([*words, sizes, self.args.samples]))}
        if set(found) != set(self.sizes):
            sys.exit(f"{' '.join(map(str, words))} gave no time for some size")
        return found

    def gloo_times(self, ranks):
        return self.peer([self.args.python, os.path.join(PEERS, "gloo_allreduce.py"), ranks])

    def mpi_times(self, ranks, way):
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        bind = ["--bind-to", "core"] if ranks <= (os.cpu_count() or 1) else []
        return self.peer(["mpirun", *root, "--oversubscribe", *bind, "-n", ranks, *way.split(), self.mpi])


def rounds_of(machine, ranks):
    """The rounds of one number of ranks; each is a table from size to times."""
    ways = {}
    if machine.mpi:
        tried = {way: machine.mpi_times(ranks, way) for way in MPI_WAYS}
        ways = {size: min(MPI_WAYS, key=lambda way: tried[way][size]) for size in machine.sizes}
        for size in machine.sizes:
            times = ", ".join(f"{tried[way][size]:.1f}" for way in MPI_WAYS)
            print(f"{ranks} ranks {shown(size)}: Open MPI {times} us; best: {ways[size] or 'its own choice'}", file=sys.stderr)
    rounds = []
    for number in range(machine.args.pairs):
        exact, ring = machine.dtrain(ranks, "exact"), machine.dtrain(ranks, "ring")
        gloo = machine.gloo_times(ranks) if machine.gloo else {}
        mpi = {way: machine.mpi_times(ranks, way) for way in sorted(set(ways.values()))}
        rounds.append({size: {
            "dtrain": exact[size]["median_us"],
            "of_limit": exact[size]["of_limit"],
            "bus": exact[size]["bus_gb_s"],
            "ring": ring[size]["median_us"],
            "gloo": gloo.get(size),
            "mpi": mpi[ways[size]][size] if ways else None,
        } for size in machine.sizes})
        for size, times in rounds[-1].items():
            print(f"{ranks} ranks round {number + 1} {shown(size)}: {times}", file=sys.stderr)
    return rounds


def time(us):
    return f"{us / 1000:.1f} ms" if us >= 9995 else f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def ratio(x):
    return f"{x:.0f}" if x >= 10 else f"{x:.1f}" if x >= 2 else f"{x:.2f}"


def row(ranks, size, rounds):
    of = lambda name: [times[size][name] for times in rounds]
    over = lambda name: [theirs and theirs / ours for theirs, ours in zip(of(name), of("dtrain"))]
    cells = [ranks, shown(size), spread(of("dtrain"), time), f"{statistics.median(of('bus')):.1f}"]
    cells += [spread(of("of_limit"), lambda x: f"{100 * x:.0f} %"), spread(of("mpi"), time), spread(over("mpi"), ratio)]
    cells += [spread(of("gloo"), time), spread(over("gloo"), ratio)]
    cells += [spread([1 / ring for ring in over("ring")], lambda x: f"{x:.2f}")]
    return measure.row(cells)


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(args, folder)
        before = os.getloadavg()[0]
        rows = [row(ranks, size, rounds) for ranks in args.ranks for rounds in [rounds_of(machine, ranks)] for size in machine.sizes]
        mpi = run(["mpirun", "--version"]).splitlines()[0] if machine.mpi else "no MPI"
        args.python = args.python if machine.gloo else None
    print(measure.versions(args, mpi))
    print(f"{args.pairs} rounds; load average {before:.1f} before, {os.getloadavg()[0]:.1f} after; median [least-most]\n")
    names = "ranks, size, dtrain us, bus GB/s, of memory, Open MPI us, x, gloo us, x, ring: speed of exact"
    measure.table(names.split(", "), rows)


if __name__ == "__main__":
    main()
