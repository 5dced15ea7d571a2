#!/usr/bin/env python3
"""What a state in shards costs and saves, and what a lost rank costs it: two hosts of two ranks each, each host with a network of its own (as root).

`--what pace` trains the same model with each of `--states` in turn and prints steps a second: a whole state, or shards of the optimizer's state, of gradients
too, of parameters too; with `--rate 2gbit` over networks that carry no more, with `--before DTRAIN` beside another build. `--what traffic` prints the bytes that a host
sends in a step, as the network counts them, beside what the formula says. `--what memory` prints the
memory of a rank, the mean of all: the proportional set size, sampled while it trains, less that of a rank with a model of next to nothing. `--what room` limits the address
space of every process to what lies between both, and says what becomes of each. `--what kills` kills random
ranks of a sharded run again and again and prints the time from the kill to the next step in the ledger; afterwards the log has to hold every step
once, the digest has to be that of one rank that nobody disturbed, and the books have to add up.

    cargo build --release
    python3 bench/sharded.py --what pace
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time

import supervisor

#: Enough parameters to see them travel, and a batch that keeps ranks busy meanwhile.
WIDE = ["data.kind=digits", "global_batch=512", "micro_batch=128", "threads=1", "model.kind=mlp", "checkpoint.every=none"]


#: How ranks keep the state, in the words of a configuration.
WORDS = {
    "replicated": ["state=replicated"],
    "optimizer": ["state=sharded"],
    "gradients": ["state=sharded", "shard=gradients"],
    "parameters": ["state=sharded", "shard=parameters"],
}


def hidden(arguments):
    """The model's layers."""
    return f"model.hidden=[{','.join([str(arguments.width)] * arguments.layers)}]"


class Run(supervisor.Run):
    """Two hosts that train one model."""

    hosts_in_all = 2
    ranks_of_a_host = 2

    def __init__(self, dtrain, folder, networks, model, limit=None):
        self.limit = limit
        self.dtrain, self.folder, self.networks, self.model = os.path.abspath(dtrain), folder, networks, model
        self.run, self.arguments = os.path.join(folder, "runs", "run"), None
        self.master, token = networks.master(), os.path.join(folder, "token")
        subprocess.run([self.dtrain, "token", "new", "-o", token], check=True, stdout=subprocess.DEVNULL)
        self.environment = {**os.environ, "DTRAIN_TOKEN_FILE": token}
        self.hosts = [None] * self.hosts_in_all

    def start(self, host):
        words = ["node", "--rank", str(host), "--master", self.master, "--nodes", str(self.hosts_in_all), f"ranks={self.ranks_of_a_host}"]
        words += [*self.model, f"run_dir={self.run}", "--quiet"] if host == 0 else []
        limited = ["prlimit", f"--as={self.limit}"] if self.limit else []
        command = [*self.networks.inside(host), *limited, self.dtrain, *words]
        with open(os.path.join(self.folder, f"stderr.{host}"), "wb") as errors:
            self.hosts[host] = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=errors
            )

    def whole(self):
        """Starts all, and waits for the end."""
        for host in range(self.hosts_in_all):
            self.start(host)
        for host, child in enumerate(self.hosts):
            if child.wait():
                raise SystemExit(open(os.path.join(self.folder, f"stderr.{host}"), encoding="utf-8").read())
        return self.summary()

    def events(self):
        with open(os.path.join(self.run, "events.jsonl"), encoding="utf-8") as log:
            return [json.loads(line) for line in log]

    def summary(self):
        return next(event for event in reversed(self.events()) if event["event"] == "summary")


