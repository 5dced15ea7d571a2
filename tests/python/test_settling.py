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


if __name__ == "__main__":
    unittest.main()
