#!/usr/bin/env python3
"""Kills processes of dtrain, of torchft and of gloo that train the same MLP, three of them at a time: what does a kill cost?

    pip install torchft                                     # where dtrain and torch are
    python bench/against_elastic.py --rounds 2 --kills 3
    python bench/against_elastic.py --peers gloo,gloo-plain

gloo is PyTorch's own DDP over groups that `torch.distributed._reconfigure` forms anew: bench/peers/gloo_reconfigure_mlp.py; in
gloo-plain survivors stay in the old group until all come to the next. One of three is killed (`kill -9`) and started again at
once: by dtrain itself, and by this program where the others have a launcher do it. The next kill comes when all three train. All
detect a silent process after a second; dtrain starts its processes, and so sees one that ends. A recovery is the time from the
kill to the first step that the others make after it without the dead one, or with it. All do the same kills in turn, in each
round; then each trains once undisturbed.
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
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue

import kill as dtrain_kill

HERE = Path(__file__).resolve().parent
GROUPS, BATCH = 3, 32


@dataclass
class Result:
    """What the kills of a peer cost, over all rounds."""

    took: list = field(default_factory=list)
    missing: int = 0
    wasted: int = 0
    digests: list = field(default_factory=list)  # of each run that came to its end: those of its processes


class Peer:
    """How a library is run: a server that its processes meet through, and the program of a process."""

    def __init__(self, name, args):
        self.name = name
        self.python = (args.torchft_python if name == "torchft" else None) or args.python
        self.words = ["plain"] if name == "gloo-plain" else []
        self.script = HERE / "peers" / ("torchft_mlp.py" if name == "torchft" else "gloo_reconfigure_mlp.py")

    def lacks(self):
        needed = {"dtrain": "import dtrain, torch", "torchft": "import dtrain, torchft"}
        program = needed.get(self.name, "import dtrain; from torch.distributed import _reconfigure")
        return subprocess.run([self.python, "-c", program], capture_output=True).returncode != 0

    def environment(self, port):
        store = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        return {**os.environ, **store, "TORCHFT_LIGHTHOUSE": f"http://localhost:{port}"}

    def server(self, port):
        if self.name != "torchft":
            return [self.python, str(self.script), "store"]
        lighthouse = str(Path(self.python).parent / "torchft_lighthouse")
        return [lighthouse, "--min_replicas=1", f"--bind=[::]:{port}", "--heartbeat_timeout_ms=1000", "--join_timeout_ms=10000"]


class Groups:
    """A run of a peer: its server, its processes, and what they say."""

    def __init__(self, args, peer, folder, port):
        self.args, self.peer, self.lines, self.passes, self.digests = args, peer, Queue(), [], {}
        self.environment = peer.environment(port)
        self.log = open(Path(folder) / f"{peer.name}.log", "ab")
        self.server = subprocess.Popen(peer.server(port), env=self.environment, stdout=self.log, stderr=self.log)
        self.processes = {}
        for group in range(GROUPS):
            self.start(group)

    def start(self, group):
        words = [self.peer.python, self.peer.script, group, GROUPS, BATCH, self.args.steps, *self.peer.words]
        process = subprocess.Popen([*map(str, words)], env=self.environment, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.processes[group] = process
        threading.Thread(target=self.read, args=(group, process), daemon=True).start()

    def read(self, group, process):
        for line in process.stdout:
            if line.startswith("{"):
                self.lines.put({"group": group, "pid": process.pid, **json.loads(line)})

    def next(self, patience=90):
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
        # A step whose sums were there before the kill is made all the same: what counts comes after one that failed,
        # or without the dead.
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
        self.server.kill()
        self.server.wait()
        self.log.close()


def judge(passes):
    """The samples that no step had, and those of passes that came to nothing."""
    made, wasted = {}, 0
    for told in passes:
        samples = told.get("samples", BATCH)
        if not told["made"]:
            wasted += samples
        elif told["took_part"]:
            # One that is killed may have had its part in a step without a word.
            made[told["step"]] = told["participants"] * samples
    return sum(BATCH * GROUPS - samples for samples in made.values()), wasted


def torch_peer(args, peer, folder, kills, port, seed, result):
    rng, run, took = random.Random(seed), Groups(args, peer, folder, port), []
    try:
        while len(took) < kills:
            if run.until(lambda told: told["made"] and told["participants"] == GROUPS) is None:
                break
            time.sleep(rng.uniform(0, 0.5))
            one = run.kill(rng.randrange(GROUPS))
            if one is None:
                break
            took.append(one)
            say(peer.name, len(took), one)
        # The last one that was killed comes back too.
        if run.until(lambda told: told["made"] and told["participants"] == GROUPS) is None and kills:
            print(f"{peer.name:10} ended before all were back: more --steps", flush=True)
        run.end()
        result.digests.append(list(run.digests.values()))
    except Empty:
        print(f"{peer.name:10} nobody said anything for 90 s", flush=True)
    finally:
        for process in [*run.processes.values(), run.server]:
            process.kill()
    missing, wasted = judge(run.passes)
    result.took += took
    result.missing += missing
    result.wasted += wasted


def say(name, kill, took):
    print(f"{name:10} kill {kill}: next step after {took * 1000:6.0f} ms, load average {os.getloadavg()[0]:.1f}", flush=True)


def dtrain(args, folder, kills, name, seed, result):
    rng = random.Random(seed)
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
        say("dtrain", len(took), one)
    while run.next() is not None:
        pass
    run.process.wait()
    lost = run.summary["lost_steps"] * GROUPS * BATCH
    result.took += took
    result.missing += lost
    result.wasted += lost
    result.digests.append([run.summary["digest"]])


def row(who, hurt, calm):
    if not hurt.took:
        return f"| {who} | 0 | - | - | {hurt.missing} | {hurt.wasted} | - | - |"
    median, worst = statistics.median(hurt.took) * 1000, max(hurt.took) * 1000
    # Of dtrain, whose ranks compare digests themselves at each copy of a state, there is one a run.
    runs = hurt.digests + calm.digests
    agree = "yes" if all(len(set(digests)) == 1 for digests in runs) else "no"
    same = "the same" if len({digest for digests in runs for digest in digests}) == 1 else "others"
    if not hurt.digests or not calm.digests:
        agree = same = "no end"
    return f"| {who} | {len(hurt.took)} | {median:.0f} ms | {worst:.0f} ms | {hurt.missing} | {hurt.wasted} | {same} | {agree} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="it has dtrain and torch")
    parser.add_argument("--torchft-python", help="it has torchft, dtrain and torch; without it --python")
    parser.add_argument("--dtrain", default="target/release/dtrain")
    parser.add_argument("--peers", default="dtrain,torchft,gloo", help="of these and gloo-plain")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kills", type=int, default=6, help="in a round")
    parser.add_argument("--steps", type=int, default=1200, help="of a round, but for dtrain")
    parser.add_argument("--dtrain-steps", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    peers = [Peer(name, args) for name in args.peers.split(",")]
    for peer in [peer for peer in peers if peer.lacks()]:
        print(f"skipped: {peer.python} lacks what {peer.name} needs")
        peers.remove(peer)
    hurt, calm, port = {peer.name: Result() for peer in peers}, {peer.name: Result() for peer in peers}, 29531
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(args.rounds + 1):
            kills, result = (args.kills, hurt) if round_ < args.rounds else (0, calm)
            for peer in peers:
                if peer.name == "dtrain":
                    dtrain(args, folder, kills, f"round{round_}", args.seed + round_, result[peer.name])
                else:
                    torch_peer(args, peer, folder, kills, port, args.seed + round_, result[peer.name])
                port += 1
    print("| | kills | median | worst | samples missing | samples for nothing | bits, beside no kill | processes agree |")
    print("|---|---|---|---|---|---|---|---|")
    for peer in peers:
        print(row(peer.name, hurt[peer.name], calm[peer.name]))


if __name__ == "__main__":
    main()
