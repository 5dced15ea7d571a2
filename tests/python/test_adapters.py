"""Models of other packages: the same promises. Who has the packages, and some minutes, says `DTRAIN_TEST_ADAPTERS=1`."""

import importlib.util
import json
import os
import signal
import unittest
from pathlib import Path

from harness import Run
from test_training import InAFolder

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def wants(*packages):
    asked = os.environ.get("DTRAIN_TEST_ADAPTERS") and all(map(importlib.util.find_spec, packages))
    return unittest.skipUnless(asked, f"it wants DTRAIN_TEST_ADAPTERS=1, and {' and '.join(packages)}")


class Examples(InAFolder):
    """An example prints words of its own beside the events, so it is judged by its digest."""

    def start(self, example, *settings, environment=None):
        return Run(self.folder, [EXAMPLES / example, "--json", *settings], environment)

    def end(self, run):
        """The digest of a run that came to its end."""
        digest = None
        for line in iter(lambda: run.lines.get(timeout=600), None):
            if line.startswith("{") and '"event":"summary"' in line:
                digest = json.loads(line)["digest"]
        code = run.process.wait()
        run.listener.join()
        run.process.stdout.close()
        run.process.stderr.close()
        self.assertEqual(code, 0, "".join(run.words))
        self.assertIsNotNone(digest, "it told no digest")
        return digest

    def of_worlds(self, example, worlds, *settings, environment=None):
        digests = {ranks: self.end(self.start(example, f"ranks={ranks}", *settings, environment=environment)) for ranks in worlds}
        self.assertEqual(len(set(digests.values())), 1, digests)
        return digests[worlds[0]]


@wants("transformers", "peft", "tokenizers")
class HuggingFace(Examples):
    def test_a_llama_and_its_lora_have_one_digest_and_are_opened_again(self):
        for lora in ("", "1"):
            self.of_worlds("hugging_face_lm.py", [1, 3], "epochs=1", environment={"LORA": lora})


@wants("lerobot")
class LeRobot(Examples):
    def test_an_act_policy_on_its_own_data_format_has_one_digest_and_is_opened_again(self):
        self.of_worlds("lerobot_act.py", [1, 2], "epochs=2", environment={"HF_HUB_OFFLINE": "1"})


#: What configure_optimizers may give, and what becomes of it.
OPTIMIZERS = {
    "AdamW(p, lr=3e-3, betas=(0.8, 0.9), eps=1e-7, weight_decay=0.1)": "AdamW(lr=0.003, betas=(0.8, 0.9), eps=1e-07, weight_decay=0.1,",
    "Adam(p)": "AdamW(lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0,",
    "[SGD(p, lr=0.1, momentum=0.9, nesterov=True)]": "SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.0,",
    "{'optimizer': SGD(p, lr=0.2)}": "SGD(lr=0.2, momentum=0.0, nesterov=False, weight_decay=0.0,",
    "([AdamW(p)], [])": "AdamW(lr=0.001,",
    # Any other one is PyTorch's own.
    "Adam(p, weight_decay=0.1)": "TorchOptimizer(",
    "RMSprop(p)": "TorchOptimizer(",
    "AdamW(p, amsgrad=True)": "TorchOptimizer(",
    "AdamW(p[:1])": "TorchOptimizer(",
    "AdamW([{'params': p[:1]}, {'params': p[1:]}])": "TorchOptimizer(",
    "[AdamW(p), AdamW(p)]": "2 optimizers",
    "([AdamW(p)], [lr_scheduler.StepLR(AdamW(p), 1)])": "a schedule of the learning rate",
    "None": "gives a NoneType",
    "AdamW(p, lr=self.trainer.max_epochs)": "asks for a Trainer",
}
#: Modules that would come out otherwise than they say.
MODULES = {
    "    def optimizer_step(self, *args, **kwargs):\n        pass": "has optimizer_step, which dtrain does not call",
    "    automatic_optimization = False": "optimizes by hand",
    "    def training_step(self, batch, batch_idx):\n        self.loss(batch)": "training_step gives nothing",
    "    def training_step(self, batch, batch_idx):\n        return self.loss(batch) * len(batch[1])": "training_step looks like a sum",
    "    def validation_step(self, batch, batch_idx):\n        self.loss(batch)": "validation_step has no loss",
    "    def training_step(self, batch, batch_idx):\n        return self.los(batch)": "has no attribute 'los'",
}
SCRIPT = """
import lightning, torch, torch.nn.functional as F, dtrain
from torch.optim import *
X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)
    def loss(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])
    def training_step(self, batch, batch_idx):
        return {{"loss": self.loss(batch)}}
    def configure_optimizers(self):
        p = list(self.parameters())
        return {optimizer}
{more}
if __name__ == "__main__":
    dtrain.train(Lit, data=(X, Y), val=(X, Y), epochs=20, global_batch=16, micro_batch=8)
"""


