"""Process groups of which only the first rank is there: its partners are like it, and exchange nothing."""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, HashStore
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from measure.dry_run.guesses import Guesses

_NAME = "fake"
# By both names that torch 2.13 has for each.
_OF_FLAT_TENSORS = ("all_gather_single", "_allgather_base", "reduce_scatter_single", "_reduce_scatter_base")


def install(guesses: Guesses) -> None:
    """Groups of any backend are made of torch's own group without communication,
    in this process and for good.
    """

    def create(options: Any, _: Any) -> Any:
        return FakeProcessGroup._create_internal(options.group_rank, options.group_size)

    dist.Backend.register_backend(_NAME, create, extended_api=True, devices=["cpu", "cuda"])
    make: Any = distributed_c10d._new_process_group_helper

    def made(
        size: int, rank: int, ranks: Any, backend: Any, store: Any, name: Any, *_: Any, **given: Any
    ) -> Any:
        kept = {key: value for key, value in given.items() if key in ("timeout", "pg_tag", "group_desc")}
        group, prefix = make(size, rank, ranks, _NAME, store, name, **kept)
        if isinstance(group, dist.ProcessGroup):
            # What a program is told when it asks for the backend.
            known = distributed_c10d._world.pg_map
            known[group] = ("nccl" if backend in (None, "undefined") else backend, known[group][1])
        return group, prefix

    distributed_c10d._new_process_group_helper = made  # type: ignore[assignment]
    setattr(distributed_c10d, "rendezvous", _meet(guesses))  # noqa: B010 - types of torch do not allow it
    for module in (dist, distributed_c10d):
        module.is_nccl_available = lambda: True  # type: ignore[attr-defined]
    distributed_c10d._NCCL_AVAILABLE = True
    # Of GLOO alone, which torch asks by name (lightning 2.6 fabric/utilities/distributed.py).
    # Not in torch's types.
    setattr(dist.ProcessGroup, "monitored_barrier", lambda *_, **__: None)  # noqa: B010
    _flatten()
    _sum_gradients(guesses)


def _flatten() -> None:
    """NCCL counts elements, whatever the shapes are; torch's group without communication copies
    piece by piece and asks for equal shapes (FakeProcessGroup.hpp).
    """
    for name in _OF_FLAT_TENSORS:
        setattr(dist.ProcessGroup, name, _of_flat_tensors(getattr(dist.ProcessGroup, name)))


def _of_flat_tensors(run: Any) -> Any:
    def call(group: Any, output: torch.Tensor, source: torch.Tensor, *rest: Any) -> Any:
        return run(group, output.view(-1), source.view(-1), *rest)

    return call


def _sum_gradients(guesses: Guesses) -> None:
    """DDP waits for the tensor that a reduction gives back,
    which torch's group without communication has not.
    """
    made: Any = DistributedDataParallel._ddp_init_helper

    def make(model: Any, *args: Any, **kwargs: Any) -> None:
        made(model, *args, **kwargs)
        dist._register_comm_hook(model.reducer, None, _as_it_is)  # type: ignore[attr-defined]

    def refuse(*_: Any, **__: Any) -> NoReturn:
        guesses.refuse("changes what DDP sends, which is not followed", "register_comm_hook")
        raise NotImplementedError("a dry run cannot follow a hook that changes what DDP sends")

    DistributedDataParallel._ddp_init_helper = make  # type: ignore[method-assign,assignment]
    DistributedDataParallel.register_comm_hook = refuse  # type: ignore[method-assign]


def _as_it_is(_: Any, bucket: Any) -> Any:
    summed: Any = torch.futures.Future()
    summed.set_result(bucket.buffer())
    return summed


def n_ranks() -> int:
    """How many processes train together; 1 where the program made no group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _meet(guesses: Guesses) -> Any:
    """Where processes would meet: the others are taken to be there, and the report says so."""

    def meet(_: str, rank: int = -1, world_size: int = -1, **__: Any) -> Iterator[tuple[Any, int, int]]:
        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        rank = max(rank, 0)
        if size > 1:
            guesses.assume("other processes", f"like this one, rank {rank} of {size}", "torch.distributed")
        yield HashStore(), rank, size

    return meet
