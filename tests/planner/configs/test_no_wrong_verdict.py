"""Files that were misread: each value that is read, or the sentence that says why there is no verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import InputFileError, NotModelledError, PlannerError, UsageError
from planner.intake.given.config_file import ConfigFile, read_config_file, with_flags
from planner.intake.given.request import from_flags
from tests.files import filled, read, remarks, written

LLAMA_FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\nbf16: true\n"
AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\n"
TRL = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\n"
TRAINER = "per_device_train_batch_size: 2\nbf16: true\n"
ON_8 = {"model": "7b", "method": "full", "seq": 512, "gpu": "a100-80-sxm:8"}


def deepspeed(folder: Path, keys: str, zero: str = '"stage": 2') -> ConfigFile:
    """A DeepSpeed file with these keys, read."""
    text = f'{{"zero_optimization": {{{zero}}}, "bf16": {{"enabled": true}}{", " if keys else ""}{keys}}}'
    return read(folder, text, "ds.json")


TRAIN = '"train_batch_size"'
MICRO = '"train_micro_batch_size_per_gpu"'
ACCUM = '"gradient_accumulation_steps"'


def test_names_of_stage_3_may_lack_their_prefix(tmp_path: Path) -> None:
    """DeepSpeed fills these fields by name as well."""
    config = deepspeed(
        tmp_path, "", '"stage": 3, "max_live_parameters": 7, "gather_16bit_weights_on_model_save": true'
    )
    assert (config.ignored, config.remarks) == ([], [])
    assert "zero3_live_elements=7" in config.request.get("switches")


def test_each_size_of_stage_3_is_the_files_own_number(tmp_path: Path) -> None:
    """Beside ``auto``, which means hidden size for its own key alone, numbers and left-out keys hold."""
    own = '"reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": "auto", "sub_group_size": 0'
    config = deepspeed(tmp_path, "", f'"stage": 3, {own}, "stage3_max_reuse_distance": 1e9')
    assert config.request.get("switches") == (
        "zero_auto_buckets=true",
        "zero3_bucket_elements=500000000",
        "zero3_persistence_elements=100000",
        "zero3_sub_group_elements=0",
    )
    assert config.remarks == []


@pytest.mark.parametrize(
    ("named", "sharding", "offload"),
    [
        ("/workspace/axolotl/deepspeed_configs/zero2.json", "zero2", "optimizer"),
        ("deepspeed_configs/zero3_bf16_cpuoffload_params.json", "zero3", "params"),
        ("/home/me/LLaMA-Factory/examples/deepspeed/ds_z3_config.json", "zero3", None),
        ("../examples/deepspeed/ds_z1_config.json", "zero1", None),
        ("../examples/deepspeed/ds_z0_config.json", "zero0", None),
        ("/data/ds_z2_offload_config.json", "zero2", "optimizer"),
    ],
)
def test_stock_files_of_another_machine_are_known(
    tmp_path: Path, named: str, sharding: str, offload: str | None
) -> None:
    """A DeepSpeed file that comes with a tool is known by folder and name, or by a name that no other tool
    gives its files, which is said; others still have to be there.
    """
    config = read(tmp_path, f"{LLAMA_FACTORY}deepspeed: {named}\n")
    assert (config.request.get("sharding"), config.request.get("offload")) == (sharding, offload)
    assert "is not here: taken as" in remarks(config)
    name = Path(named).name if "deepspeed_configs" in named else f"my_{Path(named).name}"
    with pytest.raises(InputFileError, match="neither beside this file"):
        read(tmp_path, f"{LLAMA_FACTORY}deepspeed: /mine/{name}\n")


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (TRL + "with_tracking: true\nnum_warmup_steps: 10\n", "a script of Transformers without a Trainer"),
        (TRAINER + "do_dpo_align: true\nreference_model_name_or_path: gpt2\n", "LMFlow"),
        (TRAINER + "tensor_model_parallel_size: 4\n", "Megatron"),
        ("max_seq_len: 512\ndevice_train_microbatch_size: 4\n", "LLM Foundry"),
        (TRAINER + "pretrain: gpt2\nmicro_train_batch_size: 2\n", "OpenRLHF"),
        ("model: {model_name: gpt2}\ntraining: {per_device_train_batch_size: 2}\n", "Oumi"),
    ],
)
def test_a_file_of_a_program_that_is_not_read_is_said_to_be_so(
    tmp_path: Path, text: str, program: str
) -> None:
    """The program and the key are named, whatever tool is asked for."""
    for tool in (None, "transformers"):
        with pytest.raises(NotModelledError, match=rf"a key of {program}.*: such files are not read"):
            read_config_file(written(tmp_path, text), tool)


def test_overrides_of_a_recipe_of_megatron_bridge_are_no_job(tmp_path: Path) -> None:
    """Their model stands in Python (examples/models/qwen/qwen3_next/conf of NVIDIA-NeMo/Megatron-Bridge)."""
    text = "model: {seq_length: 2048}\ntrain: {train_iters: 600, micro_batch_size: 1}\nddp: {}\n"
    with pytest.raises(NotModelledError, match="train: recipes of Megatron-Bridge are Python"):
        read_config_file(written(tmp_path, text), None)


def test_sizes_of_a_training_are_no_mark_of_megatron_bridge(tmp_path: Path) -> None:
    """LitGPT's files have them, too (Lightning-AI/litgpt config_hub/finetune/llama-2-7b/lora.yaml)."""
    text = "checkpoint_dir: a\nprecision: bf16-true\ntrain: {global_batch_size: 8, micro_batch_size: 2}\n"
    with pytest.raises(PlannerError) as caught:
        read_config_file(written(tmp_path, text), None)
    assert "Megatron" not in str(caught.value)


