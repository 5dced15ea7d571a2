#!/usr/bin/env python3
"""The instructions of a kernel, block by block: what a GPU has to issue, which bytes and multiplications do not show.

    cargo run -p dtrain-cuda --example compile_kernels -- LIBNVRTC sm_90a FOLDER
    bench/instructions.py FOLDER cross_entropy_bf16

A line for each run of instructions that is begun at its first and left at its last: its label, how many there are, of which kinds, and the jump
at its end. A loop is a run, or some, whose last jumps back to the first. Needs `nvdisasm` (`--nvdisasm`; else that of PATH, or the one that comes
with PyTorch's Triton), no GPU. The exit code is 1 if no such kernel was compiled.
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("kernel")
    parser.add_argument("--nvdisasm", default=disassembler())
    asked = parser.parse_args()
    if not asked.nvdisasm:
        sys.exit("error: there is no nvdisasm\nhint: it comes with CUDA and with PyTorch; --nvdisasm says where it is")
    for path in sorted(glob.glob(os.path.join(asked.folder, "*.cubin"))):
        text = subprocess.run([asked.nvdisasm, "-c", path], capture_output=True, text=True, check=True).stdout
        if found := re.search(rf"\.text\.{re.escape(asked.kernel)}:\n(.*?)(?=\n\s*\.section|\Z)", text, re.S):
            for label, run in filter(lambda one: one[1], blocks(found[1])):
                kinds = " ".join(f"{name} {count}" for name, count in Counter(map(kind, run)).most_common(8))
                jump = run[-1] if "BRA" in run[-1] else ""
                print(f"{label:10}{len(run):5}  {kinds:80}  {jump}".rstrip())
            return
    sys.exit(f"error: {asked.folder} has no {asked.kernel}\nhint: `compile_kernels` is given the folder as its third argument")


if __name__ == "__main__":
    main()
