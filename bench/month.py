#!/usr/bin/env python3
"""A month of steps in twenty minutes: what grows with them, and how long it takes to begin, to look and to go on behind all of them.

    bench/month.py target/release/dtrain                     8 000 000 steps, a step in 0.3 s for a month: 4 GB of disk
    bench/month.py target/release/dtrain --steps 200000      a look

Two ranks train a model of a few numbers. Memory, open files and threads of each process are read while it trains; then the run is
shown, audited, gone on with, and gone on with again after everything was killed.
"""

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time

from supervisor import kinds_in

MODEL = "data=digits ranks=2 threads=1 model.kind=mlp model.hidden=[4] global_batch=2 micro_batch=1".split()


def of(folder):
    """The processes in this folder: what each is, its resident MiB, threads and open files."""
    found = []
    for pid, kind in kinds_in(folder).items():
        with open(f"/proc/{pid}/status") as lines:
            status = {name: words for name, _, words in (line.partition(":") for line in lines)}
        mib = int(status["VmRSS"].split()[0]) / 1024
        found.append((kind, mib, int(status["Threads"]), len(os.listdir(f"/proc/{pid}/fd"))))
    return sorted(found)


def show(steps, found):
    for kind, mib, threads, files in found:
        print(f"| {steps:,} | {kind} | {mib:.1f} MiB | {threads} | {files} |".replace(",", " "), flush=True)


def start(args, folder, *words):
    return subprocess.Popen([args.dtrain, "train", "--json", "-q", *words], cwd=folder, stdout=subprocess.PIPE, text=True)


def first_step(process):
    """How long until it tells of a step, and which."""
    begun = time.monotonic()
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "step":
            return time.monotonic() - begun, event["step"]
    raise SystemExit(f"it ended with {process.wait()} before it made a step")


def timed(args, folder, *words):
    begun = time.monotonic()
    subprocess.run([args.dtrain, *words], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    print(f"| `dtrain {' '.join(words)}` | {time.monotonic() - begun:.2f} s |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dtrain")
    parser.add_argument("--steps", type=int, default=8_000_000)
    args = parser.parse_args()
    args.dtrain = os.path.abspath(args.dtrain)
    with tempfile.TemporaryDirectory(prefix="month-") as folder:
        train(args, os.path.realpath(folder))


def train(args, folder):
    print("| step | process | resident | threads | open files |\n|---|---|---|---|---|")
    words = [*MODEL, f"steps={args.steps}", "run_dir=month", f"checkpoint.every={max(args.steps // 400, 1)} steps"]
    run, due = start(args, folder, *words), [args.steps * tenth // 10 for tenth in (1, 3, 5, 7, 9)]
    for line in run.stdout:
        if due and (event := json.loads(line))["event"] == "step" and event["step"] >= due[0]:
            show(due.pop(0), of(folder))
    assert run.wait() == 0
    sizes = {name: os.path.getsize(f"{folder}/month/{name}") for name in ("ledger.jsonl", "events.jsonl", "metrics.jsonl")}
    print("\n" + ", ".join(f"{name} {size / 1e6:,.0f} MB".replace(",", " ") for name, size in sizes.items()))
    print("\n| behind all of them | takes |\n|---|---|")
    for what in (["status", "month"], ["runs", "."], ["audit", "month"], ["checkpoint", "verify", "month"]):
        timed(args, folder, *what)
    longer = ["--resume", "month", f"steps={2 * args.steps}"]
    run = start(args, folder, *longer)
    print(f"| going on, to the first step | {first_step(run)[0]:.2f} s |", flush=True)
    for _ in zip(range(20_000), run.stdout):
        pass
    run.kill()
    run = start(args, folder, *longer)
    print(f"| the supervisor killed, to the next step | {first_step(run)[0]:.2f} s |", flush=True)
    for pid in kinds_in(folder):
        os.kill(pid, signal.SIGKILL)
    run = start(args, folder, *longer)
    print(f"| everything killed, to the next step | {first_step(run)[0]:.2f} s |", flush=True)
    run.send_signal(signal.SIGTERM)
    for _ in run.stdout:
        pass
    assert run.wait() == 130
    timed(args, folder, "audit", "month")


if __name__ == "__main__":
    main()
