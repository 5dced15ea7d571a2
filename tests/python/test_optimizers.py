"""Optimizers of PyTorch: bit for bit what they are in PyTorch, whoever dies and wherever their state goes."""

import os
import runpy
import signal
import subprocess
import unittest

import torch

import dtrain
from dtrain._torch_optimizer import TorchOptimizer
from harness import Run, has_turn, in_turn
from test_training import DTRAIN, InAFolder

OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=2e-3),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "groups": lambda p: torch.optim.Adam([{"params": p[:1], "lr": 0.1}, {"params": p[1:], "weight_decay": 0.3}]),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "an accumulator that begins above zero": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.1),
    "states of other shapes": lambda p: torch.optim.Adafactor(p),
    "a number in the state": lambda p: Counting(p),
    "a number in the group": lambda p: torch.optim.ASGD(p, t0=1),
    "no state": lambda p: torch.optim.SGD(p, lr=0.1),
    "one for matrices and one for the rest": lambda p: [
        torch.optim.Muon([one for one in p if one.dim() == 2]),
        torch.optim.NAdam([one for one in p if one.dim() != 2]),
    ],
}
BAD = {
    "computes the loss again within a step": lambda p: torch.optim.LBFGS(p),
    "has 0.bias nowhere": lambda p: torch.optim.SGD(p[:1]),
    "gives a NoneType": lambda p: None,
    "keeps 0.weight.past, a list": lambda p: Keeping(p, []),
    "did not give the same bits": lambda p: torch.optim.SGD(p, lr=int.from_bytes(os.urandom(4), "little") / 2**32 + 0.1),
}


class Counting(torch.optim.SGD):
    """Its steps grow with a number of its state, and with one of its group."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["calls"] = group.get("calls", 0) + 1
            for parameter in group["params"]:
                kept = self.state[parameter]
                kept["count"] = kept.get("count", 0) + 1
                kept["half"] = torch.full((3,), kept["count"], dtype=torch.bfloat16)
                parameter.data.add_(parameter.grad, alpha=-0.01 * kept["count"] * group["calls"])


class Keeping(torch.optim.SGD):
    """It keeps what it is given."""

    def __init__(self, parameters, value):
        super().__init__(parameters, lr=0.1)
        self.value = value

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["past"] = self.value


def parameters():
    made = torch.Generator().manual_seed(3)
    return [("0.weight", torch.randn(8, 5, generator=made)), ("0.bias", torch.randn(8, generator=made)), ("1.weight", torch.randn(3, 8, generator=made))]


def gradients(step):
    made = torch.Generator().manual_seed(100 + step)
    return torch.randn(8 * 5 + 8 + 3 * 8, generator=made)


class AnOptimizerOfPyTorch(unittest.TestCase):
    def test_makes_the_same_bits_as_in_pytorch_also_from_memory_that_was_copied(self):
        for what, make in OPTIMIZERS.items():
            with self.subTest(what):
                named = parameters()
                plain = [torch.nn.Parameter(values.clone()) for _, values in named]
                made = make(plain)
                made = made if isinstance(made, list) else [made]
                ours = TorchOptimizer(make, named)
                ours.tried_again()
                flat, kept = torch.cat([values.reshape(-1) for _, values in named]), torch.zeros(ours.length)
                self.assertEqual(sum(torch.Size(shape).numel() for _, shape in ours.tensors()), ours.length)
                for step in range(12):
                    gradient = gradients(step)
                    for parameter, part in zip(plain, gradient.mul(0.5).split([40, 8, 24])):
                        parameter.grad = part.view(parameter.shape)
                    for one in made:
                        one.step()
                    if step % 5 == 4:
                        # As a rank that was started again has it.
                        ours, flat, kept = TorchOptimizer(make, named), flat.clone(), kept.clone()
                    ours.update(1.0, 0.5, (gradient.data_ptr(), flat.data_ptr(), kept.data_ptr()))
                    self.assertTrue(torch.equal(flat, torch.cat([p.detach().reshape(-1) for p in plain])), f"step {step + 1}")

    def test_that_no_run_can_keep_is_refused(self):
        for told, make in BAD.items():
            with self.subTest(told), self.assertRaises(ValueError) as refused:
                TorchOptimizer(make, parameters()).tried_again()
            self.assertIn(told, str(refused.exception))

    def test_whose_state_changes_its_shape_is_stopped(self):
        grows = lambda p: Growing(p)
        ours = TorchOptimizer(grows, parameters())
        flat, kept, gradient = torch.zeros(72), torch.zeros(ours.length), gradients(0)
        places = (gradient.data_ptr(), flat.data_ptr(), kept.data_ptr())
        ours.update(1.0, 1.0, places)
        ours.update(1.0, 1.0, places)
        with self.assertRaises(ValueError) as refused:
            ours.update(1.0, 1.0, places)
        self.assertIn("became [2] torch.float32", str(refused.exception))


class Growing(Keeping):
    """What it keeps grows with its third step."""

    def __init__(self, parameters):
        super().__init__(parameters, torch.zeros(1))
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1
        self.value = torch.zeros(1 if self.steps < 3 else 2)
        super().step()


SCRIPT = """
import torch, torch.nn.functional as F, dtrain
X = torch.randn(320, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(16, 2))
def loss(net, batch):
    return F.cross_entropy(net(batch[0]), batch[1], reduction="sum"), len(batch[1])