@pytest.mark.parametrize("name", ["model_name", "base_model", "model_id"])
def test_scripts_of_ones_own_name_the_model_in_their_ways(tmp_path: Path, name: str) -> None:
    """It is taken, and told; Transformers' own name goes before."""
    config = read_config_file(written(tmp_path, f"{TRAINER}{name}: gpt2\n"), "transformers")
    assert config.request.get("model") == "gpt2"
    assert "taken as the model that is trained" in remarks(config)
    text = f"{TRAINER}{name}: gpt2\nmodel_name_or_path: qwen2-0.5b\n"
    config = read_config_file(written(tmp_path, text), "transformers")
    assert config.request.get("model") == "qwen2-0.5b"
    assert "taken as the model" not in remarks(config)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (AXOLOTL + "my_frozen_parts: [a]\n", "'frozen'"),
        (TRL + "lora_dropuot: 0\n", r"lora_dropuot: unknown key.*is lora_dropout meant\?"),
        (TRL + "my_parallel: true\n", r"'parallel'.*take it out"),
        (TRL + "expert_dropout: 0.1\n", "'expert'"),
        (TRAINER + "model_dtype: fp8\n", "'dtype'"),
    ],
)
def test_an_unknown_key_that_may_change_memory_has_no_verdict(
    tmp_path: Path, text: str, sentence: str
) -> None:
    """The one rule, for every tool, with the known key that is nearest."""
    with pytest.raises(NotModelledError, match=sentence):
        read(tmp_path, text)


def test_the_rule_about_unknown_keys_holds_in_tables_below(tmp_path: Path) -> None:
    """A key of a DeepSpeed file is named with its whole path; one that is null says nothing."""
    with pytest.raises(NotModelledError, match=r"zero_optimization\.offload_everything"):
        deepspeed(tmp_path, "", '"stage": 2, "offload_everything": true')
    assert (
        deepspeed(tmp_path, "", '"stage": 2, "offload_everything": null').request.get("sharding") == "zero2"
    )


