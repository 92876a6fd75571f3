"""Files that were misread: each value that is read, or the sentence that says why there is no verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import InputFileError, NotModelledError, UsageError
from planner.intake.given.config_file import ConfigFile, read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve

LLAMA_FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\nbf16: true\n"
AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\n"
TRL = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\n"
TRAINER = "per_device_train_batch_size: 2\nbf16: true\n"
ON_8 = {"model": "7b", "method": "full", "seq": 512, "gpu": "a100-80-sxm:8"}


def written(folder: Path, text: str, name: str = "train.yaml") -> Path:
    """A file with this text."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def deepspeed(folder: Path, keys: str, zero: str = '"stage": 2') -> ConfigFile:
    """A DeepSpeed file with these keys, read."""
    text = f'{{"zero_optimization": {{{zero}}}, "bf16": {{"enabled": true}}{", " if keys else ""}{keys}}}'
    return read_config_file(written(folder, text, "ds.json"))


def remarks(config: ConfigFile) -> str:
    """All remarks of a config in one text."""
    return "\n".join(remark.text for remark in config.remarks)


TRAIN, MICRO, ACCUM = (
    '"train_batch_size"',
    '"train_micro_batch_size_per_gpu"',
    '"gradient_accumulation_steps"',
)


@pytest.mark.parametrize(
    ("keys", "batch", "accum"),
    [
        (f"{TRAIN}: 64", 8, 1),
        (f"{TRAIN}: 64, {MICRO}: 2", 2, 4),
        (f"{TRAIN}: 64, {ACCUM}: 4", 2, 4),
        (f"{TRAIN}: 64, {MICRO}: 4, {ACCUM}: 2", 4, 2),
        (f"{MICRO}: 4, {ACCUM}: 2", 4, 2),
        (f"{MICRO}: 4", 4, None),
        (f'{TRAIN}: 64, {MICRO}: "auto", {ACCUM}: "auto"', 8, 1),
    ],
)
def test_the_batch_triad_is_deepspeeds(tmp_path: Path, keys: str, batch: int, accum: int | None) -> None:
    """Whichever of the three are given, the others follow as in ``_set_batch_related_parameters``,
    on 8 GPUs.
    """
    request = with_flags(deepspeed(tmp_path, keys), from_flags(ON_8))
    assert (request.get("batch"), request.get("grad_accum")) == (batch, accum)


@pytest.mark.parametrize(
    "keys", [f"{TRAIN}: 20", f"{TRAIN}: 4", f"{TRAIN}: 64, {ACCUM}: 3", f"{TRAIN}: 64, {MICRO}: 3"]
)
def test_a_batch_that_the_gpus_cannot_share_is_refused(tmp_path: Path, keys: str) -> None:
    """DeepSpeed asserts that the product is the batch, so a remainder ends the job."""
    with pytest.raises(UsageError, match="DeepSpeed refuses that"):
        with_flags(deepspeed(tmp_path, keys), from_flags(ON_8))


def test_no_stage_is_stage_0(tmp_path: Path) -> None:
    """DeepSpeed's engine without ZeRO has a name of its own."""
    for config in (
        deepspeed(tmp_path, "", '"stage": 0'),
        read_config_file(written(tmp_path, f"{{{MICRO}: 2}}", "ds.json")),
    ):
        assert config.request.get("sharding") == "zero0"
        assert config.remarks == ()


def test_a_flat_optimizer_without_zero_is_refused(tmp_path: Path) -> None:
    """DeepSpeed's own Adam takes another wrapper, in 16 bits only."""
    adam = '"optimizer": {"type": "Adam"}'
    with pytest.raises(NotModelledError, match="without ZeRO"):
        read_config_file(written(tmp_path, f'{{{MICRO}: 2, "bf16": {{"enabled": true}}, {adam}}}', "ds.json"))
    config = read_config_file(written(tmp_path, f"{{{MICRO}: 2, {adam}}}", "ds.json"))
    assert config.request.get("optimizer") == "adamw_torch_fused"


