#!/usr/bin/env python3
"""A causal language model of Hugging Face, trained on a text with a tokenizer of its own: in full, or by LoRA.

    pip install .[torch] transformers peft
    python examples/hugging_face_lm.py                 # all parameters
    LORA=1 python examples/hugging_face_lm.py ranks=3  # a few beside frozen ones

The text is dtrain's guide, the model a small Llama that begins at random: `AutoModelForCausalLM.from_pretrained("...")` in `model()` is all
that another start takes. What comes out is opened by `from_pretrained`.
"""

import os
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import dtrain

GUIDE = Path(__file__).resolve().parent.parent / "docs" / "guide"
LORA = bool(os.environ.get("LORA"))
CONTEXT, VOCABULARY = 64, 512


def text():
    return "\n".join(page.read_text() for page in sorted(GUIDE.glob("*.md")))


def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([text()], trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=made)


def data():
    ids = torch.tensor(tokenizer()(text(), verbose=False)["input_ids"])
    rows = ids[: len(ids) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    return [{"input_ids": row, "labels": row} for row in rows]


def model():
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=CONTEXT
    )
    net = LlamaForCausalLM(config)
    if LORA:
        from peft import LoraConfig, get_peft_model

        net = get_peft_model(net, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    return net


def loss(net, batch):
    # Its loss is a mean over the tokens that are predicted: all but the first of each row.
    tokens = batch["labels"][:, 1:].numel()
    return net(**batch).loss * tokens, tokens


def main():
    result = dtrain.train(
        model, data=data, loss=loss, optimizer=dtrain.AdamW(lr=3e-3, clip_norm=1.0), epochs=3, global_batch=32, micro_batch=8,
        warmup=10, name="lora" if LORA else "llama",
    )  # fmt: skip
    net = model()
    net.load_state_dict(result.load())
    if LORA:
        net = net.merge_and_unload()
    folder = result.run / "hugging-face"
    net.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    again, words = AutoModelForCausalLM.from_pretrained(folder).eval(), PreTrainedTokenizerFast.from_pretrained(folder)
    ids = words("dtrain train", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, net.eval()(ids).logits), "what was saved is what was trained"
    print(f"{folder}: {words.decode(again.generate(ids, max_new_tokens=12, do_sample=False)[0])!r}")


if __name__ == "__main__":
    main()
