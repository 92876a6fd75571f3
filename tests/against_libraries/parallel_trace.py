"""The dry run of a model that is divided over GPUs:
DTensors of torch on fake tensors and a fake process group.

Tensor parallelism is that of Transformers, with its plan for the model;
the first process of the group is recorded.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from measure.dry_run.libraries.flex_attention import _attention as flex_attention
from measure.trace.build import build_on_meta, make_config
from measure.trace.cuda.sdpa import KERNEL_WORKSPACES, cublas_workspace_bytes
from measure.trace.cuda.shims import Situation, shims
from measure.trace.labels import to_events
from measure.trace.tracer import Recorder
from measure.trace.trainer_step import Inputs, run_step
from planner.allocator.events import AllocEvent
from planner.domain.scenario import Scenario


class LocalRecorder(Recorder):
    """Sees what DTensors do to their own part of a tensor;
    waiting for a collective gives its result and no new tensor.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor | AsyncCollectiveTensor) for each in types):
            return NotImplemented
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]
        if (kwargs or {}).get("device") == torch.device("meta"):
            return func(*args, **kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def block_of(self, tensor: torch.Tensor) -> Any:
        """The block behind the part of a tensor that lies here."""
        return super().block_of(tensor._local_tensor if isinstance(tensor, DTensor) else tensor)


@contextmanager
def group_of(size: int, rank: int = 0) -> Iterator[DeviceMesh]:
    """A mesh of ``size`` processes that send nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    finally:
        dist.destroy_process_group()


def trace_divided(scenario: Scenario, tensor: int = 1) -> list[AllocEvent]:
    """Events of one step of one of ``tensor`` GPUs that share a batch."""
    with ExitStack() as stack:
        mesh = stack.enter_context(group_of(tensor))
        built = build_on_meta(scenario, make_config(scenario))
        _divide(built.model, mesh, tensor, by_tokens=scenario.stack.model_parallel == "tokens")
        products = cublas_workspace_bytes(scenario.hardware.gpu.compute_capability)
        recorder = LocalRecorder(KERNEL_WORKSPACES, product_workspace_bytes=products)
        batch = scenario.recipe.batch
        situation = Situation(batch.is_padded, recorder, int(batch.rows * batch.tokens_per_sample))
        with FakeTensorMode(), shims(situation), recorder.modules.watching([built.model], built.layer_list):
            _materialize(built.model, recorder)
            by_tokens = scenario.stack.model_parallel == "tokens"
            with (
                mock.patch.object(nn.utils, "clip_grad_norm_", _clip),
                _shapes_unseen(recorder),
                _lengths(built.model, by_tokens),
            ):
                run_step(built.model, scenario, recorder)
        return to_events(recorder.trace.records)


def _divide(model: Any, mesh: DeviceMesh, size: int, *, by_tokens: bool) -> None:
    """By the plan of Transformers; or with norms and the stream over tokens, as torchtitan does it."""
    if not by_tokens:
        plan, _, _ = model._resolve_parallel_plans(DistributedConfig(tp_size=size))
        apply_tensor_parallelism(model, mesh, plan)
        return
    tokens, whole = Shard(1), Replicate()
    attention = PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": tokens}, desired_input_kwarg_layouts={"hidden_states": whole}
    )
    layer: dict[str, ParallelStyle] = {
        "input_layernorm": SequenceParallel(),
        "post_attention_layernorm": SequenceParallel(),
    }
    layer |= {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"} | {"self_attn": attention}
    layer |= {"mlp": PrepareModuleInput(input_layouts=(tokens,), desired_input_layouts=(whole,))}
    layer |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    layer |= {name: RowwiseParallel(output_layouts=tokens) for name in ("self_attn.o_proj", "mlp.down_proj")}
    for each in model.model.layers:
        parallelize_module(each, mesh, layer)
    ends: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=tokens)
    }
    ends |= {"model.norm": SequenceParallel(), "lm_head": ColwiseParallel(output_layouts=whole)}
    parallelize_module(model, mesh, ends)
    parallelize_module(
        model, mesh, {"lm_head": PrepareModuleInput(input_layouts=(tokens,), desired_input_layouts=(whole,))}
    )


_make = Inputs.make


def _with_positions(inputs: Inputs) -> dict[str, torch.Tensor]:
    made = _make(inputs)
    del made["attention_mask"]
    return {**made, "position_ids": torch.arange(inputs.shape[1]).unsqueeze(0)}


@contextmanager
def _copies() -> Iterator[None]:
    """As spmd_types 0.2.3 makes them: of what is gathered always,
    of what is scattered where there are several samples.

    Source: spmd_types 0.2.3 _collectives.py _AllGatherShard, _ReduceScatterShard.
    """

    def in_order(received: torch.Tensor, size: int, dim: int) -> torch.Tensor:
        return torch.cat(torch.chunk(received, size, dim=0), dim=dim)

    def by_process(whole: torch.Tensor, size: int, narrow_dim: int, cat_dim: int = 0) -> torch.Tensor:
        if whole.shape[0] == 1:
            return whole.reshape(size, whole.shape[1] // size, -1)
        return torch.cat(torch.chunk(whole, size, dim=narrow_dim), dim=cat_dim)

    with (
        mock.patch.object(functional, "_maybe_view_chunk_cat", in_order),
        mock.patch.object(functional, "_chunk_or_narrow_cat", by_process),
    ):
        yield


@contextmanager
def _lengths(model: Any, by_tokens: bool) -> Iterator[None]:
    """Positions are given and no mask is made: where embeddings are divided over tokens,
    their length does not say them.
    """
    code = importlib.import_module(type(model).__module__)
    if not by_tokens:
        yield
        return
    with (
        mock.patch.object(Inputs, "make", _with_positions),
        _copies(),
        mock.patch.object(code, "create_causal_mask", return_value=None),
    ):
        yield


@contextmanager
def _shapes_unseen(recorder: Recorder) -> Iterator[None]:
    """To know a shape torch runs an operator on fake tensors of its own, which are no memory."""
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(*args: Any) -> Any:
        with recorder.on_host():
            return propagate(*args)

    with mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen):
        yield


def _clip(parameters: Iterable[Any], max_norm: float, **_: object) -> None:
    """Gradients of DTensors and of tensors apart.  Source: transformers 5.23 trainer.py
    ``_mixed_mesh_grad_norm``.
    """
    kinds: dict[bool, list[Any]] = defaultdict(list)
    for each in parameters:
        if each.grad is not None:
            kinds[isinstance(each.grad, DTensor)].append(each)
    norms = [nn.utils.get_total_norm([each.grad for each in some]) for some in kinds.values()]
    total = torch.linalg.vector_norm(
        torch.stack([each.full_tensor() if isinstance(each, DTensor) else each for each in norms])
    )
    for some in kinds.values():
        nn.utils.clip_grads_with_norm_(some, max_norm, total)


def _materialize(model: nn.Module, recorder: Recorder) -> None:
    """Every tensor on meta becomes a fake one, of DTensors the part that lies here."""
    known: dict[int, Any] = {}
    with recorder:
        for module in model.modules():
            for held in (module._parameters, module._buffers):
                for name, tensor in held.items():
                    if tensor is None:
                        continue
                    if id(tensor) not in known:
                        known[id(tensor)] = tensor, _fake(tensor, recorder)
                    held[name] = known[id(tensor)][1]


def _fake(tensor: Any, recorder: Recorder) -> Any:
    local: Any = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    fake: Any = torch.empty(local.shape, dtype=local.dtype, device="cpu")
    recorder.mark(fake, "weights")
    if isinstance(tensor, DTensor):
        fake = DTensor(fake, tensor._spec, requires_grad=False)
    return (
        nn.Parameter(fake, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
    )


class _Exchanged(torch.autograd.Function):
    """What Ulysses makes on one of ``size`` GPUs to exchange tokens for heads, which are sent nowhere.

    Source: hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/v1/plugins/model_plugins/parallelization/
    seq_comm.py all_to_all_tensor, SeqAllToAll4D.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: int, scatter: int, gather: int) -> torch.Tensor:
        """Parts of ``x`` along ``scatter``, joined along ``gather``."""
        ctx.places = size, gather, scatter
        parts = [each.contiguous() for each in torch.tensor_split(x, size, scatter)]
        received = [torch.empty_like(parts[0]) for _ in parts]
        return torch.cat(received, dim=gather).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The other way."""
        forward: Any = _Exchanged.forward
        return forward(ctx, gradients[0], *ctx.places), None, None, None


@contextmanager
def exchanging_heads(size: int) -> Iterator[None]:
    """Attention of Transformers runs over all tokens of a part of the heads."""
    flash_attention: Any = importlib.import_module("transformers.integrations.flash_attention")
    inner: Any = flash_attention._flash_attention_forward
    exchange: Any = _Exchanged.apply

    def forward(query: Any, key: Any, value: Any, mask: Any, query_length: int, **options: Any) -> Any:
        whole = [exchange(each, size, 2, 1) for each in (query, key, value)]
        out = inner(*whole, mask, query_length=query_length * size, **options)
        return exchange(out, size, 1, 2)

    with mock.patch.object(flash_attention, "_flash_attention_forward", forward):
        yield


class _Gathered(torch.autograd.Function):
    """Tokens of all ``size`` GPUs, in a copy in order; the gradient of a GPU's own is summed over all.

    Source: spmd_types 0.2.3 _collectives.py _AllGatherShard, _ReduceScatterShard.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, size: int) -> torch.Tensor:
        """All tokens."""
        ctx.size = size
        received = x.new_empty(size * x.shape[0], *x.shape[1:])
        return torch.cat(received.chunk(size), dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Parts of several samples are sent from a copy in the order of GPUs."""
        (whole,) = gradients
        n_rows, n_tokens = whole.shape[0], whole.shape[1] // ctx.size
        _sent = torch.cat(whole.chunk(ctx.size, dim=1)) if n_rows > 1 else whole
        return whole.new_empty(n_rows, n_tokens, *whole.shape[2:]), None


@contextmanager
def gathering_keys(size: int) -> Iterator[None]:
    """FlexAttention over this GPU's queries and all keys, as torchtitan has it.

    Source: torchtitan 0.3.0 models/common/decoder_sharding.py set_gqa_inner_attention_local_map,
    models/common/attention.py FlexAttention.forward.
    """
    flash_attention: Any = importlib.import_module("transformers.integrations.flash_attention")
    gather: Any = _Gathered.apply

    def forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        whole = [query, gather(key, size), gather(value, size)]
        return flex_attention(*(each.transpose(1, 2) for each in whole)).transpose(1, 2)

    with mock.patch.object(flash_attention, "_flash_attention_forward", forward):
        yield