@wants("lightning")
class Lightning(Examples):
    def script(self, optimizer="SGD(p, lr=0.1)", more=""):
        path = self.folder / "lit.py"
        path.write_text(SCRIPT.format(optimizer=optimizer, more=more))
        return path

    def test_a_module_has_one_digest_also_after_a_kill(self):
        digest = self.of_worlds("lightning_module.py", [1, 3], "epochs=30")
        run = self.start("lightning_module.py", "ranks=3", "epochs=30")
        run.until(lambda event: event["event"] == "step" and event["step"] == 100)
        os.kill(run.pids()[0], signal.SIGKILL)
        run.until(lambda event: event["event"] == "fault")
        self.assertEqual(self.end(run), digest)

    def test_a_module_is_trained_as_its_loss_and_its_optimizer_would_be(self):
        """Its steps are a mean; what PyTorch alone makes of them is what dtrain makes of them."""
        script = self.script()
        (self.folder / "plain.py").write_text(
            "from lit import *\n"
            "loss = lambda net, batch: (F.cross_entropy(net.net(batch[0]), batch[1], reduction='sum'), len(batch[1]))\n"
            "dtrain.train(Lit, data=(X, Y), loss=loss, val=(X, Y), epochs=20, global_batch=16, micro_batch=8,\n"
            "             optimizer=dtrain.SGD(lr=0.1), schedule='constant', warmup='none')\n"
        )
        one, other = (Run(self.folder, [path, "--json", "ranks=2"]).end() for path in (script, self.folder / "plain.py"))
        self.assertEqual((self.good(one).code, self.good(other).code), (0, 0))
        for told in ("train_loss", "val_loss"):
            self.assertAlmostEqual(one.summary[told], other.summary[told], places=5)

    def test_optimizers_are_taken_as_they_are_or_refused(self):
        from dtrain._lightning import Steps

        for given, told in OPTIMIZERS.items():
            with self.subTest(given):
                made = {"__name__": "lit"}
                exec(SCRIPT.format(optimizer=given, more=""), made)
                try:
                    found = repr(Steps(made["Lit"]).optimizer())
                except TypeError as error:
                    found = str(error)
                self.assertIn(told, found)

    def test_an_optimizer_that_dtrain_has_not_is_pytorchs_with_its_groups_and_learning_rates(self):
        given = "RMSprop([{'params': p[:1], 'lr': 0.02}, {'params': p[1:]}], lr=0.005, momentum=0.5)"
        script = self.script(given)
        (self.folder / "plain.py").write_text(
            "from lit import *\n"
            "loss = lambda net, batch: (F.cross_entropy(net.net(batch[0]), batch[1], reduction='sum'), len(batch[1]))\n"
            f"optimizer = dtrain.torch_optimizer(lambda p: {given})\n"
            "dtrain.train(Lit, data=(X, Y), loss=loss, val=(X, Y), epochs=20, global_batch=16, micro_batch=8,\n"
            "             optimizer=optimizer, schedule='constant', warmup='none')\n"
        )
        one, other = (self.good(Run(self.folder, [path, "--json", "ranks=2"]).end()) for path in (script, self.folder / "plain.py"))
        for told in ("train_loss", "val_loss"):
            self.assertAlmostEqual(one.summary[told], other.summary[told], places=5)

    def test_modules_that_would_come_out_otherwise_are_refused(self):
        for more, told in MODULES.items():
            with self.subTest(told):
                ended = Run(self.folder, [self.script(more=more), "--json", "ranks=2"]).end()
                self.assertNotEqual(ended.code, 0)
                self.assertIn(told, ended.words)
                self.assertLessEqual(ended.words.count("Traceback"), 1, ended.words)


if __name__ == "__main__":
    unittest.main()