def test_keys_tell_the_age_of_a_plain_trainers_file(tmp_path: Path) -> None:
    """What Transformers 5 no longer has means Transformers 4."""
    assert read(tmp_path, TRAINER).request.get("stack") == "hf-trainer@5"
    config = read(tmp_path, TRAINER + "overwrite_output_dir: true\n")
    assert config.request.get("stack") == "hf-trainer@4"
    assert "no longer has" in remarks(config)
    config = read(tmp_path, TRAINER + "adafactor: true\noptim: adamw_torch\n")
    assert (config.request.get("stack"), config.request.get("optimizer")) == ("hf-trainer@4", "adafactor")
    config = read(tmp_path, TRAINER + "torch_dtype: bfloat16\nmodel_max_length: 512\n")
    assert [config.request.get(name) for name in ("stack", "load_dtype", "seq")] == [
        "hf-trainer@4",
        "bf16",
        512,
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TRAINER + "do_predict: true\n", "do_predict: .*does not train"),
        (TRAINER + "do_train: false\ndo_eval: true\n", "do_train: .*does not train"),
        (LLAMA_FACTORY + "do_predict: true\n", "does not train"),
        (LLAMA_FACTORY + "infer_backend: huggingface\n", "infer_backend: this file does not train"),
        (TRL + "pass_rate_min: 0.1\nnum_generations: 4\n", "filters a data set and does not train"),
        (TRL + "num_ppo_epochs: 4\nnum_generations: 8\n", "reinforcement learning"),
        (
            TRL.replace("true", "false")
            + "beta: 0.1\nprecompute_ref_log_probs: true\ntorch_dtype: bfloat16\n",
            "computed before training",
        ),
        (TRL + "reward_model_path: a/b\n", "reward model's scores"),
        (TRL + "teacher_model_name_or_path: a/b\nuse_vllm: true\n", "teacher_model_name_or_path: distill"),
        (TRL + "lmbda: 0.5\n", "distillation"),
        (TRL + "max_staleness: 4\nnum_generations: 8\n", "beside the update"),
        (TRL + "normalize_advantages: true\nnum_generations: 8\n", "other than GRPO"),
        (TRL + "step_separator: '#'\n", "single steps"),
        (LLAMA_FACTORY + "calculate_per_token_loss: true\n", "calculate_per_token_loss: a key of Megatron"),
        (LLAMA_FACTORY + "use_kt: true\ncpu_infer: 32\n", "use_kt: KTransformers as LLaMA-Factory had it"),
    ],
)
def test_what_is_no_supervised_training_says_what_it_is(tmp_path: Path, text: str, sentence: str) -> None:
    """No verdict, and no question for a precision or a method that would not help."""
    with pytest.raises(NotModelledError, match=sentence):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("use_lora: true\n", "use_lora"),
        ("lora_rank: 16\nlora_alpha: 32\n", "lora_rank"),
        ("use_lora: false\nlora_rank: 16\nload_in_4bit: true\n", "load_in_4bit"),
        ("block_size: 512\ntarget_modules: all\n", "target_modules"),
    ],
)
def test_how_a_script_of_ones_own_trains_has_to_be_said(tmp_path: Path, said: str, key: str) -> None:
    """Names such as ``use_lora`` mean what the script makes of them; rank and targets are taken by name."""
    text = f"{TRAINER}model_name_or_path: /data/Qwen3-0.6B\n{said}"
    config = read_config_file(written(tmp_path, text), "transformers")
    gpu = {"gpu": "4090", "seq": 512}
    with pytest.raises(UsageError, match=f"{key}: what the script does with it is not known: say --method"):
        with_flags(config, from_flags(gpu))
    asked = filled(config, gpu | {"method": "lora"})
    assert asked.recipe.adapter is not None
    assert asked.recipe.adapter.rank == (16 if said.startswith("lora_rank") else 8)
    kernel = read_config_file(written(tmp_path, f"{text}use_flash_attn: true\n"), "transformers")
    assert kernel.request.get("attention") == "flash2"
    assert any("--attention says another" in remark.text for remark in kernel.remarks)


