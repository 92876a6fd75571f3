"""How a checkpoint holds its matrices: ``quantization_config`` of a ``config.json``.

Source: transformers 5.23 utils/quantization_config.py (GPTQConfig, AwqConfig, BitsAndBytesConfig, AqlmConfig)
and quantizers/quantizer_*.py (``is_trainable``); gptqmodel 7.3.4 nn_modules/qlinear (``SUPPORTS_FORMATS``,
``SUPPORTS_TRAINING``); aqlm 1.1.6 inference_kernels/kernel_selector.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.left_whole import HEADS, with_left_whole, with_tower_whole
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Dtype, Packing, Quantization
from planner.domain.stored import StoredWeights
from planner.errors import InputFileError, NotModelledError, show

_KEY = "quantization_config"
_DTYPES: Mapping[str, Dtype] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_WAY_OUT = "give the model that was quantised, which bitsandbytes can quantise while it is loaded"
# transformers 5.23 quantizers/quantizer_compressed_tensors.py is_trainable, get_load_operations.
_AS_16_BITS = (
    "give the model that was quantised, which its weights are once CompressedTensorsConfig(dequantize=True) "
    "has turned them to 16 bits"
)
_MAX_GROUP = 4096
# What Transformers does not train over (``is_trainable``), or what nobody read.
_UNTRAINABLE = frozenset({
    *("fbgemm_fp8", "nvfp4", "higgs", "vptq", "spqr", "quark", "bitnet", "gguf", "auto-round",
    "intel/auto-round", "fp_quant"),
    "metal",
})  # fmt: skip
# AQLM kernels that decode in forward and in backward: code books, bits of a code, inputs of a code.
_AQLM_KERNELS = frozenset({(1, 16, 8), (1, 16, 16), (2, 8, 8), (1, 8, 8)})
_ASSUMED_GROUP = 128
_SQUARES = ([128, 128], None)
# GPTQ packs the layers of the language model alone: optimum 2.3.0 gptq/quantizer.py convert_model,
# whose blocks are the first of gptq/constants.py BLOCK_PATTERNS that the model has.
OF_THE_LAYERS = ("gptq-int4", "gptq-int8")


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """What a ``quantization_config`` says; ``whole``: names of modules that it left as they were."""

    stored: StoredWeights
    whole: tuple[str, ...] = ()


def with_stored(spec: ModelSpec, data: Mapping[str, Any], where: str) -> ModelSpec:
    """``spec`` with what the config says of packed matrices; ``spec`` itself where it says nothing.

    Raises:
        InputFileError: a field that is missing or out of range.
        NotModelledError: a kind that is not modelled, or that Transformers does not train over.
    """
    given = stored_said(data, where)
    if given is None:
        return spec
    if given.stored.quantization in OF_THE_LAYERS:
        spec = with_tower_whole(spec)
    spec = replace(spec, stored=given.stored)
    try:
        return with_left_whole(spec, given.whole, f"{where}: {_KEY}")
    except NotModelledError as error:
        if given.stored.quantization != "fp8":
            raise
        return replace(spec, stored=replace(given.stored, unread=str(error)))


def stored_said(data: Mapping[str, Any], where: str) -> StoredConfig | None:
    """What the fields of a ``config.json`` say of packed matrices; ``None`` where they say nothing.

    Checkpoints in mxfp4 are trained as they are without it: Transformers turns them to 16 bits while it loads
    them (``Mxfp4Config(dequantize=True)``; transformers 5.23 quantizers/quantizer_mxfp4.py ``is_trainable``).

    Raises:
        InputFileError: a field that is missing or out of range.
        NotModelledError: a kind that is not modelled, or that Transformers does not train over.
    """
    given = data.get(_KEY)
    if given is None or given == {}:
        return None
    if not isinstance(given, Mapping):
        raise InputFileError(where, f"field '{_KEY}' must be an object")
    fields = ConfigFields(given, f"{where}: {_KEY}")
    kind = _kind(fields)
    if kind == "mxfp4" or (kind == "fp8" and fields.flag("dequantize", default=False)):
        return None
    reader = _READERS.get(kind)
    if reader is None:
        why = ": Transformers does not train over it" if kind in _UNTRAINABLE else " is not modelled"
        way_out = _AS_16_BITS if kind == "compressed-tensors" else _WAY_OUT
        raise NotModelledError(f"{fields.where}: '{show(kind)}'{why}; {way_out}")
    return reader(fields)


def _kind(fields: ConfigFields) -> str:
    default = "bitsandbytes" if fields.data.get("load_in_4bit") or fields.data.get("load_in_8bit") else ""
    kind = fields.text("quant_method", default).lower()
    if not kind:
        raise fields.fail("field 'quant_method' is missing")
    return "bitsandbytes" if kind.startswith("bitsandbytes") else kind


def _not_modelled(fields: ConfigFields, name: str) -> NotModelledError:
    return NotModelledError(
        f"{fields.where}: {name} {show(fields.data.get(name))} is not modelled: {_WAY_OUT}"
    )


def _group(fields: ConfigFields) -> int:
    """Inputs of one scale, 0 for all of them."""
    if fields.data.get("group_size") == -1:
        return 0
    group = fields.integer("group_size", default=_ASSUMED_GROUP)
    if group > _MAX_GROUP:
        raise fields.fail(f"field 'group_size' is {group}, above the limit of {_MAX_GROUP}")
    return group


def _refuse_packed_head(fields: ConfigFields, name: str, whole: tuple[str, ...]) -> None:
    if not any(each.rpartition(".")[2] in HEADS for each in whole):
        raise NotModelledError(
            f"{fields.where}: {name} does not leave the head whole, which is not modelled: {_WAY_OUT}"
        )


def _gptq(fields: ConfigFields) -> StoredConfig:
    bits = fields.integer("bits")
    if bits not in (4, 8):
        raise _not_modelled(fields, "bits")
    for name, known in (
        ("checkpoint_format", ("gptq", "gptq_v2")),
        ("format", ("gptq", "gptq_v2")),
        ("lm_head", ("false",)),
    ):
        if fields.has(name) and str(fields.data[name]).lower() not in known:
            raise _not_modelled(fields, name)
    for name in ("dynamic", "modules_in_block_to_quantize"):
        if fields.data.get(name):
            raise _not_modelled(fields, name)
    quantization: Quantization = "gptq-int4" if bits == 4 else "gptq-int8"
    return StoredConfig(StoredWeights(quantization, Packing(_group(fields)), source=fields.where))


def _awq(fields: ConfigFields) -> StoredConfig:
    if fields.integer("bits", default=4) != 4:
        raise _not_modelled(fields, "bits")
    for name in ("version", "format"):
        if fields.has(name) and str(fields.data[name]).lower() != "gemm":
            raise _not_modelled(fields, name)
    if str(fields.data.get("backend")).lower() == "llm-awq":
        raise _not_modelled(fields, "backend")
    return StoredConfig(
        StoredWeights("awq-int4", Packing(_group(fields)), source=fields.where),
        fields.texts("modules_to_not_convert"),
    )


def _aqlm(fields: ConfigFields) -> StoredConfig:
    group, books = fields.integer("in_group_size", default=8), fields.integer("num_codebooks", default=1)
    bits = fields.integer("nbits_per_codebook", default=16)
    if fields.integer("out_group_size", default=1) != 1:
        raise _not_modelled(fields, "out_group_size")
    if (books, bits, group) not in _AQLM_KERNELS:
        raise _not_modelled(fields, "num_codebooks")
    whole = tuple(name.removesuffix(".weight") for name in fields.texts("linear_weights_not_to_quantize"))
    _refuse_packed_head(fields, "linear_weights_not_to_quantize", whole)
    return StoredConfig(StoredWeights("aqlm", Packing(group, books, bits), source=fields.where), whole)


def _fp8(fields: ConfigFields) -> StoredConfig:
    """Whatever no formula covers of it counts as 16 bits where it is turned to these.

    Source: transformers 5.23 utils/quantization_config.py FineGrainedFP8Config; the Hub's
    kernels-community/finegrained-fp8 matmul.py, whose products stop at static scales of whole matrices.
    """
    names = "modules_to_not_convert" if fields.has("modules_to_not_convert") else "ignored_layers"
    whole, squares = fields.texts(names), fields.data.get("weight_block_size", [128, 128])
    known: Mapping[str, tuple[bool, Any]] = {
        "weight_block_size": (squares in _SQUARES, _sides(squares)),
        "activation_scheme": _is_or(fields, "activation_scheme", "dynamic"),
        "scale_fmt": _is_or(fields, "scale_fmt", "float"),
        "expert_dtype": _is_or(fields, "expert_dtype", "fp8"),
        "modules_to_convert": (not fields.data.get("modules_to_convert"), "a list"),
        # A list stands in for the default one, which has the head; an empty one, too.
        names: (
            not fields.has(names) or any(each.rpartition(".")[2] in HEADS for each in whole),
            "without the head",
        ),
    }
    unread = [f"{name} {show(value)}" for name, (is_read, value) in known.items() if not is_read]
    stored = StoredWeights(
        "fp8",
        Packing(_ASSUMED_GROUP if squares is not None else 0),
        source=fields.where,
        unread=", ".join(unread),
    )
    return StoredConfig(stored, whole)


def _sides(blocks: object) -> object:
    return " x ".join(map(show, blocks[:2])) if isinstance(blocks, list) else blocks


def _is_or(fields: ConfigFields, name: str, usual: str) -> tuple[bool, str]:
    said = fields.text(name, usual).lower()
    return said == usual, said


def _bitsandbytes(fields: ConfigFields) -> StoredConfig:
    whole, packing = fields.texts("llm_int8_skip_modules"), Packing(is_stored=True)
    if whole:
        _refuse_packed_head(fields, "llm_int8_skip_modules", whole)
    if fields.flag("load_in_8bit", default=False) or fields.flag("_load_in_8bit", default=False):
        if fields.flag("llm_int8_has_fp16_weight", default=False):
            raise _not_modelled(fields, "llm_int8_has_fp16_weight")
        return StoredConfig(StoredWeights("int8", packing, source=fields.where), whole)
    kind = fields.text("bnb_4bit_quant_type", "fp4")
    if kind not in ("nf4", "fp4"):
        raise _not_modelled(fields, "bnb_4bit_quant_type")
    storage = fields.text("bnb_4bit_quant_storage", "uint8").removeprefix("torch.")
    compute = fields.text("bnb_4bit_compute_dtype", "float32").removeprefix("torch.")
    if storage != "uint8" and storage not in _DTYPES:
        raise _not_modelled(fields, "bnb_4bit_quant_storage")
    if compute not in _DTYPES:
        raise _not_modelled(fields, "bnb_4bit_compute_dtype")
    stored = StoredWeights(
        "nf4" if kind == "nf4" else "fp4",
        packing,
        double_quant=fields.flag("bnb_4bit_use_double_quant", default=False),
        quant_storage=_DTYPES.get(storage),
        compute_dtype=_DTYPES[compute],
        source=fields.where,
    )
    return StoredConfig(stored, whole)


_READERS: Mapping[str, Callable[[ConfigFields], StoredConfig]] = {
    "gptq": _gptq,
    "awq": _awq,
    "aqlm": _aqlm,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
}
