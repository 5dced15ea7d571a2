#!/usr/bin/env python3
"""Any causal language model of Hugging Face learns from conversations: in full, or by LoRA.

    pip install .[torch] transformers peft
    hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B
    dtrain tokenize chats.jsonl --chat -t Qwen3-0.6B -o chats
    MODEL=Qwen3-0.6B DATA=chats python examples/hugging_face_chat.py           # all parameters
    MODEL=Qwen3-0.6B DATA=chats LORA=1 python examples/hugging_face_chat.py    # a few beside frozen ones

What comes out is opened by `from_pretrained`, with tokenizer and chat template. Models of Llama's family learn without Python, too:
`dtrain train data.kind=tokens data.path=chats model.init_from=Qwen3-0.6B`.
"""

import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import dtrain

MODEL, DATA = os.environ.get("MODEL", "model"), Path(os.environ.get("DATA", "chats"))
CONTEXT = int(os.environ.get("CONTEXT", 1024))
LORA = bool(os.environ.get("LORA"))


def model():
    net = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    if LORA:
        from peft import LoraConfig, get_peft_model

        net = get_peft_model(net, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    return net


def loss(net, batch):
    # Its loss is a mean over the labels that are predicted: all that are learnt, but for the first of each row.
    learnt = (batch["labels"][:, 1:] != -100).sum()
    return net(**batch).loss * learnt, learnt


def main():
    has_val = (DATA / "val.bin").is_file()
    result = dtrain.train(
        model, data=dtrain.examples(DATA, CONTEXT), val=dtrain.examples(DATA, CONTEXT, part="val") if has_val else None, loss=loss,
        optimizer=dtrain.AdamW(lr=2e-4 if LORA else 2e-5, clip_norm=1.0), epochs=1, global_batch=16, micro_batch=1, name="chat",
    )  # fmt: skip
    net = model()
    net.load_state_dict(result.load())
    if LORA:
        net = net.merge_and_unload()
    folder = result.run / "hugging-face"
    net.save_pretrained(folder)
    AutoTokenizer.from_pretrained(DATA).save_pretrained(folder)
    print(f"{folder}: AutoModelForCausalLM.from_pretrained opens it")


if __name__ == "__main__":
    main()
