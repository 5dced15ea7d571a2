#!/usr/bin/env python3
"""dtrain and PyTorch on one GPU in turn: A B C A B C, a window each, all of them started and warm before the first.

    bench/gpu_turns.py --step gpu-pack/train/step --work gpt2 --precision bf16 --batch 32

`turn MODE MEDIAN [LEAST-MOST] UNIT batch BATCH` for each side, `ratio MODE MEDIAN [LEAST-MOST]` of dtrain to it in one round, above 1 where
dtrain is faster (of one window no range); `lost MODE WHY` for a side that did not come so far, which costs only itself. Where `nvidia-smi` is, `clocks`
says what the GPU ran at meanwhile. The last line sums it up. The exit code is 0 if dtrain and one other were measured.

What all of them keep lies on the GPU at once: `--batch` is for one in which all have room.
"""
import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time

from measure import hundredths, spread

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers/torch_gpu.py")


class Side:
    """A program that measures a window whenever it is asked."""

    def __init__(self, mode, words, log):
        self.mode, self.rates, self.ready, self.why, self.last = mode, [], None, None, ""
        self.log, self.lines, self.process = log, queue.Queue(), None
        try:
            self.process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
        except OSError as error:
            self.why = f"{words[0]}: {error.strerror}"
            return
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            print(f"{self.mode}: {line}", end="", file=self.log, flush=True)
            self.lines.put(line.strip())
        self.lines.put(None)

    def next(self, word, until):
        """What stands behind `word` in the next line that begins with it; none if the program ended or `until` passed: it is lost then."""
        while self.why is None:
            try:
                line = self.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                self.lose(f"no {word} in time: {self.last}")
                return None
            if line is None:
                self.lose(re.sub(r"^lost \S+ \S+ \S+ ", "", self.last) or "it ended without a word")
            elif line.startswith(word + " "):
                return line[len(word) + 1 :]
            elif line:
                self.last = line
        return None

    def window(self, until):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it ended: what it said stands in its lines
        rate = self.next("window", until)
        return None if rate is None else float(rate)

    def lose(self, why):
        self.why = why
        self.process.kill()

    def end(self):
        """Gives what it keeps on the GPU back."""
        if self.process:
            self.process.kill()
            self.process.wait()


class Clocks:
    """What nvidia-smi says of the GPU, all the while: it has spoken, if it ever does, before the first window begins."""

    FIELDS = "clocks.sm,clocks.mem,power.draw,temperature.gpu"
    # Seconds for its first word: it asks a driver, which takes a second where no other program holds the GPU.
    PATIENCE = 5.0

    def __init__(self):
        smi, self.rows, self.spoke = shutil.which("nvidia-smi"), [], threading.Event()
        self.process = smi and subprocess.Popen(
            [smi, f"--query-gpu={self.FIELDS}", "--format=csv,noheader,nounits", "-lms", "250", "-i", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        if self.process:
            self.reader = threading.Thread(target=self._read, daemon=True)
            self.reader.start()
            self.spoke.wait(self.PATIENCE)

    def _read(self):
        for line in self.process.stdout:
            try:
                self.rows.append([float(cell) for cell in line.split(",")])
            except ValueError:
                continue  # a line that was cut off, or a number that this GPU does not tell
            self.spoke.set()
        self.spoke.set()

    def words(self):
        if not self.process:
            return None
        self.process.kill()
        self.process.wait()
        self.reader.join()
        if not self.rows:
            return None
        names = ["SM {} MHz", "memory {} MHz", "{} W", "{} C"]
        return ", ".join(name.format(f"{min(of):.0f}-{max(of):.0f}") for name, of in zip(names, zip(*self.rows)))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", required=True, help="dtrain's side, the example train_step of crates/cuda")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--work", required=True)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a window; ten steps at least")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for all of it")
    parser.add_argument("--ours", default="", help="more words for dtrain's side")
    parser.add_argument("--peers", default="", help="more words for PyTorch's side")
    return parser.parse_args()


def started(args):
    """All sides, each warm; one that is not is lost."""
    batch = ["--batch", str(args.batch)] if args.batch else []
    same = ["--work", args.work, "--seconds", str(args.seconds), "--turns", str(args.rounds), *batch]
    words = {"dtrain": [args.step, *same, "--precision", args.precision, *args.ours.split()]}
    for mode in args.modes:
        words[mode] = [args.python, PEER, *same, "--precisions", args.precision, "--mode", mode, *args.peers.split()]
    return [Side(mode, words, sys.stderr) for mode, words in words.items()]


def rounds(args, sides, until):
    """Measures them in turn. Windows of which one is missing are not compared, so a round is whole for all that are left or ends them."""
    for _ in range(args.rounds):
        for side in sides:
            rate = side.window(until) if side.why is None else None
            if rate is not None:
                side.rates.append(rate)


def tell(sides):
    """Prints a line a side and a ratio a peer; the ratios of whole rounds, by mode."""
    ours, ratios = sides[0], {}
    for side in sides:
        if side.rates:
            print(f"turn {side.mode} {spread(side.rates, '{:.1f}'.format)} {side.ready}")
        if side.why:
            print(f"lost {side.mode} {side.why}")
    for side in sides[1:]:
        pairs = [mine / theirs for mine, theirs in zip(ours.rates, side.rates)]
        if pairs:
            ratios[side.mode] = pairs
            print(f"ratio {side.mode} {spread(pairs, '{:.3f}'.format)}")
    return ratios


def main():
    args = arguments()
    until, sides = time.monotonic() + args.limit, started(args)
    try:
        for side in sides:
            side.ready = side.next("ready", until)
        clocks = Clocks()
        rounds(args, sides, until)
        said = clocks.words()
    finally:
        for side in sides:
            side.end()
    ratios = tell(sides)
    if said:
        print(f"clocks {said}")
    words = [f"{spread(pairs, hundredths)} x {mode}" for mode, pairs in ratios.items()]
    words += [f"{side.mode} was lost: {side.why}" for side in sides if side.why]
    print(", ".join([*words, *([said] if said else [])]))
    sys.exit(0 if ratios else 1)


if __name__ == "__main__":
    main()
