"""States on GPUs, where there are none: dtrain's driver is the stand-in of crates/fake-cuda, whose memory is that of the process, and PyTorch
computes on the CPU where that memory lies. All that dtrain does on a GPU it does there: memory, additions, updates, sums over NCCL."""

import os
import shutil
import signal
import tempfile
import unittest
from pathlib import Path

from harness import HERE, PROGRAMS, Run, has_turn, in_turn

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target"))
DRIVER, NCCL = (TARGET / "debug" / f"libfake_{name}.so" for name in ("cuda", "nccl"))
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


@unittest.skipUnless(DRIVER.exists() and NCCL.exists() and COMPILER, "there is no stand-in for GPUs: cargo builds it, a C++ compiler its kernels")
class OnGpus(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        libraries = Path(self.place.name) / "libraries"
        libraries.mkdir()
        for name, library in (("libcuda.so.1", DRIVER), ("libnvrtc.so.13", DRIVER), ("libnccl.so.2", NCCL)):
            (libraries / name).symlink_to(library.resolve())
        self.environment = {
            "DTRAIN_TEST_STAND_IN_GPUS": "1",
            "DTRAIN_LIBRARY_PATH": str(libraries),
            "DTRAIN_LIBRARY_ONLY": "1",
            "FAKE_NCCL_DRIVER": str(libraries / "libcuda.so.1"),
            # Its kernels are compiled once for all tests, those of the program too.
            "XDG_CACHE_HOME": str(TARGET / "tmp" / "cuda"),
        }

    def begin(self, kind, *settings, **environment):
        folder = tempfile.mkdtemp(dir=self.place.name)
        return Run(folder, [PROGRAMS, kind, "--json", "epochs=1", *settings], {**self.environment, **environment})

    def train(self, kind, *settings, **environment):
        run = self.begin(kind, *settings, **environment).end()
        self.assertEqual(run.code, 0, run.words)
        return run

    def test_a_state_on_gpus_has_the_bits_of_the_cpu_whatever_the_ranks_and_whatever_carries_the_gradients(self):
        on_cpu = self.train("cnn", "devices=cpu", "ranks=1").digest
        ways = [["devices=cuda:0,1", "ranks=3"]]
        if has_turn(5):
            ways += [["devices=cuda:0"], ["devices=cuda:0,1", "backend=nccl", "state=sharded"], ["devices=cuda:0,1", "offload=state"]]
        if has_turn(11):
            ways += [["devices=cuda:0,1", "backend=nccl"]]
            # Were it not the GPU that makes the updates, nobody would notice this.
            self.assertNotEqual(self.train("cnn", "devices=cuda:0", FAKE_CUDA_WRONG="adamw_f32").digest, on_cpu)
        for how in ways:
            self.assertEqual(self.train("cnn", *how).digest, on_cpu, how)

    @in_turn(2)
    def test_halves_averages_groups_tied_tables_and_optimizers_of_pytorch(self):
        works = (["gpt"], ["lstm"], ["mlp", "precision=f16"], ["foreign", "precision=f16"], ["recomputed", "precision=bf16"])
        for kind, *settings in works:
            one = self.train(kind, *settings, "devices=cpu", "ranks=1").digest
            self.assertEqual(self.train(kind, *settings, "devices=cuda:0,1").digest, one, (kind, settings))

    @in_turn(3)
    def test_a_rank_that_is_killed_costs_no_step_and_no_bit(self):
        whole = self.train("mlp", "epochs=6", "devices=cuda:0")
        for backend in ("host", "nccl"):
            run = self.begin("mlp", "epochs=6", "devices=cuda:0,1", f"backend={backend}")
            run.until(lambda event: event["event"] == "step" and event["step"] == 3)
            os.kill(run.pids()[1], signal.SIGKILL)
            run.until(lambda event: event["event"] == "recovery")
            hurt = run.end()
            self.assertEqual((hurt.code, hurt.digest), (0, whole.digest), hurt.words)
            self.assertEqual([event["step"] for event in hurt.of("step")], list(range(1, 61)))

    @in_turn(4)
    def test_where_a_state_cannot_be_on_a_gpu_it_is_with_the_host_and_that_is_said(self):
        (bare := Path(self.place.name) / "bare").mkdir()
        (bare / "libcuda.so.1").symlink_to(DRIVER.resolve())
        on_cpu = self.train("mlp", "devices=cpu", "ranks=1").digest
        run = self.train("mlp", "devices=cuda:0", DTRAIN_LIBRARY_PATH=str(bare))
        self.assertEqual(run.digest, on_cpu)
        self.assertIn("offload auto: the state is in the host's memory: NVRTC", run.words)
        refused = self.begin("mlp", "devices=cuda:0", "offload=none", DTRAIN_LIBRARY_PATH=str(bare)).end()
        self.assertEqual(refused.code, 2, refused.words)
        self.assertIn("NVRTC", refused.words)
        self.assertIn("hint:", refused.words)
        refused = self.begin("mlp", "devices=cuda:0,1", "offload=state", "backend=nccl").end()
        self.assertEqual(refused.code, 2, refused.words)
        self.assertIn("go through the host", refused.words)
        refused = self.begin("mlp", "devices=cuda:0", FAKE_CUDA_MEMORY="10000").end()
        self.assertEqual(refused.code, 1, refused.words)
        self.assertIn("offload=state keeps the state in the host's memory", refused.words)
        # There the driver is real to dtrain, and PyTorch has none.
        refused = self.begin("mlp", "devices=cuda:0", DTRAIN_TEST_STAND_IN_GPUS="").end()
        self.assertEqual(refused.code, 1, refused.words)
        self.assertIn("cannot use cuda:0: it is a build for CPUs, or does not suit the driver", refused.words)
        refused = self.begin("mlp", "devices=cuda:0", "offload=none", "optimizer.kind=muon").end()
        self.assertEqual(refused.code, 2, refused.words)
        self.assertIn("offload=state", refused.words)


if __name__ == "__main__":
    unittest.main()
