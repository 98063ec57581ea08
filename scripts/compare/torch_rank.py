# SPDX-License-Identifier: Apache-2.0
"""Trains one rank of a cell in PyTorch: torch_rank.py CELL FORM; `compare.py training` starts it.

It prints the seconds and the losses of its steps as JSON. The launcher's variables have its rank.
"""

import json
import pathlib
import sys
import time

sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)
import torch  # noqa: E402

from compare.models import BATCHES, draw_network  # noqa: E402
from compare.processes import launched_rank  # noqa: E402
from compare.training import LOSSES, parse_cells  # noqa: E402


def train(cell, form, rank):
    """Returns seconds and losses of the steps of a rank."""
    torch.set_num_threads(cell.place.threads)
    pure, autocast = "pure" in form, "autocast" in form
    dtype = torch.bfloat16 if pure else torch.float32
    network = draw_network(cell.model).to(memory_format=torch.channels_last)
    master = [weight.detach().clone() for weight in network.parameters()] if pure else []
    network = network.to(dtype)
    weights = list(network.parameters())
    for target in master:
        target.grad = torch.zeros_like(target)
    optimizer = cell.model.optimizer(torch, master or weights)
    batches = cell.model.batches(torch, cell.place.ranks, rank, dtype)
    forward = network
    if cell.place.ranks > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=cell.place.ranks)
        forward = torch.nn.parallel.DistributedDataParallel(forward)
    if "compile" in form:
        forward = torch.compile(forward)
    seconds, losses = [], []
    for step in range(cell.steps):
        x, y = batches[step % BATCHES]
        start = time.perf_counter()
        for weight in weights:
            weight.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = torch.nn.functional.cross_entropy(forward(x).float().flatten(0, -2), y.flatten())
        loss.backward()
        if pure:
            with torch.no_grad():
                gradients = [weight.grad for weight in weights]
                torch._foreach_copy_([target.grad for target in master], gradients)
        optimizer.step()
        if pure:
            with torch.no_grad():
                torch._foreach_copy_(weights, master)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    if cell.place.ranks > 1:
        total = torch.tensor(losses)
        torch.distributed.all_reduce(total)
        losses = (total / cell.place.ranks).tolist()
        torch.distributed.destroy_process_group()
    return {"seconds": seconds, "losses": losses[:LOSSES]}


if __name__ == "__main__":
    [cell] = parse_cells(sys.argv[1])
    print(json.dumps(train(cell, sys.argv[2], launched_rank())))
