"""How checkpoints are stored: by their ``quantization_config`` or by the catalog, never by a name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.anatomy.packing import stored_bytes
from planner.anatomy.quantized_matrices import is_quantizable
from planner.catalog import hub
from planner.catalog.hf_config import model_from_config
from planner.catalog.left_whole import packs_tower, with_left_whole
from planner.catalog.models import load_model, storage_of
from planner.catalog.stored_checkpoints import stored_checkpoints
from planner.domain.model import BlockGroup, LinearSpec, ModelSpec
from planner.domain.recipes.recipe import DTYPE_BYTES, Numerics, Packing
from planner.domain.stored import StoredWeights, stored_text
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import (
    InputFileError,
    NotModelledError,
    UsageError,
)
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.program.job import Job, job_of
from planner.units import GIB

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 1_000, "torch_dtype": "float16",
}  # fmt: skip
BNB = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_compute_dtype": "bfloat16",
}
PLAIN = Packing(is_stored=True)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No network, and an empty cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    hub.forget()
    return tmp_path


def read(**quantization: Any) -> ModelSpec:
    """A small Llama whose config has such a ``quantization_config``."""
    return model_from_config(LLAMA | {"quantization_config": quantization}, "config.json")


@pytest.mark.parametrize(("said", "quantization", "packing"), [
    ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}, "gptq-int4", Packing(32)),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"}, "gptq-int8",
    Packing(0)),
    ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}, "awq-int4",
    Packing(64)),
    ({"quant_method": "awq"}, "awq-int4", Packing(128)),
    ({"quant_method": "aqlm", "linear_weights_not_to_quantize": ["lm_head.weight"]}, "aqlm",
    Packing(8, 1, 16)),
    (BNB, "nf4", PLAIN),
    ({"load_in_8bit": True}, "int8", PLAIN),
])  # fmt: skip
def test_a_config_says_how_its_checkpoint_is_stored(
    said: dict[str, Any], quantization: str, packing: Packing
) -> None:
    """Method, bits and groups; what is absent is what Transformers takes it for."""
    stored = read(**said).stored
    assert stored is not None
    assert (stored.quantization, stored.packing) == (quantization, packing)


def test_settings_of_bitsandbytes_are_those_of_the_checkpoint() -> None:
    """Double quantisation, the dtype of the bytes and that of the products."""
    stored = read(**BNB, bnb_4bit_use_double_quant=True, bnb_4bit_quant_storage="bfloat16").stored
    assert stored is not None
    assert (stored.double_quant, stored.quant_storage, stored.compute_dtype) == (True, "bf16", "bf16")


def test_what_is_not_quantised_has_no_storage() -> None:
    """Checkpoints in mxfp4 become 16 bits while they are loaded, without which nothing trains."""
    assert model_from_config(LLAMA | {"quantization_config": None}, "config.json").stored is None
    assert read(quant_method="mxfp4", modules_to_not_convert=["lm_head"]).stored is None


@pytest.mark.parametrize(("said", "words"), [
    ({"quant_method": "compressed-tensors"}, r"'compressed-tensors' is not modelled.*dequantize=True"),
    ({"quant_method": "nvfp4"}, "'nvfp4': Transformers does not train over it"),
    ({"quant_method": "gptq", "bits": 3}, "bits 3"),
    ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format marlin"),
    ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic"),
    ({"quant_method": "awq", "version": "gemv"}, "version gemv"),
    ({"quant_method": "aqlm", "num_codebooks": 8, "nbits_per_codebook": 8,
    "linear_weights_not_to_quantize": ["lm_head"]}, "8"),
    ({"quant_method": "aqlm"}, "does not leave the head whole"),
    (BNB | {"llm_int8_skip_modules": ["visual"]}, "does not leave the head whole"),
    (BNB | {"llm_int8_skip_modules": ["lm_head", "layers.7.mlp"]}, "'layers.7.mlp' is left unquantised"),
    ({"quant_method": "awq", "modules_to_not_convert": [".*gate"]}, "is left unquantised"),
])  # fmt: skip
def test_what_no_formula_covers_is_refused(said: dict[str, Any], words: str) -> None:
    """In one sentence that names the field."""
    with pytest.raises(NotModelledError, match=words):
        read(**said)


@pytest.mark.parametrize(
    "said", [{"bits": 4}, {"quant_method": "gptq"}, {"quant_method": "gptq", "bits": 4, "group_size": 10**9}]
)
def test_a_broken_table_is_an_error(said: dict[str, Any]) -> None:
    """A field that is missing or out of range names itself."""
    with pytest.raises(InputFileError, match="quantization_config"):
        read(**said)


def test_modules_that_were_left_whole_are_not_packed() -> None:
    """``o_proj`` everywhere, and the feed-forward part of layer 2, which makes three kinds of layers."""
    spec = read(
        quant_method="awq",
        modules_to_not_convert=["lm_head", "self_attn.o_proj", "model.layers.2.mlp", "visual"],
    )
    assert [group.count for group in spec.groups] == [2, 1, 1]
    whole = {linear.name for linear in spec.groups[1].block.linears if linear.left_whole}
    assert whole == {"o_proj", "gate_proj", "up_proj", "down_proj"}
    packed = 4 * (256 * 256 * 3 + 3 * 256 * 512) - 3 * 256 * 512
    replaced = (
        count * linear.weight_count
        for linear, count in spec.linears()
        if is_quantizable(linear, "parameters")
    )
    assert sum(replaced) == packed


def test_gptq_packs_the_layers_of_the_language_model_alone() -> None:
    """optimum replaces matrices of its blocks; a tower and its projector stay 16-bit."""
    packed, base = load_model("Qwen/Qwen2-VL-7B-Instruct-GPTQ-Int4").spec, load_model("qwen2-vl-7b").spec
    assert (packed.vision, base.vision) != (None, None)
    assert packed.vision is not None
    assert all(each.left_whole for block, _ in packed.vision.blocks() for each in block.linears)
    assert packed.groups == base.groups


@pytest.mark.parametrize(
    ("listed", "packs"),
    [(["visual"], True), (["model.visual"], False), (["model.visual.merger"], True), ([], True)],
)
def test_a_tower_is_packed_unless_its_whole_path_is_listed(listed: list[str], packs: bool) -> None:
    """``should_convert_module`` of Transformers 5.23 over the modules of Qwen2.5-VL, with the list of
    Qwen/Qwen2.5-VL-32B-Instruct-AWQ (github.com/binarrii/qwen_vl_object_detect f2219ae) and others.
    """
    spec = with_left_whole(load_model("qwen2.5-vl-3b").spec, listed, "here")
    assert packs_tower(spec) is packs


def test_a_base_packed_by_a_flag_keeps_its_tower_as_gptq_does() -> None:
    """AWQ without a list has nothing to load the tower from, so nobody can say what it takes."""
    flags = {"model": "qwen2.5-vl-3b", "method": "lora", "gpu": "h100-sxm", "seq": 1024, "stack": "trl"}
    assert not packs_tower(resolve(from_flags({**flags, "quantization": "gptq-int4"})).model)
    with pytest.raises(NotModelledError, match="packed-tower"):
        resolve(from_flags({**flags, "quantization": "awq-int4"}))


def test_unsloth_lists_projectors_of_all_its_models_beside_what_it_left_whole() -> None:
    """Three feed-forward parts and two outputs of attention of phi-4, which has no projector."""
    spec = load_model("unsloth/phi-4-unsloth-bnb-4bit").spec
    whole = [
        (group.count, sorted(each.name for each in group.block.linears if each.left_whole))
        for group in spec.groups
    ]
    feed_forward, output = ["down_proj", "gate_proj", "up_proj"], ["o_proj"]
    assert whole == [(1, []), (3, feed_forward), (33, []), (1, output), (1, []), (1, output)]


def test_a_checkpoint_may_have_wider_matrices_than_its_model() -> None:
    """Qwen padded those of 72B, so that eight cards can divide their groups."""
    packed, base = load_model("Qwen/Qwen2.5-72B-Instruct-AWQ").spec, load_model("qwen2.5-72b").spec
    assert [spec.groups[0].block.mlp.width for spec in (packed, base)] == [29_696, 29_568]
    assert packed.published_params is None


IN_FP8 = [
    name for name, entry in stored_checkpoints().items() if entry.quantization_config["quant_method"] == "fp8"
]
COUNTED = [name for name, entry in stored_checkpoints().items() if entry.size_gb]


@pytest.mark.parametrize("name", [name for name in COUNTED if name not in IN_FP8])
def test_files_are_as_large_as_the_hub_lists(name: str) -> None:
    """The stored groups explain the size of the files, which those of another size would not."""
    size_gb, spec = stored_checkpoints()[name].size_gb, load_model(name).spec
    assert size_gb is not None
    assert spec.stored is not None
    subject = job_over(name)
    whole = (subject.base_params - subject.packed.elements) * DTYPE_BYTES[spec.checkpoint_dtype]
    assert (stored_bytes(subject.recipe.numerics, subject.packed) + whole) / 1e9 == pytest.approx(
        size_gb, rel=0.002
    )


@pytest.mark.parametrize(
    ("name", "size_gb"),
    [
        *((name, stored_checkpoints()[name].size_gb) for name in COUNTED if name in IN_FP8),
        # Its second file holds the head, which is the token table.
        ("Qwen/Qwen3-4B-FP8", 4.41),
    ],
)
def test_matrices_of_layers_in_8_bits_explain_the_size_of_the_files(name: str, size_gb: float) -> None:
    """Table, head, tower and projector are in 16 bits."""
    spec = load_model(name).spec
    packed = sum(
        each.weight_count * count for each, count in spec.linears() if is_quantizable(each, "routers")
    )
    assert (2 * spec.param_count - packed) / 1e9 == pytest.approx(size_gb, rel=0.002)


def test_what_unsloth_left_whole_of_muse_glimmer_makes_the_size_that_its_notebook_says() -> None:
    """Matrices of the text packed; token table, head, tower and projector in 16 bits."""
    subject = job_over("unsloth/Muse-Glimmer-30B-unsloth-bnb-4bit")
    whole = 2 * (subject.base_params - subject.packed.elements)
    packed = stored_bytes(subject.recipe.numerics, subject.packed)
    assert (packed + whole) / GIB == pytest.approx(20.68, abs=0.005)


@pytest.mark.parametrize("name", stored_checkpoints())
def test_every_known_checkpoint_is_found_in_any_case(name: str) -> None:
    """By its id, with what its entry says of its storage."""
    resolved = load_model(name.lower())
    assert (resolved.how, resolved.spec.stored) == ("catalog", storage_of(name))
    assert resolved.doubt == stored_checkpoints()[name].assumed


@pytest.mark.usefixtures("offline")
def test_what_keeps_some_matrices_whole_is_counted_as_the_known_one() -> None:
    """Unsloth's list of them is in its config.json; where that is not here, the share of phi-4's is taken."""
    known, assumed, none = (
        load_model(f"unsloth/{name}-bnb-4bit") for name in ("phi-4-unsloth", "Qwen3-14B-unsloth", "Qwen3-14B")
    )
    whole = [
        sum(group.count for group in model.spec.groups if all(m.left_whole for m in mlp_of(group)))
        for model in (known, assumed, none)
    ]
    assert whole == [3, 3, 0]
    assert "was not read" in assumed.doubt
    assert storage_of("unsloth/Qwen3-14B-unsloth-bnb-4bit") == assumed.spec.stored


def mlp_of(group: BlockGroup) -> list[LinearSpec]:
    """Matrices of a layer's feed-forward."""
    return [linear for linear in group.block.linears if linear.group == "mlp"]


