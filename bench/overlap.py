#!/usr/bin/env python3
"""Training on two hosts of this machine, with gradients sent while the rest is computed and without, over a path of given speed.

Two network namespaces with a veth pair between them, held to a rate at both ends, are made and taken away again, so this needs
root. Runs of both kinds take turns; what a step took and how much of its communication was hidden is told by their profiles.
Prints a Markdown table.

    cargo build --release
    bench/overlap.py --text tinyshakespeare.txt
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile

import measure
from between_hosts import ADDRESSES, DEVICE, Hosts

PORT = 29_700
WORKS = {
    "mlp": "data.kind=digits model.kind=mlp model.hidden=[1024,1024] global_batch=256 micro_batch=128",
    "gpt": "data.kind=text data.context=128 model.kind=gpt model.layers=4 model.width=256 model.heads=4 global_batch=16 "
    "micro_batch=8",
}


def run(args, hosts, work, bucket):
    """The profile of a run of two hosts."""
    with tempfile.TemporaryDirectory() as folder:
        token = os.path.join(folder, "token")
        subprocess.run([args.dtrain, "token", "new", "-o", token], check=True, capture_output=True)
        words = f"{WORKS[work]} steps={args.steps} threads=1 ranks=1 bucket_bytes={bucket} name=run".split()
        if work == "gpt":
            words.append(f"data.path={os.path.abspath(args.text)}")
        processes = []
        for index, name in enumerate(hosts.names):
            os.mkdir(os.path.join(folder, name))
            own = [*words, "--profile"] if index == 0 else [word for word in words if word.startswith(("ranks", "threads"))]
            command = [
                *["ip", "netns", "exec", name, args.dtrain, "node", "--rank", index, "--nodes", 2],
                *["--master", f"{ADDRESSES[0]}:{PORT}", *(["--json"] if index == 0 else []), *own],
            ]
            processes.append(subprocess.Popen(
                [str(word) for word in command], cwd=os.path.join(folder, name), text=True,
                env={**os.environ, "DTRAIN_TOKEN_FILE": token}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            ))
        try:
            said = [process.communicate(timeout=args.patience) for process in processes]
        finally:
            for process in processes:
                process.kill()
        for process, (_, err) in zip(processes, said):
            if process.returncode:
                sys.exit(f"exit code {process.returncode}\n{err}")
    events = [json.loads(line) for line in said[0][0].splitlines()]
    return next(event for event in events if event["event"] == "profile"), events[-1]["digest"]


def exposed(profile):
    return sum(part["ms"] for part in profile["parts"] if part["part"] in ("wait", "communication"))


def rows(args, rate, work):
    found, digests = {"none": [], args.bucket: []}, set()
    with Hosts(1500, rate) as hosts:
        for turn in range(args.pairs):
            for bucket, into in found.items():
                profile, digest = run(args, hosts, work, bucket)
                into.append(profile)
                digests.add(digest)
            print(f"{work}, {rate}: pair {turn + 1} of {args.pairs}", file=sys.stderr)
    assert len(digests) == 1, "the bits depend on what is sent when"
    ms = lambda value: f"{value:.1f}"
    after, ahead = found.values()
    yield measure.row([
        work, rate,
        measure.spread([p["step_ms"] for p in after], ms), measure.spread([exposed(p) for p in after], ms),
        measure.spread([p["step_ms"] for p in ahead], ms), measure.spread([exposed(p) for p in ahead], ms),
        measure.spread([p["hidden_ms"] for p in ahead], ms),
        measure.spread([a["step_ms"] / b["step_ms"] for a, b in zip(after, ahead)], measure.hundredths),
    ])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrain", default=measure.DTRAIN)
    parser.add_argument("--rates", nargs="+", default=["200mbit", "1gbit"], help="as tc has them")
    parser.add_argument("--works", nargs="+", default=list(WORKS), choices=WORKS)
    parser.add_argument("--text", help="a text file to train gpt on")
    parser.add_argument("--bucket", default="1MiB", help="bucket_bytes of the runs that send ahead")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--patience", type=float, default=300, help="seconds that a run may take")
    args = parser.parse_args()
    if "gpt" in args.works and not args.text:
        parser.error("gpt needs a text (--text)")
    # As an exception, so that what was made is taken away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    head = ["work", "path", "after: step, ms", "exposed, ms", "ahead: step, ms", "exposed, ms", "hidden, ms", "faster"]
    measure.table(head, (line for rate in args.rates for work in args.works for line in rows(args, rate, work)))


if __name__ == "__main__":
    main()
