#!/usr/bin/env python3
"""Predicts a million rows of a table with dtrain and with pandas + PyTorch, in turn.

    bench/predictions.py --python .venv/bin/python      (a Python with torch, safetensors and pandas)

How long dtrain reads is measured from outside: a model without hidden layers predicts one number a row of the same table into an
array, which is a product of 13 and four bytes a row beside the reading. So it is a little more than the reading alone.
"""

import argparse
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

PEER = """
import json, sys, time
import numpy as np, pandas as pd, torch
sys.path.insert(0, "big-torch")
import model
net = model.load("big-torch/model.safetensors")
torch.set_num_threads(int(sys.argv[1]))
begun = time.perf_counter()
preparation, table, parts = json.load(open("big-torch/preparation.json")), pd.read_csv("big.csv"), []
read = time.perf_counter()
for column in preparation["columns"]:
    role, name = column["role"], column["name"]
    if "number" in role:
        parts.append(table[name].to_numpy("float32")[:, None])
    elif "category" in role:
        parts.append(np.stack([(table[name] == word).to_numpy("float32") for word in role["category"]["words"]], 1))
with torch.no_grad():
    samples = torch.from_numpy(np.concatenate(parts, 1))
    shares = torch.cat([net(batch).softmax(-1) for batch in samples.split(8192)]).numpy()
computed = time.perf_counter()
names = np.array(preparation["class_names"])
out = pd.DataFrame(shares, columns=[f"p({name})" for name in names])
out.insert(0, "prediction", names[shares.argmax(1)])
out.to_csv("peer.csv", index=False)
written = time.perf_counter()
print(read - begun, computed - read, written - computed, written - begun)
"""


def shown(numbers):
    return f"{statistics.median(numbers):.2f} [{min(numbers):.2f}-{max(numbers):.2f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--dtrain", default="target/release/dtrain", type=pathlib.Path)
    parser.add_argument("--pairs", default=5, type=int)
    parser.add_argument("--threads", default=2, type=int)
    options = parser.parse_args()
    dtrain = str(options.dtrain.resolve())
    random.seed(1)
    numbers = lambda: ",".join(f"{random.gauss(0, 1):.4f}" for _ in range(10))
    rows = [f"{random.choice(['red', 'blue', 'green'])},{numbers()}" for _ in range(20_000)]
    head = "color," + ",".join(f"x{at}" for at in range(10))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "big.csv").write_text(head + "\n" + ("\n".join(rows) + "\n") * 50)
        labelled = (f"{row},{random.choice('abc')}" for row in rows)
        (folder / "train.csv").write_text(head + ",kind\n" + "\n".join(labelled) + "\n")
        valued = (f"{row},{random.gauss(0, 1):.4f}" for row in rows)
        (folder / "valued.csv").write_text(head + ",value\n" + "\n".join(valued) + "\n")
        run = lambda *command: subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        run(dtrain, "train", "-q", "data.kind=csv", "data.path=train.csv", "name=big", "epochs=1")
        linear = ["data.kind=csv", "data.path=valued.csv", "loss.kind=mse", "model.kind=mlp", "model.hidden=[]"]
        run(dtrain, "train", "-q", *linear, "name=linear", "epochs=1")
        run(dtrain, "export", "big", "--to", "torch")

        def predict(name, output):
            begun = time.perf_counter()
            run(dtrain, "predict", name, "big.csv", "-o", output, "--ranks", str(options.threads))
            return time.perf_counter() - begun

        ours, reading, theirs = [], [], []
        for _ in range(options.pairs):
            ours.append(predict("big", "ours.csv"))
            reading.append(predict("linear", "linear.npy"))
            theirs.append([float(field) for field in run(options.python, "-c", PEER, str(options.threads)).split()])
        print("dtrain, the whole process", shown(ours))
        print("dtrain, reading (a linear model, one number a row)", shown(reading))
        print("share of reading, dtrain", shown([read / whole for read, whole in zip(reading, ours)]))
        print("share of reading, pandas + PyTorch", shown([times[0] / times[3] for times in theirs]))
        for name, at in [("read", 0), ("compute", 1), ("write", 2), ("all", 3)]:
            print("pandas + PyTorch,", name, shown([times[at] for times in theirs]))
        print("ratio of a pair", shown([times[3] / own for own, times in zip(ours, theirs)]))


if __name__ == "__main__":
    main()
