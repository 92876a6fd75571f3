"""Trainings of ms-swift, value by value: files, commands and their variables."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.api.checks import CheckJob, check_job
from planner.api.files import CheckOptions
from planner.configs.launchers.command_line import started
from planner.configs.writing.sharding_keys import Files
from planner.configs.writing.translate import edits_for
from planner.configs.yaml_or_json import read_document
from planner.errors import ExitCode, NotModelledError, PlannerError, UsageError
from planner.intake.given.request import from_flags
from tests.files import answer_to, filled, read, written

BASE = "model: Qwen/Qwen2.5-0.5B\ntuner_type: lora\nmax_length: 2048\n"
FULL = BASE.replace("lora", "full")
COMMAND = "swift sft --model Qwen/Qwen2.5-0.5B --dataset a b --max_length 2048"


def recipe_of(folder: Path, text: str, gpu: str = "a100-80-sxm") -> Any:
    """The recipe of a file on one card, with what the stack adds."""
    return filled(read(folder, text), {"gpu": gpu}).recipe


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            "",
            {
                "stack": "swift",
                "seq": 2048,
                "method": "lora",
                "batch": 1,
                "epochs": 3,
                "padding": None,
                "freeze": ("vision_tower", "projector"),
                "eval_batch": None,
            },
        ),
        ("quant_method: bnb\nquant_bits: 4\n", {"quantization": "nf4", "double_quant": True}),
        ("quant_method: bnb\nquant_bits: 8\n", {"quantization": "int8", "double_quant": None}),
        ("quant_bits: 4\n", {"quantization": None}),
        ("torch_dtype: bfloat16\n", {"load_dtype": "bf16", "precision": "bf16-mixed"}),
        ("torch_dtype: float32\n", {"load_dtype": "fp32", "precision": "fp16-mixed"}),
        ("torch_dtype: bfloat16\nfp16: false\n", {"precision": "bf16-mixed"}),
        ("torch_dtype: bfloat16\nbf16: false\n", {"precision": "bf16"}),
        ("torch_dtype: float32\nfp16: false\n", {"precision": "fp32"}),
        (
            "torch_dtype: float32\nbf16: true\nfp16: false\n",
            {"load_dtype": "fp32", "precision": "bf16-mixed"},
        ),
        ("attn_impl: flash_attn\npacking: true\n", {"attention": "flash2", "padding": "packed"}),
        ("attn_impl: flash_attn\npacking: true\npacking_length: 8192\n", {"seq": 8192}),
        ("attn_impl: sdpa\n", {"attention": "sdpa"}),
        ("use_liger_kernel: true\n", {"loss": "liger"}),
        ("loss_scale: react\n", {"switches": ("loss_weights=probability",)}),
        ("enable_dft_loss: true\n", {"switches": ("loss_weights=probability",)}),
        ("loss_scale: last_round+ignore_empty_think\n", {"switches": None}),
        ("loss_scale: react\nuse_liger_kernel: true\n", {"loss": None}),
        ("target_modules: [q_proj, v_proj]\n", {"lora_targets": ("q_proj", "v_proj")}),
        ("target_regex: .*q_proj\n", {"lora_targets": ("regex:.*q_proj",)}),
        ("lora_rank: 64\nlora_dtype: bfloat16\n", {"lora_rank": 64, "adapter_dtype": "bf16"}),
        ("freeze_vit: false\n", {"freeze": ("projector",)}),
        ("truncation_strategy: left\n", {"switches": ("drops_long_samples=false",)}),
        ("split_dataset_ratio: 0.01\n", {"eval_batch": 1}),
        ("split_dataset_ratio: 0.01\neval_strategy: 'no'\n", {"eval_batch": None}),
        ("max_epochs: 2\n", {"epochs": 2}),
        ("task_type: seq_cls\nnum_labels: 5\n", {"task": "classify", "num_labels": 5}),
        ("num_labels: 5\nproblem_type: regression\n", {"task": "classify", "num_labels": 5}),
        ("num_labels: 5\ntask_type: causal_lm\n", {"task": None, "num_labels": None}),
        ("freeze_parameters_ratio: '0.'\nlisa_activated_layers: 0\n", {"method": "lora"}),
        ("split_dataset_ratio: '0.'\n", {"eval_batch": None}),
    ],
)
def test_a_key_means_what_ms_swift_makes_of_it(tmp_path: Path, text: str, values: dict[str, Any]) -> None:
    """Defaults, dtypes, lengths."""
    request = read(tmp_path, BASE + text).request
    assert {name: request.get(name) for name in values} == values


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("task_type: reranker\n", "rankers and embeddings are not modelled"),
        ("tuner_backend: unsloth\n", "Unsloth inside ms-swift"),
        ("rlhf_type: dpo\nloss_scale: react\n", "preferences that weigh each token"),
        ("sequence_parallel_size: 2\n", "a sequence-parallel degree of 2"),
        ("quant_method: hqq\nquant_bits: 4\n", "quantisation by hqq"),
        ("quant_method: bnb\nquant_bits: 4\nbnb_4bit_compute_dtype: float16\n", "compute in another dtype"),
        ("freeze_aligner: false\n", "adapters on a projector"),
        ("device_map: sequential\n", "the map 'sequential' is not modelled; auto is"),
        ("device_map: auto\nENV: {NPROC_PER_NODE: 2}\n", "not modelled beside several processes"),
        ("freeze_parameters_ratio: 0.5\n", "some parameters by their names"),
        ("freeze_parameters_ratio: '0.5'\n", "some parameters by their names"),
        ("lisa_activated_layers: 2\n", "LISA of ms-swift is not modelled"),
        ("external_plugins: a.py\nmodules_to_save: [embed_tokens, new_head]\n", "plugin may add"),
        ("optimizer: muon\n", "of a plugin"),
        ("callbacks: activation_cpu_offload\n", "activation_cpu_offload is not modelled"),
        ("sft_type: lora\n", "ms-swift before 3.0"),
    ],
)
def test_what_is_not_modelled_is_named(tmp_path: Path, text: str, why: str) -> None:
    """A file is refused by its own key, not answered without it."""
    with pytest.raises(NotModelledError, match=why):
        read(tmp_path, BASE + text)


@pytest.mark.parametrize(
    ("model", "text", "precision"),
    [
        ("meta-llama/Llama-2-7b-hf", "", "fp16-mixed"),
        ("meta-llama/Llama-2-7b-hf", "torch_dtype: bfloat16\n", "bf16-mixed"),
        ("Qwen/Qwen2.5-0.5B", "", "bf16-mixed"),
    ],
)
def test_autocast_follows_the_checkpoint(tmp_path: Path, model: str, text: str, precision: str) -> None:
    """_init_mixed_precision: fp16 over weights of fp16 or fp32."""
    recipe = recipe_of(tmp_path, BASE.replace("Qwen/Qwen2.5-0.5B", model) + text)
    assert recipe.numerics.precision == precision


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (FULL, "loss scaling refuses trained weights that are fp16"),
        (f"{BASE}quant_method: bnb\nquant_bits: 4\n", "compute in fp32"),
    ],
)
def test_a_checkpoint_of_fp16_does_not_do_for_all(tmp_path: Path, text: str, error: str) -> None:
    """Full tuning ends when its gradients are unscaled; 4-bit matrices compute in fp32."""
    with pytest.raises(PlannerError, match=error):
        recipe_of(tmp_path, text.replace("Qwen/Qwen2.5-0.5B", "meta-llama/Llama-2-7b-hf"))


def test_until_3_5_some_of_the_data_was_evaluated(tmp_path: Path) -> None:
    """Where an older name tells that it may be so, and no key says how much."""
    old = BASE.replace("tuner_type", "train_type")
    for text, told in ((BASE, False), (old, True), (f"{old}split_dataset_ratio: 0\n", False)):
        remarks = [remark.text for remark in read(tmp_path, text).remarks]
        assert any("until 3.5" in remark for remark in remarks) is told


def test_packs_without_flash_attention_are_refused_as_ms_swift_does(tmp_path: Path) -> None:
    """ms-swift ends with an error before it trains."""
    with pytest.raises(UsageError, match="refused-by-its-tool"):
        read(tmp_path, BASE + "packing: true\n")


@pytest.mark.parametrize(
    ("stops", "goes"),
    [
        ("torch_dtype: bfloat16\nfp16: true\n", "bf16: false\n"),
        ("torch_dtype: float16\nbf16: true\n", "fp16: false\n"),
        ("torch_dtype: float32\nbf16: true\n", "fp16: false\n"),
        ("torch_dtype: bfloat16\nrope_scaling: yarn\n", "max_model_len: 65536\n"),
    ],
)
def test_arguments_at_which_ms_swift_stops_are_refused(tmp_path: Path, stops: str, goes: str) -> None:
    """Its dry run stops at them; with one argument more it trains."""
    with pytest.raises(UsageError, match="refused-by-its-tool"):
        read(tmp_path, BASE + stops)
    read(tmp_path, BASE + stops + goes)


@pytest.mark.parametrize(
    ("model", "text", "stops"),
    [
        ("Qwen/Qwen2.5-0.5B", "fp16: true\n", True),
        ("Qwen/Qwen2.5-0.5B", "fp16: true\nbf16: false\n", False),
        ("Qwen/Qwen2.5-0.5B", "bf16: true\n", False),
        ("meta-llama/Llama-2-7b-hf", "bf16: true\n", True),
        ("meta-llama/Llama-2-7b-hf", "fp16: true\n", False),
        ("Qwen/Qwen2.5-0.5B", "experts_impl: grouped_mm\n", True),
        ("Qwen/Qwen3-30B-A3B", "experts_impl: grouped_mm\n", False),
    ],
)
def test_a_model_at_which_ms_swift_stops(tmp_path: Path, model: str, text: str, stops: bool) -> None:
    """The checkpoint turns on an autocast of its own; grouped products need experts."""
    text = BASE.replace("Qwen/Qwen2.5-0.5B", model) + text
    with pytest.raises(UsageError, match="refused-by-its-tool") if stops else nullcontext():
        recipe_of(tmp_path, text)


def test_the_length_is_asked_for_where_the_model_decides(tmp_path: Path) -> None:
    """Without ``max_length`` samples are as long as the context of the model."""
    assert (
        "max_length is not given"
        in read(tmp_path, "model: Qwen/Qwen2.5-0.5B\ntuner_type: lora\n").needs["seq"]
    )


@pytest.mark.parametrize(("text", "gpu", "accum"), [
    ("", "a100-80-sxm", 16),
    ("", "a100-80-sxm:8", 2),
    ("", "a100-80-sxm:32", 1),
    ("per_device_train_batch_size: 3\n", "a100-80-sxm:2", 3),
    ("gradient_accumulation_steps: 5\n", "a100-80-sxm:2", 5),
])  # fmt: skip
def test_a_step_has_sixteen_samples_at_least(tmp_path: Path, text: str, gpu: str, accum: int) -> None:
    """ceil(16 / batch / processes), as trainers/arguments.py has it."""
    assert recipe_of(tmp_path, FULL + text, gpu).batch.grad_accum == accum


def test_train_type_is_software_of_its_time(tmp_path: Path) -> None:
    """4.x calls it ``tuner_type``."""
    found = read(tmp_path, BASE.replace("tuner_type", "train_type"))
    assert (found.request.get("stack"), found.tool) == ("swift@3", "ms-swift 3.12.6")


def test_a_command_has_the_variables_before_it_and_those_exported() -> None:
    """Another command's variables, and shell variables that are not exported, do not count."""
    text = f"A=1\nexport NNODES=2\nB=2 echo\nNPROC_PER_NODE=4 {COMMAND} --torch_dtype bfloat16"
    job = started(Path("run.sh"), text)
    assert job.arguments["ENV"] == {"NNODES": "2", "NPROC_PER_NODE": "4"}
    assert (job.tool, job.arguments["dataset"], job.arguments["max_length"]) == ("ms-swift", ["a", "b"], 2048)