@pytest.mark.parametrize("name", ["Qwen2.5-7B-Instruct-AWQ", "llama-3-8b-instruct-bnb-4bit"])
def test_a_checkpoint_may_be_named_without_its_owner(name: str) -> None:
    """As a folder of it is named."""
    assert load_model(name).spec.stored is not None


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("hub_id", "way_out"), [
    ("someone/Llama-3-8B-AWQ", "Meta-Llama-3-8B, the model that was packed, with --quantization awq-int4"),
    ("someone/Llama-3-8B-gptq-4bit-32g", "config.json and pass the path"),
    ("someone/Qwen2.5-72B-Instruct-GPTQ-Int4", "with --quantization gptq-int4 or gptq-int8"),
    ("ISTA-DASLab/Llama-3.2-3B-AQLM-PV-2Bit-2x8", "config.json and pass the path"),
    ("someone/Meta-Llama-3.1-8B-bnb-4bit", "with --quantization nf4"),
    ("unsloth/Qwen3-VL-8B-Instruct-bnb-4bit", "with --quantization nf4"),
    ("mlx-community/Qwen3-8B-4bit", "Qwen/Qwen3-8B, the model that was packed"),
    ("someone/Qwen3-8B-GGUF", "Qwen/Qwen3-8B, the model that was packed"),
])  # fmt: skip
def test_a_name_that_says_how_it_is_stored_is_no_answer(hub_id: str, way_out: str) -> None:
    """Groups, layout and modules that were left whole no name says: one sentence names what settles it."""
    with pytest.raises(UsageError, match="neither in the catalog") as caught:
        load_model(hub_id)
    assert way_out in str(caught.value)
    assert storage_of(hub_id) is None


