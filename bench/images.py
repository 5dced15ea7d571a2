#!/usr/bin/env python3
"""How fast folders of images are read: dtrain beside PyTorch's DataLoader with Pillow and as many workers, in turn.

Photographs of 500 x 375 (JPEG, quality 90) are scaled to 224 and cut. dtrain trains a model that costs next to nothing, with two ranks of one
loader thread each and nothing kept; the DataLoader has two workers and nothing behind it. Both are timed between the first batch and the last.

    cargo build --release
    python3 bench/images.py --python .venv/bin/python          # one with torch and Pillow
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

MAKE = """
import os, random, sys
from PIL import Image
folder, count = sys.argv[1], int(sys.argv[2])
random.seed(7)
for number in range(count):
    # Clouds of several sizes, as a photograph has: noise of a few sizes, scaled up and laid over one another.
    image = None
    for side in (4, 16, 64, 250):
        noise = Image.frombytes("RGB", (side, side), random.randbytes(3 * side * side)).resize((500, 375), Image.Resampling.BICUBIC)
        image = noise if image is None else Image.blend(image, noise, 0.35)
    place = os.path.join(folder, f"class{number % 4}")
    os.makedirs(place, exist_ok=True)
    image.save(os.path.join(place, f"{number:05}.jpg"), quality=90)
"""

PEER = """
import glob, sys, time
import numpy, torch
from PIL import Image

class Photos(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.files = sorted(glob.glob(folder + "/*/*.jpg"))
    def __len__(self):
        return len(self.files)
    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        scale = 224 / min(image.size)
        image = image.resize([round(side * scale) for side in image.size], Image.Resampling.BILINEAR)
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        pixels = numpy.asarray(image.crop((left, top, left + 224, top + 224)))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255

torch.set_num_threads(1)
loader = torch.utils.data.DataLoader(Photos(sys.argv[1]), batch_size=16, shuffle=True, num_workers=2)
seen, begun = 0, None
for batch in loader:
    if begun is None:
        begun = time.perf_counter()
    else:
        seen += len(batch)
print(seen / (time.perf_counter() - begun))
"""


def ours(binary, folder, where):
    words = [
        binary, "train", "--json", "--quiet", "data.kind=images", f"data.path={folder}", "data.size=224", "data.cache=none", "data.val_split=0",
        "model.kind=mlp", "model.hidden=[1]", "epochs=1", "global_batch=32", "micro_batch=16", "ranks=2", "threads=1", "workers=1",
        "checkpoint.every=none", "checkpoint.best=none", "schedule.warmup=none",
    ]
    told = subprocess.run(words, cwd=where, capture_output=True, text=True)
    if told.returncode:
        sys.exit(told.stderr)
    steps = [event for event in map(json.loads, told.stdout.splitlines()) if event["event"] == "step"]
    return sum(step["samples"] for step in steps[1:]) / (steps[-1]["time"] - steps[0]["time"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python with torch and Pillow")
    parser.add_argument("--binary", default="target/release/dtrain")
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    binary = os.path.abspath(arguments.binary)
    with tempfile.TemporaryDirectory() as where:
        folder = os.path.join(where, "photos")
        subprocess.run([arguments.python, "-c", MAKE, folder, str(arguments.count)], check=True)
        rates = {"dtrain": [], "DataLoader": []}
        for _ in range(arguments.rounds):
            rates["dtrain"].append(ours(binary, folder, where))
            told = subprocess.run([arguments.python, "-c", PEER, folder], check=True, capture_output=True, text=True)
            rates["DataLoader"].append(float(told.stdout))
        for name, each in rates.items():
            print(f"{name:10} {statistics.median(each):7.0f} images/s  [{min(each):.0f}-{max(each):.0f}]")
        ratios = [a / b for a, b in zip(rates["dtrain"], rates["DataLoader"])]
        print(f"ratio      {statistics.median(ratios):7.2f}  [{min(ratios):.2f}-{max(ratios):.2f}]")


if __name__ == "__main__":
    main()
