"""torch.distributed.checkpoint over isthmus: saved, loaded, on another number of ranks, and saved
in a thread of its own while training goes on over the same group.

Method: a small model trains with FSDP2 and Adam; digests of whole parameters are compared.
"""

from __future__ import annotations

import hashlib
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

# Run on the ranks. What is imported late takes a second, and not every pool needs it.


class Training:
    """A model whose parameters and optimizer are in parts on the ranks."""

    def __init__(self, seed: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(33, 65), nn.Tanh(), nn.Linear(65, 17))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (self.model[0], self.model[2], self.model):
            fully_shard(layer, mesh=mesh)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.steps = 0

    def step(self) -> None:
        generator = torch.Generator().manual_seed(100 * dist.get_rank() + self.steps)
        self.model(torch.randn(4, 33, generator=generator)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def state(self) -> dict[str, object]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load(self, folder: str) -> None:
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.checkpoint.state_dict import set_state_dict

        state = self.state()
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def digest(self) -> str:
        """Of the parameters and of what Adam keeps."""
        sha = hashlib.sha256()
        for parameter in self.model.parameters():
            for part in (parameter, *self.optimizer.state[parameter].values()):
                whole = part.full_tensor() if hasattr(part, "full_tensor") else part
                sha.update(whole.detach().contiguous().numpy().tobytes())
        return sha.hexdigest()


def save(folder: str) -> str:
    import torch.distributed.checkpoint as checkpoint

    training = Training(1)
    for _ in range(2):
        training.step()
    checkpoint.save(training.state(), checkpoint_id=folder)
    return training.digest()


def load(folder: str) -> str:
    training = Training(2)
    training.load(folder)
    return training.digest()


def save_while_training(folder: str, saves: int, steps: int) -> None:
    """What is saved is the state of the call; the training is as without it, to the bit."""
    import torch.distributed.checkpoint as checkpoint

    # One step more: asked for the state of an optimizer that has none, torch lets it step.
    alone = Training(1)
    for _ in range(1 + saves * steps):
        alone.step()
    training = Training(1)
    training.step()
    saved = []
    for turn in range(saves):
        saved.append(training.digest())
        future = checkpoint.async_save(training.state(), checkpoint_id=f"{folder}/{turn}")
        # On one rank the thread comes first, on another the training.
        if dist.get_rank() == turn % dist.get_world_size():
            time.sleep(0.05)
        for _ in range(steps):
            training.step()
        future.result(60)
    assert training.digest() == alone.digest()
    for turn in range(saves):
        again = Training(2)
        again.load(f"{folder}/{turn}")
        assert again.digest() == saved[turn], turn


@pytest.mark.parametrize(("size", "later"), [(2, 4), (4, 2)])
def test_saved_on_some_ranks_and_loaded_on_others(pool, tmp_path, size, later):
    saved = pool(size).call(__file__, "save", str(tmp_path))
    loaded = pool(size).call(__file__, "load", str(tmp_path))
    loaded += pool(later).call(__file__, "load", str(tmp_path))
    assert len(set(saved + loaded)) == 1


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.long), 4])
def test_saved_while_training_goes_on(pool, tmp_path, size):
    pool(size).call(__file__, "save_while_training", str(tmp_path), 3, 25)


@pytest.mark.long
@pytest.mark.parametrize("nodes", ["", "aabb"])
def test_saved_often_while_training_goes_on(pool, tmp_path, nodes):
    pool(4, nodes).call(
        __file__, "save_while_training", str(tmp_path), 12, 25, limit_s=400
    )
