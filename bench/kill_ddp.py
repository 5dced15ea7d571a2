#!/usr/bin/env python3
"""kill -9 of random ranks of a PyTorch DDP script under `dtrain run`: does it start again every time, is the cause named?

    bench/kill_ddp.py --python .venv/bin/python --kills 20

Judged from outside: the pids of each life are read by this program, each kill is its own, and the steps are counted by the
optimizer of the unchanged script (a wrapper writes pid and count of each rank to a file). Every fourth kill hits a rank that has
not made a step yet (imports, rendezvous). `--launcher torchrun` does the same to torchrun; it names no cause to compare.
Exit code 1 unless every kill was survived and, under dtrain, named first; 0 with a word where Python has no torch.
"""
import argparse
import os
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SLOT = 16  # bytes of a rank in the file of steps: pid, count
PATIENCE = 60.0  # seconds to the next step, after which the ranks count as not started again
CAUSE = re.compile(r"first cause: rank (\d+) \(pid (\d+) on \S+\): killed by signal 9 \(SIGKILL\)")
WRAPPER = r"""
import os, runpy, struct, sys
import torch
rank, count = int(os.environ["RANK"]), 0
steps = os.open(sys.argv[1], os.O_WRONLY)
step = torch.optim.AdamW.step
def counted(self, *words, **named):
    global count
    done = step(self, *words, **named)
    count += 1
    os.pwrite(steps, struct.pack("qq", os.getpid(), count), 16 * rank)
    return done
torch.optim.AdamW.step = counted
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", default=os.path.join(ROOT, "target/release/dtrain"), help="the binary")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--script", default=os.path.join(ROOT, "bench/peers/torch_train.py"))
    parser.add_argument("--launcher", choices=["dtrain", "torchrun"], default="dtrain")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="for the same ranks and waits again")
    return parser.parse_args()


def command(args, wrapper, steps):
    program = [wrapper, steps, args.script, "--work", "mlp", "--windows", "1", "--seconds", "100000"]
    if args.launcher == "dtrain":
        launcher = [args.dtrain, "run", "--nproc", str(args.ranks), "--max-restarts", str(args.kills), "--"]
        return [*launcher, args.python, *program]
    launcher = [args.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.ranks}"]
    return [*launcher, f"--max-restarts={args.kills}", *program]


def descendants(root):
    """The ranks below a process, by rank: those whose parent has no RANK of its own."""
    parents, ranks = {}, {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/environ", "rb") as environ:
                parents[pid] = int(stat.read().rsplit(")", 1)[1].split()[1])
                found = re.search(rb"(?:^|\0)RANK=(\d+)\0", environ.read())
        except (OSError, IndexError):
            continue
        if found:
            ranks[pid] = int(found[1])

    def below(pid):
        while pid in parents and pid != root:
            pid = parents[pid]
        return pid == root

    return {rank: pid for pid, rank in ranks.items() if below(pid) and parents[pid] not in ranks}


def steps_of(path, ranks):
    """Pid and steps of each rank, as the last life that made a step left them."""
    with open(path, "rb") as file:
        data = file.read().ljust(SLOT * ranks, b"\0")
    return [struct.unpack_from("qq", data, SLOT * rank) for rank in range(ranks)]


class NotSurvived(Exception):
    """The ranks did not come back."""


def wait(what, condition, job):
    begun = time.monotonic()
    while time.monotonic() - begun < PATIENCE:
        found = condition()
        if found:
            return found
        if job.poll() is not None:
            raise NotSurvived(f"{what}: the launcher ended with exit code {job.returncode}")
        time.sleep(0.005)
    raise NotSurvived(f"{what}: not within {PATIENCE:.0f} s")


class Trial:
    def __init__(self, args, job, steps):
        self.args, self.job, self.steps, self.dead = args, job, steps, set()

    def trains(self):
        """The pids of a life all of whose ranks have made a step and none of which was seen dead."""
        seen = steps_of(self.steps, self.args.ranks)
        pids = descendants(self.job.pid)
        fresh = all(count and pid == pids.get(rank) for rank, (pid, count) in enumerate(seen))
        return pids if fresh and not self.dead & set(pids.values()) else None

    def starts(self):
        """The pids of a new life as soon as it has all its ranks, before its first step."""
        pids = descendants(self.job.pid)
        whole = len(pids) == self.args.ranks and not self.dead & set(pids.values())
        return pids if whole else None

    def kill(self, index, rng):
        early = index % 4 == 3
        pids = wait(f"kill {index + 1}: the ranks", self.starts if early else self.trains, self.job)
        time.sleep(rng.uniform(0, 2.0 if early else 1.0))
        rank = rng.randrange(self.args.ranks)
        self.dead |= set(pids.values())
        killed = time.monotonic()
        os.kill(pids[rank], signal.SIGKILL)
        return rank, pids[rank], early, killed


def run(args, folder, seed):
    rng = random.Random(seed)
    wrapper, steps = os.path.join(folder, "count_steps.py"), os.path.join(folder, "steps")
    with open(wrapper, "w") as file:
        file.write(WRAPPER)
    open(steps, "wb").close()
    with open(os.path.join(folder, "stderr"), "w+") as words:
        job = subprocess.Popen(command(args, wrapper, steps), stdout=subprocess.DEVNULL, stderr=words)
        trial, kills, waits, last = Trial(args, job, steps), [], [], []
        try:
            for index in range(args.kills):
                rank, pid, early, killed = trial.kill(index, rng)
                # The next kill comes before the first step of the life that this one leads to.
                hurried = index % 4 == 2 and index + 1 < args.kills
                wait(f"after kill {index + 1}", trial.starts if hurried else trial.trains, job)
                waits += [] if hurried else [time.monotonic() - killed]
                kills.append((rank, pid))
                print(f"kill {index + 1:2}: rank {rank} (pid {pid}){' before its first step' if early else ''}", flush=True)
            last = list(descendants(job.pid).values())
        except NotSurvived as reason:
            print(reason, flush=True)
        finally:
            job.send_signal(signal.SIGTERM)
            job.wait(40)
        words.seek(0)
        return kills, waits, last, job.returncode, words.read()


def main():
    args = arguments()
    if subprocess.run([args.python, "-c", "import torch"], capture_output=True).returncode:
        print(f"skipped: {args.python} has no torch")
        return
    seed = args.seed if args.seed is not None else random.randrange(1 << 32)
    with tempfile.TemporaryDirectory() as folder:
        kills, waits, last, code, words = run(args, folder, seed)
    print(f"{args.launcher}: {len(kills)} of {args.kills} kills survived, seed {seed}, exit code after SIGTERM {code}")
    if waits:
        print(f"kill to the next step of all ranks: median {statistics.median(waits):.2f} s, worst {max(waits):.2f} s")
    left = [pid for pid in last if os.path.exists(f"/proc/{pid}")]
    print(f"processes left: {len(left)}")
    if args.launcher == "torchrun":
        sys.exit(len(kills) < args.kills)
    named = [(int(rank), int(pid)) for rank, pid in CAUSE.findall(words)]
    print(f"first cause named: {sum(a == b for a, b in zip(named, kills))} of {len(kills)}")
    if named != kills or left or code != 130:
        sys.exit(f"named {named}\nkilled {kills}\n{words}")


if __name__ == "__main__":
    main()
