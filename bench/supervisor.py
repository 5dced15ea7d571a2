#!/usr/bin/env python3
"""Kills whoever leads a run again and again, and judges from outside what that cost.

`--kill process` kills the supervisor's process alone and starts it again at once, by the same words; with `--hosts 1` there are four ranks
on one host, else two on each. `--kill host` does so with everything on host 0, ranks included. `--kill leader` kills everything on the host
that leads; another one, which sees the run's folder, has to lead on by itself, and only then the lost one is started again, and joins as one
of the others. With `--namespaces` (as root) each host has a network of its own.

The time is that from the kill to the next step in the ledger, the start of a process included. Afterwards the event log has to hold every
step once, in order, the digest has to be that of one rank that nobody disturbed, and the books have to add up; ranks that nobody killed
must be the same processes.

    cargo build --release
    python3 bench/supervisor.py --kill process --hosts 1
    python3 bench/supervisor.py --kill host --hosts 3
    python3 bench/supervisor.py --kill leader --hosts 3 --namespaces
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
#: A run that makes no step for so long hangs. *Units*: seconds.
PATIENCE = 60


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Networks:
    """A network for each host, all on one bridge; or the loopback for all."""

    def __init__(self, count, apart):
        self.names = [f"dt{os.getpid()}-{host}" for host in range(count)] if apart else []
        self.bridge = f"dt{os.getpid()}-b"
        if apart:
            self.ip("netns", "add", self.bridge)
            self.ip("-n", self.bridge, "link", "add", "name", "bridge0", "type", "bridge")
            self.ip("-n", self.bridge, "link", "set", "bridge0", "up")
        for host, name in enumerate(self.names):
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
            self.ip("-n", name, "link", "add", "e", "type", "veth", "peer", "name", f"p{host}", "netns", self.bridge)
            self.ip("-n", self.bridge, "link", "set", f"p{host}", "master", "bridge0", "up")
            self.ip("-n", name, "addr", "add", f"192.0.2.{host + 1}/24", "dev", "e")
            self.ip("-n", name, "link", "set", "e", "up")

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    def master(self):
        return "192.0.2.1:29400" if self.names else f"127.0.0.1:{free_port()}"

    def inside(self, host):
        return ["nsenter", f"--net=/run/netns/{self.names[host]}"] if self.names else []

    def remove(self):
        for name in self.names and [*self.names, self.bridge]:
            subprocess.run(["ip", "netns", "del", name])


def processes():
    """All of them: parent, session and whether it is a rank, by pid."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="latin-1") as stat:
                state, parent, _, session = stat.read().rsplit(") ", 1)[1].split(" ")[:4]
            with open(f"/proc/{name}/environ", "rb") as environment:
                variables = environment.read().split(b"\0")
        except OSError:
            continue
        if state != "Z":
            is_rank = any(variable.startswith(b"DTRAIN_RANK_HANDLES=") for variable in variables)
            found[int(name)] = (int(parent), int(session), is_rank)
    return found


def kinds_in(folder):
    """What each process in this folder is, by pid: "rank", "keeper" or "program"."""
    found = {}
    for pid, (_, _, is_rank) in processes().items():
        try:
            if os.readlink(f"/proc/{pid}/cwd") != folder:
                continue
            with open(f"/proc/{pid}/environ", "rb") as environment:
                keeps = b"\0DTRAIN_KEEPER=" in b"\0" + environment.read()
        except OSError:
            continue
        found[pid] = "rank" if is_rank else "keeper" if keeps else "program"
    return found