def test_a_job_that_trains_and_predicts_trains(tmp_path: Path) -> None:
    """Prediction after training is no reason to refuse."""
    assert read(tmp_path, TRAINER + "do_train: true\ndo_predict: true\n").request.get("batch") == 2


def test_of_a_key_given_twice_the_last_counts_and_is_said(tmp_path: Path) -> None:
    """As in the YAML readers of the tools, in nested tables and in the files that are referred to as well."""
    config = read(tmp_path, LLAMA_FACTORY + "cutoff_len: 512\ncutoff_len: 1024\n")
    assert config.request.get("seq") == 1024
    assert [(remark.origin, remark.text) for remark in config.remarks if "twice" in remark.text] == [
        (f"{tmp_path}/train.yaml:5", "key 'cutoff_len' is given twice: the last value counts"),
        (
            f"{tmp_path}/train.yaml",
            "LLaMA-Factory 0.9.5 stops at a key that is given twice; 0.9.3 did not",
        ),
    ]
    launch = written(
        tmp_path, "distributed_type: MULTI_GPU\nnum_processes: 2\nnum_processes: 4\n", "launch/a.yaml"
    )
    config = read_config_file(written(tmp_path, TRAINER), None, Beside(accelerate=launch))
    assert config.request.get("gpus") == 4
    assert "key 'num_processes' is given twice" in remarks(config)


LAUNCH = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 4\n"


def test_the_one_launch_file_beside_is_counted(tmp_path: Path) -> None:
    """It says how state is divided, which the trainer's file leaves open;
    a remark names it and the way out.
    """
    launch = written(tmp_path, LAUNCH, "fsdp.yaml")
    config = read(tmp_path, TRL)
    assert (config.request.get("sharding"), config.request.get("gpus"), config.launch) == ("fsdp1", 4, launch)
    assert [remark.origin for remark in config.remarks if "--accelerate FILE" in remark.text] == [str(launch)]
    alone = read_config_file(tmp_path / "train.yaml", None, Beside(accelerate=Path("none")))
    assert (alone.request.get("sharding"), alone.launch, alone.candidates) == (None, None, ())


def test_several_launch_files_are_named_and_none_is_counted(tmp_path: Path) -> None:
    """Beside the config and in the usual folder of its repository."""
    files = (
        written(tmp_path, '{"zero_optimization": {"stage": 2}}', "recipes/sft/ds.json"),
        written(tmp_path, LAUNCH, "recipes/sft/fsdp.yaml"),
        written(tmp_path, LAUNCH, "recipes/accelerate_configs/zero3.yaml"),
    )
    written(tmp_path, "colour: red\n", "recipes/accelerate_configs/readme.yaml")
    config = read(tmp_path, TRL, "recipes/sft/train.yaml")
    assert (config.request.get("sharding"), config.launch, config.candidates) == (None, None, files)
    assert "DDP is assumed" in remarks(config)


def test_a_file_in_a_usual_folder_is_named_and_not_counted(tmp_path: Path) -> None:
    """Which of a repository's launch files is meant nobody can tell."""
    launch = written(tmp_path, LAUNCH, "accelerate_configs/fsdp.yaml")
    config = read(tmp_path, TRL, "sft/train.yaml")
    assert (config.request.get("sharding"), config.candidates) == (None, (launch,))


@pytest.mark.parametrize("text", [TRL + "fsdp: full_shard\n", LLAMA_FACTORY, AXOLOTL])
def test_no_launch_file_is_looked_for_where_the_config_decides(tmp_path: Path, text: str) -> None:
    """A config that shards itself, and tools that launch by themselves."""
    written(tmp_path, LAUNCH, "fsdp.yaml")
    config = read(tmp_path, text)
    assert (config.launch, config.candidates, config.request.get("gpus")) == (None, (), None)