def make(p):
    return [torch.optim.Adafactor([one for one in p if one.dim() == 2]), torch.optim.NAdam([one for one in p if one.dim() != 2])]
if __name__ == "__main__":
    dtrain.train(model, data=(X, Y), val=(X, Y), loss=loss, epochs=40, global_batch=32, micro_batch=8, optimizer=dtrain.torch_optimizer(make, ema=0.9))
"""


class ARunWithIt(InAFolder):
    @in_turn(1)
    def test_has_one_digest_whoever_dies_and_goes_on_from_a_checkpoint_with_other_ranks(self):
        script = self.folder / "own.py"
        script.write_text(SCRIPT)
        calm = self.good(Run(self.folder, [script, "--json", "ranks=1", "checkpoint.every=none"]).end())
        run = Run(self.folder, [script, "--json", "ranks=3", "name=hurt", "checkpoint.every=none"])
        for member, step in ((2, 40), (0, 160)):
            run.until(lambda event: event["event"] == "step" and event["step"] == step)
            os.kill(run.pids()[member], signal.SIGKILL)
        ended = self.good(run.end())
        self.assertEqual((ended.digest, ended.summary["lost_steps"]), (calm.digest, 0))
        part = Run(self.folder, [script, "--json", "ranks=2", "name=part"])
        part.until(lambda event: event["event"] == "step" and event["step"] == 150)
        part.process.send_signal(signal.SIGINT)
        self.assertEqual(part.end().code, 130)
        rest = self.good(Run(self.folder, [script, "--json", "ranks=3", "--resume", "runs/part"]).end())
        self.assertEqual(rest.digest, calm.digest)
        listed = subprocess.run([DTRAIN, "checkpoint", "verify", "part"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(listed.returncode, 0, listed.stderr)

    def test_is_not_what_another_program_trains_with(self):
        for words, told in [
            (["train", "optimizer.kind=torch"], "torch is the optimizer of a Python program"),
            (["help", "optimizer.kind"], "torch"),
        ]:
            ended = subprocess.run([DTRAIN, *words], cwd=self.folder, capture_output=True, text=True)
            self.assertIn(told, ended.stdout + ended.stderr)
        script = self.folder / "own.py"
        script.write_text(SCRIPT.replace("optimizer=dtrain.torch_optimizer(make, ema=0.9)", "optimizer=dtrain.SGD()"))
        ended = Run(self.folder, [script, "--json", "optimizer.kind=torch", "ranks=1"]).end()
        self.assertIn("hint: optimizer=dtrain.torch_optimizer(...)", ended.words)


#: Each step is one batch of everything: no order of samples, and no rounding but that of another order of sums.
OWN = """
import sys, torch, torch.nn.functional as F, dtrain
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
Y = X @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]]) + 0.7
def model():
    made = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    for parameter in made.parameters():
        parameter.data = torch.linspace(-0.5, 0.6, parameter.numel()).view(parameter.shape)
    return made
def loss(net, batch):
    return F.mse_loss(net(batch[0]), batch[1], reduction="sum"), len(batch[1])
if __name__ == "__main__":
    dtrain.train(model, data=(X, Y), loss=loss, epochs=9, global_batch=60, micro_batch=20, optimizer=OPTIMIZER, schedule="constant", warmup="none")
