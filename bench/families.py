#!/usr/bin/env python3
"""How fast residual networks, vision transformers, LSTMs and Llamas train: dtrain beside PyTorch eager, in turn, a core for each rank.

ResNet-18 with a stem for small images and ViT-tiny of patches of 4 on batches of 32 images of 3 x 32 x 32 (the shape of CIFAR), an LSTM of two
layers of 128 on 32 windows of nine channels and 128 places, a Llama of four blocks of 192, six heads and two of keys on 32 texts of 128 tokens.
PyTorch trains torchvision's models, its own `nn.LSTM` and the Llama of Hugging Face's transformers. Of each run the median of the steps
after the sixth counts. With `--ranks 2` PyTorch's are two processes under DistributedDataParallel over gloo, and each rank has 32 samples.

    cargo build --release
    python3 bench/families.py --python .venv/bin/python          # one with torch, torchvision, transformers and numpy
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile

BATCH, STEPS, WARM = 32, 24, 6
ARRAY = "data.kind=npy data.inputs=x.npy data.targets=y.npy data.val_split=0 data.normalize=none"
TOKENS = "data.kind=tokens data.path=ids.bin data.context=128 data.vocabulary=256 data.val_split=0"
FAMILIES = {
    "resnet": (f"{ARRAY} model.kind=resnet", "3,32,32"),
    "vit": (f"{ARRAY} model.kind=vit model.patch=4", "3,32,32"),
    "lstm": (f"{ARRAY} model.kind=lstm model.layers=2", "9,128"),
    "llama": (f"{TOKENS} model.kind=llama model.width=192 model.heads=6 model.kv_heads=2 model.feed_forward=512", "129"),
}

ARRAYS = """
import sys, numpy
shape = [int(side) for side in sys.argv[1].split(",")]
random = numpy.random.default_rng(0)
numpy.save("x.npy", random.standard_normal((256, *shape), dtype=numpy.float32))
numpy.save("y.npy", (numpy.arange(256) % 10).astype(numpy.int64))
random.integers(0, 256, 256 * 128 + 1).astype(numpy.uint16).tofile("ids.bin")
"""

PEER = """
import os, statistics, sys, time, numpy, torch, torchvision
torch.set_num_threads(1)
kind, batch, steps, warm = sys.argv[1], *map(int, sys.argv[2:5])
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

class Lstm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = torch.nn.LSTM(9, 128, 2, batch_first=True), torch.nn.Linear(128, 10)
    def forward(self, x):
        return self.fc(self.lstm(x.transpose(1, 2))[0][:, -1])

if kind == "resnet":
    net = torchvision.models.resnet18(num_classes=10)
    net.conv1, net.maxpool = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.Identity()
elif kind == "llama":
    from transformers import LlamaConfig, LlamaForCausalLM
    net = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=6,
                                       num_key_value_heads=2, rms_norm_eps=1e-5, use_cache=False))
elif kind == "vit":
    net = torchvision.models.VisionTransformer(
        image_size=32, patch_size=4, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=10)
else:
    net = Lstm()
if ranks > 1:
    torch.distributed.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
if kind == "llama":
    ids = torch.from_numpy(numpy.fromfile("ids.bin", dtype=numpy.uint16).astype(numpy.int64))
    inputs, targets = ids[:-1].view(-1, 128), ids[1:].view(-1, 128)
else:
    inputs, targets = torch.from_numpy(numpy.load("x.npy")), torch.from_numpy(numpy.load("y.npy"))
times = []
def loss(x, y):
    outputs = net(x)
    outputs = outputs.logits.flatten(0, 1) if kind == "llama" else outputs
    return torch.nn.functional.cross_entropy(outputs, y.flatten())
for step in range(steps):
    begun = time.perf_counter()
    first = (step * ranks + rank) * batch % len(inputs)
    optimizer.zero_grad()
    loss(inputs[first:first + batch], targets[first:first + batch]).backward()
    optimizer.step()
    times.append(time.perf_counter() - begun)
print(ranks * batch / statistics.median(times[warm:]))
"""


def theirs(python, folder, name, ranks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    command = [python, "-c", PEER, name, *map(str, (BATCH, STEPS, WARM))]
    processes = [
        subprocess.Popen(command, cwd=folder, env={**os.environ, **world, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    told = [float(process.communicate()[0]) for process in processes]
    return statistics.mean(told)


def ours(binary, folder, model, ranks):
    how = f"epochs=none steps={STEPS} global_batch={ranks * BATCH} micro_batch={BATCH} ranks={ranks} threads=1 schedule.warmup=none"
    kept = f"checkpoint.every=none checkpoint.best=none run_dir={folder}/run"
    run = subprocess.run(
        [binary, "train", *model.split(), *how.split(), *kept.split(), "--json", "--quiet"],
        cwd=folder, check=True, capture_output=True, text=True)
    subprocess.run(["rm", "-r", f"{folder}/run"], check=True)
    events = [json.loads(line) for line in run.stdout.splitlines()]
    times = [event["time"] for event in events if event["event"] == "step"]
    return ranks * BATCH / statistics.median(b - a for a, b in zip(times[WARM - 1:], times[WARM:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python with torch, torchvision, transformers and numpy")
    parser.add_argument("--binary", default="target/release/dtrain")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--only", choices=FAMILIES, help="one family alone")
    options = parser.parse_args()
    binary = os.path.abspath(options.binary)
    python = os.path.abspath(options.python)
    for name, (model, shape) in FAMILIES.items():
        if options.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([python, "-c", ARRAYS, shape], cwd=folder, check=True)
            pairs = []
            for _ in range(options.rounds):
                peer = theirs(python, folder, name, options.ranks)
                pairs.append((ours(binary, folder, model, options.ranks), peer))
            told = [f"{statistics.median(of):.1f} [{min(of):.1f}-{max(of):.1f}]" for of in zip(*pairs)]
            ratios = [a / b for a, b in pairs]
            print(f"{name:8} dtrain {told[0]} samples/s, PyTorch {told[1]}; "
                  f"ratio of a pair {statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]", flush=True)


if __name__ == "__main__":
    main()
