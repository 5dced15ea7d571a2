#!/usr/bin/env python3
"""Adapters of low rank beside a model, and the whole model, trained by dtrain and by PyTorch with Hugging Face's transformers and PEFT: how long a step
takes, how much memory, how large a checkpoint.

    pip install torch transformers peft numpy
    bench/lora.py target/release/dtrain [--layers 30] [--rank 16] [--context 256] [--samples 2] [--steps 6] [--times 3] [--precision bf16]

The model has the sizes of SmolLM2 135M, but for its number of layers, and random parameters; its samples are random ids. Both sides compute in f32, or in
bf16 (PyTorch by autocast), on all cores in one process, by AdamW, and take turns. The first step of each does not count.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

VOCABULARY = 49152


def theirs(folder, precision, rank, context, samples, steps):
    """Runs in a process of its own; writes seconds a step and the peak of its memory."""
    import resource
    import time

    import numpy as np
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    if rank:
        every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=every, task_type="CAUSAL_LM"))
    model.train()
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=1e-4)
    ids = torch.from_numpy(np.fromfile(folder / "train.bin", np.uint16).astype(np.int64))
    took = []
    for step in range(steps):
        begun = time.monotonic()
        at = [(step * samples + row) * context for row in range(samples)]
        rows, wanted = (torch.stack([ids[from_ + more:from_ + more + context] for from_ in at]) for more in (0, 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = torch.nn.functional.cross_entropy(model(input_ids=rows).logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        took.append(time.monotonic() - begun)
    print(json.dumps({"seconds": took[1:], "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def ours(args, folder, rank):
    name = f"run-{len(list((folder / 'runs').glob('*')))}"
    words = (
        f"train --json --quiet name={name} data.kind=tokens data.path=train.bin data.vocabulary={VOCABULARY} data.context={args.context} data.val_split=0 model.init_from=base "
        f"global_batch={args.samples} micro_batch=1 steps={args.steps} checkpoint.best=none optimizer.kind=adamw optimizer.lr=1e-4 schedule.warmup=none "
        f"devices=cpu precision={args.precision} ranks=1 threads={os.cpu_count()} model.lora_rank={rank or 'none'}")
    done = subprocess.run([args.dtrain, *words.split()], cwd=folder, check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in lines if line["kind"] == "step"][1:]
    summary = json.loads(done.stdout.splitlines()[-1])
    size = sum(file.stat().st_size for file in (folder / "runs" / name / "checkpoints").glob("g*/*"))
    return {"seconds": seconds, "peak": summary["peak_rss_mb"] * (1 << 20), "checkpoint": size}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dtrain")
    for key, value in (("layers", 30), ("rank", 16), ("context", 256), ("samples", 2), ("steps", 6), ("times", 3)):
        parser.add_argument(f"--{key}", type=int, default=value)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    args = parser.parse_args()
    args.dtrain = os.path.abspath(args.dtrain)
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "runs").mkdir()
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=576, intermediate_size=1536, num_hidden_layers=args.layers, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=2048, rope_theta=10000.0, rms_norm_eps=1e-5, tie_word_embeddings=True)
        LlamaForCausalLM(config).save_pretrained(folder / "base")
        count = args.context * args.samples * args.steps + 1
        np.random.default_rng(0).integers(0, VOCABULARY, count).astype(np.uint16).tofile(folder / "train.bin")
        print("| trained | dtrain | PyTorch | ratio | memory | PyTorch's | checkpoint |\n|---|---|---|---|---|---|---|")
        for rank in (args.rank, 0):
            mine, other = [], []
            for _ in range(args.times):
                mine.append(ours(args, folder, rank))
                words = [sys.executable, __file__, "theirs", folder, args.precision, rank, args.context, args.samples, args.steps]
                done = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True)
                other.append(json.loads(done.stdout.splitlines()[-1]))
            told, medians = [], []
            for runs in (mine, other):
                seconds = [statistics.median(run["seconds"]) for run in runs]
                medians.append(statistics.median(seconds))
                told.append(f"{medians[-1]:.2f} s [{min(seconds):.2f}-{max(seconds):.2f}]")
            told.append(f"{medians[1] / medians[0]:.2f}")
            told += [f"{statistics.median(run['peak'] for run in runs) / 1e9:.2f} GB" for runs in (mine, other)]
            told.append(f"{mine[0]['checkpoint'] / 1e6:.0f} MB")
            print("|", f"adapters of rank {rank}" if rank else "the whole model", "|", " | ".join(told), "|", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["theirs"]:
        theirs(Path(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
    else:
        main()