def test_names_of_stage_3_may_lack_their_prefix(tmp_path: Path) -> None:
    """DeepSpeed fills these fields by name as well."""
    config = deepspeed(
        tmp_path, "", '"stage": 3, "max_live_parameters": 7, "gather_16bit_weights_on_model_save": true'
    )
    assert (config.ignored, config.remarks) == ((), ())
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
    assert config.remarks == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [("adamw_bnb_8bit", "adamw_torch"), ("adafactor", "adamw_torch"), ("lion_32bit", "lion")],
)
def test_an_offloaded_optimizer_is_swapped_for_the_cpus(tmp_path: Path, before: str, after: str) -> None:
    """Accelerate puts DeepSpeedCPUAdam in, or its Lion, unless the file forbids it."""
    text = f"{LLAMA_FACTORY}optim: {before}\ndeepspeed: ds.json\n"
    zero = '{"stage": 2, "offload_optimizer": {"device": "cpu"}}'
    written(tmp_path, f'{{"zero_optimization": {zero}}}', "ds.json")
    config = read_config_file(written(tmp_path, text))
    assert config.request.get("optimizer") == after
    assert ("swapped for DeepSpeedCPUAdam" in remarks(config)) == (after == "adamw_torch")
    written(tmp_path, f'{{"zero_optimization": {zero}, "zero_force_ds_cpu_optimizer": false}}', "ds.json")
    assert read_config_file(written(tmp_path, text)).request.get("optimizer") != "adamw_torch"


def test_accelerates_own_keys_of_offload_swap_it_too(tmp_path: Path) -> None:
    """Without a DeepSpeed file the launcher's keys do the same."""
    launch = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_optimizer_device: cpu}\n"
    beside = Beside(accelerate=written(tmp_path, launch, "launch/a.yaml"))
    config = read_config_file(written(tmp_path, TRL + "optim: adamw_8bit\n"), None, beside)
    assert (config.request.get("sharding"), config.request.get("offload")) == ("zero2", "optimizer")
    assert config.request.get("optimizer") == "adamw_torch"


@pytest.mark.parametrize(
    ("named", "sharding", "offload"),
    [
        ("/workspace/axolotl/deepspeed_configs/zero2.json", "zero2", "optimizer"),
        ("deepspeed_configs/zero3_bf16_cpuoffload_params.json", "zero3", "params"),
        ("/home/me/LLaMA-Factory/examples/deepspeed/ds_z3_config.json", "zero3", None),
        ("../examples/deepspeed/ds_z0_config.json", "zero0", None),
    ],
)
def test_stock_files_of_another_machine_are_known(
    tmp_path: Path, named: str, sharding: str, offload: str | None
) -> None:
    """A DeepSpeed file that comes with a tool is known by folder and name, which is said;
    others still have to be there.
    """
    config = read_config_file(written(tmp_path, f"{LLAMA_FACTORY}deepspeed: {named}\n"))
    assert (config.request.get("sharding"), config.request.get("offload")) == (sharding, offload)
    assert "is not here: taken as" in remarks(config)
    with pytest.raises(InputFileError, match="neither beside this file"):
        read_config_file(written(tmp_path, f"{LLAMA_FACTORY}deepspeed: /mine/{Path(named).name}\n"))


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (TRL + "with_tracking: true\nnum_warmup_steps: 10\n", "a script of Transformers without a Trainer"),
        (TRAINER + "do_dpo_align: true\nreference_model_name_or_path: gpt2\n", "LMFlow"),
        (LLAMA_FACTORY + "tensor_model_parallel_size: 4\n", "Megatron"),
        ("max_seq_len: 512\ndevice_train_microbatch_size: 4\n", "LLM Foundry"),
        ("model: {model_name: gpt2}\ntraining: {per_device_train_batch_size: 2}\n", "Oumi"),
        ("model: {_target_: nemo_automodel.x}\nstep_scheduler: {local_batch_size: 8}\n", "NeMo AutoModel"),
    ],
)
def test_a_file_of_a_program_that_is_not_read_is_said_to_be_so(
    tmp_path: Path, text: str, program: str
) -> None:
    """The program and the key are named, whatever tool is asked for."""
    for tool in (None, "transformers"):
        with pytest.raises(NotModelledError, match=rf"a key of {program}.*: such files are not read"):
            read_config_file(written(tmp_path, text), tool)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (LLAMA_FACTORY + "lora_rnak: 8\n", r"lora_rnak: unknown key.*is lora_rank meant\?"),
        (LLAMA_FACTORY + "my_parallel: true\n", r"'parallel'.*take it out"),
        (AXOLOTL + "my_frozen_parts: [a]\n", "'frozen'"),
        (TRL + "expert_dropout: 0.1\n", "'expert'"),
        (TRAINER + "model_dtype: fp8\n", "'dtype'"),
    ],
)
def test_an_unknown_key_that_may_change_memory_has_no_verdict(
    tmp_path: Path, text: str, sentence: str
) -> None:
    """The one rule, for every tool, with the known key that is nearest."""
    with pytest.raises(NotModelledError, match=sentence):
        read_config_file(written(tmp_path, text))


