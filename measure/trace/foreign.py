"""Models of architectures that no prediction covers: described by their own modules,
which Transformers ships.

The description serves the questions that are asked before a trace: names of matrices, widths, the longest
text.  It counts every parameter, so that ``plan`` can say what the model must hold at least.  What layers
compute is not in it; the trace runs the modules themselves.
"""

# ruff: noqa: SLF001 - which kernels a class has, Transformers says in private names alone

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count, groupby
from typing import Any

import torch
import transformers
from torch import nn
from transformers.pytorch_utils import Conv1D

from measure.recipe.modules import find_layer_list
from measure.trace.build import configuration_of
from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.described import Description, Family
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import (
    BlockGroup,
    BlockSpec,
    EmbeddingSpec,
    InputTensor,
    LinearGroup,
    LinearSpec,
    MlpSpec,
    NormSpec,
)
from planner.errors import InputFileError, NotModelledError, UnknownArchitectureError

_MAX_REASON_CHARS = 200
# Words in the names of fields that say how many of something there are, in configurations of Transformers
# 5.23: modules are made for each, and lists of that length before them.
_COUNTED = re.compile(r"layers|experts|heads|blocks|codebooks|groups|buckets|streams|^n_(layer|head|group)$")
# Modules and parameters that a model may have.
# 58 layers of 256 experts with modules of their own have 104,000 (DeepSeek-V3).
_MAX_PARTS = 200_000
_MATRICES = (nn.Linear, Conv1D)


def described_by_modules(fields: Mapping[str, Any], unknown: UnknownArchitectureError) -> Description:
    """The model of a ``config.json`` whose architecture the catalog does not know:
    ``unknown`` is how it said so.

    Raises:
        InputFileError: fields that the configuration class of Transformers refuses.
        NotModelledError: Transformers does not know it either; no causal language model, or one whose decoder
            layers are not found.
    """
    if unknown.model_type not in transformers.CONFIG_MAPPING:
        raise NotModelledError(
            f"{unknown.where}: architecture '{unknown.model_type}' is neither modelled nor in Transformers "
            f"{transformers.__version__}; a program that brings its code can be run: "
            "measure trace -- python train.py"
        )
    config = _configuration(fields, unknown.where)
    model = _on_meta(config, unknown.where)
    try:
        return _described(config, model, unknown.where)
    # configurations that say something for each layer, or not at all
    except (AttributeError, TypeError, ValueError) as error:
        raise NotModelledError(
            f"{unknown.where}: architecture '{unknown.model_type}' cannot be traced: {_reason(error)}"
        ) from None


def _kernels(model: Any) -> Iterator[str]:
    yield "eager"
    yield from ("sdpa",) if model._supports_sdpa else ()
    yield from ("flash2",) if model._supports_flash_attn else ()


def _family(layers: Any, n_experts: int) -> Family:
    """By what the layers hold beside matrices and vectors: bare tensors of all experts, or something else."""
    held = {id(each.weight) for each in layers.modules() if isinstance(each, _MATRICES)}
    rest = [each for each in layers.parameters() if each.dim() > 1 and id(each) not in held]
    if any(not n_experts or each.shape[0] != n_experts for each in rest):
        return "recurrent"
    return "mixture" if n_experts else "dense"


