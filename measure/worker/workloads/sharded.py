"""Engines that run on several ranks: DDP, DeepSpeed's ZeRO and FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from measure.recipe.adapters import DTYPES
from measure.recipe.engine_configs import deepspeed_config, fsdp_config, zero_stage
from measure.recipe.modules import find_layer_list
from measure.recipe.optimizers import make_optimizer
from measure.worker.workloads.engine import EngineMismatchError, PlainEngine
from measure.worker.workloads.task import Task
from planner.domain.scenario import Scenario


def join_ranks(device: torch.device, scenario: Scenario) -> None:
    """Make the process group that the engine of ``scenario`` talks through."""
    backend = "gloo" if device.type == "cpu" else "nccl"
    if device.type == "cuda" and scenario.recipe.uses_fsdp and scenario.recipe.offloads_params:
        # Norms of offloaded gradients are summed over ranks on the CPU;
        # accelerate 1.15 state.py takes the same two.
        backend = "cuda:nccl,cpu:gloo"
    if scenario.recipe.uses_deepspeed:
        import deepspeed  # type: ignore[import-untyped]

        if device.type == "cpu":
            # Collectives of its own in shared memory,
            # which it would compile for a minute on first use; gloo's do the same.
            # Source: DeepSpeed 0.19 comm/torch.py build_shm_op, the only reader of this table.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(backend)
    else:
        dist.init_process_group(backend)


def agreed(finished: bool, device: torch.device) -> bool:
    """What rank 0 decides, so that no rank waits for a step that another does not take."""
    decision = torch.tensor([int(finished)], device=device)
    dist.broadcast(decision, src=0)
    return bool(decision.item())


class _Ranks:
    """What every engine with several ranks does alike."""

    _ranks_device: torch.device

    def agree(self, finished: bool) -> bool:
        """Rank 0 decides."""
        return agreed(finished, self._ranks_device)


class DdpEngine(_Ranks, PlainEngine):
    """PyTorch's distributed data parallel: everything on each rank,
    gradients averaged in the backward pass.
    """

    def __init__(self, model: Any, task: Task) -> None:
        super().__init__(model, task)
        self._ranks_device = task.probe.device
        devices = [task.probe.device] if task.probe.device.type == "cuda" else None
        self._ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=devices)
        self._reduces = True

    @property
    def running(self) -> Any:
        """The wrapper."""
        return self._ddp

    def forward(self, inputs: dict[str, torch.Tensor], *, last: bool) -> torch.Tensor:
        """Loss of one micro-batch; gradients are exchanged after the last one only."""
        self._ddp.require_backward_grad_sync = last
        return super().forward(inputs, last=last)

    def _loss(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = self._ddp(**inputs).loss
        return loss


class FsdpEngine(_Ranks, PlainEngine):
    """FSDP2 (``fully_shard``): each decoder layer is a group, the rest another;
    trained weights in fp32 as in accelerate.
    """

    def __init__(self, model: Any, task: Task) -> None:
        from torch.distributed.fsdp import (
            CPUOffloadPolicy,
            FSDPModule,
            MixedPrecisionPolicy,
            OffloadPolicy,
            fully_shard,
        )

        recipe = task.scenario.recipe
        self._ranks_device = task.probe.device
        self._config = fsdp_config(task.scenario)
        dtype = DTYPES[recipe.numerics.compute_dtype] if recipe.numerics.mixed else None
        if recipe.numerics.mixed:
            # Source: accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model: trained low-precision weights
            # become fp32.  With a 4-bit base it leaves them as they are.
            kbit = recipe.numerics.quantization != "none"
            for tensor in model.parameters():
                if tensor.requires_grad and not kbit:
                    tensor.data = tensor.data.to(torch.float32)
        settings: dict[str, Any] = {
            "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype),
            "reshard_after_forward": self._config["reshard_after_forward"],
            "offload_policy": CPUOffloadPolicy() if recipe.offloads_params else OffloadPolicy(),
            "ignored_params": _whole_parameters(model),
        }
        if recipe.sharding.scope == "node":
            hardware = task.scenario.hardware
            # Copied along the first dimension, divided along the second.
            shape, names = (hardware.nodes, hardware.gpus_per_node), ("copies", "shards")
            settings["mesh"] = init_device_mesh(self._ranks_device.type, shape, mesh_dim_names=names)
        for layer in model.get_submodule(find_layer_list(model, model.config)):
            fully_shard(layer, **settings)
        fully_shard(model, **settings)
        if not isinstance(model, FSDPModule):
            raise EngineMismatchError(f"fully_shard left a {type(model).__qualname__} that is no FSDPModule")
        super().__init__(model, task)

    @property
    def configs(self) -> Mapping[str, Any]:
        """How it was applied."""
        return {"fsdp": self._config}

    def save(self, folder: Path) -> None:
        """The shards of this rank."""
        torch.save(self._model.state_dict(), folder / f"shard-{dist.get_rank()}.pt")


def _whole_parameters(model: Any) -> set[torch.nn.Parameter]:
    """4-bit weights whose bytes are kept as integers stay whole on each rank: accelerate 1.15
    utils/fsdp_utils.py says why.
    """
    return {
        tensor
        for tensor in model.parameters()
        if type(tensor).__name__ == "Params4bit" and not tensor.is_floating_point()
    }


class DeepspeedEngine(_Ranks):
    """ZeRO by ``deepspeed.initialize``, which keeps the 16-bit weights and their fp32 masters itself."""

    def __init__(self, model: Any, task: Task) -> None:
        import deepspeed

        self._ranks_device = task.probe.device
        self._on_cpu = task.probe.device.type == "cpu"
        self._config = deepspeed_config(
            task.scenario, on_cpu=self._on_cpu, nvme_path=task.case.options.nvme_path
        )
        trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
        # DeepSpeed fills in and changes what it is given.
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=model,
            model_parameters=trained,
            optimizer=self._make_optimizer(model, task),
            config=dict(self._config),
        )
        self._check(zero_stage(task.scenario))
        self._last = False

    def _make_optimizer(self, model: Any, task: Task) -> Any:
        recipe = task.scenario.recipe
        if recipe.offloads_optimizer and not self._on_cpu:
            from deepspeed.ops.adam import DeepSpeedCPUAdam  # type: ignore[import-untyped]

            return DeepSpeedCPUAdam(
                [tensor for tensor in model.parameters() if tensor.requires_grad], lr=1e-4
            )
        return make_optimizer(model, recipe)

    def _check(self, stage: int) -> None:
        kind = type(self._engine).__qualname__
        if kind != "DeepSpeedEngine" or self._engine.zero_optimization_stage() != stage:
            raise EngineMismatchError(f"{kind} runs with another stage than ZeRO-{stage}")
        wanted = "DeepSpeedZeroOptimizer_Stage3" if stage == 3 else "DeepSpeedZeroOptimizer"
        if type(self._optimizer).__qualname__ != wanted:
            raise EngineMismatchError(f"{type(self._optimizer).__qualname__} steps instead of {wanted}")

    @property
    def running(self) -> Any:
        """DeepSpeed's engine."""
        return self._engine

    @property
    def module(self) -> torch.nn.Module:
        """The engine, which is a module."""
        return self._engine  # type: ignore[no-any-return]

    @property
    def configs(self) -> Mapping[str, Any]:
        """The configuration file, and the optimizer that wraps the other one."""
        return {"deepspeed": self._config, "optimizer_class": type(self._optimizer).__qualname__}

    def forward(self, inputs: dict[str, torch.Tensor], *, last: bool) -> torch.Tensor:
        """Loss of one micro-batch; the engine divides it by their number."""
        self._last = last
        loss: torch.Tensor = self._engine(**inputs).loss
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of one micro-batch, reduced as they come."""
        self._engine.backward(loss)
        if not self._last:
            # Counts the micro-step; nothing is updated.
            self._engine.step()

    def step(self) -> None:
        """Clip, update, and drop the gradients."""
        self._engine.step()

    def save(self, folder: Path) -> None:
        """A checkpoint of all ranks' parts."""
        self._engine.save_checkpoint(str(folder))