def test_the_rule_about_unknown_keys_holds_in_tables_below(tmp_path: Path) -> None:
    """A key of a DeepSpeed file is named with its whole path; one that is null says nothing."""
    with pytest.raises(NotModelledError, match=r"zero_optimization\.offload_everything"):
        deepspeed(tmp_path, "", '"stage": 2, "offload_everything": true')
    assert (
        deepspeed(tmp_path, "", '"stage": 2, "offload_everything": null').request.get("sharding") == "zero2"
    )


@pytest.mark.parametrize(
    ("key", "stack"),
    [
        ("max_seq_length: 512", "trl@0"),
        ("evaluation_strategy: epoch", "trl@0"),
        ("use_liger: true", "trl@0"),
        ("torch_dtype: bfloat16", "trl@0.24"),
        ("overwrite_output_dir: true", "trl@0.24"),
        ("model_init_kwargs: {torch_dtype: bfloat16}", "trl@0.24"),
        ("max_length: 512", "trl"),
    ],
)
def test_keys_tell_the_age_of_trl(tmp_path: Path, key: str, stack: str) -> None:
    """A key that TRL or Transformers dropped takes the nearest older stack, with a remark;
    a flag still wins.
    """
    config = read_config_file(written(tmp_path, f"{TRL}bf16: true\n{key}\n"))
    assert config.request.get("stack") == stack
    assert (f"the stack {stack};" in remarks(config)) == (stack != "trl")
    assert with_flags(config, from_flags({"stack": "unsloth"})).get("stack") == "unsloth"


def test_old_trl_turns_no_precision_on(tmp_path: Path) -> None:
    """Before TRL 0.19 neither bf16 nor fp16 was on unless said, so the file is asked;
    later bf16 is the default.
    """
    config = read_config_file(written(tmp_path, TRL + "max_seq_length: 512\n"))
    with pytest.raises(UsageError, match="--precision"):
        with_flags(config, from_flags({"gpu": "4090"}))
    assert (
        read_config_file(written(tmp_path, TRL + "torch_dtype: bfloat16\n")).request.get("precision")
        == "bf16-mixed"
    )


def test_old_trl_prepares_a_4_bit_base(tmp_path: Path) -> None:
    """Norms in fp32 and bytes in the named dtype; under FSDP nothing is cast, so that shards stay alike."""
    text = TRL + "load_in_4bit: true\nbf16: true\nmax_seq_length: 512\ntorch_dtype: bfloat16\n"
    request = read_config_file(written(tmp_path, text)).request
    assert (request.get("switches"), request.get("quant_storage")) == (("kbit_upcast=norms",), "bf16")
    request = read_config_file(written(tmp_path, text + "fsdp: full_shard\n")).request
    assert (request.get("switches"), request.get("sharding")) == (("kbit_upcast=none",), "fsdp")


