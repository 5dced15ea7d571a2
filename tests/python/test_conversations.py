"""Conversations as transformers has them: the same ids, the same tokens in the loss, the same loss and the same first step."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import numpy as np
import torch
from harness import in_turn
from test_transformers import ALONE, STILL, command

#: As ChatML has it; the block says what is learnt.
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\n' }}{%- if message['role'] == 'assistant' %}{% generation %}"
    "{{- message['content'] + '<|im_end|>' + '\n' }}{% endgeneration %}{%- else %}{{- message['content'] + '<|im_end|>' + '\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}")
#: As Llama 2 has it: no token of its own stands between a question and its answer.
INSTRUCTIONS = (
    "{%- for message in messages if message['role'] != 'system' %}{%- if message['role'] == 'user' %}{{- bos_token + '[INST] ' + message['content'] + ' [/INST]' }}"
    "{%- else %}{% generation %}{{- ' ' + message['content'] + ' ' + eos_token }}{% endgeneration %}{%- endif %}{%- endfor %}")
CONTEXT = 160
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/hugging_face_chat.py"


def conversations():
    """Some of one question and some of three, with a system's turn now and then."""
    turn = lambda role, content: {"role": role, "content": content}
    for number in range(24):
        turns = [turn("system", "Be brief, please.")] if number % 4 == 0 else []
        for again in range(1 + 2 * (number % 3 == 0)):
            turns += [turn("user", f"How much is {number} and {again}?"), turn("assistant", f"That is {number + again}, naturally.")]
        yield turns


