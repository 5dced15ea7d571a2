#!/usr/bin/env python3
"""Everything that may befall real processes, drawn at random, and a judgement from outside: what `dtrain simulate` is to the protocol.

Each seed draws a run (one to three hosts, all at the beginning or some later, each with a network of its own, that see one run folder or
not; whole states or shards) and what happens to it: ranks, keepers, supervisors and whole hosts are killed (-9) or stand still for a while,
hosts leave when they are asked to, networks are slow, lose a part of what they carry, or are cut, both ways or one, the disk is full for a
while, logs and all, and where the run lies on ext4 or XFS the power fails: all that was not synced is gone. Who has ended is started again,
as a scheduler does. Then nothing more happens, and the run has to end by itself: with the digest of one rank that nobody disturbed, with books that add up,
every step once and in order unless all state was lost, nothing left running and nothing left behind. What a seed draws is the same each
time; what it meets is not. Hosts that were cut off while the others ended cannot know it, and give up after a while.

    cargo build --release
    sudo python3 bench/chaos.py --seeds 20             # networks and disks of their own need root, and mkfs.xfs
    sudo python3 bench/chaos.py --first 17 --seeds 1 --keep
"""

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from disk import Disk
from supervisor import Networks, kinds_in

#: Steps of a run by its hosts: enough for the time in which things happen.
STEPS = [20_000, 8_000, 4_000]
MODEL = ["data=digits", "global_batch=64", "micro_batch=16", "threads=1", "max_restarts=1000", "master_timeout=30s"]
#: Where a run is, with its logs. *Units*: MiB.
DISK = 128
#: A run that does not end so long after the last fault hangs. *Units*: seconds.
PATIENCE = 180


class Host:
    """One host: its folder, and the process that stands for it."""

    def __init__(self, rank, folder):
        self.rank, self.folder, self.process, self.codes, self.due = rank, folder, None, [], 0.0
        os.mkdir(folder)

    def there(self):
        """Its processes by what they are: the ranks, the keepers and the others."""
        found = {"rank": [], "keeper": [], "program": []}
        for pid, kind in kinds_in(self.folder).items():
            found[kind].append(pid)
        return found

    def all(self):
        return sum(self.there().values(), [])


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


