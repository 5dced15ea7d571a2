"""Gradients that are told to be final while the rest is computed."""

import unittest

import torch
import torch.nn.functional as F

from dtrain._flat import FlatModule


class Twice(torch.nn.Module):
    """Tied weights, batch norm, and a wide layer."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.wide = torch.nn.Linear(8, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 300)
        self.tied = torch.nn.Linear(300, 300)
        self.tied.weight = self.wide.weight
        self.last = torch.nn.Linear(300, 300)

    def forward(self, x):
        return self.last(self.tied(torch.relu(self.wide(self.norm(self.first(x)))))).sum()


class Recomputed(Twice):
    """Its batch norm runs once more in the backward pass."""

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return self.last(self.tied(torch.relu(self.wide(checkpoint(self.norm, self.first(x), use_reentrant=False))))).sum()


def made(kind):
    torch.manual_seed(1)
    flat = FlatModule(kind(), ())
    flat.prepare(torch.device("cpu"), torch.device("cpu"))
    state = flat.first_state()
    memory = torch.full((flat.length + flat.stats_length,), float("nan"))
    told = []
    flat.settle = lambda begin: told.append((begin, memory[begin:].clone()))

    def compute(settle=True):
        flat.read_state(0, *(part.data_ptr() for part in state))
        told.clear()
        flat.begin(memory.data_ptr(), 4)
        flat.net(torch.randn(4, 8, generator=torch.Generator().manual_seed(2))).backward()
        flat.end()

    flat.kept_alive = state
    return flat, memory, told, compute


class Settling(unittest.TestCase):
    def test_tells_only_what_stays_as_it_is(self):
        flat, memory, told, compute = made(Twice)
        compute()
        self.assertTrue(flat.may_settle)
        begins = [begin for begin, _ in told]
        self.assertEqual(begins, sorted(begins, reverse=True))
        self.assertGreaterEqual(len(begins), 2)
        self.assertGreater(begins[-1], 0, "the rest is told behind the pass")
        for begin, then in told:
            self.assertTrue(torch.equal(memory[begin:], then), f"from {begin} on")
        self.assertFalse(memory.isnan().any())

    def test_is_not_for_statistics_that_change_in_the_backward_pass(self):
        flat, _, told, compute = made(Recomputed)
        settle, flat.settle = flat.settle, None
        compute()
        self.assertFalse(flat.may_settle)
        flat.settle = settle
        with self.assertRaisesRegex(ValueError, "a running statistic changes in the backward pass"):
            compute()

    def test_is_not_for_gradients_that_come_in_parts(self):
        flat, memory, told, compute = made(Twice)
        flat.settle = None
        flat.begin(memory.data_ptr(), 4)
        for _ in range(2):
            flat.net(torch.ones(4, 8)).backward()
        self.assertFalse(flat.may_settle)


class Both(Twice):
    """It leaves out a layer where the first sample says so, and has weights in half."""

    def __init__(self):
        super().__init__()
        self.short = torch.nn.Linear(300, 300, dtype=torch.bfloat16)

    def forward(self, x):
        made = self.short(self.norm(self.first(x)).bfloat16()).float()
        return self.last(made if x[0, 0] > 0 else self.wide(made)).sum() * 0.1


class TwoAtOnce(unittest.TestCase):
    def parts(self, flat, state, memory, xs):
        """The gradient of one, or of the sum of two."""
        for x, to in zip(xs, [None] * (len(xs) - 1) + [memory.data_ptr()]):
            flat.read_state(0, *(part.data_ptr() for part in state))
            flat.begin(to, len(x))
            flat.net(x).backward()
            flat.end()
        return memory.clone()

    def test_have_the_bits_of_two_gradients_and_their_sum(self):
        flat, memory, told, _ = made(Both)
        x = torch.randn(7, 8, generator=torch.Generator().manual_seed(3))
        without, with_wide = x[:4].clone(), x[4:].clone()
        without[0, 0], with_wide[0, 0] = 1.0, -1.0
        for pair in ([without, with_wide], [with_wide, without], [without, without], [with_wide, with_wide]):
            one, other = [self.parts(flat, flat.kept_alive, memory, [x]) for x in pair]
            memory.fill_(float("nan"))
            told.clear()
            both = self.parts(flat, flat.kept_alive, memory, pair)
            self.assertTrue(torch.equal(both.view(torch.int32), (one + other).view(torch.int32)))
            self.assertGreaterEqual(len(told), 1)
            for begin, then in told:
                self.assertTrue(torch.equal(both[begin:], then), f"from {begin} on")

    def test_zeros_make_no_negative_zero(self):
        flat, memory, _, _ = made(Twice)
        for parameters in flat.kept_alive:
            parameters.zero_()
        # All but the last layer see zeros, and -0.0 times them is what they have.
        x = -torch.ones(4, 8)
        one = self.parts(flat, flat.kept_alive, memory, [x])
        both = self.parts(flat, flat.kept_alive, memory, [x, x])
        self.assertTrue(torch.equal(both.view(torch.int32), (one + one).view(torch.int32)))
        view = torch.full((2,), float("nan"))
        from dtrain._flat import _add

        for pair in ([None, torch.tensor([-0.0, 1.0])], [torch.tensor([-0.0, 1.0]), None]):
            _add(*pair, view)
            self.assertEqual(view.view(torch.int32)[0].item(), 0)
            self.assertEqual(view[1].item(), 1.0)

    def test_are_not_for_gradients_that_come_in_parts(self):
        flat, memory, _, _ = made(Twice)
        for to in (None, memory.data_ptr()):
            flat.begin(None, 4)
            flat.net(torch.ones(4, 8)).backward()
            if to is not None:
                flat.end()
                flat.begin(to, 4)
                flat.net(torch.ones(4, 8)).backward()
            with self.assertRaisesRegex(ValueError, "in two parts"):
                flat.net(torch.ones(4, 8)).backward()


if __name__ == "__main__":
    unittest.main()