class Run:
    def __init__(self, arguments, folder, networks):
        self.arguments, self.folder, self.networks = arguments, folder, networks
        self.dtrain, self.run = os.path.abspath(arguments.dtrain), os.path.join(folder, "runs", "run")
        self.model = [*MODEL, f"steps={arguments.steps}"]
        self.master, token = networks.master(), os.path.join(folder, "token")
        subprocess.run([self.dtrain, "token", "new", "-o", token], check=True, stdout=subprocess.DEVNULL)
        self.environment = {**os.environ, "DTRAIN_TOKEN_FILE": token}
        self.hosts = [None] * arguments.hosts

    def start(self, host):
        first = [*self.model, f"run_dir={self.run}", "resume=auto", "--quiet", f"standby={'on' if self.arguments.kill == 'leader' else 'off'}"]
        words = ["train", "ranks=4", *first]
        if self.arguments.hosts > 1:
            words = ["node", "--rank", str(host), "--master", self.master, "--nodes", str(self.arguments.hosts), "ranks=2"]
            words += first if host == 0 else []
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [*self.networks.inside(host), self.dtrain, *words]
        self.hosts[host] = subprocess.Popen(command, cwd=self.folder, env=self.environment, start_new_session=True, **silent)

    def of(self, host):
        """The processes of a host, its ranks apart."""
        there = {pid: rank for pid, (_, session, rank) in processes().items() if session == self.hosts[host].pid}
        return sorted(pid for pid, rank in there.items() if not rank), sorted(pid for pid, rank in there.items() if rank)

    def recorded(self):
        try:
            with open(os.path.join(self.run, "ledger.jsonl"), "rb") as ledger:
                ledger.seek(max(0, os.path.getsize(ledger.name) - 2000))
                lines = ledger.read().splitlines()
        except FileNotFoundError:
            return 0
        for line in reversed(lines):
            try:
                return json.loads(line).get("to", 0)
            except ValueError:
                pass
        return 0

    def wait_beyond(self, step):
        begun = time.monotonic()
        while self.recorded() <= step:
            if time.monotonic() - begun > PATIENCE:
                sys.exit(f"no step after {step} for {PATIENCE} s")
            time.sleep(0.002)

    def leader(self):
        if self.arguments.kill != "leader":
            return 0
        with open(os.path.join(self.run, ".supervisor"), encoding="ascii") as file:
            return int(file.read().split()[0])

    def kill(self):
        """One kill: what it cost in seconds, and whether all that nobody killed are who they were."""
        victim = self.leader()
        others = [host for host in range(self.arguments.hosts) if host != victim]
        alone = self.arguments.kill == "process"
        kept = self.ranks() if alone else [self.of(host)[1] for host in others]
        programs, ranks = self.of(victim)
        before, killed = self.recorded(), time.monotonic()
        for pid in [self.hosts[victim].pid] if alone else [*programs, *ranks]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        old = self.hosts[victim]
        old.wait()
        stands = self.recorded()
        if self.arguments.kill == "leader":
            self.wait_beyond(stands)
            took = time.monotonic() - killed
            self.start(victim)
            began = time.monotonic()
            while len(self.of(victim)[1]) < 2:
                if time.monotonic() - began > PATIENCE:
                    sys.exit(f"host {victim} does not come back")
                time.sleep(0.01)
            time.sleep(0.5)
        else:
            self.start(victim)
            self.wait_beyond(max(before, stands))
            took = time.monotonic() - killed
        if alone:
            return took, self.ranks() == kept
        return took, [self.of(host)[1] for host in others] == kept

    def ranks(self):
        """The ranks of all hosts: those of a supervisor before this one are in the session of that."""
        return sorted(pid for pid, (_, _, rank) in processes().items() if rank and self.is_ours(pid))

    def is_ours(self, pid):
        try:
            return os.readlink(f"/proc/{pid}/cwd") == self.folder
        except OSError:
            return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", default="target/release/dtrain")
    parser.add_argument("--kill", choices=["process", "host", "leader"], default="process")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--namespaces", action="store_true")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    networks = Networks(arguments.hosts, arguments.namespaces)
    with tempfile.TemporaryDirectory() as folder:
        try:
            judge(Run(arguments, folder, networks), chance)
        finally:
            for pid, (_, _, _) in processes().items():
                try:
                    if os.readlink(f"/proc/{pid}/cwd").startswith(folder):
                        os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            networks.remove()


def judge(run, chance):
    arguments = run.arguments
    for host in reversed(range(arguments.hosts)):
        run.start(host)
    run.wait_beyond(100)
    took, kept = [], 0
    for _ in range(arguments.kills):
        time.sleep(chance.uniform(0.05, 0.6))
        seconds, same = run.kill()
        took.append(seconds)
        kept += same
    ends = [host.wait() for host in run.hosts]
    with open(os.path.join(run.run, "events.jsonl"), encoding="utf-8") as log:
        events = [json.loads(line) for line in log]
    steps = [event["step"] for event in events if event["event"] == "step"]
    summary = [event for event in events if event["event"] == "summary"][-1]
    audit = subprocess.run([run.dtrain, "audit", run.run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    alone = subprocess.run(
        [run.dtrain, "train", *run.model, "ranks=1", "--json", "--quiet"],
        cwd=run.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
    )
    plain = json.loads(alone.stdout.splitlines()[-1])
    what = {"process": "kills of the supervisor's process", "host": "kills of host 0", "leader": "kills of the host that leads"}
    print(f"{what[arguments.kill]}, of {arguments.hosts}   {arguments.kills}")
    print(f"from the kill to the next step   median {statistics.median(took) * 1e3:.0f} ms, worst {max(took) * 1e3:.0f} ms")
    verdicts = {
        "every step once, in order": steps == list(range(1, arguments.steps + 1)),
        "digest as undisturbed": summary["digest"] == plain["digest"],
        "books clean": audit.returncode == 0,
        "ranks that nobody killed kept": kept == arguments.kills,
        "no step lost": summary["lost_steps"] == 0,
        "all ended well": ends == [0] * arguments.hosts,
    }
    for words, held in verdicts.items():
        print(f"{words:33}{'yes' if held else 'NO'}")
    if not all(verdicts.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