def asked(text: str, gpu: str = "a100-80-sxm") -> Any:
    """What ``plan check --command`` answers."""
    return answer_to(text, {"gpu": gpu})


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-VL-3B-Instruct"])
def test_nothing_frozen_is_no_list_of_nothing(model: str) -> None:
    """Every part may be trained."""
    arguments = "--tuner_type full --freeze_vit false --freeze_aligner false"
    checked = asked(f"swift sft --model {model} {arguments} --max_length 1024")
    assert checked.failure == ""
    assert checked.subject.scenario.recipe.frozen == ()


@pytest.mark.parametrize(("argument", "code"), [
    ("--lisa_activated_layers 0", ExitCode.FITS),
    ("--freeze_parameters_ratio 0.", ExitCode.FITS),
    ("--freeze_parameters_ratio 0.0e0", ExitCode.FITS),
    ("--freeze_parameters_ratio .25", ExitCode.NOT_MODELLED),
    ("--lisa_activated_layers 2", ExitCode.NOT_MODELLED),
])  # fmt: skip
def test_an_argument_at_its_default_switches_nothing_on(argument: str, code: ExitCode) -> None:
    """Zero, as an argument of a command may be written; another program's name is not given for it."""
    checked = asked(f"{COMMAND} {argument}")
    assert (checked.exit_code, "LMFlow" in checked.failure) == (code, False)


