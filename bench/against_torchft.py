#!/usr/bin/env python3
"""Kills ranks of dtrain and replica groups of torchft, of one process each, that train the same MLP: what does a kill cost?

    pip install torchft                       # where dtrain and torch are
    python bench/against_torchft.py --kills 6

One of three is killed (`kill -9`) and started again at once: by dtrain itself, and by this program where torchft has a launcher do it. The
next kill comes when all three train. Both detect a silent process after a second; dtrain starts its processes, and so sees one that ends. A
recovery is the time from the kill to the first step that the others make after it without the dead one, or with it.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, Queue

import kill as dtrain_kill

HERE = Path(__file__).resolve().parent
GROUPS, BATCH = 3, 32


class Groups:
    """A run of torchft: its lighthouse, its groups, and what they say."""

    def __init__(self, args, folder, port):
        self.args, self.folder, self.lines, self.passes, self.digests = args, folder, Queue(), [], {}
        self.environment = {**os.environ, "TORCHFT_LIGHTHOUSE": f"http://localhost:{port}"}
        lighthouse = str(Path(args.torchft_python).parent / "torchft_lighthouse")
        options = ["--min_replicas=1", f"--bind=[::]:{port}", "--heartbeat_timeout_ms=1000", "--join_timeout_ms=10000"]
        self.log = open(Path(folder) / "torchft.log", "ab")
        self.lighthouse = subprocess.Popen([lighthouse, *options], stdout=self.log, stderr=self.log)
        self.processes = {}
        for group in range(GROUPS):
            self.start(group)

    def start(self, group):
        words = [self.args.torchft_python, HERE / "peers" / "torchft_mlp.py", group, GROUPS, BATCH, self.args.steps]
        process = subprocess.Popen([*map(str, words)], env=self.environment, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.processes[group] = process
        threading.Thread(target=self.read, args=(group, process), daemon=True).start()

    def read(self, group, process):
        for line in process.stdout:
            if line.startswith("{"):
                self.lines.put({"group": group, "pid": process.pid, **json.loads(line)})

    def next(self, patience=60):
        """The next pass of a group; none when all have come to their end."""
        while len(self.digests) < GROUPS:
            told = self.lines.get(timeout=patience)
            if "digest" in told:
                self.digests[told["group"]] = told["digest"]
                continue
            self.passes.append(told)
            return told
        return None

    def until(self, wanted):
        while (told := self.next()) is not None:
            if wanted(told):
                return told
        return None

    def kill(self, group):
        """Kills a group; how long until another one makes a step that it began afterwards."""
        while not self.lines.empty():
            self.next()
        dead, moment = self.processes[group], time.monotonic()
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        self.start(group)
        # A step whose sums were there before the kill is made all the same: what counts comes after one that failed, or without the dead.
        failed = False
        while (told := self.next()) is not None:
            if told["group"] == group or told["time"] < moment:
                continue
            failed = failed or not told["made"]
            if told["made"] and (failed or told["participants"] < GROUPS):
                return told["time"] - moment
        return None

    def end(self):
        while self.next() is not None:
            pass
        for process in self.processes.values():
            process.wait(60)
        self.lighthouse.kill()
        self.lighthouse.wait()
        self.log.close()


def torchft(args, folder, kills, port):
    rng, run, took = random.Random(args.seed), Groups(args, folder, port), []
    try:
        while len(took) < kills:
            if run.until(lambda told: told["made"] and told["participants"] == GROUPS) is None:
                break
            time.sleep(rng.uniform(0, 0.5))
            one = run.kill(rng.randrange(GROUPS))
            if one is None:
                break
            took.append(one)
            print(f"torchft  kill {len(took)}: next step after {one * 1000:6.0f} ms", flush=True)
        # The last one that was killed comes back too.
        run.until(lambda told: told["made"] and told["participants"] == GROUPS)
        run.end()
    except Empty:
        print("torchft  nobody said anything for 60 s", flush=True)
    finally:
        for process in [*run.processes.values(), run.lighthouse]:
            process.kill()
    made = {}
    for told in run.passes:
        if told["made"] and told["took_part"]:
            made.setdefault(told["step"], set()).add(told["group"])
    missing = sum(BATCH * (GROUPS - len(groups)) for groups in made.values())
    wasted = sum(BATCH for told in run.passes if not told["made"])
    return took, missing, wasted, set(run.digests.values())


def dtrain(args, folder, kills, name):
    rng = random.Random(args.seed)
    settings = argparse.Namespace(python=args.python, dtrain=args.dtrain, steps=args.dtrain_steps)
    batch = [f"global_batch={GROUPS * BATCH}", f"micro_batch={BATCH}", f"ranks={GROUPS}", f"name={name}"]
    run, took = dtrain_kill.Run(settings, folder, batch), []
    while len(took) < kills:
        whole = run.until(lambda event: event["event"] == "generation" and event["ranks"] == GROUPS)
        if whole is None or run.until(lambda event: event["event"] == "step") is None:
            break
        time.sleep(rng.uniform(0, 0.5))
        one, _ = dtrain_kill.kill(run, 1, rng)
        if one is None:
            break
        took.append(one)
        print(f"dtrain   kill {len(took)}: next step after {one * 1000:6.0f} ms", flush=True)
    while run.next() is not None:
        pass
    run.process.wait()
    return took, run.summary


def row(who, took, missing, wasted, same):
    if not took:
        print(f"| {who} | 0 | - | - | {missing} | {wasted} | - |")
        return
    median, worst = statistics.median(took) * 1000, max(took) * 1000
    print(f"| {who} | {len(took)} | {median:.0f} | {worst:.0f} | {missing} | {wasted} | {'the same' if same else 'others'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="it has dtrain and torch")
    parser.add_argument("--torchft-python", help="it has torchft and torch; without it --python")
    parser.add_argument("--dtrain", default="target/release/dtrain")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--steps", type=int, default=600, help="of torchft")
    parser.add_argument("--dtrain-steps", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.torchft_python = args.torchft_python or args.python
    if subprocess.run([args.torchft_python, "-c", "import torchft"], capture_output=True).returncode:
        print(f"skipped: {args.torchft_python} has no torchft")
        return
    with tempfile.TemporaryDirectory() as folder:
        hurt, told = dtrain(args, folder, args.kills, "hurt")
        _, calm = dtrain(args, folder, 0, "calm")
        took, missing, wasted, digests = torchft(args, folder, args.kills, 29531)
        _, _, _, undisturbed = torchft(args, folder, 0, 29532)
    print("| | kills | median, ms | worst, ms | samples missing | samples for nothing | bits, beside no kill |\n|---|---|---|---|---|---|---|")
    lost = told["lost_steps"] * GROUPS * BATCH
    row("dtrain", hurt, lost, lost, told["digest"] == calm["digest"])
    row("torchft", took, missing, wasted, len(digests) == 1 and digests == undisturbed)


if __name__ == "__main__":
    main()
