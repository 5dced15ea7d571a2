"""Every model in every world, each also with a rank killed: minutes, for who says `DTRAIN_TEST_ALL_WORLDS=1`."""

import importlib.util
import os
import secrets
import signal
import subprocess
import unittest

from harness import PROGRAMS, Run, train
from test_adapters import Examples
from test_training import InAFolder

ASKED = unittest.skipUnless(os.environ.get("DTRAIN_TEST_ALL_WORLDS"), "it wants DTRAIN_TEST_ALL_WORLDS=1, and minutes")
WORLDS = (1, 2, 3, 5)
LENGTH = ("epochs=30", "max_restarts=100")


@ASKED
class AllWorlds(InAFolder):
    def of(self, kind):
        digests = {}
        for ranks in WORLDS:
            digests[ranks, "calm"] = self.good(train(self.folder, kind, f"ranks={ranks}", *LENGTH)).digest
            run = Run(self.folder, [PROGRAMS, kind, "--json", f"ranks={ranks}", *LENGTH])
            run.until(lambda event: event["event"] == "step" and event["step"] == 20)
            os.kill(run.pids()[ranks // 2], signal.SIGKILL)
            run.until(lambda event: event["event"] == "fault")
            hurt = self.good(run.end())
            digests[ranks, "hurt"] = hurt.digest
            if ranks > 1:
                self.assertEqual(hurt.summary["lost_steps"], 0, f"{kind}, {ranks} ranks")
        self.assertEqual(len(set(digests.values())), 1, f"{kind}: {digests}")

    def test_an_mlp_with_dropout(self):
        self.of("mlp")

    def test_a_cnn_with_batch_norm(self):
        self.of("cnn")

    def test_an_lstm(self):
        self.of("lstm")

    def test_a_gpt(self):
        self.of("gpt")

    def test_a_model_that_pytorch_compiles_in_part(self):
        """The last micro-batch of an epoch is smaller, and so compiled for itself; no rank is taken for one that hangs meanwhile."""
        # Five ranks that compile at once, beside other work, take a while to begin.
        runs = [self.good(train(self.folder, "compiled", f"ranks={ranks}", "join_timeout=10m")) for ranks in WORLDS]
        self.assertEqual(len({run.digest for run in runs}), 1)
        self.assertEqual([run.of("fault") for run in runs], [[]] * len(WORLDS))

    def test_bfloat16(self):
        digests = {self.good(train(self.folder, "gpt", f"ranks={ranks}", "precision=bf16")).digest for ranks in WORLDS}
        self.assertEqual(len(digests), 1)


@ASKED
@unittest.skipUnless(all(map(importlib.util.find_spec, ("transformers", "tokenizers"))), "it wants transformers and tokenizers")
class AllWorldsOfALlama(Examples):
    def test_a_tiny_llama(self):
        digests = {}
        for ranks in WORLDS:
            digests[ranks, "calm"] = self.end(self.start("hugging_face_lm.py", f"ranks={ranks}"))
            run = self.start("hugging_face_lm.py", f"ranks={ranks}")
            run.until(lambda event: event["event"] == "step" and event["step"] == 10)
            os.kill(run.pids()[ranks // 2], signal.SIGKILL)
            run.until(lambda event: event["event"] == "fault")
            digests[ranks, "hurt"] = self.end(run)
        self.assertEqual(len(set(digests.values())), 1, digests)


@ASKED
class TwoHosts(InAFolder):
    """Two network namespaces with a cable between them."""

    ADDRESSES = ("10.77.31.1", "10.77.31.2")

    def ip(self, *words):
        return subprocess.run(["ip", *words], capture_output=True, text=True)

    def setUp(self):
        super().setUp()
        self.hosts = [f"dtrain-{os.getpid()}-{number}" for number in range(2)]
        for host in self.hosts:
            made = self.ip("netns", "add", host)
            if made.returncode:
                self.skipTest(f"no network namespaces: {made.stderr.strip()}")
            self.addCleanup(self.ip, "netns", "del", host)
        ends = [f"dt{os.getpid() % 100000}{end}" for end in "ab"]
        commands = [["link", "add", ends[0], "type", "veth", "peer", "name", ends[1]]]
        for host, end, address in zip(self.hosts, ends, self.ADDRESSES):
            commands.append(["link", "set", end, "netns", host])
            commands += [["-n", host, *words] for words in (["addr", "add", f"{address}/24", "dev", end], ["link", "set", end, "up"], ["link", "set", "lo", "up"])]
        for command in commands:
            done = self.ip(*command)
            if done.returncode:
                self.skipTest(f"no network namespaces: ip {' '.join(command)}: {done.stderr.strip()}")

    def test_have_the_bits_of_one_also_when_a_rank_is_killed(self):
        alone = self.good(train(self.folder, "cnn", "ranks=1", *LENGTH))
        token = {"DTRAIN_TOKEN": secrets.token_hex(32)}
        place = ["--master", f"{self.ADDRESSES[0]}:29777", "--nodes", "2", "ranks=2"]

        def on(rank, *more):
            before = ["ip", "netns", "exec", self.hosts[rank]]
            return Run(self.folder, [PROGRAMS, "cnn", "node", "--rank", str(rank), *place, *more], token, before)

        first, second = on(0, "--json", *LENGTH, "name=hosts"), on(1)
        first.until(lambda event: event["event"] == "step" and event["step"] == 20)
        os.kill(max(first.pids().items())[1], signal.SIGKILL)
        first.until(lambda event: event["event"] == "fault")
        ended, joined = self.good(first.end()), second.end()
        self.assertEqual(joined.code, 0, joined.words)
        self.assertEqual((ended.digest, ended.summary["ranks"], ended.summary["lost_steps"]), (alone.digest, 4, 0))


if __name__ == "__main__":
    unittest.main()
