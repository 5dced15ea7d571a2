#!/usr/bin/env python3
"""What the control plane costs while nothing fails: CPU time by thread, of every process of a run.

The MLP of bench/peers trains for a while; then the CPU time of all threads but those that compute and load is set
against that of those that compute, and the messages at the supervisor against the steps.

    cargo build --release
    python3 bench/overhead.py --seconds 60
"""

import argparse
import collections
import json
import os
import signal
import subprocess
import tempfile
import time

from kill import configuration


def threads(pid):
    """CPU seconds by thread name."""
    tick = os.sysconf("SC_CLK_TCK")
    found = collections.Counter()
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/stat") as file:
                name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
            with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                nanoseconds = int(file.read().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = rest.split()
        found[name] += nanoseconds / 1e9 if nanoseconds else (int(fields[11]) + int(fields[12])) / tick
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtrain", default="target/release/dtrain")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10_000_000)
    arguments = parser.parse_args()
    dtrain = os.path.abspath(arguments.dtrain)
    with tempfile.TemporaryDirectory() as folder:
        # The threads of a rank's host are counted while it runs; when it ends the supervisor says how much was said.
        command = [dtrain, "train", "--json", *configuration(arguments), f"ranks={arguments.ranks}", "checkpoint.every=none"]
        words = open(os.path.join(folder, "words"), "w+")
        environment = {**os.environ, "DTRAIN_LOG": "info"}
        run = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=words, text=True, env=environment)
        pids, steps, begun = {}, 0, None
        for line in run.stdout:
            event = json.loads(line)
            if event["event"] == "rank_started":
                pids[event["member"]] = event["pid"]
            elif event["event"] == "step":
                if begun is None:
                    begun = time.monotonic()
                    first = sum((threads(pid) for pid in [run.pid, *pids.values()]), collections.Counter())
                    first_step = event["step"]
                steps = event["step"]
                if time.monotonic() > begun + arguments.seconds:
                    break
        total = sum((threads(pid) for pid in [run.pid, *pids.values()]), collections.Counter())
        run.send_signal(signal.SIGTERM)
        run.stdout.read()
        run.wait()
        words.seek(0)
        said = [line.strip() for line in words if "messages" in line]
    total.subtract(first)
    steps -= first_step
    compute = sum(seconds for name, seconds in total.items() if name.startswith(("compute", "kernel")))
    loading = sum(seconds for name, seconds in total.items() if name.startswith("data-"))
    rest = {name: seconds for name, seconds in total.items() if not name.startswith(("compute", "kernel", "data-"))}
    print(f"{steps} steps in {arguments.seconds:.0f} s on {arguments.ranks} ranks")
    print(f"computing {compute:.2f} s, loading {loading:.2f} s, all else {sum(rest.values()):.3f} s "
          f"= {100 * sum(rest.values()) / compute:.2f} % of computing")
    print("  " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in sorted(rest.items(), key=lambda x: -x[1])))
    for line in said:
        print("  " + line)


if __name__ == "__main__":
    main()
