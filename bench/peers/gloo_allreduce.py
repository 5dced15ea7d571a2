"""PyTorch's all_reduce over gloo between processes of this host; one line a size.

    python gloo_allreduce.py RANKS SIZE[,SIZE...] [SAMPLES]

Sizes are in bytes. Each rank rewrites its buffer before each operation, as a backward pass does, and only the operation is
timed: a barrier stands before the clock and one behind it, so that where ranks share a core nobody's filling or checking is
taken for the time of another one, and the slowest rank counts. Every element of every result is checked.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, world, port, sizes, samples):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world),
                      GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for size in sizes:
        x = torch.empty(size // 4)
        warm_up, repeats = 2, samples or max(5, min(100, (64 << 20) // size))
        times = []
        for repeat in range(warm_up + repeats):
            x.fill_(rank + repeat)
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(x)
            times.append(time.perf_counter() - start)
            dist.barrier()
            assert bool((x == world * (world - 1) // 2 + world * repeat).all()), f"wrong sum of {size} bytes"
        slowest = torch.tensor(times[warm_up:], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if rank == 0:
            print(f"gloo ranks {world} bytes {size} median_us {slowest.median().item() * 1e6:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1])
    sizes = [int(size) for size in sys.argv[2].split(",")]
    samples = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    mp.spawn(worker, (ranks, 20000 + os.getpid() % 20000, sizes, samples), nprocs=ranks)
