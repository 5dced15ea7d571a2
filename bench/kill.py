#!/usr/bin/env python3
"""Kills ranks of a run and judges from outside what that cost.

The MLP of bench/peers (784-1024-1024-10, global batch 128) trains on four ranks; ranks are killed (`kill -9`) at random
moments and at chosen ones: just after a step, in a validation, while a checkpoint is written, while the state is copied
to one that came back; two at once, and all but one. A recovery is the wall time from the kill to the first `step` event
after the news of the death. Afterwards an undisturbed run must have the same digest, the books must add up, and the
survivors of each kill must have kept their pids.

    cargo build --release
    python3 bench/kill.py --kills 50 --data /usr/share/datasets/fashion-mnist
    python3 bench/kill.py --kills 50 --python .venv/bin/python     # the same model in PyTorch: bench/torch_mlp.py
"""

import argparse
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

STEPS_PER_EPOCH = 469  # 60 000 images in global batches of 128
CHECKPOINT_EVERY = 60


def configuration(arguments):
    common = [
        "threads=1", f"steps={arguments.steps}", f"checkpoint.every={CHECKPOINT_EVERY} steps", "max_restarts=1000",
    ]
    if arguments.python:
        return common
    data = [
        f"data.{key}={os.path.join(arguments.data, name)}"
        for key, name in [
            ("images", "train-images-idx3-ubyte.gz"),
            ("labels", "train-labels-idx1-ubyte.gz"),
            ("val_images", "t10k-images-idx3-ubyte.gz"),
            ("val_labels", "t10k-labels-idx1-ubyte.gz"),
        ]
    ]
    return [
        "data.kind=idx", *data, "model.kind=mlp", "model.hidden=[1024,1024]", "global_batch=128", "micro_batch=16", *common,
    ]


