#!/usr/bin/env python3
"""The instructions of a kernel, block by block: what a GPU has to issue, which bytes and multiplications do not show.

    cargo run -p dtrain-cuda --example compile_kernels -- LIBNVRTC sm_90a FOLDER
    bench/instructions.py FOLDER cross_entropy_bf16

A line for each run of instructions that is begun at its first and left at its last: its label, how many there are, of which kinds, and the jump
at its end. A loop is a run, or some, whose last jumps back to the first. With `--turns` a line for each loop: the instructions of a turn, by the
way through it on which most is loaded and multiplied, and of such the shortest; so without what few warps do and what is for the last turn.
Needs `nvdisasm` (`--nvdisasm`; else that of PATH, or the one that comes with PyTorch's Triton), no GPU. The exit code is 1 if no such kernel was
compiled.
"""
import argparse
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?) ;")


def disassembler():
    """Where `nvdisasm` is, if it is anywhere."""
    triton = importlib.util.find_spec("triton")
    folders = triton.submodule_search_locations if triton else []
    beside = [os.path.join(folder, "backends/nvidia/bin/nvdisasm") for folder in folders]
    return shutil.which("nvdisasm") or next(filter(os.path.exists, beside), None)


def blocks(text):
    """Label and instructions of each run."""
    label, run = "begin", []
    for line in text.splitlines():
        if line.startswith(".L"):
            yield label, run
            label, run = line.rstrip(":"), []
        elif found := INSTRUCTION.search(line):
            run.append(found[1])
            if re.search(r"\bBRA\b", found[1]):
                yield label, run
                label, run = "", []
    yield label, run


def kind(instruction):
    """`@!P0 FADD.FTZ R1, ...` is FADD."""
    return re.sub(r"^@!?U?P\d+ ", "", instruction).split()[0].split(".")[0]


def turns(runs):
    """Label and instructions of the way through each loop."""
    first = {label: at for at, (label, _) in enumerate(runs) if label}
    jumps = [re.search(r"\bBRA\b.*\((\.L\w+)\)", run[-1]) if run else None for _, run in runs]
    for last, jump in enumerate(jumps):
        begin = first.get(jump[1], last + 1) if jump else last + 1
        if begin > last:
            continue
        # What is done until a run begins, by the best way there is.
        ways = {begin: []}
        for at in range(begin, last):
            if at not in ways:
                continue
            way = ways[at] + runs[at][1]
            unconditional = jumps[at] and not runs[at][1][-1].startswith("@")
            nexts = [first.get(jumps[at][1])] if jumps[at] else []
            for to in nexts + ([] if unconditional else [at + 1]):
                if to is not None and at < to <= last and (to not in ways or better(way, ways[to])):
                    ways[to] = way
        if last in ways:
            yield jump[1], ways[last] + runs[last][1]


def better(way, other):
    def value(way):
        return sum(kind(one) in ("LDG", "FFMA", "HMMA") for one in way), -len(way)

    return value(way) > value(other)


def line(label, run):
    return f"{label:10}{len(run):5}  {' '.join(f'{name} {count}' for name, count in Counter(map(kind, run)).most_common(8)):80}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("kernel")
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--nvdisasm", default=disassembler())
    asked = parser.parse_args()
    if not asked.nvdisasm:
        sys.exit("error: there is no nvdisasm\nhint: it comes with CUDA and with PyTorch; --nvdisasm says where it is")
    for path in sorted(glob.glob(os.path.join(asked.folder, "*.cubin"))):
        text = subprocess.run([asked.nvdisasm, "-c", path], capture_output=True, text=True, check=True).stdout
        if found := re.search(rf"\.text\.{re.escape(asked.kernel)}:\n(.*?)(?=\n\s*\.section|\Z)", text, re.S):
            runs = [one for one in blocks(found[1]) if one[1] or one[0]]
            if asked.turns:
                for label, run in turns(runs):
                    print(line(label, run).rstrip())
                return
            for label, run in filter(lambda one: one[1], runs):
                print(f"{line(label, run)}  {run[-1] if 'BRA' in run[-1] else ''}".rstrip())
            return
    sys.exit(f"error: {asked.folder} has no {asked.kernel}\nhint: `compile_kernels` is given the folder as its third argument")


if __name__ == "__main__":
    main()
