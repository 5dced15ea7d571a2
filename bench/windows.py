#!/usr/bin/env python3
"""What windows of sensors come to: dtrain's CNN and MLP beside scikit-learn's linear models, on the same split.

A folder in the layout of UCI-HAR is generated: 30 subjects with a phone at the waist do six things at 50 Hz, windows of 128 samples overlap
by half, 9 subjects are the test. Gait differs in speed, harmonics and strength from subject to subject, postures in a tilt that differs from subject to
subject too; so much that a linear model on features is right about as often as it is on UCI-HAR (0.95). `--data FOLDER` takes another one, such as UCI-HAR itself.

    cargo build --release
    python3 bench/windows.py --python .venv/bin/python          # one with scikit-learn
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

MAKE = """
import os, sys
import numpy
folder, seconds = sys.argv[1], float(sys.argv[2])
random = numpy.random.default_rng(7)
NAMES = ["WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING"]
#       speed  strength  second harmonic  tilt
GAIT = [(1.85, 0.30, 0.50, 0.05), (1.65, 0.27, 0.35, 0.22), (1.95, 0.38, 0.75, -0.10)]
TILT = [0.32, 0.04, 1.45]

def record(activity, subject):
    count = int(seconds * 50)
    time = numpy.arange(count) / 50
    drift = numpy.cumsum(random.normal(0, 0.002, (6, count)), axis=1)
    body, turns = random.normal(0, 0.02, (3, count)), random.normal(0, 0.03, (3, count))
    if activity < 3:
        speed, strength, second, tilt = GAIT[activity]
        speed, strength = speed * subject["speed"] * random.normal(1, 0.03), strength * subject["strength"] * random.normal(1, 0.08)
        phase = 2 * numpy.pi * speed * time + 0.4 * drift[0] * 10 + random.uniform(0, 6)
        step = numpy.sin(phase) + second * subject["second"] * numpy.sin(2 * phase + subject["phase"])
        body[0] += strength * step
        body[1] += 0.6 * strength * numpy.sin(phase / 2 + 0.3) + 0.2 * strength * numpy.sin(2 * phase)
        body[2] += 0.5 * strength * numpy.cos(phase + subject["phase"])
        turns[0] += 1.1 * strength * numpy.sin(phase / 2)
        turns[1] += 0.8 * strength * numpy.cos(phase)
        turns[2] += 0.6 * strength * numpy.sin(phase + 1)
    else:
        tilt = TILT[activity - 3]
        # Who stands sways more than who sits.
        sway = [0.012, 0.022, 0.006][activity - 3]
        body[0] += sway * numpy.sin(2 * numpy.pi * random.uniform(0.3, 0.6) * time + random.uniform(0, 6))
        turns[1] += 2 * sway * numpy.sin(2 * numpy.pi * random.uniform(0.3, 0.6) * time)
    tilt += subject["tilt"] + drift[1] * 3 + random.normal(0, 0.03)
    roll = subject["roll"] + drift[2] * 3
    gravity = numpy.stack([numpy.cos(tilt) * numpy.cos(roll), numpy.sin(tilt), numpy.cos(tilt) * numpy.sin(roll)])
    return numpy.concatenate([body, turns, body + gravity])

def features(window):
    # Of each signal what UCI-HAR has of it in the time and the frequency.
    spectrum = numpy.abs(numpy.fft.rfft(window, axis=1)) / 64
    bands = [spectrum[:, first:first + 4].mean(axis=1) for first in range(0, 40, 4)]
    quarters = numpy.quantile(window, [0.25, 0.75], axis=1)
    each = [window.mean(1), window.std(1), window.min(1), window.max(1), (window ** 2).mean(1), quarters[1] - quarters[0],
            numpy.abs(numpy.diff(window)).mean(1), spectrum[:, 1:].argmax(1) / 64, *bands]
    return numpy.concatenate([numpy.stack(each, 1).ravel(), numpy.corrcoef(window)[numpy.triu_indices(9, 1)]])

SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
parts = {"train": range(1, 22), "test": range(22, 31)}
for part, subjects in parts.items():
    windows, labels, who = [], [], []
    for number in subjects:
        subject = dict(speed=random.normal(1, 0.05), strength=random.normal(1, 0.12), second=random.normal(1, 0.15),
                       phase=random.normal(1, 0.5), tilt=random.normal(0, 0.08), roll=random.normal(0, 0.15))
        for activity in range(6):
            recording = record(activity, subject)
            for first in range(0, recording.shape[1] - 127, 64):
                windows.append(recording[:, first:first + 128])
                labels.append(activity + 1)
                who.append(number)
    place = os.path.join(folder, part, "Inertial Signals")
    os.makedirs(place)
    windows = numpy.stack(windows)
    for at, name in enumerate(SIGNALS):
        numpy.savetxt(os.path.join(place, f"{name}_{part}.txt"), windows[:, at], fmt="%.7e")
    numpy.savetxt(os.path.join(folder, part, f"X_{part}.txt"), [features(window) for window in windows], fmt="%.7e")
    numpy.savetxt(os.path.join(folder, part, f"y_{part}.txt"), labels, fmt="%d")
    numpy.savetxt(os.path.join(folder, part, f"subject_{part}.txt"), who, fmt="%d")
with open(os.path.join(folder, "activity_labels.txt"), "w") as file:
    file.writelines(f"{number} {name}\\n" for number, name in enumerate(NAMES, 1))
"""

LINEAR = """
import glob, json, os, sys, warnings
import numpy
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
warnings.filterwarnings("ignore")
folder = sys.argv[1]
def read(part, what):
    if what == "features":
        return numpy.loadtxt(os.path.join(folder, part, f"X_{part}.txt"))
    files = sorted(glob.glob(os.path.join(folder, part, "Inertial Signals", "*.txt")))
    return numpy.concatenate([numpy.loadtxt(file) for file in files], axis=1)
labels = {part: numpy.loadtxt(os.path.join(folder, part, f"y_{part}.txt")) for part in ("train", "test")}
found = {}
for what in ("signals", "features"):
    train, test = read("train", what), read("test", what)
    for model in (LogisticRegression(C=1, max_iter=400), LogisticRegression(C=0.01, max_iter=400), LinearSVC(C=0.01), RidgeClassifier(alpha=100),
                  LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")):
        fitted = make_pipeline(StandardScaler(), model).fit(train, labels["train"])
        found[f"{what}: {str(model).replace(chr(10), '')}"] = float(fitted.score(test, labels["test"]))
print(json.dumps(found))
"""

CNN = "model.kind=cnn1d model.channels=[32,64,64] model.kernel=7 model.padding=3 model.hidden=[64] model.dropout=0.5 optimizer.lr=0.002"
MLP = "model.kind=mlp model.hidden=[256,128] model.dropout=0.5 optimizer.lr=0.001 epochs=30"
WORKS = {
    "CNN on signals": f"{CNN} epochs=20",
    "MLP on signals, flat": MLP,
    "MLP on features": f"data.har=features {MLP} loss.label_smoothing=0.1 ema=0.99",
    "no hidden layer, on features": "data.har=features model.kind=mlp model.hidden=[] optimizer.lr=0.003 epochs=40",
}


def ours(binary, folder, where, work, seed):
    words = [binary, "train", "--json", "--quiet", "data.kind=windows", f"data.path={folder}", *work.split(), f"seed={seed}", "global_batch=64",
             "micro_batch=32", "ranks=2", "threads=1", "schedule.kind=cosine"]
    told = subprocess.run(words, cwd=where, capture_output=True, text=True)
    if told.returncode:
        sys.exit(told.stderr)
    # The last epoch's, and not the best of all: the test chooses nothing.
    epochs = [event for event in map(json.loads, told.stdout.splitlines()) if event["event"] == "epoch"]
    return epochs[-1]["val_accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python with scikit-learn")
    parser.add_argument("--binary", default="target/release/dtrain")
    parser.add_argument("--data", help="a folder in the layout of UCI-HAR, instead of one that is generated")
    parser.add_argument("--seconds", type=float, default=45, help="of each subject and activity")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    binary = os.path.abspath(arguments.binary)
    with tempfile.TemporaryDirectory() as where:
        folder = os.path.abspath(arguments.data) if arguments.data else os.path.join(where, "har")
        if not arguments.data:
            subprocess.run([arguments.python, "-c", MAKE, folder, str(arguments.seconds)], check=True)
        told = subprocess.run([arguments.python, "-c", LINEAR, folder], check=True, capture_output=True, text=True)
        for name, accuracy in sorted(json.loads(told.stdout).items(), key=lambda item: -item[1]):
            print(f"{accuracy:.4f}  {name}", flush=True)
        for name, work in WORKS.items():
            found = [ours(binary, folder, where, work, seed) for seed in range(1, arguments.seeds + 1)]
            print(f"{statistics.median(found):.4f}  dtrain: {name}  [{min(found):.4f}-{max(found):.4f}]", flush=True)


if __name__ == "__main__":
    main()
