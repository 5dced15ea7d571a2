"""torchvision's networks begin a run, and a trained one goes back: the same numbers on both sides."""

import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch

try:
    import torchvision
except ImportError:
    torchvision = None

from dtrain import _checkpoints

#: Samples: one step sees all of them at once.
SAMPLES = 24
#: The least that a learning rate can be: no parameter moves.
STILL = f"steps=1 global_batch={SAMPLES} micro_batch={SAMPLES} optimizer.lr=1e-30 optimizer.weight_decay=0 schedule.warmup=none"


def command(folder, words):
    return subprocess.run(["dtrain", *words.split()], cwd=folder, check=True, capture_output=True, text=True)


@unittest.skipIf(torchvision is None, "there is no torchvision")
class Torchvision(unittest.TestCase):
    def compared(self, net, classes, side, model):
        """What torchvision's network says after one look at all samples, and what dtrain says that began with it."""
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            images = torch.randn(SAMPLES, 3, side, side, generator=torch.Generator().manual_seed(3))
            np.save(folder / "x.npy", images.numpy())
            np.save(folder / "y.npy", np.arange(SAMPLES, dtype=np.int64) % classes)
            _checkpoints.write(folder / "first.safetensors", net.state_dict())
            data = f"data.kind=npy data.inputs=x.npy data.targets=y.npy data.val_split=0 data.normalize=none data.classes={classes}"
            command(folder, f"train {data} {model} model.init_from=first.safetensors {STILL} checkpoint.best=none name=it --quiet")
            command(folder, "predict it x.npy -o told.npy")
            command(folder, "export it --to torch -o back")
            net.train()
            net(images)  # Batch norms look at the samples as they did in the run's one step.
            net.eval()
            with torch.no_grad():
                wanted = torch.log_softmax(net(images), 1)
                told = torch.from_numpy(np.load(folder / "told.npy")).log()
            _, back = _checkpoints.read(folder / "back" / "model.safetensors")
            return wanted, told, back

    def test_its_resnet_18_gives_the_same_logits_here_and_back(self):
        torch.manual_seed(5)
        net = torchvision.models.resnet18(num_classes=7)
        wanted, told, back = self.compared(net, 7, 64, "model.kind=resnet model.stem=large")
        self.assertLess((wanted - told).abs().max().item(), 1e-4)
        again = torchvision.models.resnet18(num_classes=7)
        # What stands around the network in the folder is no part of it.
        back = {name: tensor for name, tensor in back.items() if name not in ("mean", "factor")}
        missing, unexpected = again.load_state_dict(back, strict=False)
        self.assertEqual([name for name in missing if not name.endswith("num_batches_tracked")], [])
        self.assertEqual(unexpected, [])
        for name, tensor in again.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                torch.testing.assert_close(tensor, net.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)

    def test_its_vision_transformer_gives_the_same_logits_here(self):
        torch.manual_seed(5)
        net = torchvision.models.VisionTransformer(
            image_size=32, patch_size=8, num_layers=2, num_heads=3, hidden_dim=48, mlp_dim=192, num_classes=7
        )
        torch.nn.init.normal_(net.heads.head.weight, std=0.5)
        wanted, told, _ = self.compared(
            net, 7, 32, "model.kind=vit model.patch=8 model.layers=2 model.heads=3 model.width=48"
        )
        self.assertLess((wanted - told).abs().max().item(), 1e-4)