def _n_experts(text: Any, layers: Any) -> int:
    """Experts of a layer, as the configuration counts them; 0 where no layer has as many of anything."""
    said = _number(text, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    lists = {len(each) for each in layers.modules() if isinstance(each, nn.ModuleList) and each is not layers}
    stacked = {each.shape[0] for each in layers.parameters() if each.dim() > 2}
    return said if said > 1 and said in lists | stacked else 0


def _number(text: Any, *names: str) -> int:
    """The first of the fields that is a number above 0; 0 where none is."""
    found = (getattr(text, name, None) for name in names)
    return next((each for each in found if isinstance(each, int) and each > 0), 0)


def _configuration(fields: Mapping[str, Any], where: str) -> Any:
    _check_counts(fields, where)
    try:
        return configuration_of(fields)
    # Whatever a configuration class thinks of a field is about that field.
    except Exception as error:  # noqa: BLE001
        raise InputFileError(where, f"Transformers refuses this config: {_reason(error)}") from None


def _check_counts(fields: Mapping[str, Any], where: str) -> None:
    """Refuse more layers, experts or heads than the catalog reads layers,
    in the configuration and in those inside it.
    """
    parts: list[Mapping[str, Any]] = [fields]
    for part in parts:
        parts += [value for value in part.values() if isinstance(value, Mapping)]
        for name, value in part.items():
            if isinstance(value, int) and value > 0 and _COUNTED.search(name):
                ConfigFields(part, where).layers(name)


@contextmanager
def _bounded_parts() -> Iterator[None]:
    """Stop the making of a model that has too many parts, whatever the field that asks for them is called.

    Raises:
        ValueError: more than ``_MAX_PARTS`` modules and parameters.
    """
    made = count(1)

    def one_more(*_: object) -> None:
        if next(made) > _MAX_PARTS:
            raise ValueError(f"it has more than {_MAX_PARTS:,} modules and parameters")

    hooks = nn.modules.module
    with (
        hooks.register_module_module_registration_hook(one_more),
        hooks.register_module_parameter_registration_hook(one_more),
    ):
        yield


def _on_meta(config: Any, where: str) -> Any:
    try:
        with torch.device("meta"), _bounded_parts():
            make: Any = transformers.AutoModelForCausalLM.from_config
            return make(config)
    except Exception as error:  # noqa: BLE001 - a module that cannot be made says why in any way it likes
        raise NotModelledError(
            f"{where}: a causal language model cannot be made of it: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:_MAX_REASON_CHARS] or type(error).__name__


def _described(config: Any, model: Any, where: str) -> Description:
    text, table, head = config.get_text_config(), model.get_input_embeddings(), model.get_output_embeddings()
    if table is None or head is None:
        raise NotModelledError(
            f"{where}: architecture '{config.model_type}' cannot be traced: it has no token table or no head"
        )
    names = {module: name.rpartition(".")[2] for name, module in model.named_modules()}
    heads = getattr(text, "num_attention_heads", None)
    if not isinstance(heads, int) or heads < 1:
        raise NotModelledError(
            f"{where}: architecture '{config.model_type}' cannot be traced: it has no attention heads"
        )
    rows, width = table.weight.shape
    layers = model.get_submodule(find_layer_list(model, config))
    n_experts = _n_experts(text, layers)
    attention, mlp = _attention(text, heads), _mlp(text, n_experts, layers)
    blocks = [_block(attention, mlp, layer) for layer in layers]
    inside = {id(each) for each in layers.parameters()}
    outside = {id(each): each.numel() for each in model.parameters() if id(each) not in inside}
    outside |= {id(table.weight): 0, id(head.weight): 0}
    return Description(
        architecture=config.model_type,
        hidden_size=int(text.hidden_size),
        vocab_size=int(text.vocab_size),
        groups=tuple(BlockGroup(len(list(run)), block) for block, run in groupby(blocks)),
        token_embedding=EmbeddingSpec(names[table], int(rows), int(width)),
        head=LinearSpec(names[head], "head", int(head.weight.shape[1]), int(head.weight.shape[0]), "head_in"),
        tied=head.weight is table.weight,
        max_position_tokens=getattr(text, "max_position_embeddings", None),
        # Whatever else is outside of the layers, as one tensor that no quantiser takes.
        final_norms=(NormSpec("rms", sum(outside.values())),),
        family=_family(layers, n_experts),
        attention=tuple(_kernels(model)),
    )


def _block(attention: AttentionSpec, mlp: MlpSpec, layer: Any) -> BlockSpec:
    """Matrices by name; all that is none as a number of elements."""
    matrices = _matrices(layer)
    whole = sum(each.numel() for each in layer.parameters())
    extra = whole - sum(each.weight_count + each.bias_count for each in matrices)
    return BlockSpec(attention, mlp, matrices, (), extra_params=extra)


def _attention(text: Any, heads: int) -> AttentionSpec:
    """Heads as the configuration counts them, for the question which kernels take their width."""
    width = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    return AttentionSpec(heads, int(getattr(text, "num_key_value_heads", None) or heads), width, width)


def _mlp(text: Any, n_experts: int, layers: Any) -> MlpSpec:
    """The width is what the widest last product reads, whatever its field is called;
    of a mixture that of one expert, as the configuration says it.
    """
    activation = str(getattr(text, "hidden_act", ""))
    if n_experts:
        top_k = max(_number(text, "num_experts_per_tok", "moe_top_k", "moe_k"), 1)
        width = _number(text, "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
        return MlpSpec(width, False, activation, n_experts, top_k)
    matrices = (each for layer in layers for each in _matrices(layer) if each.group == "mlp")
    widths = (each.in_features for each in matrices if each.out_features == text.hidden_size)
    return MlpSpec(max(widths, default=0), False, activation)


def _matrices(layer: Any) -> tuple[LinearSpec, ...]:
    """Every matrix of a layer that LoRA can be put on;
    whether it is attention's is told by the module that it is in.
    """
    found = []
    for path, module in layer.named_modules():
        if isinstance(module, _MATRICES):
            parent, _, name = path.rpartition(".")
            rows, columns = module.weight.shape
            outputs, inputs = (
                (int(columns), int(rows)) if isinstance(module, Conv1D) else (int(rows), int(columns))
            )
            group: LinearGroup = "attention" if "att" in parent.lower() else "mlp"
            reads: InputTensor = "attn_in" if group == "attention" else "mlp_in"
            found.append(LinearSpec(name, group, inputs, outputs, reads, bias=module.bias is not None))
    return tuple(found)
