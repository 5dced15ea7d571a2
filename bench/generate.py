#!/usr/bin/env python3
"""Texts that GPT-2 small goes on with, by `dtrain generate` and by Hugging Face's transformers: whether they are the same, and how long a token takes.

    pip install torch transformers safetensors numpy
    bench/generate.py target/release/dtrain [--tokens 64] [--times 3]

The parameters are random. Both take the surest token each time, in f32, on all cores, and keep the keys and values of what they saw. The time of a token is that of the whole
text less that of its first token, which has the loading and the prompt.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

import numpy
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel


def run_of(dtrain, model, folder):
    """A run of dtrain with these parameters: one step that moves nothing."""
    save_file({name: tensor.contiguous() for name, tensor in model.transformer.state_dict().items()}, os.path.join(folder, "gpt2.safetensors"))
    numpy.arange(1200, dtype=numpy.uint16).tofile(os.path.join(folder, "ids.bin"))
    words = "data.kind=tokens data.path=ids.bin data.context=1024 data.val_split=0 model.kind=gpt2 model.init_from=gpt2.safetensors"
    words += " steps=1 global_batch=1 micro_batch=1 optimizer.kind=sgd optimizer.lr=1e-30 ranks=1 devices=cpu name=gpt2"
    subprocess.run([dtrain, "train", "-q", *words.split()], cwd=folder, check=True)


def by_dtrain(dtrain, folder, prompt, tokens, texts):
    ids = ",".join(map(str, prompt))
    words = [dtrain, "generate", "-q", "gpt2", "--ids", ids, "-t", str(tokens), "-n", str(texts), "--temperature", "0", "--json"]
    begun = time.monotonic()
    said = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout
    return time.monotonic() - begun, json.loads(said.splitlines()[0])["text"]


def by_transformers(model, prompt, tokens, texts):
    begun = time.monotonic()
    with torch.inference_mode():
        ids = model.generate(torch.tensor([prompt] * texts), attention_mask=torch.ones(texts, len(prompt)), max_new_tokens=tokens,
                             do_sample=False, use_cache=True, pad_token_id=0, eos_token_id=None)
    return time.monotonic() - begun, ids[0, len(prompt):].tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dtrain")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    dtrain = os.path.abspath(args.dtrain)
    torch.manual_seed(1)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = GPT2LMHeadModel(GPT2Config(initializer_range=0.08)).eval()
    with tempfile.TemporaryDirectory() as folder:
        run_of(dtrain, model, folder)
        print("| prompt | texts | dtrain, s a token | transformers | ratio | the same tokens |\n|---|---|---|---|---|---|")
        for length, texts in [(8, 1), (512, 1), (900, 1), (8, 8)]:
            prompt = torch.randint(50257, (length,)).tolist()
            ways = [lambda tokens: by_dtrain(dtrain, folder, prompt, tokens, texts), lambda tokens: by_transformers(model, prompt, tokens, texts)]
            taken, said = [[], []], [None, None]
            for _ in range(args.times):
                for at, way in enumerate(ways):
                    first, _ = way(1)
                    whole, said[at] = way(args.tokens)
                    taken[at].append((whole - first) / (args.tokens - 1))
            median = [statistics.median(times) for times in taken]
            shown = [f"{middle:.4f} [{min(times):.4f}-{max(times):.4f}]" for middle, times in zip(median, taken)]
            print(f"| {length} | {texts} | {shown[0]} | {shown[1]} | {median[1] / median[0]:.2f} | {said[0] == said[1]} |", flush=True)


if __name__ == "__main__":
    main()
