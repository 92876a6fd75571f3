"""Parameters sorted by what happens to them: quantised, kept in 16-bit inside blocks,
or outside the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from planner.anatomy.packing import Matrices
from planner.domain.model import BlockGroup, LinearSpec, ModelSpec, NormSpec
from planner.domain.stack import Stack


@dataclass(frozen=True, slots=True)
class ParamCounts:
    """Element counts of one model under one stack.

    ``quantizable``: weights of block matrices that k-bit quantisers replace; ``quantizable_rows``: their
    output features; ``quantizable_inputs``: their input features; ``quantizable_matrices``: how many they
    are; ``fused_experts``: expert parameters that quantisers skip; ``block_rest``: biases, routers and extra
    parameters of blocks; ``norms``; ``tables``: token and position tables; ``head``: 0 when tied.
    ``largest_quantizable`` and ``largest`` are the biggest single matrices.  ``tensors`` counts parameter
    tensors of the whole model.
    """

    quantizable: int
    quantizable_rows: int
    quantizable_inputs: int
    quantizable_matrices: int
    fused_experts: int
    block_rest: int
    norms: int
    tables: int
    head: int
    largest_quantizable: int
    largest: int
    tensors: int

    @property
    def packed(self) -> Matrices:
        """What quantisers replace, counted together."""
        return Matrices(
            self.quantizable, self.quantizable_rows, self.quantizable_inputs, self.quantizable_matrices
        )

    @property
    def total(self) -> int:
        """All distinct parameters."""
        return self.quantizable + self.fused_experts + self.block_rest + self.norms + self.tables + self.head


def is_quantizable(linear: LinearSpec, fused_experts: bool) -> bool:
    """Whether k-bit quantisers replace this matrix.

    They replace ``nn.Linear`` and GPT-2's ``Conv1D`` except the head, which Lightning's replace too.  Expert
    tensors and routers that are bare parameters stay 16-bit; before Transformers 5 (``fused_experts`` false)
    the experts of most models were linears and were replaced.  Since then only ``nn.Linear`` itself
    is replaced: Falcon's own linear class is passed over, and nothing of Falcon is quantised.
    Source: transformers 5.23 ``quantizers/base.py`` (modules not converted), ``integrations/bitsandbytes.py``
    replace_with_bnb_linear (``type(module) is nn.Linear``; 4.36 asked ``isinstance``).
    """
    if linear.left_whole:
        return False
    if linear.group == "head":
        return linear.packed_as_head
    if linear.kind == "subclass":
        return not fused_experts
    return linear.kind != "parameter" or (not fused_experts and linear.group in ("expert", "router"))


@lru_cache(maxsize=256)
def as_built(model: ModelSpec, stack: Stack) -> ModelSpec:
    """``model`` as a stack builds it: with a head of its own, with one that is quantised,
    or with mixers that are not.

    A list of modules that are not to be packed stands in for the default one, which has the head.
    Source: litgpt 0.5.13 model.py GPT.__init__ (``lm_head``, ``transformer.wte``); lightning 2.5
    fabric/plugins/precision/ bitsandbytes.py BitsandbytesPrecision.convert_module (every ``nn.Linear``);
    transformers 5.23 quantizers/base.py get_modules_to_not_convert (``skip_modules``).
    """
    if model.tied and not stack.ties_tables:
        model = replace(model, tied=False)
    if stack.quantizer == "lightning":
        model = replace(model, head=replace(model.head, packed_as_head=True))
    if model.architecture == stack.whole_out_proj:
        head = model.head if model.tied else replace(model.head, packed_as_head=True)
        model = replace(model, head=head, groups=tuple(_with_whole_out_proj(group) for group in model.groups))
    return model


def _with_whole_out_proj(group: BlockGroup) -> BlockGroup:
    linears = (
        replace(each, left_whole=each.left_whole or each.reads == "mixer_out") for each in group.block.linears
    )
    return replace(group, block=replace(group.block, linears=tuple(linears)))


@lru_cache(maxsize=256)
def param_counts(model: ModelSpec, fused_experts: bool) -> ParamCounts:
    """Counts of ``model`` under a stack that does or does not fuse experts."""
    packed, largest_packed = _packed(model, fused_experts)
    experts = rest = norms = tensors = 0
    for block, n_blocks in model.blocks():
        for linear in block.linears:
            rest += n_blocks * linear.bias_count
            tensors += n_blocks * (1 + int(linear.bias))
            if is_quantizable(linear, fused_experts):
                continue
            if linear.group == "expert":
                experts += n_blocks * linear.weight_count
            else:
                rest += n_blocks * linear.weight_count
        rest += n_blocks * block.extra_params
        norms += n_blocks * _norm_params(block.norms)
        tensors += n_blocks * sum(norm.copies for norm in block.norms)
    norms += _norm_params((*model.final_norms, *(model.vision.behind if model.vision else ())))
    tables = model.token_embedding.param_count + sum(table.param_count for table in model.extra_embeddings)
    tables += sum(linear.weight_count + linear.bias_count for linear in model.extra_linears)
    packs_head = is_quantizable(model.head, fused_experts)
    head_weight = 0 if model.tied else model.head.weight_count
    largest_matrix = max(linear.weight_count for linear, _ in model.linears())
    return ParamCounts(
        quantizable=int(packed.elements),
        quantizable_rows=int(packed.outputs),
        quantizable_inputs=int(packed.inputs),
        quantizable_matrices=int(packed.count),
        fused_experts=experts,
        block_rest=rest,
        norms=norms,
        tables=tables,
        head=model.head.bias_count + head_weight - (model.head.weight_count if packs_head else 0),
        largest_quantizable=largest_packed,
        largest=max(largest_matrix, model.token_embedding.param_count),
        tensors=tensors + 2 + len(model.final_norms),
    )


def _packed(model: ModelSpec, fused_experts: bool) -> tuple[Matrices, int]:
    """What quantisers replace, counted together, and the elements of the largest of them."""
    every = (*model.linears(), (model.head, 1))
    found = [(count, linear) for linear, count in every if is_quantizable(linear, fused_experts)]
    together = Matrices(
        sum(count * linear.weight_count for count, linear in found),
        sum(count * linear.out_features * linear.copies for count, linear in found),
        sum(count * linear.in_features * linear.copies for count, linear in found),
        sum(count * linear.copies for count, linear in found),
    )
    return together, max((linear.in_features * linear.out_features for _, linear in found), default=0)


def _norm_params(norms: tuple[NormSpec, ...]) -> int:
    return sum(norm.param_count for norm in norms)