def test_the_same_key_without_ms_swift_is_another_programs(tmp_path: Path) -> None:
    """ms-swift refuses it; LMFlow has it beside ``use_lisa``, without which it says nothing."""
    text = "model_name_or_path: a/b\nper_device_train_batch_size: 2\nlisa_activated_layers: 2\n"
    assert read(tmp_path, text).tool_name == "lmflow"
    found = read(tmp_path, f"{text}use_lisa: true\n").request
    assert found.get("train_layers") == ("drawn:2@20", "embed", "norm", "head")


@pytest.mark.parametrize(("before", "changes", "after"), [
    ("", {"sharding": "zero3"}, "deepspeed: zero3\n"),
    ("", {"sharding": "fsdp"}, "fsdp: fsdp2\n"),
    ("deepspeed: zero3\n", {"offload": "optimizer+params"}, "deepspeed: zero3_offload\n"),
    ("deepspeed: zero2_offload\n", {"offload": "none"}, "deepspeed: zero2\n"),
    ("deepspeed: zero2\n", {"sharding": "zero3"}, "deepspeed: zero3\n"),
    ("deepspeed: mine.json\n", {"sharding": "zero3"}, None),
    ("deepspeed: zero2\n", {"sharding": "fsdp"}, None),
    ("fsdp: fsdp2\n", {"sharding": "zero3"}, None),
    ("", {"offload": "optimizer"}, None),
])  # fmt: skip
def test_an_engine_is_written_by_its_name(
    tmp_path: Path, before: str, changes: dict[str, Any], after: str | None
) -> None:
    """Files that ms-swift ships; one of the user's own is left alone."""
    path = written(tmp_path, BASE + before)
    edits = edits_for(Files("ms-swift", read_document(path)), changes)
    found = None if edits is None else {edit.place[0]: edit.value for edit in edits}
    assert found == (None if after is None else yaml.safe_load(after))