def test_a_deepspeed_file_with_a_batch_alone_is_told_by_its_keys(tmp_path: Path) -> None:
    """``gradient_accumulation_steps`` is a key of trainers as well: DeepSpeed's others decide."""
    keys: dict[str, Any] = {"gpu": "a100-80-sxm:8", "model": "7b", "method": "full", "seq": 512}
    text = '{"train_batch_size": 64, "gradient_accumulation_steps": 2, "steps_per_print": 1}'
    config = read(tmp_path, text, "ds.json")
    assert config.tool.startswith("DeepSpeed")
    assert with_flags(config, from_flags(keys)).get("batch") == 4


def test_a_launch_file_is_found_from_the_configs_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config that is named without its folder is looked around like any other,
    and the way there is short.
    """
    written(tmp_path, LAUNCH, "accelerate_configs/fsdp.yaml")
    written(tmp_path, TRL, "recipes/train.yaml")
    monkeypatch.chdir(tmp_path / "recipes")
    assert "here are ../accelerate_configs/fsdp.yaml: say" in remarks(read_config_file("train.yaml"))


def test_kernels_of_liger_that_a_config_takes_out_are_out(tmp_path: Path) -> None:
    """Without the fused loss the logits are whole, which is the larger part of what Liger saves."""
    text = (
        TRAINER
        + "use_liger_kernel: true\nliger_kernel_config: {fused_linear_cross_entropy: false, swiglu: false}\n"
    )
    request = read(tmp_path, text).request
    assert (request.get("loss"), request.get("switches")) == ("hf", ("fused_norm=liger",))
    old = read(tmp_path, TRAINER + "use_liger_kernel: true\nsave_safetensors: true\n")
    assert old.request.get("switches") == ("fused_norm=liger", "fused_mlp=liger", "liger_loss=true")
    flags = {"model": "7b", "method": "full", "seq": 512, "gpu": "a100-80-sxm"}
    assert filled(old, flags).recipe.loss == "liger"


@pytest.mark.parametrize("text", [TRL, "model_name_or_path: Qwen/Qwen2.5-0.5B\n" + TRAINER])
def test_a_quantised_checkpoint_is_not_taken_for_16_bits(tmp_path: Path, text: str) -> None:
    """Its name says how it is stored, and --model by hand does not change that."""
    flags = from_flags({"gpu": "4090", "model": "qwen2.5-0.5b", "method": "lora", "seq": 512})
    with pytest.raises(UsageError, match="is quantised already: say --quantization gptq-int4"):
        with_flags(
            read(tmp_path, text.replace("Qwen2.5-0.5B", "Qwen2.5-0.5B-Instruct-GPTQ")),
            flags,
        )
    for name in ("HQQ", "bnb-8bit"):
        with pytest.raises(NotModelledError, match="quantised already"):
            read(tmp_path, text.replace("Qwen2.5-0.5B", f"Qwen2.5-0.5B-{name}"))


def test_run_clm_of_transformers_is_not_read_as_trl(tmp_path: Path) -> None:
    """It has a ``dataset_name`` too; its rows are ``block_size`` long, whole texts joined and cut, its loss
    the model's own.
    """
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: wikitext\nblock_size: 4096\n" + TRAINER
    config = read(tmp_path, text)
    assert config.tool_name == "transformers"
    values = {name: config.request.get(name) for name in ("seq", "method", "padding", "loss")}
    assert values == {"seq": 4096, "method": "full", "padding": "packed", "loss": None}


@pytest.mark.parametrize("key", ["micro_batch_size", "train_batch_size"])
def test_arguments_of_a_script_are_neither_axolotls_nor_deepspeeds(tmp_path: Path, key: str) -> None:
    """Axolotl takes a file whose list of data they lack; the other one is a file for a launcher."""
    path = written(tmp_path, f"base_model: Qwen/Qwen2.5-0.5B\n{key}: 4\nlearning_rate: 1e-5\n")
    with pytest.raises(NotModelledError, match=f"{key}: unknown key"):
        read_config_file(path, beside=Beside(script="finetune.py", own=True))
