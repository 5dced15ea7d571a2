#!/usr/bin/env python3
"""Kills the first of several hosts again and again, starts it again, and judges from outside what that cost.

The hosts are processes of one machine, with a folder each; the digits train on two ranks a host. A kill is `kill -9` of the
process of host 0, its ranks die with it; the same command starts it again at once. The time is that from the kill to the first
`step` event of the new process, its start included. Afterwards the
event log has to hold every step once, in order, the digest has to be that of one rank that nobody disturbed, and the books have to
add up; the other hosts must have kept their ranks' processes.

    cargo build --release
    python3 bench/first_host.py --kills 20 --hosts 3
"""

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

MODEL = ["data=digits", "global_batch=64", "micro_batch=16", "threads=1", "checkpoint.every=500 steps"]


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as listed:
        return sorted(listed.read().split())


class Hosts:
    def __init__(self, arguments, folder):
        self.dtrain, self.folder, self.count = os.path.abspath(arguments.dtrain), folder, arguments.hosts
        self.master, token = f"127.0.0.1:{free_port()}", os.path.join(folder, "token")
        subprocess.run([self.dtrain, "token", "new", "-o", token], check=True, stdout=subprocess.DEVNULL)
        self.environment = {**os.environ, "DTRAIN_TOKEN_FILE": token}

    def start(self, rank, *words):
        place = os.path.join(self.folder, f"host-{rank}")
        os.makedirs(place, exist_ok=True)
        command = [self.dtrain, "node", "--rank", str(rank), "--master", self.master, "--nodes", str(self.count), "ranks=2", *words]
        output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        return subprocess.Popen(command, cwd=place, env=self.environment, stdout=output, stderr=subprocess.DEVNULL, text=True)


def next_event(process, kind):
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == kind:
            return event
    sys.exit(f"the run ended before the next {kind}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", default="target/release/dtrain")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(arguments, folder)
        model = [*MODEL, f"steps={arguments.steps}"]
        first_words = [*model, "name=hosts", "resume=auto", "--json", "--quiet"]
        others = [hosts.start(rank) for rank in range(1, arguments.hosts)]
        first = hosts.start(0, *first_words)
        next_event(first, "step")
        held = [children(other.pid) for other in others]
        back, kept = [], 0
        for _ in range(arguments.kills):
            time.sleep(chance.uniform(0.05, 0.6))
            killed = time.monotonic()
            first.send_signal(signal.SIGKILL)
            first.wait()
            first = hosts.start(0, *first_words)
            next_event(first, "step")
            back.append(time.monotonic() - killed)
            kept += [children(other.pid) for other in others] == held
        summary = next_event(first, "summary")
        ends = [process.wait() for process in [first, *others]]
        run = os.path.join(folder, "host-0", "runs", "hosts")
        with open(os.path.join(run, "events.jsonl"), encoding="utf-8") as log:
            steps = [event["step"] for event in map(json.loads, log) if event["event"] == "step"]
        audit = subprocess.run([hosts.dtrain, "audit", run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        alone = subprocess.run(
            [hosts.dtrain, "train", *model, "ranks=1", "--json", "--quiet"],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        )
        plain = json.loads(alone.stdout.splitlines()[-1])
        print(f"kills of host 0 of {arguments.hosts}   {arguments.kills}")
        print(f"from the kill to the next step   median {statistics.median(back) * 1e3:.0f} ms, worst {max(back) * 1e3:.0f} ms")
        verdicts = {
            "every step once, in order": steps == list(range(1, arguments.steps + 1)),
            "digest as undisturbed": summary["digest"] == plain["digest"],
            "books clean": audit.returncode == 0,
            "processes of other hosts kept": kept == arguments.kills,
            "no step lost": summary["lost_steps"] == 0,
            "all ended well": ends == [0] * arguments.hosts,
        }
        for what, held_true in verdicts.items():
            print(f"{what:33}{'yes' if held_true else 'NO'}")
        sys.exit(0 if all(verdicts.values()) else 1)


if __name__ == "__main__":
    main()