def test_keys_tell_the_age_of_a_plain_trainers_file(tmp_path: Path) -> None:
    """What Transformers 5 no longer has means Transformers 4."""
    assert read_config_file(written(tmp_path, TRAINER)).request.get("stack") == "hf-trainer@5"
    config = read_config_file(written(tmp_path, TRAINER + "overwrite_output_dir: true\n"))
    assert config.request.get("stack") == "hf-trainer@4"
    assert "no longer has" in remarks(config)
    config = read_config_file(written(tmp_path, TRAINER + "adafactor: true\noptim: adamw_torch\n"))
    assert (config.request.get("stack"), config.request.get("optimizer")) == ("hf-trainer@4", "adafactor")
    config = read_config_file(written(tmp_path, TRAINER + "torch_dtype: bfloat16\nmodel_max_length: 512\n"))
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
        (TRL + "pass_rate_min: 0.1\nnum_generations: 4\n", "filters a data set and does not train"),
        (TRL + "num_ppo_epochs: 4\nnum_generations: 8\n", "reinforcement learning"),
        (
            TRL.replace("true", "false") + "beta: 0.1\nprecompute_ref_log_probs: true\n",
            "computed before training",
        ),
        (TRL + "reward_model_path: a/b\n", "reward model's scores"),
        (TRL + "teacher_model_name_or_path: a/b\nuse_vllm: true\n", "teacher_model_name_or_path: distill"),
        (TRL + "lmbda: 0.5\n", "distillation"),
        (TRL + "max_staleness: 4\nnum_generations: 8\n", "beside the update"),
        (TRL + "normalize_advantages: true\nnum_generations: 8\n", "other than GRPO"),
        (TRL + "step_separator: '#'\n", "single steps"),
        (TRL + "cpo_alpha: 1.0\n", "CPO is not modelled"),
        (LLAMA_FACTORY + "use_megatron_bridge: true\n", "use_megatron_bridge: a key of Megatron Bridge"),
        (LLAMA_FACTORY + "calculate_per_token_loss: true\n", "calculate_per_token_loss: a key of Megatron"),
        (LLAMA_FACTORY + "use_kt: true\n", "use_kt: KTransformers computes experts on the CPU"),
        (TRAINER + "use_lora: true\n", "what the script does with use_lora"),
    ],
)
def test_what_is_no_supervised_training_says_what_it_is(tmp_path: Path, text: str, sentence: str) -> None:
    """No verdict, and no question for a precision or a method that would not help."""
    with pytest.raises(NotModelledError, match=sentence):
        read_config_file(written(tmp_path, text))


def test_a_job_that_trains_and_predicts_trains(tmp_path: Path) -> None:
    """Prediction after training is no reason to refuse."""
    assert (
        read_config_file(written(tmp_path, TRAINER + "do_train: true\ndo_predict: true\n")).request.get(
            "batch"
        )
        == 2
    )


def test_of_a_key_given_twice_the_last_counts_and_is_said(tmp_path: Path) -> None:
    """As in the YAML readers of the tools, in nested tables and in the files that are referred to as well."""
    config = read_config_file(written(tmp_path, LLAMA_FACTORY + "cutoff_len: 512\ncutoff_len: 1024\n"))
    assert config.request.get("seq") == 1024
    assert [(remark.origin, remark.text) for remark in config.remarks if "twice" in remark.text] == [
        (f"{tmp_path}/train.yaml:5", "key 'cutoff_len' is given twice: the last value counts")
    ]
    launch = written(
        tmp_path, "distributed_type: MULTI_GPU\nnum_processes: 2\nnum_processes: 4\n", "launch/a.yaml"
    )
    config = read_config_file(written(tmp_path, TRAINER), None, Beside(accelerate=launch))
    assert config.request.get("gpus") == 4
    assert "key 'num_processes' is given twice" in remarks(config)


@pytest.mark.parametrize("value", ["'{{ model }}'", "${MODEL}", "<MODEL_NAME>"])
def test_a_placeholder_is_named(tmp_path: Path, value: str) -> None:
    """A template that nobody filled in is no job; a placeholder in a key without effect is left alone."""
    with pytest.raises(InputFileError, match="key 'model_name_or_path' holds the placeholder"):
        read_config_file(
            written(tmp_path, f"model_name_or_path: {value}\nfinetuning_type: lora\nbf16: true\n")
        )
    assert (
        read_config_file(written(tmp_path, f"{LLAMA_FACTORY}output_dir: {value}\n")).request.get("method")
        == "lora"
    )


LAUNCH = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 4\n"


