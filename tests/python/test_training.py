"""What dtrain promises to PyTorch programs, judged from outside: by digests, processes, events and files."""

import concurrent.futures
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import PROGRAMS, Run, has_turn, in_turn, is_alive, train, wait_for

#: The command that came with the package.
DTRAIN = os.environ.get("DTRAIN_BINARY") or str(Path(sys.executable).parent / "dtrain")


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def good(self, ended):
        self.assertEqual(ended.code, 0, ended.words)
        return ended


class TheSameBits(InAFolder):
    def of_worlds(self, kind, worlds):
        digests = {ranks: self.good(train(self.folder, kind, f"ranks={ranks}")).digest for ranks in worlds}
        self.assertEqual(len(set(digests.values())), 1, f"{kind}: {digests}")
        return digests[worlds[0]]

    def test_of_an_mlp_with_dropout_for_any_number_of_ranks(self):
        self.of_worlds("mlp", [1, 2, 3, 5])

    @in_turn(0)
    def test_of_a_cnn_with_batch_norm_for_any_number_of_ranks(self):
        self.of_worlds("cnn", [1, 3])

    @in_turn(2)
    def test_of_an_lstm_for_any_number_of_ranks(self):
        self.of_worlds("lstm", [1, 2])

    @in_turn(14)
    def test_of_a_gpt_for_any_number_of_ranks_and_of_readers(self):
        digest = self.of_worlds("gpt", [1, 3])
        self.assertEqual(self.good(train(self.folder, "gpt", "ranks=2", "workers=2")).digest, digest)

    @in_turn(4)
    def test_of_a_model_that_computes_its_blocks_again(self):
        self.of_worlds("recomputed", [1, 2])

    @in_turn(16)
    def test_of_half_precision_whose_loss_is_scaled(self):
        runs = [self.good(train(self.folder, "gpt", f"ranks={ranks}", "precision=f16")) for ranks in (1, 2)]
        self.assertEqual(len({run.digest for run in runs}), 1)
        # The first scales are too large, and their steps change nothing.
        self.assertGreater(runs[0].summary["val_accuracy"], 0.4)

    def test_after_ranks_were_killed_and_no_step_is_lost(self):
        length = ["epochs=120", "checkpoint.every=40 epochs"]
        calm = self.good(train(self.folder, "mlp", "ranks=1", *length))
        run = Run(self.folder, [PROGRAMS, "mlp", "--json", "ranks=3", *length, "name=hurt", "max_restarts=100"])
        for member in (1, 0):
            # All three are there: whoever was killed before has come back, and works.
            run.until(lambda event: event["event"] == "generation" and event["ranks"] == 3)
            run.until(lambda event: event["event"] == "step")
            os.kill(run.pids()[member], signal.SIGKILL)
            fault = run.until(lambda event: event["event"] == "fault")
            self.assertEqual(fault["member"], member)
        ended = self.good(run.end())
        self.assertEqual(ended.digest, calm.digest)
        self.assertEqual([event["step"] for event in ended.of("step")], list(range(1, 1201)), "each step once")
        self.assertEqual(ended.summary["lost_steps"], 0)
        audit = subprocess.run([DTRAIN, "audit", "hurt"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(audit.returncode, 0, audit.stderr)
        self.assertIn("120 whole epochs", audit.stdout)

    @in_turn(6)
    def test_of_a_state_in_shards_and_after_a_rank_was_killed(self):
        length = ["epochs=60", "checkpoint.every=none"]
        calm = self.good(train(self.folder, "mlp", "ranks=1", *length))
        run = Run(self.folder, [PROGRAMS, "mlp", "--json", "ranks=3", *length, "name=hurt", "state=sharded"])
        run.until(lambda event: event["event"] == "generation" and event["ranks"] == 3)
        run.until(lambda event: event["event"] == "step")
        os.kill(run.pids()[1], signal.SIGKILL)
        ended = self.good(run.end())
        self.assertEqual(ended.digest, calm.digest)
        self.assertEqual([event["step"] for event in ended.of("step")], list(range(1, 601)), "each step once")
        self.assertEqual(ended.summary["lost_steps"], 0)
        halves = [["ranks=1"], ["ranks=3", "state=sharded"]]
        halves = [self.good(train(self.folder, "gpt", *how, "precision=f16")).digest for how in halves]
        self.assertEqual(halves[0], halves[1])

    @in_turn(12)
    def test_after_the_process_that_leads_was_killed_and_its_ranks_are_the_same(self):
        length = ["epochs=120", "checkpoint.every=none"]
        calm = self.good(train(self.folder, "mlp", "ranks=1", *length))
        run = Run(self.folder, [PROGRAMS, "mlp", "--json", "ranks=2", *length, "name=hurt"])
        run.until(lambda event: event["event"] == "step" and event["step"] >= 50)
        pids = run.pids().values()
        run.process.kill()
        self.assertEqual(run.end().code, -signal.SIGKILL)
        self.assertTrue(all(map(is_alive, pids)), "they hold the state")
        rest = self.good(train(self.folder, "mlp", "--resume", "hurt"))
        self.assertEqual(rest.digest, calm.digest)
        self.assertEqual(rest.summary["lost_steps"], 0)
        with open(self.folder / "runs" / "hurt" / "events.jsonl") as log:
            steps = [event["step"] for event in map(json.loads, log) if event["event"] == "step"]
        self.assertEqual(steps, list(range(1, 1201)), "each step once")
        wait_for(lambda: not any(map(is_alive, pids)), "no rank is left behind")

    @in_turn(8)
    def test_of_a_run_that_was_stopped_and_went_on_with_other_ranks(self):
        whole = self.good(train(self.folder, "mlp", "ranks=2", "epochs=20"))
        run = Run(self.folder, [PROGRAMS, "mlp", "--json", "ranks=2", "epochs=20", "name=part"])
        run.until(lambda event: event["event"] == "step" and event["step"] == 50)
        pids = run.pids()
        run.process.send_signal(signal.SIGINT)
        self.assertEqual(run.end().code, 130)
        wait_for(lambda: not any(map(is_alive, pids.values())), "no rank is left behind")
        rest = self.good(train(self.folder, "mlp", "--resume", "runs/part", "ranks=3"))
        self.assertEqual(rest.digest, whole.digest)

    @in_turn(18)
    def test_after_a_rank_hung_in_the_program_whose_stack_is_shown(self):
        lines = (
            "import pathlib, time\ndef loss(net, batch):\n    x, y = batch\n    flag = pathlib.Path('hang')\n"
            "    if net.training and flag.exists():\n        flag.unlink()\n        time.sleep(1000)\n"
            "    return F.cross_entropy(net(x), y, reduction='sum'), len(y)"
        )
        script = self.folder / "hangs.py"
        script.write_text(SCRIPT.format(lines))
        settings = ["ranks=2", "epochs=200", "checkpoint.every=none", "detect=500ms"]
        calm = self.good(Run(self.folder, [script, "--json", *settings]).end())
        run = Run(self.folder, [script, "--json", *settings])
        run.until(lambda event: event["event"] == "step" and event["step"] == 100)
        (self.folder / "hang").touch()
        ended = self.good(run.end())
        self.assertEqual((ended.digest, ended.summary["lost_steps"]), (calm.digest, 0))
        self.assertEqual(len(ended.of("fault")), 1)
        self.assertRegex(ended.words, r'hangs.py", line \d+ in loss')

    @in_turn(20)
    def test_after_a_process_that_reads_was_killed(self):
        calm = self.good(train(self.folder, "gpt", "ranks=1", "epochs=12"))
        run = Run(self.folder, [PROGRAMS, "gpt", "--json", "ranks=2", "workers=2", "epochs=12"])
        run.until(lambda event: event["event"] == "step" and event["step"] == 5)
        rank = run.pids()[1]
        with open(f"/proc/{rank}/task/{rank}/children") as children:
            reader = int(children.read().split()[0])
        os.kill(reader, signal.SIGKILL)
        ended = self.good(run.end())
        self.assertEqual((ended.digest, ended.summary["lost_steps"]), (calm.digest, 0))
        self.assertIn(f"(pid {reader}), which reads samples, ended with exit code -9", ended.words)

    @in_turn(22)
    def test_on_two_hosts(self):
        alone = self.good(train(self.folder, "cnn", "ranks=1", "epochs=6"))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        token = {"DTRAIN_TOKEN": secrets.token_hex(32)}
        place = ["--master", f"127.0.0.1:{port}", "--nodes", "2", "ranks=2"]
        first = Run(self.folder, [PROGRAMS, "cnn", "node", "--rank", "0", *place, "--json", "epochs=6", "name=hosts"], token)
        second = Run(self.folder, [PROGRAMS, "cnn", "node", "--rank", "1", *place], token)
        ended = self.good(first.end())
        joined = second.end()
        self.assertEqual(joined.code, 0, joined.words)
        self.assertEqual(ended.digest, alone.digest)
        self.assertEqual(ended.summary["ranks"], 4)


class TheResult(InAFolder):
    @in_turn(10)
    def test_is_loaded_by_pytorch_and_has_the_accuracy_that_was_told(self):
        for kind in ("cnn", "gpt"):
            ended = self.good(train(self.folder, kind, "ranks=2"))
            for metric, near in {"accuracy": 1e-5, "error": 1e-5, "sureness": 1e-5, "auc": 2e-3, "precise": 1e-2}.items():
                found = re.search(rf"{metric} (\S+) told (\S+)", ended.words)
                self.assertIsNotNone(found, ended.words)
                self.assertAlmostEqual(float(found[1]), float(found[2]), delta=near, msg=metric)
            told = [epoch["val_sureness"] for epoch in ended.of("epoch")]
            areas = [(epoch["val_auc"], epoch["val_precise"]) for epoch in ended.of("epoch")]
            alone = self.good(train(self.folder, kind, "ranks=1", "checkpoint.best=-val_sureness", "stop.patience=1", "stop.metric=-val_error"))
            self.assertEqual([epoch["val_sureness"] for epoch in alone.of("epoch")], told[: len(alone.of("epoch"))], "the same bits")
            self.assertEqual([(epoch["val_auc"], epoch["val_precise"]) for epoch in alone.of("epoch")], areas[: len(alone.of("epoch"))], "the same bits")
            best = [mark["step"] for mark in alone.of("checkpoint") if mark["best"]][-1]
            least = min(range(len(alone.of("epoch"))), key=lambda epoch: told[epoch])
            self.assertEqual(best, (least + 1) * 10)


BAD = {
    "an exception in loss": (
        "def loss(net, batch):\n    return undefined_name, 1",
        1,
        ["NameError: name 'undefined_name' is not defined", "line 7, in loss"],
    ),
    "a mean": ("def loss(net, batch):\n    return F.cross_entropy(net(batch[0]), batch[1]), 1", 1, ["looks like a mean", 'reduction="sum"']),
    "no weight": ("def loss(net, batch):\n    return F.cross_entropy(net(batch[0]), batch[1], reduction='sum')", 1, ["has to give two things"]),
    "no return": ("def model():\n    torch.nn.Linear(4, 2)", 1, ["model() gives a NoneType", "does it say `return`?"]),
    "models that differ": (
        "import os\ndef model():\n    net = torch.nn.Linear(4, 2)\n    net.bias.data.fill_(os.getpid())\n    return net",
        1,
        ["parameter bias is", "hint: model() and the data must come out alike in every process"],
    ),
    "data that change": ("import os\nX = torch.zeros(60 + os.getpid() % 50, 4)\nY = torch.zeros(len(X)).long()", 1, ["the number of training samples is"]),
    "numbers that nobody seeds": (
        "import os\ndef loss(net, batch):\n    noise = int.from_bytes(os.urandom(2), 'little') / 65536\n"
        "    return F.cross_entropy(net(batch[0]) * noise, batch[1], reduction='sum'), len(batch[1])",
        1,
        ["one micro-batch, computed twice, did not give the same bits: the gradient of weight, bias differs", "bits=False"],
    ),
    "no memory": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "def loss(net, batch):\n    wide = batch[0] @ torch.ones(4, 1 << 28)\n    return wide.sum(), len(batch[1])",
        1,
        ["can't allocate memory", "line 9, in loss", "; hint: a smaller micro_batch takes less memory"],
    ),
    "no memory for an object": (
        "def loss(net, batch):\n    return len(bytearray(1 << 60)), 1",
        1,
        ["MemoryError; hint: a smaller micro_batch takes less memory"],
    ),
    "a stream": ("X = Y = None\ndef opened():\n    return iter(range(10))\nDATA = opened", 2, ["without len() or []", "read by number"]),
    "a loader": (
        "DATA = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=4)",
        2,
        ["data is a DataLoader", "`data=loader.dataset`"],
    ),
    "a buffer that changes": (
        "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.l = torch.nn.Linear(4, 2)\n"
        "        self.register_buffer('seen', torch.zeros(1))\n    def forward(self, x):\n        if self.training:\n            self.seen += 1\n"
        "        return self.l(x)\nmodel = Net",
        1,
        ["buffer seen changed in training", "buffers=['seen']"],
    ),
    "a metric that is one number": ("VAL = (X, Y)\nMETRICS = {'mine': lambda net, batch: 1.0}", 1, ["metric mine gives a float", "two numbers"]),
    "an area of probabilities without labels": (
        "VAL = (X, Y)\nMETRICS = {'auc': dtrain.roc_auc(lambda net, batch: net(batch[0]).softmax(-1))}",
        1,
        ["metric auc: has to give two tensors", "return net(x).squeeze(-1), y"],
    ),
    "an area of another shape": (
        "VAL = (X, Y)\nMETRICS = {'auc': dtrain.roc_auc(lambda net, batch: (net(batch[0]), batch[1]), classes=3)}",
        1,
        ["metric auc: scores have the shape [8, 2], and should have [n, 3]"],
    ),
    "an area of labels that are none": (
        "VAL = (X, Y)\nMETRICS = {'auc': dtrain.roc_auc(lambda net, batch: (net(batch[0])[:, 1], batch[1] + 0.5))}",
        1,
        ["metric auc: labels are numbers of classes, from 0 to 1"],
    ),
    "areas of too many classes": ("METRICS = {'auc': dtrain.roc_auc(lambda net, batch: 1, classes=1000)}", 1, ["classes=1000", "for 2 to 16"]),
    "a metric of a name that is taken": ("METRICS = {'loss': lambda net, batch: (1, 1)}", 1, ["'loss' is no name for one of yours"]),
    "a metric that there is not": ("SETTINGS = {'checkpoint.best': 'val_mine'}", 2, ["this run has no val_mine", "val_accuracy"]),
    "a key that is none": ("SETTINGS = {'optimizer.lrr': 1}", 2, ["there is no such key", "optimizer.lr"]),
}
SCRIPT = """
import torch, torch.nn.functional as F, dtrain
X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
DATA, VAL, SETTINGS, METRICS = None, None, {{}}, {{}}
{}
model = globals().get("model") or (lambda: torch.nn.Linear(4, 2))
loss = globals().get("loss") or (lambda net, batch: (F.cross_entropy(net(batch[0]), batch[1], reduction="sum"), len(batch[1])))
if __name__ == "__main__":
    dtrain.train(model, data=DATA if DATA is not None else (X, Y), loss=loss, epochs=2, global_batch=16, micro_batch=8, settings=SETTINGS, metrics=METRICS, val=VAL)
"""


class BadPrograms(InAFolder):
    def test_end_in_one_clear_error_and_leave_nothing_behind(self):
        def run(number, lines):
            script = self.folder / f"bad{number}.py"
            script.write_text(SCRIPT.format(lines))
            # More ranks than one where the error is to be told once, or is between ranks.
            ranks = 2 if number < 7 else 1
            return Run(self.folder, [script, "--json", f"ranks={ranks}"]).end()

        # They wait for one another more than they compute.
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            runs = {what: pool.submit(run, number, lines) for number, (what, (lines, *_)) in enumerate(BAD.items()) if has_turn(number)}
        for what in runs:
            _, code, told = BAD[what]
            with self.subTest(what):
                ended = runs[what].result()
                self.assertEqual(ended.code, code, ended.words)
                for words in told:
                    self.assertIn(words, ended.words)
                self.assertLessEqual(ended.words.count("Traceback"), 1, ended.words)
                self.assertNotIn("panicked", ended.words)
                pids = [event["pid"] for event in ended.of("rank_started")]
                wait_for(lambda: not any(map(is_alive, pids)), "no rank is left behind")


if __name__ == "__main__":
    unittest.main()