def test_a_fix_is_named_by_the_keys_of_ms_swift(tmp_path: Path) -> None:
    """And the line that starts the job is that of ms-swift."""
    path = written(tmp_path, "model: Qwen/Qwen2.5-7B\ntuner_type: full\nmax_length: 1024\ndeepspeed: zero2\n")
    checked = check_job(CheckJob(str(path), CheckOptions()), from_flags({"gpu": "a100-80-sxm:2"}))
    assert checked.exit_code == ExitCode.GPU_MEMORY_SHORT
    assert {edit.place[0] for fix in (checked.fixes or ()) for edit in fix.edits} & {"deepspeed", "optim"}
    assert checked.launch == f"NPROC_PER_NODE=2 swift sft {path}"


@pytest.mark.parametrize(("arguments", "frozen", "images"), [
    ("--freeze_vit true", (), 0),
    ("--tuner_type full --freeze_vit true --freeze_llm true --freeze_aligner false",
     ("vision_tower", "language_model"), 1),
])  # fmt: skip
def test_a_model_mostly_for_text_is_loaded_with_its_tower(
    arguments: str, frozen: tuple[str, ...], images: int
) -> None:
    """Arguments that train another part than the language model say that there are images."""
    checked = asked(f"swift sft --model Qwen/Qwen3.5-0.8B --max_length 2048 {arguments}")
    assert checked.failure == ""
    scenario = checked.subject.scenario
    assert scenario.model.vision is not None
    seen = scenario.recipe.batch.images
    assert (seen.per_sample if seen else 0) == images
    assert not frozen or scenario.recipe.frozen == frozen


def test_the_largest_image_says_that_there_are_images() -> None:
    """Of Qwen3.5, too, which is trained on text else."""
    checked = asked("MAX_PIXELS=262144 swift sft --model Qwen/Qwen3.5-0.8B --max_length 2048")
    images = checked.subject.scenario.recipe.batch.images
    assert images is not None
    assert images.width * images.height <= 262144