def test_the_one_launch_file_beside_is_counted(tmp_path: Path) -> None:
    """It says how state is divided, which the trainer's file leaves open;
    a remark names it and the way out.
    """
    launch = written(tmp_path, LAUNCH, "fsdp.yaml")
    config = read_config_file(written(tmp_path, TRL))
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
    config = read_config_file(written(tmp_path, TRL, "recipes/sft/train.yaml"))
    assert (config.request.get("sharding"), config.launch, config.candidates) == (None, None, files)
    assert "DDP is assumed" in remarks(config)


def test_a_file_in_a_usual_folder_is_named_and_not_counted(tmp_path: Path) -> None:
    """Which of a repository's launch files is meant nobody can tell."""
    launch = written(tmp_path, LAUNCH, "accelerate_configs/fsdp.yaml")
    config = read_config_file(written(tmp_path, TRL, "sft/train.yaml"))
    assert (config.request.get("sharding"), config.candidates) == (None, (launch,))


@pytest.mark.parametrize("text", [TRL + "fsdp: full_shard\n", LLAMA_FACTORY, AXOLOTL])
def test_no_launch_file_is_looked_for_where_the_config_decides(tmp_path: Path, text: str) -> None:
    """A config that shards itself, and tools that launch by themselves."""
    written(tmp_path, LAUNCH, "fsdp.yaml")
    config = read_config_file(written(tmp_path, text))
    assert (config.launch, config.candidates, config.request.get("gpus")) == (None, (), None)


def test_a_deepspeed_file_with_a_batch_alone_is_told_by_its_keys(tmp_path: Path) -> None:
    """``gradient_accumulation_steps`` is a key of trainers as well: DeepSpeed's others decide."""
    keys: dict[str, Any] = {"gpu": "a100-80-sxm:8", "model": "7b", "method": "full", "seq": 512}
    text = '{"train_batch_size": 64, "gradient_accumulation_steps": 2, "steps_per_print": 1}'
    config = read_config_file(written(tmp_path, text, "ds.json"))
    assert config.tool.startswith("DeepSpeed")
    assert with_flags(config, from_flags(keys)).get("batch") == 4


def test_a_launch_file_that_trl_knows_by_name(tmp_path: Path) -> None:
    """TRL's command line hands these keys on to ``accelerate launch``;
    the number of processes is the config's.
    """
    config = read_config_file(written(tmp_path, TRL + "accelerate_config: zero3\nnum_processes: 2\n"))
    assert (config.request.get("sharding"), config.request.get("gpus")) == ("zero3", 2)
    assert "accelerate_configs/zero3.yaml" in remarks(config)
    written(tmp_path, LAUNCH, "launch/mine.yaml")
    config = read_config_file(written(tmp_path, TRL + "accelerate_config: launch/mine.yaml\n"))
    assert (config.request.get("sharding"), config.request.get("gpus")) == ("fsdp1", 4)
    with pytest.raises(InputFileError, match="say where it is: --accelerate FILE"):
        read_config_file(written(tmp_path, TRL + "accelerate_config: nowhere.yaml\n"))


def test_without_a_kind_of_distribution_one_process_is_started(tmp_path: Path) -> None:
    """``accelerate launch`` ignores the number of processes then."""
    launch = written(tmp_path, "distributed_type: 'NO'\nnum_processes: 8\n", "launch/a.yaml")
    assert (
        read_config_file(written(tmp_path, TRAINER), None, Beside(accelerate=launch)).request.get("gpus") == 1
    )


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
    request = read_config_file(written(tmp_path, text)).request
    assert (request.get("loss"), request.get("switches")) == ("hf", ("fused_norm=true",))
    old = read_config_file(written(tmp_path, TRAINER + "use_liger_kernel: true\nsave_safetensors: true\n"))
    assert old.request.get("switches") == ("fused_norm=true", "fused_mlp=true", "liger_loss=true")
    flags = {"model": "7b", "method": "full", "seq": 512, "gpu": "a100-80-sxm"}
    assert resolve(with_flags(old, from_flags(flags))).recipe.loss == "liger"


