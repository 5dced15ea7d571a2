"""Generators that are seeded before a micro-batch is read and computed. In a process of its own: tests share one, with its generators."""

import subprocess
import sys
import unittest

PROGRAM = """
import random
from unittest import mock

import numpy
import torch

from dtrain import _data

SEED = 0xFEDC_BA98_7654_3210


def drawn():
    return torch.rand(3).tolist(), random.random(), numpy.random.rand(), torch.nn.functional.dropout(torch.ones(9)).tolist()


torch.manual_seed(SEED >> 1)
random.seed(SEED)
numpy.random.seed(SEED & 0xFFFF_FFFF)
wanted = drawn()
for devices in (False, True):
    _data._has_devices.cache_clear()
    with mock.patch("torch.accelerator.is_available", return_value=devices):
        _data.seed_all(SEED)
        assert drawn() == wanted, f"other draws, devices {devices}"
        # Where there are devices, their generators are seeded too.
        with mock.patch("torch.manual_seed") as seeded:
            _data.seed_all(SEED)
        assert [call.args for call in seeded.mock_calls] == [(SEED >> 1,)] * devices, f"{seeded.mock_calls}, devices {devices}"
"""


class Seeding(unittest.TestCase):
    def test_draws_are_those_behind_what_each_library_calls_its_seed(self):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