def one(arguments, networks, model, watch=None, limit=None, dtrain=None):
    """A run of its own from begin to end; what `watch` saw of it."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(dtrain or arguments.dtrain, folder, networks, model, limit)
        seen, over = [], threading.Event()

        def look():
            while not over.wait(0.05):
                found = [watch(pid) for pid in run.ranks()]
                if len(found) == Run.hosts_in_all * Run.ranks_of_a_host and None not in found:
                    seen.append(max(found) if watch is address_space else sum(found) / len(found))

        watcher = threading.Thread(target=look)
        if watch:
            watcher.start()
        summary = run.whole()
        over.set()
        if watch:
            watcher.join()
        steps = [event["time"] for event in run.events() if event["event"] == "step"]
        return summary, steps, seen


def in_bytes(path, field):
    """A number of kilobytes that the system tells of a process, if that is there."""
    try:
        with open(path, encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
    except (OSError, StopIteration):
        return None


def own_memory(pid):
    """What a process has to itself, and its part of what it shares."""
    return in_bytes(f"/proc/{pid}/smaps_rollup", "Pss:")


def address_space(pid):
    """The most address space that a process had."""
    return in_bytes(f"/proc/{pid}/status", "VmPeak:")


def pace(arguments, networks):
    programs = {"": arguments.dtrain, **({" before": arguments.before} if arguments.before else {})}
    rates = {(state, name): [] for state in arguments.states for name in programs}
    for _ in range(arguments.rounds):
        for (state, name), found in rates.items():
            model = [*(arguments.model or [*WIDE, hidden(arguments)]), *WORDS[state], f"steps={arguments.pace_steps}", *arguments.more]
            _, steps, _ = one(arguments, networks, model, dtrain=programs[name])
            # The first ones warm up.
            found.append((len(steps) - 10) / (steps[-1] - steps[9]))
    for (state, name), found in rates.items():
        print(f"{state + name:<18} {statistics.median(found):8.3f} steps/s   {min(found):.3f} to {max(found):.3f}")
    first, *others = arguments.states
    pairs = [((state, name), (first, name)) for name in programs for state in others]
    pairs += [((state, ""), (state, " before")) for state in arguments.states if arguments.before]
    for new, old in pairs:
        ratios = [b / a for a, b in zip(rates[old], rates[new])]
        print(f"{''.join(new)} to {''.join(old)}: {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}", flush=True)


def sent(networks):
    """Bytes that hosts have sent."""
    count = ["cat", "/sys/class/net/e/statistics/tx_bytes"]
    counts = [subprocess.run([*networks.inside(host), *count], capture_output=True, check=True) for host in range(Run.hosts_in_all)]
    return sum(int(count.stdout) for count in counts)


def parameters_of(arguments):
    width = arguments.width
    return 65 * width + (arguments.layers - 1) * width * (width + 1) + 10 * (width + 1)


def traffic(arguments, networks):
    hosts, floats = Run.hosts_in_all, parameters_of(arguments)
    held = min(2, hosts) / hosts
    micro_batches = 4
    # Gradients to those who add them up; their sums to those who need them; parameters to those who do not hold them. In rounds the gradient of each
    # micro-batch to those who hold it, and the parameters twice a round; and once for the validation of an epoch, which has three steps.
    windows = micro_batches * (hosts - 1) / hosts * held
    formula = {
        "replicated": 2 * (hosts - 1) / hosts,
        "optimizer": (hosts - 1) / hosts * (1 + held) + 1 - held,
        "gradients": windows + 1 - held,
        "parameters": windows + (2 * -(-micro_batches // hosts) + 1 / 3) * (1 - held),
    }
    for state in arguments.states:
        expected = 4 * floats * formula[state]
        counted = []
        for steps in (10, 30):
            before = sent(networks)
            one(arguments, networks, [*WIDE, "checkpoint.best=none", hidden(arguments), *WORDS[state], f"steps={steps}"])
            counted.append(sent(networks) - before)
        # What a run sends beside its steps is in both.
        step = (counted[1] - counted[0]) / 20 / hosts
        print(f"{state:<11} {step / 1e6:8.2f} MB a host and step, {expected / 1e6:.2f} by the formula: {step / expected:.3f}")


def memory(arguments, networks):
    small = ["model.hidden=[16]", "steps=200"]
    for state in arguments.states:
        _, _, nothing = one(arguments, networks, [*WIDE, *small, *WORDS[state]], own_memory)
        _, _, seen = one(arguments, networks, [*WIDE, hidden(arguments), *WORDS[state], "steps=24", *arguments.more], own_memory)
        parameters = parameters_of(arguments)
        while_training, most = statistics.median(seen), max(seen)
        each = [(bytes - statistics.median(nothing)) / parameters for bytes in (while_training, most)]
        print(f"{state:<11} {while_training / 1e6:8.1f} MB a rank, most {most / 1e6:.1f} MB: {each[0]:.2f} and {each[1]:.2f} bytes a parameter "
              f"of {parameters / 1e6:.1f} million")


def room(arguments, networks):
    # Who has no room is not begun anew: it would have none again.
    everybody = [f"min_ranks={Run.hosts_in_all * Run.ranks_of_a_host}", "max_restarts=0"]
    model = [*WIDE, "global_batch=64", "micro_batch=16", hidden(arguments), "steps=8", *everybody]
    states = {state: [*WORDS[state], *arguments.more] for state in (arguments.states[0], arguments.states[-1])}
    #: The largest address space of a rank, in bytes.
    largest = {}
    for state, words in states.items():
        _, _, seen = one(arguments, networks, [*model, *words], address_space)
        largest[state] = max(seen)
    limit = int(sum(largest.values()) / 2)
    for state, words in states.items():
        try:
            summary, _, _ = one(arguments, networks, [*model, *words], limit=limit)
            said = f"trains, digest {summary['digest'][:16]}"
        except SystemExit as ended:
            said = "does not: " + next((line for line in str(ended).splitlines() if "memory" in line), str(ended)[-200:])
        print(f"{state:<11} takes {largest[state] / 1e6:.0f} MB of address space a rank; with at most {limit / 1e6:.0f} MB it {said}")


def kills(arguments, networks):
    chance = random.Random(arguments.seed)
    model = [*WIDE[:1], "global_batch=64", "micro_batch=16", *WIDE[3:], "model.hidden=[512,512]", f"steps={arguments.steps}"]
    words = WORDS[arguments.states[-1]]
    with tempfile.TemporaryDirectory() as folder:
        run = Run(arguments.dtrain, folder, networks, [*model, *words, *arguments.more, "max_restarts=1000"])
        for host in range(Run.hosts_in_all):
            run.start(host)
        run.wait_beyond(20)
        times = []
        for _ in range(arguments.kills):
            time.sleep(chance.uniform(0.0, 0.05))
            victim = chance.choice(run.ranks())
            before, killed = run.recorded(), time.monotonic()
            os.kill(victim, signal.SIGKILL)
            # What was told before the kill does not count.
            time.sleep(0.005)
            run.wait_beyond(max(before, run.recorded()))
            times.append(time.monotonic() - killed)
            while len(run.ranks()) < Run.hosts_in_all * Run.ranks_of_a_host:
                if run.hosts[0].poll() is not None:
                    raise SystemExit(f"the run was over after {len(times)} kills: it needs more --steps")
                time.sleep(0.01)
            full = time.monotonic()
            while sum(event["event"] == "rank_started" for event in run.events()[-300:]) < Run.hosts_in_all * Run.ranks_of_a_host or time.monotonic() - full < 0.3:
                time.sleep(0.02)
        for child in run.hosts:
            if child.wait():
                raise SystemExit(f"a host ended with {child.returncode}")
        steps = [event["step"] for event in run.events() if event["event"] == "step"]
        summary = run.summary()
        audit = subprocess.run([run.dtrain, "audit", run.run], capture_output=True, text=True, check=False)
        plain = ["train", "ranks=1", *model, f"run_dir={folder}/plain", "--quiet", "--json"]
        alone = subprocess.run([run.dtrain, *plain], capture_output=True, text=True, check=True, cwd=folder)
        digest = json.loads(alone.stdout.splitlines()[-1])["digest"]
        times.sort()
        print(f"{len(times)} kills: median {statistics.median(times) * 1000:.0f} ms, worst {times[-1] * 1000:.0f} ms, {summary['generations']} generations")
        print(f"every step once: {steps == list(range(1, arguments.steps + 1))}, lost steps: {summary['lost_steps']}, "
              f"same digest: {summary['digest'] == digest}, audit: {'clean' if audit.returncode == 0 else audit.stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", default="target/release/dtrain")
    parser.add_argument("--what", choices=["pace", "traffic", "memory", "room", "kills"], required=True)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="of each host")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--more", nargs="*", default=[], help="more keys, such as verify=1")
    parser.add_argument("--model", nargs="*", help="data and model of a run whose pace is measured, in place of the MLP")
    parser.add_argument("--before", help="another dtrain, whose pace is measured in turn")
    parser.add_argument("--pace-steps", type=int, default=40, help="of a run whose pace is measured; the first ten do not count")
    parser.add_argument("--rate", help="the most that a host sends, as tc has it: 2gbit")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=2, help="of that width")
    parser.add_argument("--states", nargs="*", choices=list(WORDS), default=["replicated", "optimizer"], help="what is compared, with the first")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    Run.hosts_in_all, Run.ranks_of_a_host = arguments.hosts, arguments.ranks
    networks = supervisor.Networks(arguments.hosts, True)
    for host, name in enumerate(networks.names):
        networks.ip("-n", name, "link", "set", "e", "mtu", "9000")
        networks.ip("-n", networks.bridge, "link", "set", f"p{host}", "mtu", "9000")
        if arguments.rate:
            limited = ["qdisc", "add", "dev", "e", "root", "tbf", "rate", arguments.rate, "burst", "512kb", "latency", "20ms"]
            subprocess.run(["tc", "-n", name, *limited], check=True)
    try:
        {"pace": pace, "traffic": traffic, "memory": memory, "room": room, "kills": kills}[arguments.what](arguments, networks)
    finally:
        networks.remove()


if __name__ == "__main__":
    main()
