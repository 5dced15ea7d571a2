"""Models of Hugging Face's transformers begin a run, and trained ones go back: the same logits on both sides."""

import importlib.util
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np
import torch

#: transformers loads a model with PyTorch's initialisation and default type exchanged for the whole process, which a model that is made in
#: another thread meanwhile gets: one test at a time.
ALONE = threading.Lock()
CONTEXT = 24
TOKENS = 300
#: The least that a learning rate can be: no parameter moves.
STILL = "steps=1 optimizer.lr=1e-30 optimizer.weight_decay=0 schedule.warmup=none"


def command(folder, words):
    return subprocess.run(["dtrain", *words.split()], cwd=folder, check=True, capture_output=True, text=True)


@unittest.skipIf(importlib.util.find_spec("transformers") is None, "there is no transformers")
class Transformers(unittest.TestCase):
    def setUp(self):
        ALONE.acquire()
        self.addCleanup(ALONE.release)

    def compared(self, net, model, **how):
        """What a network says, and what dtrain says that began with its folder; the folder that it gives back is loaded again."""
        from transformers import AutoModelForCausalLM

        net.eval()
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            net.save_pretrained(folder / "hub", **how)
            ids = np.random.default_rng(3).integers(0, TOKENS, (5, CONTEXT)).astype(np.uint16)
            np.save(folder / "ids.npy", ids)
            np.repeat(ids.reshape(-1), 9).tofile(folder / "train.bin")
            data = f"data.kind=tokens data.path=train.bin data.context={CONTEXT} data.val_split=0"
            command(folder, f"train {data} {model} model.init_from=hub {STILL} checkpoint.best=none name=it --quiet")
            command(folder, "predict it ids.npy -o told.npy")
            command(folder, "export it --to transformers -o back")
            told = torch.from_numpy(np.load(folder / "told.npy"))
            ids = torch.from_numpy(ids.astype(np.int64))
            again, report = AutoModelForCausalLM.from_pretrained(folder / "back", output_loading_info=True)
            self.assertIs(type(again), type(net))
            for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                self.assertFalse(report[what], report)
            with torch.no_grad():
                wanted, back = (it.eval().to(torch.float32)(ids).logits for it in (net, again))
            self.assertGreater(wanted.std().item(), 0.05)
            torch.testing.assert_close(told, wanted, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(back, wanted, rtol=1e-4, atol=1e-5)

    def test_a_llama_in_bf16_whose_heads_share_keys_gives_the_same_logits_here_and_back(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(5)
        config = LlamaConfig(
            vocab_size=TOKENS, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
        self.compared(LlamaForCausalLM(config).to(torch.bfloat16), "")

    def test_llamas_of_scaled_positions_give_the_same_logits_here_and_back(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(5)
        llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
        for scaling in (llama3, {"rope_type": "linear", "factor": 4.0}):
            config = LlamaConfig(
                vocab_size=TOKENS, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, rope_parameters={**scaling, "rope_theta": 1000.0})
            net = LlamaForCausalLM(config)
            for name, parameter in net.named_parameters():
                # Attention that looks far, and so at places.
                if "q_proj" in name or "k_proj" in name:
                    torch.nn.init.normal_(parameter, std=0.5)
            self.compared(net, "")

    def test_a_tied_qwen_2_in_several_files_gives_the_same_logits_here_and_back(self):
        from transformers import Qwen2Config, Qwen2ForCausalLM

        torch.manual_seed(5)
        config = Qwen2Config(
            vocab_size=TOKENS, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, tie_word_embeddings=True)
        net = Qwen2ForCausalLM(config)
        for name, parameter in net.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.3)
        self.compared(net, "model.kind=llama", max_shard_size="60KB")

    def test_a_qwen_3_whose_heads_are_wider_gives_the_same_logits_here_and_back(self):
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(5)
        config = Qwen3Config(
            vocab_size=TOKENS, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=24, tie_word_embeddings=True)
        net = Qwen3ForCausalLM(config)
        for name, parameter in net.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                torch.nn.init.uniform_(parameter, 0.5, 2.0)
        self.compared(net, "")

    def test_a_llama_whose_heads_are_narrower_gives_the_same_logits_here_and_back(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(5)
        config = LlamaConfig(
            vocab_size=TOKENS, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8)
        self.compared(LlamaForCausalLM(config), "")

    def test_a_gpt_2_gives_the_same_logits_here_and_back(self):
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(5)
        config = GPT2Config(
            vocab_size=TOKENS, n_positions=CONTEXT, n_embd=48, n_layer=2, n_head=3, bos_token_id=None, eos_token_id=None)
        self.compared(GPT2LMHeadModel(config), "")

    def test_a_gpt_of_dtrains_own_is_loaded_as_one(self):
        from transformers import AutoModelForCausalLM

        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            (folder / "text.txt").write_bytes(bytes(range(32, 127)) * 40)
            small = "model.kind=gpt model.layers=2 model.width=32 model.heads=4 data.context=16 steps=20"
            command(folder, f"train data.kind=text data.path=text.txt {small} name=it --quiet")
            ids = np.random.default_rng(3).integers(32, 127, (4, 16)).astype(np.uint8)
            np.save(folder / "ids.npy", ids)
            command(folder, "predict it ids.npy -o told.npy")
            command(folder, "export it --to transformers")
            net = AutoModelForCausalLM.from_pretrained(folder / "it-transformers").eval()
            with torch.no_grad():
                wanted = net(torch.from_numpy(ids.astype(np.int64))).logits
            torch.testing.assert_close(torch.from_numpy(np.load(folder / "told.npy")), wanted, rtol=1e-4, atol=1e-5)