@pytest.mark.parametrize("text", [TRL, "model_name_or_path: Qwen/Qwen2.5-0.5B\n" + TRAINER])
def test_a_quantised_checkpoint_is_not_taken_for_16_bits(tmp_path: Path, text: str) -> None:
    """Its name says how it is stored, and --model by hand does not change that."""
    flags = from_flags({"gpu": "4090", "model": "qwen2.5-0.5b", "method": "lora", "seq": 512})
    with pytest.raises(UsageError, match="is quantised already: say --quantization gptq-int4"):
        with_flags(
            read_config_file(written(tmp_path, text.replace("Qwen2.5-0.5B", "Qwen2.5-0.5B-Instruct-GPTQ"))),
            flags,
        )
    for name in ("HQQ", "bnb-8bit"):
        with pytest.raises(NotModelledError, match="quantised already"):
            read_config_file(written(tmp_path, text.replace("Qwen2.5-0.5B", f"Qwen2.5-0.5B-{name}")))


def test_the_scripts_of_alignment_handbook_pack_whatever_the_file_says(tmp_path: Path) -> None:
    """scripts/run_sft.py of 2023-11 to 2025-03 hands packing=True to the trainer;
    dataset_mixer is its key.
    """
    text = TRL.replace("dataset_name", "dataset_text_field") + "bf16: true\nmax_seq_length: 512\n"
    assert read_config_file(written(tmp_path, text)).request.get("padding") is None
    config = read_config_file(written(tmp_path, text + "dataset_mixer: {a: 1.0}\n"))
    assert config.request.get("padding") == "packed"


@pytest.mark.parametrize(
    "settings",
    [
        "fsdp_transformer_layer_cls_to_wrap: [MixtralDecoderLayer, MixtralSparseMoeBlock]",
        "transformer_layer_cls_to_wrap: [LlamaMLP]",
        "fsdp_auto_wrap_policy: NO_WRAP",
        "auto_wrap_policy: SIZE_BASED_WRAP",
    ],
)
def test_units_of_fsdp_are_layers_or_mixtures(tmp_path: Path, settings: str) -> None:
    """What is outside of the units is gathered for the whole model at once: beside mixtures of experts."""
    with pytest.raises(NotModelledError, match="FSDP"):
        read_config_file(written(tmp_path, AXOLOTL + f"fsdp_config: {{{settings}}}\n"))
    layers = "fsdp_transformer_layer_cls_to_wrap: JambaAttentionDecoderLayer,JambaMambaDecoderLayer"
    config = read_config_file(written(tmp_path, AXOLOTL + f"fsdp_config:\n  {layers}\n"))
    assert config.request.get("sharding") == "fsdp1"
    mixture = "fsdp_config: {fsdp_transformer_layer_cls_to_wrap: MixtralSparseMoeBlock}\n"
    switches = read_config_file(written(tmp_path, AXOLOTL + mixture)).request.get("switches")
    assert "fsdp_units=feed_forward" in switches
    assert "tower_units=in_root" in config.request.get("switches")
    both = "fsdp_config: {fsdp_transformer_layer_cls_to_wrap: 'Qwen2VLDecoderLayer,Qwen2VLVisionBlock'}\n"
    switches = read_config_file(written(tmp_path, AXOLOTL + both)).request.get("switches")
    assert "tower_units=layers" in switches


def test_a_file_of_trl_without_modules_adapts_what_peft_does(tmp_path: Path) -> None:
    """TRL hands PEFT nothing, and PEFT then adapts two matrices of each layer."""
    path = written(tmp_path, TRL + TRAINER + "max_length: 512\n")
    adapter = resolve(with_flags(read_config_file(path), from_flags({"gpu": "4090"}))).recipe.adapter
    assert adapter is not None
    assert adapter.targets == ("q_proj", "v_proj")


def test_run_clm_of_transformers_is_not_read_as_trl(tmp_path: Path) -> None:
    """It has a ``dataset_name`` too; its rows are ``block_size`` long, whole texts joined and cut, its loss
    the model's own.
    """
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: wikitext\nblock_size: 4096\n" + TRAINER
    config = read_config_file(written(tmp_path, text))
    assert config.tool_name == "transformers"
    values = {name: config.request.get(name) for name in ("seq", "method", "padding", "loss")}
    assert values == {"seq": 4096, "method": "full", "padding": "packed", "loss": None}
