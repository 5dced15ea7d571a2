"""Loops of one's own: the same promises."""

import os
import signal
import unittest

from harness import Run, in_turn
from test_training import SCRIPT, InAFolder

LOOP = """
import torch, torch.nn.functional as F, dtrain
from whole import model, X, Y
if __name__ == "__main__":
    made = 0
    for step in dtrain.steps(model, (X, Y), epochs=EPOCHS, global_batch=16, micro_batch=8, settings={"checkpoint.every": "none"}):
        for micro in step:
            x, y = micro.batch
            BODY
        made += step.commit()
"""
BACKWARD = 'step.backward(F.cross_entropy(step.net(x), y, reduction="sum"), len(y))'


class Loops(InAFolder):
    def loop(self, epochs, body, *settings):
        (self.folder / "loop.py").write_text(LOOP.replace("EPOCHS", str(epochs)).replace("BODY", body))
        return Run(self.folder, [self.folder / "loop.py", "--json", *settings])

    def setUp(self):
        super().setUp()
        (self.folder / "whole.py").write_text(SCRIPT.format(""))

    @in_turn(3)
    def test_a_loop_has_the_bits_of_the_function_also_after_a_kill(self):
        whole = self.good(Run(self.folder, [self.folder / "whole.py", "--json", "ranks=1", "epochs=200"]).end())
        run = self.loop(200, BACKWARD, "ranks=2")
        run.until(lambda event: event["event"] == "step" and event["step"] == 60)
        os.kill(run.pids()[0], signal.SIGKILL)
        ended = self.good(run.end())
        self.assertEqual((ended.digest, ended.summary["lost_steps"]), (whole.digest, 0))

    @in_turn(5)
    def test_what_a_loop_forgets_is_said_once(self):
        for body, told in [("pass", "a micro-batch of the step had no step.backward()"), (f"{BACKWARD}; {BACKWARD}", "called once"), ("1 / 0", "ZeroDivisionError")]:
            with self.subTest(told):
                ended = self.loop(2, body, "ranks=2").end()
                self.assertEqual(ended.code, 1, ended.words)
                self.assertIn(told, ended.words)
                self.assertLessEqual(ended.words.count("Traceback"), 1, ended.words)


if __name__ == "__main__":
    unittest.main()
