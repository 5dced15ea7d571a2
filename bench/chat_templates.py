#!/usr/bin/env python3
"""Holds `dtrain tokenize --chat` against transformers: ids, and what is learnt where a template says it, of a folder of chat templates.

    pip install transformers numpy
    python bench/chat_templates.py FOLDER [DTRAIN]

FOLDER has `.jinja` files; the package `trl` ships those of many models in `trl/chat_templates`. A line for each template that does not have
transformers' ids in all conversations, and why; then how many did.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<pad>"]


def turns(*contents, system=None):
    asked = [{"role": "system", "content": system}] if system else []
    return asked + [{"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(contents)]


def record(*messages, **beside):
    return {"messages": list(messages), **beside}


CALL = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "number"}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}
CONVERSATIONS = [
    record(*turns("Hi there", "Hello.")),
    record(*turns("One?", "Two.", "Three?", "Four.", system="Be brief.")),
    record(*turns("Q", "<think>\nhm\n</think>\n\nYes.", "R", "<think>\nso\n</think>\n\nNo.")),
    record(*turns(" spaces ", " lead and trail \n")),
    # Nobody asked for the first answer.
    record({"role": "assistant", "content": "Welcome."}, *turns("Hi", "Hello.")),
    # With what only some templates ask for.
    record(*turns("Q"), {"role": "assistant", "content": "Yes.", "reasoning_content": "hm so"}),
    record(
        *turns("1 and 1?"), {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "2", "name": "add", "tool_call_id": CALL["id"]}, {"role": "assistant", "content": "It is 2."},
        tools=[TOOL]),
]


def tokenizer(template):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator([], trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    made.chat_template = template
    return made


def compared(dtrain, made, conversation, says_what_is_learnt):
    """What came of a conversation, in words."""
    try:
        told = made.apply_chat_template(
            conversation["messages"], tools=conversation.get("tools"), return_dict=True, return_assistant_tokens_mask=says_what_is_learnt)
    except Exception as problem:
        told, why = None, str(problem)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        made.save_pretrained(folder / "model")
        (folder / "chats.jsonl").write_text(json.dumps(conversation))
        run = subprocess.run(
            [dtrain, "tokenize", "chats.jsonl", "--chat", "-t", "model", "-o", "data"], cwd=folder, capture_output=True, text=True)
        if run.returncode != 0:
            return f"both refuse: {why}" if told is None else f"dtrain refuses: {run.stderr.splitlines()[0]}"
        if told is None:
            return f"transformers refuses: {why}"
        ids, mask = np.fromfile(folder / "data/train.bin", np.uint16), np.fromfile(folder / "data/train.mask", np.uint8)
    # An answer of its own text has the turns before it; the last one has them all.
    (begins,) = np.nonzero(mask & 2)
    ids, mask = ids[begins[-1]:], mask[begins[-1]:]
    if ids.tolist() != list(told["input_ids"]):
        return f"other ids: {made.decode(ids)!r} instead of {made.decode(told['input_ids'])!r}"
    if says_what_is_learnt and (mask & 1).tolist() != list(told["assistant_masks"]):
        return f"other tokens are learnt: {made.decode(ids[mask & 1 == 1])!r}"
    return "the same ids" + " and mask" * says_what_is_learnt


def main():
    folder, dtrain = Path(sys.argv[1]), str(Path(sys.argv[2] if len(sys.argv) > 2 else "target/debug/dtrain").resolve())
    counts = Counter()
    for file in sorted(folder.glob("*.jinja")):
        template = file.read_text()
        says_what_is_learnt = "endgeneration" in template
        for number, conversation in enumerate(CONVERSATIONS):
            words = compared(dtrain, tokenizer(template), conversation, says_what_is_learnt)
            counts[words.split(":")[0]] += 1
            if not words.startswith("the same"):
                print(f"{file.name}, conversation {number}: {words}", flush=True)
    for words, count in counts.most_common():
        print(f"{count:4}  {words}")
    sys.exit(any(words.startswith(("other", "transformers")) for words in counts))


if __name__ == "__main__":
    main()
