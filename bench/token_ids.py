#!/usr/bin/env python3
"""Token ids of whole files by `dtrain tokenize` and by Hugging Face's Python package: whether they are the same, and how long they take.

    pip install tokenizers numpy
    bench/token_ids.py target/release/dtrain TEXT... [-t tokenizer.json]... [--times 5]

Without -t three tokenizers are learnt from the first text, by the Python package: pairs of bytes split as Llama 3's, WordPiece as BERT's, and
Unigram as SentencePiece's. The package encodes a file as a list of lines, which it does on all cores, for the time, and as one text for the ids.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time

import numpy
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def learnt(text, folder):
    """Tokenizers of three kinds: their names and files."""
    pairs = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(SPLIT), "isolated")
    pairs.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    pairs.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    pieces = tokenizers.Tokenizer(models.Unigram())
    pieces.normalizer, pieces.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    pieces.decoder = decoders.Metaspace()
    for name, made, trainer in [
        ("pairs", pairs, trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, show_progress=False)),
        ("words", words, trainers.WordPieceTrainer(vocab_size=8000, special_tokens=["[UNK]"], show_progress=False)),
        ("pieces", pieces, trainers.UnigramTrainer(vocab_size=4000, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)),
    ]:
        made.train_from_iterator(text.splitlines(keepends=True), trainer)
        file = os.path.join(folder, f"{name}.json")
        made.save(file)
        yield name, file


def by_dtrain(args, text, file, folder):
    begun = time.monotonic()
    words = [args.dtrain, "tokenize", text, "-t", file, "-o", folder, "--end", "none", "--quiet"]
    subprocess.run(words, check=True)
    return time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dtrain")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("-t", "--tokenizer", action="append", default=[])
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    args.dtrain = os.path.abspath(args.dtrain)
    with tempfile.TemporaryDirectory() as folder:
        with open(args.texts[0], newline="") as first:
            files = [(file, file) for file in args.tokenizer] or list(learnt(first.read(), folder))
        print("| tokenizer | text | MB | tokens | the same ids | dtrain | in Python | ratio |\n|---|---|---|---|---|---|---|---|")
        for name, file in files:
            known = tokenizers.Tokenizer.from_file(file)
            for number, path in enumerate(args.texts):
                with open(path, newline="") as opened:
                    text = opened.read()
                lines, ours, theirs = text.splitlines(keepends=True), [], []
                for turn in range(args.times):
                    to = os.path.join(folder, f"{os.path.basename(name)}-{number}-{turn}")
                    ours.append(by_dtrain(args, path, file, to))
                    begun = time.monotonic()
                    known.encode_batch_fast(lines, add_special_tokens=False)
                    theirs.append(time.monotonic() - begun)
                ids = numpy.fromfile(os.path.join(to, "train.bin"), dtype=numpy.uint16)
                wanted = numpy.array(known.encode(text, add_special_tokens=False).ids)
                same = "yes" if len(ids) == len(wanted) and (ids == wanted).all() else "NO"
                row = [name, os.path.basename(path), f"{len(text.encode()) / 1e6:.1f}", len(ids), same]
                for times in (ours, theirs):
                    row.append(f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})")
                row.append(f"{statistics.median(theirs) / statistics.median(ours):.2f}")
                print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