"""


class LionOfPyTorch(torch.optim.Optimizer):
    """Chen et al., 2023, algorithm 2."""

    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                moment = self.state[parameter].setdefault("moment", torch.zeros_like(parameter))
                (now, kept), gradient = group["betas"], parameter.grad
                parameter.data.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.data.sub_((moment * now + gradient * (1 - now)).sign(), alpha=group["lr"])
                moment.mul_(kept).add_(gradient, alpha=1 - kept)


class MuonOfPyTorch:
    """``torch.optim.Muon`` for the first matrix, its iteration in float64; ``torch.optim.AdamW`` for all else."""

    def __init__(self, parameters, lr, momentum, weight_decay, adjust_lr_fn, adamw_lr_factor, nesterov=True):
        first, *others = parameters
        self.adamw = torch.optim.AdamW(others, lr=lr * adamw_lr_factor, weight_decay=weight_decay)
        self.first, self.buffer = first, torch.zeros_like(first)
        self.lr, self.momentum, self.weight_decay, self.nesterov = lr, momentum, weight_decay, nesterov
        self.ratio = {"original": max(1, first.shape[0] / first.shape[1]) ** 0.5, "match_rms_adamw": 0.2 * max(first.shape) ** 0.5}[adjust_lr_fn]

    def zero_grad(self):
        self.first.grad = None
        self.adamw.zero_grad()

    def step(self):
        self.adamw.step()
        gradient = self.first.grad
        self.buffer.lerp_(gradient, 1 - self.momentum)
        update = gradient.lerp(self.buffer, self.momentum) if self.nesterov else self.buffer
        self.first.data.mul_(1 - self.lr * self.weight_decay)
        self.first.data.add_(orthogonal(update.double()).float(), alpha=-self.lr * self.ratio)


def orthogonal(matrix):
    """Jordan et al., 2024: five steps of Newton-Schulz, from ``torch.optim._muon`` without its bfloat16."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


OWN_OPTIMIZERS = {
    "Muon(lr=2e-2, momentum=0.9, weight_decay=0.3, adjust_lr_fn='original', adamw_lr_factor=0.5)": MuonOfPyTorch,
    "Muon(lr=2e-2, momentum=0.8, weight_decay=0.1, adjust_lr_fn='match_rms_adamw', adamw_lr_factor=0.1, nesterov=False)": MuonOfPyTorch,
    "AdamW(lr=2e-2, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)": torch.optim.AdamW,
    "SGD(lr=1e-2, momentum=0.8, nesterov=True, weight_decay=0.1)": torch.optim.SGD,
    "Lion(lr=1e-2, betas=(0.8, 0.9), weight_decay=0.3)": LionOfPyTorch,
}


class AnOptimizerOfDtrain(InAFolder):
    def test_trains_as_that_of_pytorch_does(self):
        for number, (words, make) in enumerate(OWN_OPTIMIZERS.items()):
            with self.subTest(words):
                if not has_turn(2 * number):
                    self.skipTest(f"it is the turn of others: {words}")
                script = self.folder / f"{words.split('(')[0]}{len(words)}.py"
                script.write_text(OWN.replace("OPTIMIZER", f"dtrain.{words}"))
                self.good(Run(self.folder, [script, "--json", "ranks=1", f"name={script.stem}"]).end())
                told = runpy.run_path(str(script))
                net = told["model"]()
                optimizer = eval(words, {make.__name__.removesuffix("OfPyTorch"): lambda **options: make(net.parameters(), **options)})
                for _ in range(9):
                    optimizer.zero_grad()
                    total, count = told["loss"](net, (told["X"], told["Y"]))
                    (total / count).backward()
                    optimizer.step()
                for name, values in dtrain.load(self.folder / "runs" / script.stem / "last").items():
                    torch.testing.assert_close(values, net.state_dict()[name], rtol=1e-5, atol=1e-6)


class MuonBesidePyTorchs(InAFolder):
    def test_differs_by_no_more_than_the_bfloat16_of_pytorch_explains_and_another_definition_by_more(self):
        script = self.folder / "muon.py"
        options = "lr=0.02, momentum=0.95, weight_decay=0.1"
        script.write_text(OWN.replace("OPTIMIZER", f"dtrain.Muon({options}, adamw_lr_factor=0.5)"))
        self.good(Run(self.folder, [script, "--json", "ranks=1", "name=muon"]).end())
        trained = dtrain.load(self.folder / "runs" / "muon" / "last")["0.weight"]
        told = runpy.run_path(str(script))

        def far(**others):
            """How far the hidden matrix of PyTorch's is, in steps of the learning rate."""
            net = told["model"]()
            first, *rest = net.parameters()
            made = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1, **others}
            both = [torch.optim.Muon([first], **made), torch.optim.AdamW(rest, lr=0.01, weight_decay=0.1)]
            for _ in range(9):
                net.zero_grad()
                total, count = told["loss"](net, (told["X"], told["Y"]))
                (total / count).backward()
                for one in both:
                    one.step()
            return ((net.state_dict()["0.weight"] - trained).abs().max() / 0.02).item()

        # A look ahead is told apart by the float64 above: it turns these gradients by less than bfloat16 does.
        self.assertLess(far(), 0.3)
        for other in ({"ns_coefficients": (3.0, -3.2, 1.2)}, {"ns_steps": 2}, {"momentum": 0.5}, {"adjust_lr_fn": "match_rms_adamw"}):
            with self.subTest(other):
                self.assertGreater(far(**other), 0.45)


if __name__ == "__main__":
    unittest.main()
