"""States on GPUs, where there are none: dtrain's driver is the stand-in of crates/fake-cuda, whose memory is that of the process, and PyTorch
computes on the CPU where that memory lies. All that dtrain does on a GPU it does there: memory, additions, updates, sums over NCCL."""

import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from harness import HERE, PROGRAMS, Run, has_turn, in_turn

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target"))
DRIVER, NCCL = (TARGET / "debug" / f"libfake_{name}.so" for name in ("cuda", "nccl"))
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
NVML = HERE.parent / "harness" / "fake_nvml.c"
#: Runs the words behind it where `/sys/class` is the folder that is named first.
OVER_CLASS = ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount --bind "$0" /sys/class && exec "$@"']


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
        if has_turn(7):
            ways += [["devices=cuda:0"], ["devices=cuda:0,1", "backend=nccl", "state=sharded"], ["devices=cuda:0,1", "offload=state"]]
        if has_turn(9):
            ways += [["devices=cuda:0,1", "backend=nccl"]]
            # Were it not the GPU that makes the updates, nobody would notice this.
            self.assertNotEqual(self.train("cnn", "devices=cuda:0", FAKE_CUDA_WRONG="adamw_f32").digest, on_cpu)
        for how in ways:
            self.assertEqual(self.train("cnn", *how).digest, on_cpu, how)

    @in_turn(11)
    def test_halves_averages_groups_tied_tables_and_optimizers_of_pytorch(self):
        works = (["gpt"], ["lstm"], ["mlp", "optimizer.kind=muon"], ["mlp", "precision=f16"], ["foreign", "precision=f16"], ["recomputed", "precision=bf16"])
        for kind, *settings in works:
            one = self.train(kind, *settings, "devices=cpu", "ranks=1").digest
            self.assertEqual(self.train(kind, *settings, "devices=cuda:0,1").digest, one, (kind, settings))

    @in_turn(13)
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

    @in_turn(15)
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

    def told_by_nvml(self):
        """There are two GPUs, and tests of them begin anew; the kernels are those of all tests."""
        library = Path(self.environment["DTRAIN_LIBRARY_PATH"]) / "libnvidia-ml.so.1"
        subprocess.run([COMPILER, "-x", "c", "-shared", "-fPIC", NVML, "-o", library], check=True)
        cache = Path(tempfile.mkdtemp(dir=self.place.name)) / "dtrain"
        kernels = Path(self.environment["XDG_CACHE_HOME"]) / "dtrain" / "kernels"
        kernels.mkdir(parents=True, exist_ok=True)
        cache.mkdir()
        (cache / "kernels").symlink_to(kernels)
        self.environment["XDG_CACHE_HOME"] = str(cache.parent)

    @in_turn(17)
    def test_auto_is_the_gpus_whose_test_has_passed_with_the_bits_of_the_cpu(self):
        on_cpu = self.train("mlp", "devices=cpu", "ranks=1").digest
        self.told_by_nvml()
        run = self.train("mlp")
        self.assertIn("2 ranks on cuda:0,1", run.words)
        self.assertIn("auto: 2 GPUs are here, and the test of them has passed (", run.words)
        self.assertIn("backend auto: NCCL", run.words)
        self.assertEqual(run.digest, on_cpu)
        # A PyTorch that reaches none of them.
        run = self.train("mlp", DTRAIN_TEST_STAND_IN_GPUS="")
        self.assertIn("on the CPU", run.words)
        self.assertRegex(run.words, "auto: one GPU is here, and PyTorch [^ ]+ (finds none that it can use|is a build for CPUs)")
        self.assertEqual(run.digest, on_cpu)

    @in_turn(19)
    def test_auto_asks_for_no_test_where_nothing_of_dtrain_runs_there_and_heeds_one_that_has_failed(self):
        on_cpu = self.train("mlp", "devices=cpu", "ranks=1").digest
        self.told_by_nvml()
        run = self.train("mlp", FAKE_CUDA_WRONG="adamw_f32")
        self.assertIn("auto: 2 GPUs are here, and the test of them has failed", run.words)
        self.assertIn("devices=all trains there all the same", run.words)
        self.assertEqual(run.digest, on_cpu)
        run = self.train("mlp", "offload=state", FAKE_CUDA_WRONG="adamw_f32")
        self.assertIn("2 ranks on cuda:0,1", run.words)
        self.assertIn("auto: 2 GPUs are here, and PyTorch alone computes there: the state is in the host's memory", run.words)
        self.assertEqual(run.digest, on_cpu)

    @in_turn(21)
    def test_what_does_not_repeat_there_is_told_with_the_way_to_the_cores(self):
        script = Path(self.place.name) / "noise.py"
        script.write_text(NOISE)
        for devices, has_way in (("cuda:0", True), ("cpu", False)):
            run = Run(tempfile.mkdtemp(dir=self.place.name), [script, "--json", f"devices={devices}"], self.environment).end()
            self.assertIn("did not give the same bits", run.words)
            self.assertEqual("devices=cpu trains on the cores" in run.words, has_way, run.words)


