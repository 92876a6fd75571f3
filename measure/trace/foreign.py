"""Models of architectures that no prediction covers: described by their own modules,
which Transformers ships.

The description serves the questions that are asked before a trace: names of matrices, widths, the longest
text.  Nothing is predicted from it; the trace runs the modules themselves.
"""

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
from planner.catalog.hf_config import in_checkpoint_dtype
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import (
    BlockGroup,
    BlockSpec,
    EmbeddingSpec,
    InputTensor,
    LinearGroup,
    LinearSpec,
    MlpSpec,
    ModelSpec,
)
from planner.errors import InputFileError, NotModelledError, UnknownArchitectureError

_MAX_REASON_CHARS = 200
# Words in the names of fields that say how many of something there are, in configurations of Transformers
# 5.23: modules are made for each, and lists of that length before them.
_COUNTED = re.compile(r"layers|experts|heads|blocks|codebooks|groups|buckets|streams|^n_(layer|head|group)$")
# Modules and parameters that a model may have.
# 58 layers of 256 experts with modules of their own have 104,000 (DeepSeek-V3).
_MAX_PARTS = 200_000


def described_by_modules(fields: Mapping[str, Any], unknown: UnknownArchitectureError) -> ModelSpec:
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
        spec = _described(config, model, unknown.where)
    # configurations that say something for each layer, or not at all
    except (AttributeError, TypeError, ValueError) as error:
        raise NotModelledError(
            f"{unknown.where}: architecture '{unknown.model_type}' cannot be traced: {_reason(error)}"
        ) from None
    return in_checkpoint_dtype(spec, fields)


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


def _described(config: Any, model: Any, where: str) -> ModelSpec:
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
    blocks = [BlockSpec(_attention(text, heads), _mlp(text), _matrices(layer), ()) for layer in layers]
    return ModelSpec(
        id=config.model_type,
        hub_id="",
        architecture=config.model_type,
        hidden_size=int(text.hidden_size),
        vocab_size=int(text.vocab_size),
        groups=tuple(BlockGroup(len(list(run)), block) for block, run in groupby(blocks)),
        token_embedding=EmbeddingSpec(names[table], int(rows), int(width)),
        head=LinearSpec(names[head], "head", int(head.weight.shape[1]), int(head.weight.shape[0]), "head_in"),
        tied=head.weight is table.weight,
        max_position_tokens=getattr(text, "max_position_embeddings", None),
    )


def _attention(text: Any, heads: int) -> AttentionSpec:
    """Heads as the configuration counts them, for the question which kernels take their width."""
    width = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    return AttentionSpec(heads, int(getattr(text, "num_key_value_heads", None) or heads), width, width)


def _mlp(text: Any) -> MlpSpec:
    widths = getattr(text, "intermediate_size", None) or 0
    return MlpSpec(
        int(max(widths) if isinstance(widths, list) else widths), False, str(getattr(text, "hidden_act", ""))
    )


def _matrices(layer: Any) -> tuple[LinearSpec, ...]:
    """Every matrix of a layer that LoRA can be put on;
    whether it is attention's is told by the module that it is in.
    """
    found = []
    for path, module in layer.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            parent, _, name = path.rpartition(".")
            rows, columns = module.weight.shape
            outputs, inputs = (
                (int(columns), int(rows)) if isinstance(module, Conv1D) else (int(rows), int(columns))
            )
            group: LinearGroup = "attention" if "att" in parent.lower() else "mlp"
            reads: InputTensor = "attn_in" if group == "attention" else "mlp_in"
            found.append(LinearSpec(name, group, inputs, outputs, reads, bias=module.bias is not None))
    return tuple(found)