def test_a_config_in_the_cache_says_how_a_checkpoint_is_stored(offline: Path) -> None:
    """What the checkpoint's own file says is exact, and files of other tools are read by it, too."""
    folder = offline / "hub" / "models--someone--Llama-3-8B-AWQ" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    fields = LLAMA | {"quantization_config": {"quant_method": "awq", "group_size": 32}}
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    refs = folder.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40, encoding="utf-8")
    stored = load_model("someone/Llama-3-8B-AWQ").spec.stored
    assert stored is not None
    assert (stored.packing, stored.assumed) == (Packing(32), "")
    assert storage_of("someone/Llama-3-8B-AWQ") == stored
    assert storage_of("someone/Llama-3-8B-GPTQ") is None


@pytest.mark.parametrize("quantization", ["gptq-int4", "awq-int4"])
def test_groups_that_are_assumed_lie_within_the_interval(quantization: str) -> None:
    """Groups of 32, the smallest of published checkpoints,
    have four times the scales of those that are assumed.
    """
    answer = planner.estimate(
        model="qwen2.5-72b", method="lora", gpu="a100-80gb", seq=1024, quantization=quantization
    )
    elements = job_over("qwen2.5-72b", quantization=quantization).packed.elements
    assert any("Groups of 128 inputs are assumed" in warning for warning in answer.warnings)
    assert answer.peak.driver_interval is not None
    assert answer.peak.driver_interval.low < answer.peak.driver_bytes - elements * 2.5 / 128
    assert answer.peak.driver_bytes + elements * 2.5 * (1 / 32 - 1 / 128) < answer.peak.driver_interval.high


