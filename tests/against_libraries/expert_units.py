"""FSDP2 over a tiny mixture whose experts lie on several GPUs, for real: what is gathered, copied, given back
and reduced, in order, as torchtitan sets it up.

Run as a process of its own, because it makes a process group, which is a fake one of ``GPUS``: prints rows of
[what, elements] of a second step for each case, and the elements of each shard, as JSON.
Source: torchtitan e347b1e5e models/llama4/infra/parallelize.py apply_fsdp.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

import torch
import torch.distributed as dist
import transformers
from mixture_trace import Mixture
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from planner.domain.model import MlpSpec

GPUS = 8
CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 48,
    "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32,
    "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 128, "tie_word_embeddings": False,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
Rows = list[tuple[str, int]]
CASES = {
    "along rows": (4, 2, False),
    "along experts": (8, 2, True),
    "unequal parts": (12, 4, False),
    "one process": (8, 8, True),
}
"""Experts of a layer, GPUs that divide them, and whether layers are checkpointed."""


def build(n_experts: int, experts: int, *, checkpoints: bool) -> Any:
    """The model over all GPUs, its experts over ``experts`` of them and the rest."""
    fields: dict[str, Any] = {**CONFIG, "num_experts": n_experts}
    config = transformers.AutoConfig.for_model(**fields)
    config.use_cache = False
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    sparse = init_device_mesh("cpu", (GPUS // experts, experts), mesh_dim_names=("efsdp", "ep"))
    mlp = MlpSpec(config.moe_intermediate_size, True, "silu", config.num_experts, config.num_experts_per_tok)
    for layer in model.model.layers:
        layer.mlp = Mixture(config.hidden_size, mlp, sparse["ep"])
        _divide(layer.mlp.experts, sparse["ep"])
    if checkpoints:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for number, layer in enumerate(model.model.layers):
            model.model.layers[number] = checkpoint_wrapper(layer)
    everyone = init_device_mesh("cpu", (GPUS,), mesh_dim_names=("fsdp",))
    _shard(model, everyone, sparse["efsdp"], along=Shard(1) if n_experts < GPUS else None)
    return model.train()


def _divide(experts: nn.Module, mesh: DeviceMesh) -> None:
    for name, own in list(experts.named_parameters()):
        experts.register_parameter(name, nn.Parameter(DTensor.from_local(own.data, mesh, [Shard(0)])))


def _shard(model: Any, everyone: DeviceMesh, fewer: DeviceMesh, along: Shard | None) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    layers = [*model.model.layers]
    fully_shard(model.model.embed_tokens, mesh=everyone, mp_policy=policy)
    for layer in layers:
        fully_shard(layer.mlp.experts, mesh=fewer, mp_policy=policy, shard_placement_fn=lambda _: along)
        fully_shard(layer, mesh=everyone, mp_policy=policy)
    ends = [model.model.norm, model.lm_head]
    fully_shard(ends, mesh=everyone, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=everyone, mp_policy=policy)
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
    order: list[list[Any]] = [
        [model.model.embed_tokens],
        *([each, each.mlp.experts] for each in layers),
        ends,
    ]
    order[1] = [layers[0]]
    for before, after in pairwise(order):
        before[0].set_modules_to_forward_prefetch(after)
    model.lm_head.set_modules_to_backward_prefetch([layers[-1]])
    for one, other in pairwise(layers):
        other.set_modules_to_backward_prefetch([one, one.mlp.experts])
    layers[0].set_modules_to_backward_prefetch([model.model.embed_tokens])


def rows(model: Any) -> Rows:
    """What the second step does."""
    ids = torch.zeros(1, 16, dtype=torch.long)
    model(input_ids=ids, labels=ids).loss.backward()
    for each in model.parameters():
        each.grad = None
    found: Rows = []
    with (
        _noted(groups.FSDPParamGroup, "wait_for_unshard", lambda group: _copied(found, group)),
        _noted(groups.FSDPParamGroup, "_to_sharded", lambda group: _given_back(found, group)),
        _noted(groups, "foreach_all_gather", lambda params, *_: found.append(("gather", _whole(params)))),
        _noted(groups, "foreach_reduce", lambda params, *_: found.append(("reduce", _whole(params)))),
    ):
        model(input_ids=ids, labels=ids).loss.backward()
    return found


def _whole(params: list[Any]) -> int:
    """Elements of whole parameters, with those that make parts equal."""
    return sum(each._sharded_param_data.numel() * each.mesh_info.shard_mesh_size for each in params)


def _copied(found: Rows, group: Any) -> None:
    if group._all_gather_result:
        found.append(("copy", _whole(group.fsdp_params)))


def _given_back(found: Rows, group: Any) -> None:
    if group.is_unsharded:
        found.append(("free", _whole(group.fsdp_params)))


def _noted(owner: Any, name: str, note: Callable[..., None]) -> Any:
    real = getattr(owner, name)

    def noted(*args: Any, **named: Any) -> Any:
        note(*args)
        return real(*args, **named)

    return mock.patch.object(owner, name, noted)


def main() -> None:
    """Each case by its name."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=GPUS)
    answer = {}
    for name, (n_experts, experts, checkpoints) in CASES.items():
        model = build(n_experts, experts, checkpoints=checkpoints)
        shards = sorted(each.to_local().numel() for each in model.parameters())
        answer[name] = {"rows": rows(model), "shards": shards}
    sys.stdout.write(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
