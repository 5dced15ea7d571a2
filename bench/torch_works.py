#!/usr/bin/env python3
"""One of dtrain's four workloads, or `gpt2` (small, 16 rows of 1 024 tokens), as a PyTorch program that dtrain trains:
`torch_works.py WORK MICRO_BATCHES STEPS RANKS [SETTING...]`."""

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import models  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import dtrain  # noqa: E402

WORK, MICRO_BATCHES, STEPS, RANKS = sys.argv[1], *map(int, sys.argv[2:5])
GPT2 = "gpt2"
BATCH = models.BATCH.get(WORK, 16)
#: Batches in the data: a step is no epoch. The peer has one, which costs it less memory.
BATCHES = 8


def loss(net, batch):
    x, y = batch
    return F.cross_entropy(net(x), y.flatten(), reduction="sum"), y.numel()


def data():
    rows = BATCH * BATCHES
    if WORK == GPT2:
        return tuple(models.integers(stream, rows * 1024, 50257).reshape(rows, 1024) for stream in (1000, 1001))
    work = models.work(WORK, rows)
    return work.x, work.y.reshape(len(work.x), -1)


def rate(run):
    """The median of windows of a second behind the tenth step, as the peer measures; all of it, if that is less. *Units*: samples a second."""
    lines = map(json.loads, (Path(run) / "metrics.jsonl").read_text().splitlines())
    (first, _), *steps = [(line["time"], line["samples"]) for line in lines if line["kind"] == "step"][9:]
    rates, begun, seen = [], first, 0
    for time, samples in steps:
        seen += samples
        if time - begun >= 1:
            rates.append(seen / (time - begun))
            begun, seen = time, 0
    whole = sum(samples for _, samples in steps) / (steps[-1][0] - first)
    return statistics.median(rates or [whole])


if __name__ == "__main__":
    result = dtrain.train(
        lambda: models.Gpt2(models.Size()) if WORK == GPT2 else models.work(WORK, 1).model, data=data, loss=loss, optimizer=dtrain.AdamW(lr=1e-3), steps=STEPS, warmup="none",
        schedule="constant", global_batch=BATCH * RANKS, micro_batch=BATCH // MICRO_BATCHES, name=f"bench-{WORK}",
        settings={"checkpoint.every": "none", "ranks": RANKS}, argv=["--quiet", *sys.argv[5:]],
    )  # fmt: skip
    told = result.summary
    print(f"digest {told['digest']}")
    print(f"dtrain {WORK} ranks {RANKS} samples/s {rate(told['run']):.1f} rss {told['peak_rss_mb']:.0f} MB")
