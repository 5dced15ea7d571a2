"""What the programs that measure share: running a command on given cores, training steps of both sides, and how results are shown.

It does not know what is compared with what.
"""
import datetime
import json
import os
import re
import shlex
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DTRAIN = os.path.join(ROOT, "target/release/dtrain")
STEPS_PEER = os.path.join(ROOT, "bench/peers/torch_train.py")
STEPS_LINE = re.compile(r"^torch .* samples/s ([0-9.]+) .* rss ([0-9]+) MB$", re.M)


def start(words, cores):
    """Starts a command that is pinned to `cores` with everything it starts."""
    words = [str(word) for word in words]
    pin = lambda: os.sched_setaffinity(0, cores)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=pin)


def output(process):
    """Standard output of a started command, once it ended; ends this program if it failed."""
    out, err = process.communicate()
    if process.returncode:
        sys.exit(f"{shlex.join(process.args)}: exit code {process.returncode}\n{err}")
    return out


def run(words, cores=None):
    return output(start(words, cores or os.sched_getaffinity(0)))


def dtrain_words(args, work, ranks=1, threads=1, micro_batches=1, precision="f32"):
    words = [args.dtrain, "bench", "step", "--work", work, "--ranks", ranks, "--threads", threads]
    return [*words, "--micro-batches", micro_batches, "--seconds", args.seconds, "--precision", precision, "--json"]


def dtrain_result(out):
    """samples/s and MiB of the largest rank."""
    last = json.loads(out.splitlines()[-1])
    return last["samples_per_second"], last["peak_rss_mb"]


def torch_words(args, work, ranks=1, threads=1, micro_batches=1, precision="f32"):
    launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    words = [args.python, *launcher, args.peer, "--work", work, "--threads", threads]
    words += ["--micro-batches", micro_batches, "--windows", args.seconds, "--seconds", 1]
    return [*words, "--bf16"] if precision == "bf16" else words


def torch_result(out):
    """samples/s and MiB of the first process."""
    found = STEPS_LINE.search(out)
    if not found:
        sys.exit(f"no result in the output of PyTorch:\n{out}")
    return float(found[1]), float(found[2])


def spread(values, form):
    """median [least-most]"""
    values = list(values)
    if None in values:
        return "-"
    if len(values) == 1:
        return form(values[0])
    return f"{form(statistics.median(values))} [{form(min(values))}-{form(max(values))}]"


def rate(value):
    return f"{value:,.0f}".replace(",", " ") if value >= 200 else f"{value:.1f}"


def hundredths(value):
    return f"{value:.2f}"


def row(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(head, rows):
    """Prints a Markdown table; its head is a row of names."""
    print(row(head))
    print("|" + "---|" * len(head))
    print("\n".join(rows))


def cpu():
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else os.uname().machine}, {len(names) or os.cpu_count()} cores"


def versions(args, *more):
    """The line above a table: when, where, and of what."""
    found = [str(datetime.date.today()), cpu(), run([args.dtrain, "--version"]).strip()]
    if args.python:
        found.append(run([args.python, "-c", "import torch; print('PyTorch', torch.__version__)"]).strip())
    return " · ".join([*found, *more])