NOISE = """
import os, torch, dtrain

def loss(net, batch):
    noise = int.from_bytes(os.urandom(2), "little") / 65536
    return (net(batch[0]) * noise).sum(), len(batch[0])

dtrain.train(lambda: torch.nn.Linear(4, 2), data=(torch.ones(40, 4),), loss=loss, epochs=1)
"""


def lay(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class OnGpusOfAmd(unittest.TestCase):
    """PyTorch says that it is ROCm's, and computes on the CPU; two GPUs are made up, in the files of their driver."""

    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place, self.class_ = Path(place.name), Path(place.name) / "class"
        nodes = self.class_ / "kfd" / "kfd" / "topology" / "nodes"
        lay(nodes / "0" / "properties", "cpu_cores_count 64\nsimd_count 0\n")
        for node in (1, 2):
            lay(nodes / str(node) / "properties", f"simd_count 1216\ngfx_target_version 90402\nunique_id {node}\n")
        try:
            may_mount = subprocess.run([*OVER_CLASS, self.class_, "true"], capture_output=True).returncode == 0
        except OSError:
            may_mount = False
        if not may_mount:
            self.skipTest("this process may mount nothing over /sys/class")

    def run_of(self, *settings, **environment):
        folder = tempfile.mkdtemp(dir=self.place)
        # There is no library of NVIDIA's, and none is asked for.
        given = {"DTRAIN_TEST_STAND_IN_GPUS": "amd", "DTRAIN_LIBRARY_PATH": "/nowhere", "DTRAIN_LIBRARY_ONLY": "1", **environment}
        command = [PROGRAMS, "mlp", "--json", "epochs=1", *settings]
        return Run(folder, command, given, before=[*OVER_CLASS, str(self.class_)]).end()

    def train(self, *settings, **environment):
        run = self.run_of(*settings, **environment)
        self.assertEqual(run.code, 0, run.words)
        return run

    @in_turn(23)
    def test_pytorch_trains_there_with_the_state_in_the_hosts_memory_and_that_is_said(self):
        on_cpu = self.train("devices=cpu", "ranks=1").digest
        for devices in ("auto", "cuda:1,0"):
            run = self.train(f"devices={devices}")
            self.assertEqual(run.digest, on_cpu, run.words)
            self.assertIn("2 ranks on cuda:", run.words)
            self.assertIn("offload auto: the state is in the host's memory: these GPUs are AMD's", run.words)
            self.assertEqual("auto: 2 AMD GPUs are here, and PyTorch alone computes there" in run.words, devices == "auto")
        run = self.train("devices=all", HIP_VISIBLE_DEVICES="1")
        self.assertIn("1 rank on cuda:0", run.words)

    @in_turn(24)
    def test_what_they_lack_is_refused_in_a_sentence(self):
        refusals = [
            (["devices=all", "offload=none"], "dtrain's own kernels NVIDIA's"),
            (["devices=all", "backend=nccl"], "go through the host"),
            (["devices=cuda:2"], "there is no cuda:2: this host has 2 AMD GPUs"),
        ]
        for settings, words in refusals:
            refused = self.run_of(*settings)
            self.assertEqual(refused.code, 2, refused.words)
            self.assertIn(words, refused.words)
            self.assertIn("hint:", refused.words)
            self.assertNotIn("NVRTC", refused.words)
        # A PyTorch that is not ROCm's.
        refused = self.run_of("devices=all", DTRAIN_TEST_STAND_IN_GPUS="1")
        self.assertEqual(refused.code, 2, refused.words)
        self.assertIn("2 AMD GPUs are here, and this PyTorch is not ROCm's", refused.words)


if __name__ == "__main__":
    unittest.main()
