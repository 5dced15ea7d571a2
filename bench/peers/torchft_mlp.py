#!/usr/bin/env python3
"""The MLP of bench/torch_mlp.py as one replica group of torchft, of one process: `torchft_mlp.py GROUP GROUPS BATCH STEPS`.

After each pass it prints a line of JSON; `TORCHFT_LIGHTHOUSE` says where the lighthouse is.
"""

import hashlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.distributed import TCPStore
from torchft import DistributedSampler, Manager, Optimizer, ProcessGroupGloo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch_mlp  # noqa: E402

GROUP, GROUPS, BATCH, STEPS = map(int, sys.argv[1:5])


def batches(x, y):
    sampler = DistributedSampler(x, replica_rank=GROUP, num_replica_groups=GROUPS, group_rank=0, num_replicas=1, shuffle=True)
    for epoch in range(1_000_000):
        sampler.set_epoch(epoch)
        indices = torch.tensor(list(sampler))
        yield from ((x[part], y[part]) for part in indices.split(BATCH) if len(part) == BATCH)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(42)
    net = torch_mlp.model()
    inner = torch.optim.AdamW(net.parameters(), lr=1e-3)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        state_dict=lambda: {"net": net.state_dict(), "optimizer": inner.state_dict()},
        load_state_dict=lambda state: (net.load_state_dict(state["net"]), inner.load_state_dict(state["optimizer"])),
        min_replica_size=1, rank=0, world_size=1, store_addr="localhost", store_port=store.port, replica_id=f"group{GROUP}_",
        timeout=timedelta(seconds=20), hostname="localhost",
    )  # fmt: skip
    optimizer = Optimizer(manager, inner)
    for x, y in batches(*torch_mlp.data(torch_mlp.SAMPLES, 1)):
        before = manager.current_step()
        if before >= STEPS:
            break
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        # One sum for all gradients. The DistributedDataParallel of torchft 0.2.0 ends a survivor by an assertion when a sum fails.
        gradients = [parameter.grad for parameter in net.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        manager.allreduce(flat).wait()
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(part.view_as(gradient))
        optimizer.step()
        step = manager.current_step()
        told = {"step": step, "participants": manager.num_participants(), "took_part": manager.is_participating()}
        print(json.dumps({**told, "made": step > before, "time": time.monotonic()}), flush=True)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
    print(json.dumps({"digest": hashlib.blake2b(flat.numpy().tobytes(), digest_size=16).hexdigest()}), flush=True)
    # Its threads would go on to say that it is there, and the others wait for it.
    os._exit(0)


if __name__ == "__main__":
    main()