def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    new = Tokenizer(models.BPE())
    new.pre_tokenizer, new.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [turn["content"] for turns in conversations() for turn in turns]
    new.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet))
    made = PreTrainedTokenizerFast(tokenizer_object=new, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = TEMPLATE
    return made


def blanks_before():
    """As Llama 2's, which puts a blank in front of whatever it encodes."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers
    from transformers import PreTrainedTokenizerFast

    new = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    new.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    new.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    texts = [" ".join(turn["content"] for turn in turns) + "[INST]" for turns in conversations()]
    new.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"]))
    made = PreTrainedTokenizerFast(tokenizer_object=new, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    made.chat_template = INSTRUCTIONS
    return made


@unittest.skipIf(importlib.util.find_spec("transformers") is None, "there is no transformers")
class Conversations(unittest.TestCase):
    def setUp(self):
        ALONE.acquire()
        self.addCleanup(ALONE.release)

    def test_what_is_learnt_is_what_transformers_says_and_so_are_loss_and_step(self):
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

        torch.manual_seed(5)
        made = tokenizer()
        config = LlamaConfig(
            vocab_size=len(made), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
        net = LlamaForCausalLM(config)
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            net.save_pretrained(folder / "hub")
            made.save_pretrained(folder / "hub")
            (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in conversations()))
            command(folder, "tokenize chats.jsonl --chat -t hub -o data")
            encoded, learnt = self.encoded(made, folder / "data")
            # A template that does not say what is learnt, as most do not.
            silent = TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
            (folder / "silent.jinja").write_text(silent)
            command(folder, "tokenize chats.jsonl --chat -t hub --template silent.jinja -o silent")
            for name in ("train.bin", "train.mask"):
                self.assertEqual((folder / "silent" / name).read_bytes(), (folder / "data" / name).read_bytes(), name)
            self.assertGreater(learnt.mean(), 0.2)

            data = f"data.kind=tokens data.path=data data.context={CONTEXT} data.val_split=0 model.init_from=hub checkpoint.best=none"
            command(folder, f"train {data} {STILL} name=still --quiet")
            told = json.loads(command(folder, "eval still --data chats.jsonl --json").stdout)
            loss = self.loss(net, encoded)
            self.assertEqual(told["tokens"], int(learnt.sum()))
            self.assertAlmostEqual(told["loss"], loss.item(), delta=2e-5)

            # Each conversation in a sample of its own, and all of them in one batch.
            step = (
                f"steps=1 global_batch={len(encoded)} micro_batch=4 optimizer.kind=sgd optimizer.momentum=0 optimizer.weight_decay=0 "
                "optimizer.clip_norm=none optimizer.lr=0.5 schedule.kind=constant schedule.warmup=none")
            command(folder, f"train {data} {step} data.packing=off ranks=2 name=step --quiet")
            command(folder, "export step --to transformers -o back")
            loss.backward()
            back = AutoModelForCausalLM.from_pretrained(folder / "back")
            moved = 0
            for (name, wanted), here in zip(net.named_parameters(), back.parameters()):
                stepped = wanted - 0.5 * wanted.grad
                torch.testing.assert_close(here, stepped, rtol=1e-4, atol=2e-6, msg=lambda told: f"{name}: {told}")
                moved += (stepped - wanted).abs().max().item() > 1e-3
            self.assertGreater(moved, 10)
            # The template came along.
            again = AutoTokenizer.from_pretrained(folder / "back")
            self.assertEqual(again.apply_chat_template(next(conversations()), tokenize=False), made.apply_chat_template(next(conversations()), tokenize=False))

    def test_a_tokenizer_that_puts_blanks_in_front_of_texts_puts_none_in_front_of_answers(self):
        made = blanks_before()
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            made.save_pretrained(folder / "hub")
            (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in conversations()))
            command(folder, "tokenize chats.jsonl --chat -t hub -o data")
            self.encoded(made, folder / "data")

    def test_a_program_has_the_same_examples_cut_at_its_context(self):
        import dtrain

        made = tokenizer()
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            made.save_pretrained(folder / "hub")
            (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in conversations()))
            command(folder, "tokenize chats.jsonl --chat -t hub -o data --val chats.jsonl")
            encoded, _ = self.encoded(made, folder / "data")
            longest = max(len(one["input_ids"]) for one in encoded)
            for context, part in [(longest + 3, "train"), (longest // 2, "val")]:
                examples = dtrain.examples(folder / "data", context, part)
                wanted = [one for one in encoded if any(one["assistant_masks"][1:context])]
                self.assertEqual((len(examples), examples.left_out), (len(wanted), len(encoded) - len(wanted)))
                for sample, one in zip((examples[at] for at in range(len(examples))), wanted):
                    ids, learnt = one["input_ids"][:context], one["assistant_masks"][:context]
                    rest = context - len(ids)
                    self.assertEqual(sample["input_ids"].tolist(), ids + [0] * rest)
                    self.assertEqual(sample["attention_mask"].tolist(), [1] * len(ids) + [0] * rest)
                    self.assertEqual(sample["labels"].tolist(), [id if is_learnt else -100 for id, is_learnt in zip(ids, learnt)] + [-100] * rest)
            self.assertEqual(len(dtrain.examples(folder / "data/val.bin", longest)), len(encoded))
            with self.assertRaisesRegex(ValueError, "nothing to learn|anything to learn"):
                dtrain.examples(folder / "data", 3)
            with self.assertRaisesRegex(ValueError, "context=1"):
                dtrain.examples(folder / "data", 1)
            with self.assertRaisesRegex(FileNotFoundError, "tokenize --chat"):
                dtrain.examples(folder / "hub")
            # What is found of a mask does not depend on how it is cut.
            whole = dtrain.examples(folder / "data", 40)
            with unittest.mock.patch("dtrain._examples.PIECE", 7):
                pieces = dtrain.examples(folder / "data", 40)
            self.assertTrue(torch.equal(pieces._begins, whole._begins) and torch.equal(pieces._ends, whole._ends))
            mask = folder / "data/val.mask"
            good = mask.read_bytes()
            for bad, told in [(b"\1" + good[1:], "first byte"), (good[:9] + b"\7" + good[10:], "a byte of 7")]:
                mask.write_bytes(bad)
                with self.assertRaisesRegex(ValueError, told):
                    dtrain.examples(folder / "data", part="val")
            mask.write_bytes(good[:-1])
            with self.assertRaisesRegex(ValueError, "not made together"):
                dtrain.examples(folder / "data", part="val")

    @in_turn(9)
    def test_the_example_has_one_digest_for_any_ranks_and_is_opened_again(self):
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

        made = tokenizer()
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            torch.manual_seed(5)
            config = LlamaConfig(vocab_size=len(made), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
            LlamaForCausalLM(config).save_pretrained(folder / "hub")
            made.save_pretrained(folder / "hub")
            (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in conversations()))
            command(folder, "tokenize chats.jsonl --chat -t hub -o chats")
            digests = set()
            for ranks in (1, 2):
                how = [sys.executable, EXAMPLE, "--json", f"ranks={ranks}", f"name=on-{ranks}"]
                told = subprocess.run(
                    how, cwd=folder, check=True, capture_output=True, text=True, env={**os.environ, "MODEL": "hub", "DATA": "chats", "CONTEXT": "128"})
                (summary,) = (json.loads(line) for line in told.stdout.splitlines() if '"event":"summary"' in line)
                digests.add(summary["digest"])
            self.assertEqual(len(digests), 1)
            away = folder / "runs/on-2/hugging-face"
            net, again = AutoModelForCausalLM.from_pretrained(away), AutoTokenizer.from_pretrained(away)
            self.assertIs(type(net), LlamaForCausalLM)
            self.assertEqual(again.chat_template, made.chat_template)

    def encoded(self, made, data):
        """What transformers makes of all conversations, each of which ends with its last answer, and which tokens it says are learnt; and that `data` is the same."""
        encoded = [made.apply_chat_template(turns, return_dict=True, return_assistant_tokens_mask=True) for turns in conversations()]
        ids, learnt = (np.concatenate([one[key] for one in encoded]) for key in ("input_ids", "assistant_masks"))
        mask = np.fromfile(data / "train.mask", np.uint8)
        np.testing.assert_array_equal(np.fromfile(data / "train.bin", np.uint16), ids)
        np.testing.assert_array_equal(mask & 1, learnt)
        self.assertEqual((mask >> 1).sum(), len(encoded))
        return encoded, learnt

    def loss(self, net, encoded):
        """The mean over all answers of all conversations."""
        total, count = 0.0, 0
        for one in encoded:
            ids, mask = torch.tensor([one["input_ids"]]), torch.tensor(one["assistant_masks"])
            labels = torch.where(mask.bool(), ids[0], -100)
            logits = net(ids).logits[0, :-1]
            total = total + torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum")
            count += (labels[1:] != -100).sum()
        return total / count