def job_over(model: str, **flags: object) -> Job:
    """A LoRA job over ``model``."""
    said = {"model": model, "method": "lora", "gpu": "a100-80gb", "seq": 512, **flags}
    return job_of(resolve(from_flags(said)), Coefficients())


def numerics_of(model: str, **flags: object) -> Numerics:
    """What it has."""
    return job_over(model, **flags).recipe.numerics


@pytest.mark.parametrize(
    ("said", "group", "unread"),
    [
        ({}, 128, ""),
        ({"weight_block_size": [128, 128], "ignored_layers": ["lm_head"]}, 128, ""),
        ({"weight_block_size": None}, 0, ""),
        ({"weight_block_size": [1, 128]}, 128, "weight_block_size 1 x 128"),
        ({"activation_scheme": "static", "weight_block_size": None}, 0, "activation_scheme static"),
        ({"scale_fmt": "ue8m0"}, 128, "scale_fmt ue8m0"),
        ({"expert_dtype": "fp4"}, 128, "expert_dtype fp4"),
        ({"modules_to_convert": ["embed"]}, 128, "modules_to_convert"),
        ({"modules_to_not_convert": ["self_attn.o_proj"]}, 128, "modules_to_not_convert without the head"),
        ({"modules_to_not_convert": []}, 128, "modules_to_not_convert without the head"),
        ({"modules_to_not_convert": ["lm_head", "layers.7.mlp"]}, 128, "'layers.7.mlp' is left unquantised"),
    ],
)
def test_what_fp8_is_kept_unread_is_counted_as_16_bits_alone(
    said: dict[str, Any], group: int, unread: str
) -> None:
    """So it is no error of the file, but a reason not to count the matrices as they are stored."""
    stored = read(quant_method="fp8", **said).stored
    assert stored is not None
    assert (stored.quantization, stored.packing.group) == ("fp8", group)
    assert unread in stored.unread
    assert bool(unread) == bool(stored.unread)