class Run:
    def __init__(self, arguments, seed, folder):
        self.chance, self.folder, self.dtrain = random.Random(seed), folder, os.path.abspath(arguments.dtrain)
        chance = self.chance
        count = chance.choice([1, 2, 2, 3, 3])
        self.shared = count > 1 and chance.random() < 0.6
        self.ranks = [chance.choice([1, 2]) + (count == 1) for _ in range(count)]
        level = chance.choice([None, None, "optimizer", "gradients", "parameters"]) if count > 1 else None
        self.state = ["state=sharded", f"shard={level}"] if level else []
        if level and chance.random() < 0.3:
            self.state.append("remirror=lazy")
        self.every = chance.choice(["none", "200 steps", "1 epoch"])
        # With how many hosts the run begins: all of them, or one that others join.
        self.nodes = chance.choice([f"{count}", f"1..{count}"])
        self.until, self.steps = arguments.seconds, STEPS[count - 1] // (3 if level == "parameters" else 1)
        self.networks = Networks(count, count > 1)
        self.master = self.networks.master()
        token = os.path.join(folder, "token")
        subprocess.run([self.dtrain, "token", "new", "-o", token], check=True, stdout=subprocess.DEVNULL)
        self.environment = {**os.environ, "DTRAIN_TOKEN_FILE": token}
        self.hosts = [Host(rank, os.path.join(folder, f"host-{rank}")) for rank in range(count)]
        # Hosts with folders of their own get a path that means another one to each.
        self.run_dir = os.path.join(folder, "disk", "run") if self.shared else os.path.join("disk", "run")
        place = os.path.join(folder if self.shared else self.hosts[0].folder, "disk")
        self.run = os.path.join(place, "run")
        system = chance.choice([None, "ext4", "xfs"])
        self.disk = Disk(system, folder + ".image", place) if system else os.mkdir(place)
        self.ballast = [os.path.join(where, "ballast") for where in ([place, folder] if system else [folder])]
        # Whether the log of events may have gaps; the books have none.
        self.has_gaps = False
        self.told, self.healing = [], []
        # When each rank was last there, and what kept hosts from being reached: the host, from when and until when.
        self.seen, self.looked, self.unreached = {}, 0.0, []

    def about(self):
        where = "one folder" if self.shared else "own folders"
        hosts = "+".join(map(str, self.ranks))
        on = self.disk.system if self.disk else "tmpfs"
        return f"{hosts} ranks, nodes {self.nodes}, {where} on {on}, {' '.join(self.state) or 'whole states'}, checkpoint.every={self.every}"

    def start(self, host):
        first = [*MODEL, f"steps={self.steps}", *self.state, f"run_dir={self.run_dir}", "resume=auto", f"checkpoint.every={self.every}"]
        ranks = [f"ranks={self.ranks[host.rank]}"]
        if len(self.hosts) == 1:
            words = ["train", *ranks, *first]
        else:
            words = ["node", "--rank", str(host.rank), "--master", self.master, "--nodes", self.nodes, *ranks]
            words += first if host.rank == 0 or self.shared else []
        with open(os.path.join(self.folder, f"host-{host.rank}.log"), "ab", buffering=0) as log:
            with contextlib.suppress(OSError):
                log.write(f"--- {time.monotonic() - self.begun:.2f}: started\n".encode())
            command = [*self.networks.inside(host.rank), self.dtrain, *words]
            host.process = subprocess.Popen(
                command, cwd=host.folder, env=self.environment, start_new_session=True, stdout=log, stderr=log
            )

    def tell(self, what):
        self.told.append(f"{time.monotonic() - self.begun:6.2f}  {what}")

    def later(self, seconds, what, hosts):
        self.healing.append((time.monotonic() + seconds, what))
        self.unreached += [(host.rank, time.time(), time.time() + seconds) for host in hosts]

    def fault(self):
        """One thing that goes wrong."""
        chance = self.chance
        host = chance.choice(self.hosts)
        there, length = host.there(), chance.choice([0.2, 0.6, 1.5, 3.0, 5.0]) * chance.uniform(0.5, 1.5)
        kinds = {
            "kill-rank": 6, "kill-ranks": 2, "kill-keeper": 2, "kill-program": 5, "kill-host": 4, "kill-all": 1,
            "stop-rank": 3, "stop-program": 3, "stop-host": 3, "leave": 2, "disk-full": 3,
        }
        if len(self.hosts) > 1:
            kinds |= {"cut": 4, "cut-from": 2, "cut-to": 2, "slow": 2}
        if self.disk:
            kinds["power-cut"] = 4
        kind = chance.choices(list(kinds), kinds.values())[0]
        draw = lambda pids: [chance.choice(pids)] if pids else []
        name = f"host {host.rank}"
        match kind:
            case "kill-rank" | "kill-ranks" | "kill-keeper" | "kill-program":
                pids = there["rank"] if kind == "kill-ranks" else draw(there[kind[5:]])
                self.tell(f"{kind} {name} {pids}")
                send(pids, signal.SIGKILL)
            case "kill-host":
                self.tell(f"{kind} {name}")
                send(host.all(), signal.SIGKILL)
            case "kill-all":
                self.tell(kind)
                for each in self.hosts:
                    send(each.all(), signal.SIGKILL)
            case "stop-rank" | "stop-program" | "stop-host":
                pids = host.all() if kind == "stop-host" else draw(there[kind[5:]])
                self.tell(f"{kind} {name} {pids} for {length:.1f} s")
                send(pids, signal.SIGSTOP)
                self.later(length, lambda: send(pids, signal.SIGCONT), [host])
            case "disk-full":
                self.tell(f"{kind} for {length:.1f} s")
                self.fill()
                self.later(length, self.empty, [])
            case "power-cut":
                there = self.hosts if self.shared else self.hosts[:1]
                self.tell(f"{kind} {' '.join(f'host {host.rank}' for host in there)}")
                self.lose_power([pid for host in there for pid in host.all()])
            case "leave":
                self.tell(f"{kind} {name}")
                send([host.process.pid] if host.process else [], signal.SIGTERM)
            case "cut":
                self.tell(f"{kind} {name} for {length:.1f} s")
                self.link(host, "down")
                self.later(length, lambda: self.link(host, "up"), [host])
            case "cut-from" | "cut-to":
                self.tell(f"{kind} {name} for {length:.1f} s")
                self.treat(kind, host, "loss", "100%")
                self.later(length, lambda: self.treat(kind, host), [host])
            case "slow":
                how = chance.choice([["delay", "40ms", "20ms"], ["loss", "10%"], ["delay", "5ms", "loss", "30%"], ["rate", "2mbit"]])
                self.tell(f"{kind} {name} {' '.join(how)} for {3 * length:.1f} s")
                self.treat("cut-from", host, *how)
                self.later(3 * length, lambda: self.treat("cut-from", host), [host])

    def fill(self):
        self.has_gaps = True
        for ballast in self.ballast:
            with open(ballast, "ab", buffering=0) as file:
                for size in [1 << 20, 1 << 12, 1]:
                    try:
                        while True:
                            file.write(bytes(size))
                    except OSError:
                        pass

    def empty(self):
        for ballast in filter(os.path.exists, self.ballast):
            os.remove(ballast)

    def lose_power(self, pids):
        """What stands still can write nothing more."""
        self.has_gaps = True
        send(pids, signal.SIGSTOP)
        self.disk.cut()
        send(pids, signal.SIGKILL)
        self.disk.again()
        # What was removed a moment ago may be there again.
        self.empty()

    def link(self, host, state):
        Networks.ip("-n", self.networks.bridge, "link", "set", f"p{host.rank}", state)

    def treat(self, kind, host, *how):
        """What is done to all that it sends, or that it is sent; nothing ends it."""
        name, end = (self.networks.names[host.rank], "e") if kind == "cut-from" else (self.networks.bridge, f"p{host.rank}")
        rule = ["replace", "dev", end, "root", "netem", *how] if how else ["del", "dev", end, "root"]
        subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", *rule], check=False, stderr=subprocess.DEVNULL)

    def look(self, restarts=True):
        """Heals what is due, and starts again who has ended. Whether all have ended well."""
        now = time.monotonic()
        if now - self.looked > 0.1:
            self.looked = now
            self.seen |= {pid: (host.rank, time.time()) for host in self.hosts for pid in host.there()["rank"]}
        for at, what in [entry for entry in self.healing if entry[0] <= now]:
            what()
            self.healing.remove((at, what))
        for host in self.hosts:
            if host.process is None and now >= host.due and restarts and not self.is_over():
                self.start(host)
            code = host.process.poll() if host.process else None
            if code is not None:
                host.codes.append(code)
                self.tell(f"host {host.rank} ended with {code}")
                host.process, host.due = None, now + self.chance.choice([0, 0, 0.5, 2.0, 4.0])
        return self.is_over() and all(host.process is None for host in self.hosts)

    def is_over(self):
        """Whether a host has ended well: nobody may before the run has."""
        return any(0 in host.codes for host in self.hosts)

    def live(self):
        self.begun, self.began = time.monotonic(), time.time()
        self.start(self.hosts[0])
        for host in self.hosts[1:]:
            host.due = self.begun + (self.chance.choice([0, 0, 6, 12]) if ".." in self.nodes else 0)
        due = self.begun + self.chance.choice([0.1, 0.5, 1.5, 4, 4])
        while time.monotonic() < self.begun + self.until:
            if self.look():
                return
            if time.monotonic() >= due and not self.is_over():
                self.fault()
                due = time.monotonic() + self.chance.choice([0.05, 0.3, 1.0, 3.0]) * self.chance.uniform(0.5, 1.5)
            time.sleep(0.01)
        self.tell("nothing more happens")
        calm = time.monotonic()
        while not self.look():
            if time.monotonic() - calm > PATIENCE:
                raise Fault(f"it does not end: {', '.join(f'host {host.rank} {host.there()}' for host in self.hosts)}")
            time.sleep(0.01)

    def given_up(self, events):
        """Who had the state, lived on and could be reached when it was said that nobody has it."""
        had, whole, found = {}, False, []
        for event in events:
            match event["event"]:
                case "generation":
                    whole = True
                case "rank_started":
                    had, whole = {} if whole else had, False
                    had[event["member"]] = event["pid"]
                case "notice" if event["text"].startswith("nobody holds the state"):
                    at = event["time"]
                    for member, pid in had.items():
                        host, last = self.seen.get(pid, (None, 0))
                        near = any(where == host and begun < at and at < ended + 5 for where, begun, ended in self.unreached)
                        if last > at + 0.5 and not near:
                            found.append(f"member {member} (pid {pid}) of host {host}, at {at - self.began:.2f}")
        return found

    def judge(self):
        digest = undisturbed(self.dtrain, self.steps)
        with open(os.path.join(self.run, "events.jsonl"), encoding="utf-8") as log:
            lines = log.read().split("\n")
        events = [json.loads(line) for line in lines[:-1]]
        if any(map(os.path.exists, self.ballast)):
            # The disk is full to this moment: what the run came to is nowhere to be read.
            return 0
        told, again, in_order = 0, False, True
        for event in events:
            if event["event"] == "step":
                # What nobody holds any more is made again, and another life of the supervisor tells it again.
                # And the log has a gap where the disk was full, or lost its power.
                in_order &= event["step"] == told + 1 or again and 0 < event["step"] <= told or self.has_gaps and event["step"] > told
                told, again = event["step"], False
            again |= event["event"] == "run"
        summary = [event for event in events if event["event"] == "summary"][-1]
        audit = subprocess.run([self.dtrain, "audit", self.run], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lost = summary["lost_steps"]
        left = [name for name in (".supervisor", ".keeper", ".seen-by-hosts", ".ending", ".hosts", ".ranges") if os.path.exists(os.path.join(self.run, name))]
        begun = time.monotonic()
        while (alive := {host.rank: host.all() for host in self.hosts if host.all()}) and time.monotonic() - begun < 15:
            time.sleep(0.1)
        given_up = [] if self.state else self.given_up(events)
        for held, words in [
            (not given_up, f"steps are made again, which these had made: {given_up}"),
            (summary["digest"] == digest, f"digest {summary['digest']}, and undisturbed {digest}"),
            (in_order and (told == self.steps or self.has_gaps), f"steps are told in no order, up to {told}"),
            (audit.returncode == 0, f"the books do not add up: {audit.stdout}"),
            (not left, f"left behind: {left}"),
            (not alive, f"they live on: {alive}"),
        ]:
            if not held:
                raise Fault(words)
        return lost


class Fault(Exception):
    pass


@functools.cache
def undisturbed(dtrain, steps):
    with tempfile.TemporaryDirectory() as folder:
        words = [dtrain, "train", *MODEL, f"steps={steps}", "ranks=1", "--json", "--quiet"]
        ended = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])["digest"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", default="target/release/dtrain")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=25, help="how long things go wrong")
    parser.add_argument("--keep", action="store_true", help="keep the disk of each seed mounted, and say what happened")
    arguments = parser.parse_args()
    found = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        folder = tempfile.mkdtemp(prefix=f"chaos-{seed}-")
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", folder], check=True)
        run, kept = Run(arguments, seed, folder), arguments.keep
        try:
            run.live()
            lost = run.judge()
            faults = sum(" ended with " not in line for line in run.told)
            said = f"held: {faults} faults, {lost} steps lost, {time.monotonic() - run.begun:.0f} s"
        except (Fault, OSError, ValueError, IndexError, KeyError) as fault:
            said, kept, found = f"FOUND: {fault!r}", True, found + 1
        finally:
            for host in run.hosts:
                send(host.all(), signal.SIGKILL)
            run.networks.remove()
            if run.disk and not kept:
                run.disk.remove()
        print(f"seed {seed:4}  {run.about()}  {said}", flush=True)
        if kept:
            print("\n".join(f"    {line}" for line in run.told), f"\n    {folder}", flush=True)
        else:
            subprocess.run(["umount", folder], check=True)
            os.rmdir(folder)
    if found:
        sys.exit(f"{found} of {arguments.seeds} seeds did not end as an undisturbed run")


if __name__ == "__main__":
    main()
