#!/usr/bin/env python3
"""The MLP of bench/torch_mlp.py under DDP, in gloo groups that PyTorch 2.15 forms anew (`torch.distributed._reconfigure`, private).

    gloo_reconfigure_mlp.py GROUP GROUPS BATCH STEPS [plain]      # one of the processes; it prints a line of JSON after each pass
    gloo_reconfigure_mlp.py store                                 # what they meet through, until it is killed

`MASTER_ADDR` and `MASTER_PORT` say where the store is. PyTorch leaves to the program who is in the next group, and who has the
newest state: both are decided here through the store. A step has GROUPS x BATCH samples, which whoever is there divides. One that
comes back is let in between two steps, and the state is broadcast to it. `plain` leaves out `alone`, which frees those that stand
in a call of the old group.
"""

import hashlib
import json
import os
import sys
import time
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch_mlp  # noqa: E402

ADDRESS, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
SILENT = 1.0  # seconds after which one that says nothing counts as dead


class Group:
    """The group of a process: who is in it, and how it came about."""

    def __init__(self, group, groups, plain):
        self.group, self.groups, self.plain, self.members, self.round = group, groups, plain, [], 0
        self.store = dist.TCPStore(ADDRESS, PORT, is_master=False)
        limit = timedelta(seconds=SILENT)
        dist.init_process_group("gloo", store=self.store, rank=group, world_size=groups, timeout=limit, enable_reconfigure=True)

    def alone(self):
        """Leaves for a group of its own: that closes the connections of the old one, so a call that another is in fails."""
        number = 1_000_000 + self.store.add("alone", 1)
        dist._reconfigure(number, [dist._get_reconfigure_handle()]).wait()

    def present(self, round_):
        return [group for group in range(self.groups) if self.store.check([f"{round_}/{group}"])]

    def meet(self, step, enough):
        """Decides with the others about the next round: who is in it, with the step and the handle of each."""
        round_, begun = self.round + 1, time.monotonic()
        self.store.set(f"{round_}/{self.group}", json.dumps([step, dist._get_reconfigure_handle()]))
        while not self.store.check([f"{round_}/members"]):
            present = self.present(round_)
            if enough(present) or (self.members and time.monotonic() - begun > SILENT):
                self.store.compare_set(f"{round_}/members", "", json.dumps(present))
            time.sleep(0.001)
        self.round, members = round_, json.loads(self.store.get(f"{round_}/members"))
        return members, [json.loads(self.store.get(f"{round_}/{group}")) for group in members]

    def regroup(self, step, enough):
        """Forms a group; gives the newest step of its members, the rank of one that has it, and whether another has not."""
        while True:
            members, told = self.meet(step, enough)
            if self.group not in members:
                self.knock()
                continue
            steps = [step for step, _ in told]
            try:
                dist._reconfigure(self.round, [handle for _, handle in told], timeout=timedelta(seconds=SILENT)).wait()
            except RuntimeError:
                # One died after it came: the others, whose calls fail, come to the next round too.
                self.members, enough = members, after_a_failure(members)
                continue
            self.members = members
            self.store.set("round", str(self.round))
            return max(steps), steps.index(max(steps)), min(steps) < max(steps)

    def knock(self):
        """Has nobody behind it that it could form a group with: asks to be in the next round of the others."""
        self.members, self.round = [], int(self.store.get("round"))
        self.store.set(f"{self.round + 1}/knock", str(self.group))

    def first(self):
        """The first group is of all; who comes later joins it."""
        if self.store.add(f"started/{self.group}", 1) > 1:
            self.knock()
            return lambda present: False
        return lambda present: len(present) == self.groups

    def invites(self, step):
        """The first lets others in behind a step, by a word that it puts down before the step's sum: after it all find the word."""
        if dist.get_rank() == 0 and self.store.check([f"{self.round + 1}/knock"]):
            self.store.set(f"{self.round + 1}/open", str(step))

    def opens(self, step):
        key = f"{self.round + 1}/open"
        return self.store.check([key]) and int(self.store.get(key)) <= step