def test_fp8_that_is_to_be_dequantised_is_no_packed_base() -> None:
    """``dequantize`` in the file itself."""
    assert read(quant_method="fp8", dequantize=True).stored is None


@pytest.mark.parametrize(
    ("flags", "quantization"),
    [
        ({"gpu": "h100-sxm"}, "fp8"),
        ({"gpu": "rtx4090"}, "fp8"),
        ({"gpu": "h100-sxm", "quantization": "none"}, "none"),
        ({"gpu": "h100-sxm", "stack": "llama-factory"}, "none"),
        ({"gpu": "a100-80-sxm"}, "none"),
        ({"gpu": "a100-80-sxm", "stack": "swift"}, "none"),
        ({"gpu": "a100-80-sxm", "method": "full"}, "none"),
    ],
)
def test_the_card_and_the_stack_decide_what_becomes_of_fp8(flags: dict[str, str], quantization: str) -> None:
    """As 16 bits it is the job of the model that was stored so."""
    job = job_over("Qwen/Qwen3-8B-FP8", **flags)
    assert job.recipe.numerics.quantization == quantization
    if quantization == "none":
        assert job.recipe == job_over("qwen3-8b", **flags).recipe


def test_a_job_over_a_stored_base_is_quantised_without_being_told() -> None:
    """Both names of the method; AWQ is loaded in fp16, whatever is asked for, from Transformers 4.52 on."""
    awq, nf4 = "TechxGenus/Meta-Llama-3-8B-Instruct-AWQ", "hugging-quants/Meta-Llama-3.1-70B-BNB-NF4-BF16"
    for method in ("lora", "qlora"):
        assert numerics_of(awq, method=method, load_dtype="bf16").load_dtype == "fp16"
        assert numerics_of(nf4, method=method) == Numerics("bf16", "bf16-mixed", "nf4", True, "bf16", PLAIN)
    assert numerics_of(awq, load_dtype="bf16", stack="llama-factory@0.8").load_dtype == "bf16"
    assert numerics_of("TheBloke/Llama-2-7B-GPTQ").quantization == "gptq-int4"


def test_a_storage_is_told_in_words() -> None:
    """Method, and what else decides its bytes."""
    kinds = (
        StoredWeights("awq-int4", Packing(64)),
        StoredWeights("gptq-int4", Packing(0)),
        StoredWeights("aqlm", Packing(8, 1, 16)),
    )
    assert [stored_text(kind) for kind in kinds] == [
        "awq-int4 in groups of 64",
        "gptq-int4, one group",
        "aqlm, 1 x 16 bits for each 8 inputs",
    ]
