"""Adapters of low rank beside a model of transformers, held against PEFT: what training makes of them, what becomes of the model that has them
taken in, and what PEFT reads of an export."""

import importlib.util
import json
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch
from test_transformers import ALONE, command

WORDS = 64
CONTEXT = 12
SAMPLES = 10
STEPS = 3
RATE = 0.01
#: All samples are in each step, so that their order matters to nobody.
TRAINING = (
    f"data.kind=tokens data.path=train.bin data.vocabulary={WORDS} data.context={CONTEXT} data.val_split=0 model.init_from=base global_batch={SAMPLES} "
    f"micro_batch=2 steps={STEPS} checkpoint.keep=9 checkpoint.best=none optimizer.kind=adamw optimizer.lr={RATE} "
    "optimizer.weight_decay=0 optimizer.clip_norm=none schedule.kind=constant schedule.warmup=none devices=cpu ranks=2")


def base(folder, **more):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=32, **more)
    LlamaForCausalLM(config).save_pretrained(folder)


@unittest.skipIf(any(importlib.util.find_spec(name) is None for name in ("transformers", "peft")), "there is no transformers, or no peft")
class Lora(unittest.TestCase):
    def setUp(self):
        ALONE.acquire()
        self.addCleanup(ALONE.release)
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def adapter(self, run, out):
        from safetensors.torch import load_file

        command(self.folder, f"export {run} --to peft -o {out}")
        return load_file(self.folder / out / "adapter_model.safetensors")

    def check(self, keys, targets, also, **more):
        from peft import LoraConfig, PeftModel, get_peft_model
        from transformers import AutoModelForCausalLM

        base(self.folder / "base", **more)
        drawn = np.random.default_rng(3).integers(0, WORDS, SAMPLES * CONTEXT + 1).astype(np.uint16)
        drawn.tofile(self.folder / "train.bin")
        command(self.folder, f"train {TRAINING} model.lora_rank=3 model.lora_alpha=9 name=run --quiet {keys}")
        lines = (self.folder / "runs/run/metrics.jsonl").read_text().splitlines()
        steps = [line for line in map(json.loads, lines) if line["kind"] == "step"]
        names = sorted(path.name for path in (self.folder / "runs/run/checkpoints").iterdir() if path.name.startswith("g"))
        first = self.adapter(f"run/{names[0]}", "first")
        last = self.adapter(f"run/{names[-1]}", "last")

        model = AutoModelForCausalLM.from_pretrained(self.folder / "base")
        config = LoraConfig(r=3, lora_alpha=9, target_modules=targets, modules_to_save=also or None, task_type="CAUSAL_LM")
        model = get_peft_model(model, config)
        plain = lambda name: name.replace(".default", "").replace("modules_to_save.", "")
        trained = {plain(name): value for name, value in model.named_parameters() if value.requires_grad}
        self.assertEqual(set(trained), set(first))
        # The first step leaves `a` as it was, since `b` is zero.
        for name, value in trained.items():
            if "lora_A" in name:
                value.data.copy_(first[name])
        optimizer = torch.optim.AdamW(trained.values(), lr=RATE, weight_decay=0.0)
        drawn = torch.from_numpy(drawn.astype(np.int64))
        rows = torch.stack([drawn[at * CONTEXT:(at + 1) * CONTEXT] for at in range(SAMPLES)])
        next_ones = torch.stack([drawn[at * CONTEXT + 1:(at + 1) * CONTEXT + 1] for at in range(SAMPLES)])
        for step in range(STEPS):
            logits = model(input_ids=rows).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), next_ones.flatten())
            self.assertAlmostEqual(loss.item(), steps[step]["loss"], delta=3e-5)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(trained.values(), 1e9)
            self.assertAlmostEqual(norm.item() / steps[step]["gradient_norm"], 1.0, delta=1e-3)
            optimizer.step()
        for name, value in trained.items():
            apart = (value.data - last[name]).abs().max().item()
            self.assertLess(apart, 2e-3, name)

        # PEFT reads what was exported, and transformers the model with its adapters taken in; both say the same.
        again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(self.folder / "base"), self.folder / "last")
        command(self.folder, f"export run/{names[-1]} --to transformers -o whole")
        whole = AutoModelForCausalLM.from_pretrained(self.folder / "whole")
        with torch.no_grad():
            of_peft, of_whole = again(input_ids=rows).logits, whole(input_ids=rows).logits
        self.assertLess((of_peft - of_whole).abs().max().item(), 1e-5)
        # And dtrain what PEFT wrote.
        again.save_pretrained(self.folder / "saved")
        still = "steps=1 optimizer.lr=1e-30 optimizer.weight_decay=0 schedule.warmup=none checkpoint.best=none"
        data = f"data.kind=tokens data.path=train.bin data.vocabulary={WORDS} data.context={CONTEXT} data.val_split=0"
        command(self.folder, f"train {data} model.init_from=base model.lora_from=saved global_batch={SAMPLES} micro_batch=2 {still} name=back --quiet")
        np.save(self.folder / "rows.npy", rows.numpy().astype(np.uint16))
        command(self.folder, "predict back rows.npy -o told.npy")
        told = torch.from_numpy(np.load(self.folder / "told.npy"))
        self.assertLess((told - of_peft).abs().max().item(), 1e-4)
        self.assertGreater((of_peft - AutoModelForCausalLM.from_pretrained(self.folder / "base")(input_ids=rows).logits).abs().max().item(), 1e-3)

    def test_adapters_beside_all_layers_learn_as_in_peft(self):
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        self.check("", targets, [], tie_word_embeddings=True)

    def test_adapters_beside_some_layers_and_a_head_learn_as_in_peft(self):
        keys = "model.lora_targets=[q_proj,v_proj,up_proj] model.lora_also=[lm_head.*]"
        self.check(keys, ["q_proj", "v_proj", "up_proj"], ["lm_head"], tie_word_embeddings=False)

