"""Trains a tiny random GPT-2 with one engine over one backend; rank 0 prints the losses.

    torchrun --nproc-per-node 2 program.py ENGINE BACKEND

ENGINE: accelerate, trainer, or zero1, zero2, zero3 of DeepSpeed.
"""

from __future__ import annotations

import json
import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

_STEPS = 6
_PER_RANK = 4  # sequences of a step
_LENGTH = 16
_VOCABULARY = 64


def model() -> torch.nn.Module:
    torch.manual_seed(5)
    config = GPT2Config(
        vocab_size=_VOCABULARY, n_positions=_LENGTH, n_embd=32, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )
    return GPT2LMHeadModel(config)


class Tokens(torch.utils.data.Dataset):
    """Each token is followed by the next number: that is soon learnt."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(6)
        count = _STEPS * _PER_RANK * int(dist.get_world_size())
        starts = torch.randint(_VOCABULARY, (count, 1), generator=generator)
        self.rows = (starts + torch.arange(_LENGTH)) % _VOCABULARY

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def with_accelerate() -> list[float]:
    """A loop of one's own: prepare, backward, clip, gather."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(Tokens(), batch_size=_PER_RANK)
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.01)
    trained, optimizer, loader = accelerator.prepare(trained, optimizer, loader)
    assert isinstance(trained, torch.nn.parallel.DistributedDataParallel), type(trained)
    losses = []
    for batch in loader:
        loss = trained(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
        batches = accelerator.gather_for_metrics(batch["input_ids"])
        assert batches.shape[0] == _PER_RANK * dist.get_world_size()
    accelerator.wait_for_everyone()
    return losses


def with_trainer() -> list[float]:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, use_cpu=True, per_device_train_batch_size=_PER_RANK,
            max_steps=_STEPS, learning_rate=0.01, logging_steps=1, save_strategy="no",
            report_to=[], disable_tqdm=True,
        )
        trainer = Trainer(model=model(), args=arguments, train_dataset=Tokens())
        trainer.train()
        assert isinstance(
            trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel
        ), type(trainer.model_wrapped)
        evaluated = trainer.evaluate(Tokens())["eval_loss"]
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == _STEPS, trainer.state.log_history
    return [*logged, evaluated]


def with_deepspeed(stage: int) -> list[float]:
    import deepspeed

    engine, *_ = deepspeed.initialize(
        model=model(),
        config={
            "train_micro_batch_size_per_gpu": _PER_RANK,
            "gradient_clipping": 1.0,
            # torch's own: DeepSpeed's is compiled first, a minute and a half.
            "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        },
    )
    losses = []
    data = Tokens()
    for step in range(_STEPS):
        first = (step * dist.get_world_size() + dist.get_rank()) * _PER_RANK
        rows = data.rows[first : first + _PER_RANK]
        loss = engine(input_ids=rows, labels=rows).loss
        engine.backward(loss)
        engine.step()
        dist.all_reduce(total := loss.detach().clone())
        losses.append(total.item() / dist.get_world_size())
    return losses


def main() -> None:
    engine, backend = sys.argv[1:]
    torch.set_num_threads(1)
    if engine.startswith("zero"):
        import deepspeed

        deepspeed.init_distributed(dist_backend=backend)
        losses = with_deepspeed(int(engine[-1]))
    else:
        # accelerate takes no name but "gloo" on the CPU, and any group that is there already.
        dist.init_process_group(backend)
        losses = with_trainer() if engine == "trainer" else with_accelerate()
    assert dist.get_backend() == backend, dist.get_backend()
    if dist.get_rank() == 0:
        print("losses", json.dumps(losses), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