class Run:
    """A run, read as it goes."""

    def __init__(self, arguments, folder, more):
        program = [arguments.dtrain, "train"]
        if arguments.python:
            program = [arguments.python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_mlp.py")]
        command = [*program, "--json", "--quiet", *configuration(arguments), *more]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.steps, self.pids, self.generation, self.summary, self.faults = [], {}, 0, None, 0
        self.joining = False

    def _read(self):
        for line in self.process.stdout:
            self.lines.put((time.monotonic(), line))
        self.lines.put(None)

    def next(self):
        """The next event, with the time of its arrival; none at the end."""
        item = self.lines.get(timeout=120)
        if item is None:
            self.lines.put(None)
            return None
        event = json.loads(item[1])
        kind = event["event"]
        if kind == "step":
            expected = self.steps[-1] + 1 if self.steps else 1
            assert event["step"] == expected, f"step {event['step']} after {expected - 1}"
            self.steps.append(event["step"])
        elif kind == "rank_started":
            if event["generation"] > self.generation:
                self.generation, self.pids = event["generation"], {}
            self.pids[event["member"]] = event["pid"]
        elif kind == "summary":
            self.summary = event
        elif kind == "fault":
            self.faults += 1
        self.joining = kind == "notice" and "join" in event["text"]
        return item[0], event

    def until(self, wanted):
        while (item := self.next()) is not None:
            if wanted(item[1]):
                return item[0]
        return None


MOMENTS = ["at random", "after a step", "in a validation", "in a checkpoint", "in a state copy"]


def wait_for_moment(run, moment, rng):
    """Reads up to the moment; false if the run ends first."""
    step = lambda event: event["event"] == "step"
    if moment == "at random":
        if run.until(step) is None:
            return False
        time.sleep(rng.uniform(0, 0.4))
        while not run.lines.empty():
            if run.next() is None:
                return False
        return True
    if moment == "after a step":
        return run.until(step) is not None
    if moment == "in a validation":
        return run.until(lambda event: step(event) and event["step"] % STEPS_PER_EPOCH == 0) is not None
    if moment == "in a checkpoint":
        return run.until(lambda event: step(event) and event["step"] % CHECKPOINT_EVERY == 0) is not None
    # One that was killed before comes back, and is given the state.
    return run.until(lambda event: event["event"] == "notice" and "join" in event["text"]) is not None


def kill(run, count, rng):
    """Kills so many ranks at once; how long until the next step that is made."""
    before = dict(run.pids)
    victims = rng.sample(sorted(before), min(count, len(before) - 1))
    faults, generation, moment = run.faults, run.generation, time.monotonic()
    for member in victims:
        os.kill(before[member], signal.SIGKILL)
    while run.faults < faults + len(victims):
        if run.next() is None:
            return None, victims
    # Steps that were made before the kill may be told after it: what counts is one that a later generation made.
    arrived = run.until(lambda event: event["event"] == "step" and event["generation"] > generation)
    if arrived is None:
        return None, victims
    for member, pid in before.items():
        if member not in victims:
            os.kill(pid, 0)
            assert run.pids.get(member, pid) == pid, f"member {member} was replaced"
    return arrived - moment, victims


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtrain", default="target/release/dtrain")
    parser.add_argument("--python", help="train bench/torch_mlp.py with this Python, which has dtrain and torch")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=2 * STEPS_PER_EPOCH)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    arguments.dtrain = os.path.abspath(arguments.dtrain)
    rng = random.Random(arguments.seed)
    recoveries, deaths, by_moment = [], 0, {}
    with tempfile.TemporaryDirectory() as folder:
        run = Run(arguments, folder, [f"ranks={arguments.ranks}", "name=killed"])
        while len(recoveries) < arguments.kills:
            # A state is copied only to one that was killed a moment ago.
            rare = {"in a validation": 3, "in a state copy": 8}
            moments = [m for m in MOMENTS if by_moment.get(m, 0) < rare.get(m, 99) and (recoveries or "copy" not in m)]
            if "in a validation" in moments and run.steps and run.steps[-1] % STEPS_PER_EPOCH < STEPS_PER_EPOCH - 40:
                moments.remove("in a validation")
            moment = rng.choice(moments)
            if not wait_for_moment(run, moment, rng):
                break
            if len(run.pids) < 2:
                continue
            count = rng.choice([1, 1, 1, 1, 2, arguments.ranks - 1])
            took, victims = kill(run, count, rng)
            if took is None:
                break
            deaths += len(victims)
            recoveries.append(took)
            by_moment[moment] = by_moment.get(moment, 0) + 1
            print(f"{len(recoveries):3}  {moment:16} {len(victims)} killed: next step after {took * 1000:6.0f} ms", flush=True)
        while run.next() is not None:
            pass
        code = run.process.wait()
        audit = subprocess.run([arguments.dtrain, "audit", "killed"], cwd=folder, capture_output=True, text=True)
        calm = Run(arguments, folder, [f"ranks={arguments.ranks}", "name=calm"])
        while calm.next() is not None:
            pass
    same = run.summary["digest"] == calm.summary["digest"]
    print(f"seed {arguments.seed}: {len(recoveries)} kills of {deaths} ranks, exit code {code}")
    print(f"kill to the next step: median {statistics.median(recoveries) * 1000:.0f} ms, worst {max(recoveries) * 1000:.0f} ms")
    print(f"by moment: {by_moment}")
    print(f"steps lost {run.summary['lost_steps']}, {len(run.steps)} step events of {arguments.steps}, each once, in order")
    print(f"digest {'as' if same else 'NOT as'} undisturbed ({run.summary['digest'][:16]})")
    print(f"audit: exit code {audit.returncode}: {audit.stdout.splitlines()[0] if audit.stdout else audit.stderr}")
    good = same and code == 0 and audit.returncode == 0 and run.summary["lost_steps"] == 0
    sys.exit(0 if good and len(recoveries) >= arguments.kills else 1)


if __name__ == "__main__":
    main()