def after_a_failure(members):
    """All but one are enough: which one died no error says. Of more dead at once the time limit tells."""
    return lambda present: len(set(present) & set(members)) >= max(1, len(members) - 1)


def with_another(members):
    return lambda present: set(present) > set(members)


@lru_cache(1)
def order(epoch):
    return torch.randperm(torch_mlp.SAMPLES, generator=torch.Generator().manual_seed(epoch))


def batches(step, batch, size):
    """The indices of a step, for each rank of a group of so many."""
    epoch, at = divmod(step, torch_mlp.SAMPLES // batch)
    return order(epoch)[at * batch : (at + 1) * batch].chunk(size)


class Trainer:
    def __init__(self, group, batch):
        torch.set_num_threads(1)
        torch.manual_seed(42)
        self.group, self.batch, self.step = group, batch, 0
        self.x, self.y = torch_mlp.data(torch_mlp.SAMPLES, 1)
        # DDP wants a group when it is made. It orders its buckets anew after the first pass: so that all have the same order, one
        # that comes later makes two passes alone before it joins.
        group.alone()
        self.net = torch_mlp.model()
        self.ddp = DistributedDataParallel(self.net)
        for _ in range(2):
            self.gradients(torch.arange(batch))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        torch.manual_seed(42)

    def gradients(self, indices):
        self.ddp.zero_grad()
        F.cross_entropy(self.ddp(self.x[indices]), self.y[indices]).backward()

    def join(self, enough):
        """Regroups; the same DDP goes on. True if the pass that failed here was made elsewhere, with the samples of this one."""
        newest, source, copied = self.group.regroup(self.step, enough)
        made = self.step < newest
        # Without this the first step divides by the size of the old group.
        self.ddp._update_process_group(dist.group.WORLD)
        if copied:
            state = [{"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}]
            dist.broadcast_object_list(state, group_src=source)
            if made:
                self.net.load_state_dict(state[0]["net"])
                self.optimizer.load_state_dict(state[0]["optimizer"])
        self.step = newest
        return made

    def recover(self, enough):
        """Regroups until it succeeds: another may die meanwhile."""
        while True:
            try:
                return self.join(enough)
            except RuntimeError:
                enough = self.leave()

    def leave(self):
        if not self.group.plain:
            self.group.alone()
        return after_a_failure(self.group.members)

    def train(self, steps):
        while self.step < steps:
            step, size = self.step + 1, dist.get_world_size()
            indices = batches(self.step, self.batch, size)[dist.get_rank()]
            told = {"step": step, "participants": size, "took_part": True, "samples": len(indices)}
            self.group.invites(step)
            try:
                self.gradients(indices)
                self.optimizer.step()
                self.step, made = step, True
            except RuntimeError as error:
                begun = time.monotonic()
                made = self.recover(self.leave())
                told.update(why=str(error)[:120], regrouped=time.monotonic() - begun)
            print(json.dumps({**told, "made": made, "time": time.monotonic()}), flush=True)
            if self.group.opens(self.step):
                self.recover(with_another(self.group.members))


def main():
    if sys.argv[1] == "store":
        store = dist.TCPStore(ADDRESS, PORT, is_master=True, wait_for_workers=False)
        while store:
            time.sleep(1)
    group, groups, batch, steps = map(int, sys.argv[1:5])
    group = Group(group, groups, "plain" in sys.argv[5:])
    trainer = Trainer(group, groups * batch)
    trainer.recover(group.first())
    trainer.train(steps)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in trainer.net.parameters()])
    print(json.dumps({"digest": hashlib.blake2b(flat.numpy().tobytes(), digest_size=16).hexdigest()}), flush=True)
    # One that ends first must not fail the last sum of the others.
    group.store.add("ended", 1)
    begun = time.monotonic()
    while group.store.add("ended", 0) < len(group.members) and time.monotonic() - begun < 10:
        time.sleep(0.01)
    os._exit(0)


if __name__ == "__main__":
    main()
