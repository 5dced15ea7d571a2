#!/usr/bin/env python3
"""Conversations into token ids and what of them is learnt, by `dtrain tokenize --chat` and by transformers: whether they are the same, and how long
they take.

    pip install transformers numpy
    bench/chats.py target/release/dtrain TEXT [--count 20000] [--times 5]

Conversations are made of the lines of TEXT, two questions and two answers each, and a tokenizer is learnt from it; the template is ChatML. Both begin
with a file of JSON Lines and a tokenizer on the disk, transformers in processes that have been started (a core each) and with the tokenizer loaded.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\n' }}{%- if message['role'] == 'assistant' %}{% generation %}"
    "{{- message['content'] + '<|im_end|>' + '\n' }}{% endgeneration %}{%- else %}{{- message['content'] + '<|im_end|>' + '\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}")
known = None


def load(folder):
    global known
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers import AutoTokenizer

    known = AutoTokenizer.from_pretrained(folder)
    encode(['{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'])


def encode(lines):
    """Ids and mask of some lines."""
    all_ids, all_learnt = [], []
    for line in lines:
        made = known.apply_chat_template(json.loads(line)["messages"], return_dict=True, return_assistant_tokens_mask=True)
        all_ids += made["input_ids"]
        all_learnt += made["assistant_masks"]
    return np.array(all_ids, np.uint16), np.array(all_learnt, np.uint8)


def by_transformers(pool, file, to):
    """Reads, encodes on all cores, and writes both."""
    begun = time.monotonic()
    lines = file.read_text().splitlines()
    each = -(-len(lines) // (8 * multiprocessing.cpu_count()))
    parts = pool.map(encode, [lines[at:at + each] for at in range(0, len(lines), each)], chunksize=1)
    ids, learnt = (np.concatenate(part) for part in zip(*parts))
    ids.tofile(to / "ids"), learnt.tofile(to / "learnt")
    return time.monotonic() - begun


def by_dtrain(args, file, to):
    begun = time.monotonic()
    subprocess.run([args.dtrain, "tokenize", file, "--chat", "-t", file.parent / "model", "-o", to, "--quiet"], check=True)
    return time.monotonic() - begun


def conversations(lines, count):
    for number in range(count):
        said = ["\n".join(lines[(16 * number + 4 * part + at) % len(lines)] for at in range(4)) for part in range(4)]
        yield [{"role": ("user", "assistant")[part % 2], "content": content} for part, content in enumerate(said)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dtrain")
    parser.add_argument("text")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    args.dtrain = os.path.abspath(args.dtrain)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model = folder / "model"
        learn = [args.dtrain, "tokenize", args.text, "--vocabulary", "8192", "-o", model, "--quiet"]
        subprocess.run(learn, check=True)
        special = json.loads((model / "tokenizer.json").read_text())
        for name in ("<|im_start|>", "<|im_end|>"):
            number = max(token["id"] for token in special["added_tokens"] + [{"id": id} for id in special["model"]["vocab"].values()]) + 1
            special["added_tokens"].append({**special["added_tokens"][0], "id": number, "content": name})
        (model / "tokenizer.json").write_text(json.dumps(special))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
        (model / "tokenizer_config.json").write_text(json.dumps(settings))
        (model / "chat_template.jinja").write_text(TEMPLATE)
        file = folder / "chats.jsonl"
        lines = [line for line in Path(args.text).read_text().splitlines() if line]
        file.write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in conversations(lines, args.count)))
        (folder / "theirs").mkdir()
        ours, theirs = [], []
        with multiprocessing.Pool(multiprocessing.cpu_count(), load, (model,)) as pool:
            pool.map(encode, [[]] * multiprocessing.cpu_count())
            for turn in range(args.times):
                ours.append(by_dtrain(args, file, folder / f"ours-{turn}"))
                theirs.append(by_transformers(pool, file, folder / "theirs"))
        read = lambda name, kind: np.fromfile(folder / name, kind)
        ids, mask = read("ours-0/train.bin", np.uint16), read("ours-0/train.mask", np.uint8)
        same = np.array_equal(ids, read("theirs/ids", np.uint16)) and np.array_equal(mask & 1, read("theirs/learnt", np.uint8))
        print("| conversations | MB | tokens | learnt | the same | dtrain | transformers | ratio |\n|---|---|---|---|---|---|---|---|")
        row = [args.count, f"{file.stat().st_size / 1e6:.1f}", len(ids), f"{(mask & 1).mean():.0%}", "yes" if same else "NO"]
        for times in (ours, theirs):
            row.append(f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})")
        row.append(f"{statistics.median(theirs) / statistics.median(ours):.1f}")
        print("|", " | ".join(map(str, row)), "|")


if __name__ == "__main__":
    main()
