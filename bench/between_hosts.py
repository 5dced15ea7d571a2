#!/usr/bin/env python3
"""All-reduce between two hosts of this machine, beside a bare QUIC link and gloo over plain TCP on the same path.

Two network namespaces with a veth pair between them are made and taken away again, so this needs root. In each a process of
the example `between_hosts` runs: it takes turns between a bare link, an all-reduce in `exact` and one in `ring`. With
`--python` (one that has PyTorch) gloo's all-reduce takes turns with it on the same path. Prints a Markdown table.

    cargo build --release -p dtrain-transport --example between_hosts
    bench/between_hosts.py --python .venv/bin/python
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

ADDRESSES = ["10.78.0.1", "10.78.0.2"]
LARGE = 1 << 20
DEVICE = "hosts"


def ip(arguments):
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True)


class Hosts:
    """Two namespaces and the path between them, held to a rate (as tc has it) if there is one, for as long as the `with` lasts."""

    def __init__(self, mtu, rate=None):
        self.mtu = mtu
        self.rate = rate
        self.names = [f"dtrain-hosts-{os.getpid()}-{index}" for index in range(2)]

    def __enter__(self):
        try:
            for name in self.names:
                ip(f"netns add {name}")
                ip(f"-n {name} link set lo up")
            ip(f"-n {self.names[0]} link add {DEVICE} type veth peer name {DEVICE} netns {self.names[1]}")
            for name, address in zip(self.names, ADDRESSES):
                ip(f"-n {name} link set {DEVICE} mtu {self.mtu}")
                ip(f"-n {name} address add {address}/24 dev {DEVICE}")
                ip(f"-n {name} link set {DEVICE} up")
                if self.rate:
                    limit = f"tbf rate {self.rate} burst 256kb latency 20ms"
                    subprocess.run(["tc", "-n", name, *f"qdisc add dev {DEVICE} root {limit}".split()], check=True)
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        for name in self.names:
            # The devices go with the namespaces; what was never made is not there.
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def both(self, command, environment, patience):
        """Runs a command in both namespaces; the lines of the first, as JSON."""
        processes = []
        try:
            for index, name in enumerate(self.names):
                inside = ["ip", "netns", "exec", name, *command(index)]
                kept = subprocess.PIPE if index == 0 else subprocess.DEVNULL
                processes.append(subprocess.Popen(inside, stdout=kept, env={**os.environ, **environment}, text=True))
            told, _ = processes[0].communicate(timeout=patience)
            codes = [process.wait(patience) for process in processes]
            if any(codes):
                sys.exit(f"a process ended with code {max(codes, key=abs)}: {' '.join(command(0))}")
            return [json.loads(line) for line in told.splitlines() if line.startswith("{")]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def gloo(index, pairs, sizes):
    """One process of gloo's all-reduce; the first prints a line for each size."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR=ADDRESSES[0], MASTER_PORT="29611", GLOO_SOCKET_IFNAME=DEVICE)
    dist.init_process_group("gloo", rank=index, world_size=2)
    for size in sizes:
        x = torch.empty(size // 4)
        times = []
        for _ in range(pairs + 3):
            x.fill_(1.5)
            dist.barrier()
            begun = time.perf_counter()
            dist.all_reduce(x)
            times.append((time.perf_counter() - begun) * 1e6)
            assert x[0] == 3 and x[-1] == 3
        if index == 0:
            print(json.dumps({"bytes": size, "us": times[3:]}), flush=True)
    dist.destroy_process_group()


def spread(values, digits=2):
    shown = [f"{value:,.{digits}f}".replace(",", " ") for value in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} [{shown[1]}-{shown[2]}]"


def measure(arguments, mtu):
    """By size: the times of each kind of operation in the order in which they were taken."""
    sizes = [kib * 1024 for kib in arguments.kib]
    token = os.urandom(32).hex()
    found = {size: {"bare": [], "exact": [], "ring": [], "gloo": [], "gloo_ratio": [], "datagram": 0} for size in sizes}
    ours = lambda index: [
        arguments.program, str(index), ADDRESSES[index], ADDRESSES[1 - index], str(arguments.pairs), *map(str, arguments.kib),
    ]
    theirs = lambda index: [
        arguments.python, os.path.abspath(__file__), "--gloo", str(index), "--pairs", str(arguments.pairs),
        "--kib", *map(str, arguments.kib),
    ]
    with Hosts(mtu) as hosts:
        for run in range(arguments.runs):
            exact = {}
            for line in hosts.both(ours, {"TOKEN": token}, arguments.patience):
                into = found[line["bytes"]]
                for kind in ("bare", "exact", "ring"):
                    into[kind] += line[kind]["us"]
                into["datagram"] = line["datagram"]
                into.setdefault("cpu", []).append([line[kind]["cpu_us"] for kind in ("bare", "exact", "ring")])
                exact[line["bytes"]] = line["exact"]["us"]
            if arguments.python:
                for line in hosts.both(theirs, {}, arguments.patience):
                    into = found[line["bytes"]]
                    into["gloo"] += line["us"]
                    ratio = statistics.median(exact[line["bytes"]]) / statistics.median(line["us"])
                    into["gloo_ratio"].append(ratio)
            print(f"MTU {mtu}: run {run + 1} of {arguments.runs}", file=sys.stderr)
    return found


def rows(mtu, found):
    for size, into in found.items():
        large = size >= LARGE
        what = f"{size >> 20} MiB" if large else f"{size >> 10} KiB"
        for kind in ("exact", "ring"):
            pairs = zip(into["bare"], into[kind])
            # Large: the share of the bare link's speed. Small: how many round trips it takes.
            ratios = [bare / ours if large else ours / bare for bare, ours in pairs]
            scale, digits = (1e3, 1) if large else (1, 0)
            times = {name: [time / scale for time in into[name]] for name in ("bare", kind, "gloo")}
            cpu = [cpu[1 if kind == "exact" else 2] / cpu[0] for cpu in into["cpu"]]
            yield " | ".join([
                f"| {mtu} | {into['datagram']} | {what} | {kind}", spread(times["bare"], digits), spread(times[kind], digits),
                spread(ratios), f"{statistics.median(cpu):.2f}",
                spread(times["gloo"], digits) if times["gloo"] else "-",
                spread(into["gloo_ratio"]) if kind == "exact" and into["gloo_ratio"] else "-",
            ]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/examples/between_hosts")
    parser.add_argument("--python", help="a Python with PyTorch, to measure gloo too")
    parser.add_argument("--mtu", type=int, nargs="+", default=[1500, 9000])
    parser.add_argument("--kib", type=int, nargs="+", default=[4, 65536])
    parser.add_argument("--pairs", type=int, default=5, help="operations of each kind in a run")
    parser.add_argument("--runs", type=int, default=5, help="how often all processes are started")
    parser.add_argument("--patience", type=float, default=120, help="seconds that a run may take")
    parser.add_argument("--gloo", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.gloo is not None:
        return gloo(arguments.gloo, arguments.pairs, [kib * 1024 for kib in arguments.kib])
    # As an exception, so that what was made is taken away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    print("| MTU | datagram | size | reduce | bare QUIC (ms; us if KiB) | dtrain | ratio | CPU to bare | gloo, plain TCP | dtrain / gloo time |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for mtu in arguments.mtu:
        for row in rows(mtu, measure(arguments, mtu)):
            print(row, flush=True)


if __name__ == "__main__":
    main()
