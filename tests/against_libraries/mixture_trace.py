"""The dry run of a model whose experts lie on several GPUs: layers of Transformers with the mixture of
torchtitan in them, in words of our own, on fake tensors and a fake process group.

Source: torchtitan e347b1e5e models/moe/moe.py MoE; distributed/expert_parallel.py ExpertParallel; torchtitan
0.3.0 models/common/moe.py MoE, models/common/token_dispatcher.py LocalTokenDispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar
from unittest import mock

import torch
from parallel_trace import LocalRecorder, _materialize, group_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointPolicy

from measure.recipe import checkpointing
from measure.trace.build import build_on_meta, make_config
from measure.trace.cuda.sdpa import KERNEL_WORKSPACES, cublas_workspace_bytes
from measure.trace.cuda.shims import Situation, shims
from measure.trace.labels import to_events
from measure.trace.trainer_step import run_step
from planner.allocator.events import AllocEvent
from planner.domain.model import MlpSpec
from planner.domain.scenario import Scenario
from planner.program.ops.sizes import FILLED_ROWS

Make = Callable[[int, MlpSpec, DeviceMesh], nn.Module]


class Experts(nn.Module):
    """The experts of one GPU.  ``rows``: how many of each of ``mesh`` every GPU sends to another."""

    def __init__(self, hidden: int, mlp: MlpSpec, mesh: DeviceMesh) -> None:
        super().__init__()
        self.own, self.mesh = mlp.n_experts // mesh.size(), mesh
        for name, shape in (
            ("w1", (mlp.width, hidden)),
            ("w2", (hidden, mlp.width)),
            ("w3", (mlp.width, hidden)),
        ):
            self.register_parameter(name, nn.Parameter(torch.empty(self.own, *shape)))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """What they return for the rows of this GPU's tokens, which other GPUs computed for the most part."""
        order = torch.zeros(
            -(-len(rows) // FILLED_ROWS) * FILLED_ROWS + FILLED_ROWS * self.own, dtype=torch.int32
        )
        given = self._arranged(rows, order)
        out = self._compute(given)
        placed = out.new_empty((len(rows) + 1, rows.shape[1]))
        placed[order, :] = out
        if self.mesh.size() == 1:
            del out
        back = placed[:-1]
        del placed
        return self._exchange(back)

    def _arranged(self, rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        arrived = self._exchange(rows)
        with_zeros = torch.vstack((arrived, arrived.new_zeros(arrived.shape[-1])))
        return with_zeros[order, :]

    def _exchange(self, rows: torch.Tensor) -> torch.Tensor:
        size = self.mesh.size()
        if size == 1:
            return rows
        share = [len(rows) // size] * size
        sent: torch.Tensor = all_to_all_single_autograd(rows, share, share, self.mesh.get_group())
        return sent

    def _compute(self, x: torch.Tensor) -> torch.Tensor:
        ends = torch.zeros(self.own, dtype=torch.int32)

        def product(rows: torch.Tensor, weight: Any) -> torch.Tensor:
            if isinstance(weight, DTensor):
                weight = weight.to_local()
            return torch._grouped_mm(rows.bfloat16(), weight.bfloat16().transpose(-2, -1), offs=ends)

        inner = nn.functional.silu(product(x, self.w1))
        inner = inner * product(x, self.w3)
        return product(inner, self.w2).type_as(x)


class Shared(nn.Module):
    """The experts that all tokens go to."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(hidden, width, bias=False) for _ in range(2))
        self.w2 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One gated feed-forward part."""
        out: torch.Tensor = self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))
        return out


class Router(nn.Module):
    """Weights and numbers of the experts that each token goes to."""

    def __init__(self, hidden: int, mlp: MlpSpec) -> None:
        super().__init__()
        self.gate, self.mlp = nn.Linear(hidden, mlp.n_experts, bias=False), mlp
        self.bias: torch.Tensor
        self.register_buffer("bias", torch.zeros(mlp.n_experts))

    def scores_of(self, x: torch.Tensor) -> torch.Tensor:
        """In the dtype of its weight."""
        scores: torch.Tensor = self.gate(x)
        return scores

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """In fp32."""
        scores = self.scores_of(x)
        if "sigmoid" in self.mlp.router:
            scores = torch.sigmoid(scores.float())
        else:
            scores = nn.functional.softmax(scores.float(), dim=1)
        biased = scores + self.bias
        _, chosen = torch.topk(biased, k=self.mlp.top_k, dim=-1, sorted=False)
        weights = scores.gather(dim=1, index=chosen)
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return weights * 1.0, chosen


class WideRouter(Router):
    """As under autocast to fp32."""

    def scores_of(self, x: torch.Tensor) -> torch.Tensor:
        """In fp32."""
        # The compiler evaluates the arguments of autocast's wrapper from the last to the first.
        weight = self.gate.weight.float()
        return nn.functional.linear(x.float(), weight)


class Mixture(nn.Module):
    """Router, experts and the shared one."""

    router: ClassVar[type[Router]] = Router

    def __init__(self, hidden: int, mlp: MlpSpec, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mlp, self.gate, self.experts = mlp, self.router(hidden, mlp), Experts(hidden, mlp, mesh)
        self.shared_experts = Shared(hidden, mlp.shared_width) if mlp.shared_width else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over the chosen experts, weighted in fp32."""
        shape, x = x.shape, x.view(-1, x.shape[-1])
        weights, chosen = self.gate(x)
        order = torch.argsort(chosen.view(-1), stable=True)
        routed = x[order // self.mlp.top_k]
        returned = self.experts(routed)
        out = self.shared_experts(x) if self.shared_experts is not None else None
        in_order = torch.zeros_like(routed)
        in_order[order] = returned
        in_order = in_order.reshape(len(x), self.mlp.top_k, -1)
        mixed = torch.bmm(weights.reshape(len(x), 1, -1), in_order.float()).to(x.dtype).squeeze(1)
        return mixed.reshape(shape) if out is None else (out + mixed).reshape(shape)


class _Added(torch.autograd.Function):
    """Rows added to those of their tokens (ops/scatter_add.py)."""

    @staticmethod
    def forward(context: Any, out: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Out of place."""
        context.save_for_backward(index)
        return out.scatter_add(0, index, rows)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Each row gets what its token got."""
        (index,) = context.saved_tensors
        return gradients[0], None, torch.gather(gradients[0], 0, index)


class Unpadded(Mixture):
    """The mixture of 0.3.0: a router in fp32, rows that are not padded, weighted one by one."""

    router = WideRouter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over the chosen experts."""
        shape, x = x.shape, x.view(-1, x.shape[-1])
        weights, chosen = self.gate(x)
        out = self._routed(x, weights, chosen)
        if self.shared_experts is not None:
            out = out + self.shared_experts(x)
        return out.reshape(shape)

    def _routed(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        order = torch.argsort(chosen.view(-1), stable=True)
        ordered = weights.view(-1)[order]
        order = order // self.mlp.top_k
        routed = x[order]
        returned = self.experts._compute(routed)
        return self._combined(returned, ordered, order, x)

    def _combined(
        self, rows: torch.Tensor, weights: torch.Tensor, order: torch.Tensor, x: torch.Tensor
    ) -> torch.Tensor:
        out = torch.zeros_like(x)
        rows = (rows.float() * weights.reshape(-1, 1)).to(rows.dtype)
        index = order.reshape(-1, 1).expand(-1, x.shape[-1])
        added: torch.Tensor = _Added.apply(out, index, rows)  # type: ignore[no-untyped-call]
        return added


class Policy(checkpointing._Policy):
    """Beside products and attention what GPUs exchange is kept; batched and grouped products and those of
    routers are not, and the latter do not count.

    Source: torchtitan e347b1e5e models/llama4/infra/parallelize.py (``_op_sac_save_list``), config/
    job_config.py (``per_op_sac_force_recompute_mm_shapes_by_fqns``).
    """

    of_routers: ClassVar[set[torch.Size]] = set()

    def __init__(self) -> None:
        super().__init__()
        batched = {"bmm", "baddbmm", "_grouped_mm", "addmm"}
        self._kept = {each for each in self._kept if each._schema.name.partition("::")[2] not in batched}
        self._kept.add(torch.ops._c10d_functional.all_to_all_single.default)

    def __call__(self, context: Any, operator: Any, *given: Any, **named: Any) -> CheckpointPolicy:
        """Whether the output of ``operator`` is kept."""
        if operator is torch.ops.aten.mm.default and given[1].shape in self.of_routers:
            return CheckpointPolicy.PREFER_RECOMPUTE
        return super().__call__(context, operator, *given, **named)


def trace_mixture(scenario: Scenario, make: Make = Mixture) -> list[AllocEvent]:
    """Events of one step of one of the GPUs that divide the experts."""
    size = scenario.recipe.parallel.experts
    with ExitStack() as stack:
        mesh = stack.enter_context(group_of(size))
        built = build_on_meta(scenario, make_config(scenario))
        with torch.device("meta"):
            _replace(built.model, scenario, mesh, make)
        products = cublas_workspace_bytes(scenario.hardware.gpu.compute_capability)
        recorder = LocalRecorder(KERNEL_WORKSPACES, product_workspace_bytes=products)
        batch = scenario.recipe.batch
        situation = Situation(batch.is_padded, recorder, int(batch.rows * batch.tokens_per_sample))
        with FakeTensorMode(), shims(situation), recorder.modules.watching([built.model], built.layer_list):
            _materialize(built.model, recorder)
            stack.enter_context(mock.patch.object(checkpointing, "_Policy", Policy))
            run_step(built.model, scenario, recorder)
        return to_events(recorder.trace.records)


def _replace(model: Any, scenario: Scenario, mesh: DeviceMesh, make: Make) -> None:
    """Each mixture of the model."""
    blocks = [group.block for group in scenario.model.groups for _ in range(group.count)]
    for layer, block in zip(model.model.layers, blocks, strict=True):
        if block.mlp.n_experts:
            dtype = next(layer.mlp.parameters()).dtype
            Policy.of_routers.add(torch.Size((scenario.model.hidden_size, block.mlp.n_experts)))
            layer.mlp = make(scenario.model.hidden_size, block.mlp, mesh).to(dtype)
