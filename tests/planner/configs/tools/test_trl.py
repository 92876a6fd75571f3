"""Files of TRL: their age, and what each age made of them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import InputFileError, NotModelledError, UsageError
from planner.intake.given.config_file import read_config_file, with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from tests.files import filled, read, remarks, written

TRL = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_peft: true\n"


TRAINER = "per_device_train_batch_size: 2\nbf16: true\n"

LAUNCH = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 4\n"


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
    config = read(tmp_path, f"{TRL}bf16: true\n{key}\n")
    assert config.request.get("stack") == stack
    assert (f"one of {stack};" in remarks(config)) == (stack != "trl")
    assert with_flags(config, from_flags({"stack": "unsloth"})).get("stack") == "unsloth"


def test_keys_of_the_middle_age_fit_the_oldest_too(tmp_path: Path) -> None:
    """Both had ``torch_dtype``; the version that a flag asks for is taken, with its defaults."""
    path = written(tmp_path, TRL + "bf16: true\ntorch_dtype: bfloat16\n")
    config = read_config_file(path)
    assert (config.request.get("stack"), config.fits) == ("trl@0.24", ("trl@0",))
    asked = read_config_file(path, None, Beside(stack="trl@0"))
    assert (asked.request.get("stack"), asked.fits) == ("trl@0", ())
    assert asked.tool == "TRL 0.9 to 0.19"
    assert not read(tmp_path, TRL + "bf16: true\nmax_seq_length: 512\n").fits


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("loss_type: nll\n", "chunked"),
        ("loss_type: dft\n", "chunked"),
        ("loss_type: nll\ntorch_dtype: bfloat16\n", None),
    ],
)
def test_the_loss_of_a_file_is_that_of_its_age(tmp_path: Path, text: str, loss: str | None) -> None:
    """Up to TRL 0.26 ``nll`` is the model's own loss, of all logits; today's two are taken in pieces."""
    assert read(tmp_path, TRL + text).request.get("loss") == loss


def test_old_trl_keeps_probabilities_of_all_logits(tmp_path: Path) -> None:
    """Its ``dft`` is not today's."""
    with pytest.raises(NotModelledError, match="loss 'dft'"):
        read(tmp_path, TRL + "loss_type: dft\ntorch_dtype: bfloat16\n")


@pytest.mark.parametrize(
    ("kernel", "switches"),
    [
        ("flash_attention_2", None),
        ("flash_attention_3", ("flash_generation=3",)),
        ("kernels-community/vllm-flash-attn3", ("flash_generation=3",)),
        ("flash_attention_4", ("flash_generation=4",)),
    ],
)
def test_later_generations_of_flash_attention(
    tmp_path: Path, kernel: str, switches: tuple[str, ...] | None
) -> None:
    """They need as much memory as the second, and less time."""
    config = read(tmp_path, f"{TRL}attn_implementation: {kernel}\n")

    assert config.request.get("attention") == "flash2"
    assert config.request.get("switches") == switches


def test_unsloth_that_is_off_changes_nothing(tmp_path: Path) -> None:
    """A key of scripts in TRL's manner; where it is on, other kernels train."""
    assert read(tmp_path, TRL + "use_unsloth: false\n").ignored == []
    with pytest.raises(NotModelledError, match="use_unsloth: Unsloth"):
        read(tmp_path, TRL + "use_unsloth: true\n")


def test_old_trl_turns_no_precision_on(tmp_path: Path) -> None:
    """Before TRL 0.19 neither bf16 nor fp16 was on unless said, so the file is asked;
    later bf16 is the default.
    """
    config = read(tmp_path, TRL + "max_seq_length: 512\n")
    with pytest.raises(UsageError, match="--precision"):
        with_flags(config, from_flags({"gpu": "4090"}))
    assert read(tmp_path, TRL + "torch_dtype: bfloat16\n").request.get("precision") == "bf16-mixed"


def test_old_trl_prepares_a_4_bit_base(tmp_path: Path) -> None:
    """Its bytes are stored in the named dtype; what else is done to it is of the stack."""
    text = TRL + "load_in_4bit: true\nbf16: true\nmax_seq_length: 512\ntorch_dtype: bfloat16\n"
    request = read(tmp_path, text).request
    assert (request.get("stack"), request.get("quant_storage")) == ("trl@0", "bf16")


def test_a_launch_file_that_trl_knows_by_name(tmp_path: Path) -> None:
    """TRL's command line hands these keys on to ``accelerate launch``;
    the number of processes is the config's.
    """
    config = read(tmp_path, TRL + "accelerate_config: zero3\nnum_processes: 2\n")
    assert (config.request.get("sharding"), config.request.get("gpus")) == ("zero3", 2)
    assert "accelerate_configs/zero3.yaml" in remarks(config)
    written(tmp_path, LAUNCH, "launch/mine.yaml")
    config = read(tmp_path, TRL + "accelerate_config: launch/mine.yaml\n")
    assert (config.request.get("sharding"), config.request.get("gpus")) == ("fsdp1", 4)
    with pytest.raises(InputFileError, match="say where it is: --accelerate FILE"):
        read(tmp_path, TRL + "accelerate_config: nowhere.yaml\n")
    # The same with a file that lies beside the config.
    written(tmp_path, LAUNCH, "mine.yaml")
    config = read(tmp_path, TRL + "num_processes: 2\n")
    assert (config.request.get("sharding"), config.request.get("gpus")) == ("fsdp1", 2)
    assert "the number of processes is that of" in remarks(config)


@pytest.mark.parametrize(
    ("text", "padding"),
    [
        ("max_seq_length: 512\ndataset_mixer: {a: 1.0}\n", "packed"),
        ("max_seq_length: 512\ndataset_mixer: {a: 1.0}\npacking: false\n", None),
        ("max_length: 512\ndataset_mixer: {a: 1.0}\n", None),
        ("max_seq_length: 512\ndataset_mixer: {a: 1.0}\npacking_strategy: bfd\n", None),
        ("max_length: 512\ndataset_mixture: {datasets: [{id: a}]}\n", None),
        ("max_length: 512\ndataset_mixture: {datasets: [{id: a}]}\npacking: true\n", "packed"),
        ("max_seq_length: 512\n", None),
    ],
)
def test_scripts_of_alignment_handbook_pack_where_nothing_is_said(
    tmp_path: Path, text: str, padding: str | None
) -> None:
    """scripts/run_sft.py of 2023-11 to 2025-07 hands packing=True to a trainer of TRL up to 0.12;
    dataset_mixer is its key.  Elsewhere samples are padded unless the file says packing.
    """
    config = read(tmp_path, f"{TRL}bf16: true\n{text}")
    assert config.request.get("padding") == padding
    assert ("pack all the same" in remarks(config)) == ("packing: false" in text)


def test_a_file_of_trl_without_modules_adapts_what_peft_does(tmp_path: Path) -> None:
    """TRL hands PEFT nothing, and PEFT then adapts two matrices of each layer."""
    path = written(tmp_path, TRL + TRAINER + "max_length: 512\n")
    adapter = filled(read_config_file(path), {"gpu": "4090"}).recipe.adapter
    assert adapter is not None
    assert adapter.targets == ("q_proj", "v_proj")


def test_a_length_of_null_has_no_default(tmp_path: Path) -> None:
    """TRL cuts nothing then, so the longest sample has to be said;
    without the key its default of 1,024 holds.
    """
    config = read(tmp_path, TRL + "max_length: null\n")
    with pytest.raises(UsageError, match="say its length with --seq"):
        with_flags(config, from_flags({"gpu": "4090"}))
    assert read(tmp_path, TRL).request.get("seq") == 1024


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("", "bf16-mixed"),
        ("fp16: true\n", "fp16-mixed"),
        ("bf16: false\n", "fp32"),
        ("bf16: false\ndtype: bfloat16\n", "bf16"),
    ],
)
def test_precision_is_bf16_unless_the_file_says_otherwise(tmp_path: Path, text: str, precision: str) -> None:
    """Where both are off, products are in the dtype of the weights."""
    assert read(tmp_path, TRL + text).request.get("precision") == precision


@pytest.mark.parametrize(
    ("named", "targets"),
    [
        ("all-linear", ("all-linear",)),
        ("[q_proj, v_proj]", ("q_proj", "v_proj")),
        ("['.*(q|v)_proj']", ("regex:.*(q|v)_proj",)),
        ("[q_proj]", ("q_proj",)),
    ],
)
def test_the_only_name_of_a_list_may_be_an_expression(
    tmp_path: Path, named: str, targets: tuple[str, ...]
) -> None:
    """TRL hands it on as a text."""
    config = read(tmp_path, f"{TRL}lora_target_modules: {named}\n")
    assert config.request.get("lora_targets") == targets


def test_parameters_alone_are_asked_for_their_modules(tmp_path: Path) -> None:
    """PEFT would add some of its own choice."""
    with pytest.raises(UsageError, match="say lora_target_modules, too"):
        read(tmp_path, TRL + "lora_target_parameters: [mlp.experts.down_proj]\n")


SPREAD = f"{TRL}bf16: true\nmax_length: 512\nmodel_init_kwargs: {{device_map: %s}}\n"


def test_a_file_of_trl_may_be_of_one_process(tmp_path: Path) -> None:
    """It spreads the layers, be that asked for or not; the file says nothing of a launcher."""
    config = read(tmp_path, SPREAD % "auto")
    assert config.request.get("device_map") is None
    assert "which --device-map auto counts" in remarks(config)
    spread = from_flags({"gpu": "4090:2", "loss": "hf", "device_map": "auto"})
    assert resolve(with_flags(config, spread)).recipe.parallel.in_turn


@pytest.mark.parametrize("value", ["cuda", "{'': 0}"])
def test_a_map_to_one_gpu_is_no_map(tmp_path: Path, value: str) -> None:
    """The whole model is there."""
    assert "device-map" not in remarks(read(tmp_path, SPREAD % value))


def test_an_older_trl_hands_the_map_on(tmp_path: Path) -> None:
    """Its files mean one process."""
    text = SPREAD.replace("max_length", "max_seq_length") % "auto"
    assert read(tmp_path, text).request.get("device_map") == "auto"


@pytest.mark.parametrize("more", ["num_processes: 2\n", "fsdp: full_shard\n"])
def test_beside_ranks_trl_takes_the_device_map_back(tmp_path: Path, more: str) -> None:
    """Under DDP, and under FSDP, of which the process does not know yet."""
    config = read(tmp_path, SPREAD % "auto" + more)
    assert config.request.get("device_map") is None
    assert "takes it back" in remarks(config)


def test_accelerate_refuses_a_device_map_beside_ranks(tmp_path: Path) -> None:
    """Where an older TRL leaves the map."""
    text = SPREAD.replace("max_length", "max_seq_length") % "auto" + "num_processes: 2\n"
    with pytest.raises(UsageError, match="refused-by-its-tool"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("model", "text", "stops"),
    [
        ("ibm-granite/granite-3.0-1b-a400m-base", "", True),
        ("ibm-granite/granite-3.0-1b-a400m-base", "router_aux_loss_coef: 0.0\n", False),
        ("ibm-granite/granite-4.0-micro", "", True),
        ("ibm-granite/granite-3.0-1b-a400m-base", "torch_dtype: bfloat16\n", False),
        ("Qwen/Qwen3-30B-A3B", "", False),
    ],
)
def test_the_routers_loss_needs_a_number_by_its_name(
    tmp_path: Path, model: str, text: str, stops: bool
) -> None:
    """TRL asks Granite's configuration for ``num_experts``, which it does not have."""
    config = read(tmp_path, TRL.replace("Qwen/Qwen2.5-0.5B", model) + text)
    with pytest.raises(UsageError, match="router_aux_loss_coef: 0") if stops else nullcontext():
        with_flags(config, from_flags({"gpu": "a100-80-sxm"}))


def test_every_micro_batch_may_reduce_gradients(tmp_path: Path) -> None:
    """As in files of Axolotl: Transformers 4, which older files are for, does not ask for it."""
    each = TRL + "accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}}\n"
    assert "fsdp_no_sync=neither" in (read(tmp_path, each).request.get("switches") or ())
    older = read(tmp_path, each + "warmup_ratio: 0.1\n")
    assert "fsdp_no_sync=neither" not in (older.request.get("switches") or ())


def test_old_grpo_of_a_packed_policy_says_whose_script_packs(tmp_path: Path) -> None:
    """TRL 0.16.1 to 0.25.1 scripts/grpo.py has no word of quantisation."""
    text = (
        TRL + "use_peft: true\nload_in_4bit: true\nnum_generations: 8\nmax_completion_length: 64\nbeta: 0\n"
    )
    assert "TRL's own script" in remarks(read(tmp_path, text + "max_prompt_length: 64\n"))
    assert "TRL's own script" not in remarks(read(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "double"),
    [
        ("use_bnb_nested_quant: true\n", True),
        ("bnb_4bit_use_double_quant: true\nbnb_4bit_compute_dtype: bfloat16\n", True),
        ("bnb_4bit_compute_dtype: bfloat16\n", False),
    ],
)
def test_settings_of_4_bits_have_the_names_of_transformers_too(
    tmp_path: Path, text: str, double: bool
) -> None:
    """In files of scripts that hand them on."""
    config = read(tmp_path, f"{TRL}{TRAINER}load_in_4bit: true\n{text}")
    assert (config.request.get("double_quant"), config.ignored) == (double, [])


@pytest.mark.parametrize(("loss", "task"), [("kto_pair", "dpo"), ("simpo", "simpo"), ("kto", "kto")])
def test_a_loss_that_one_trainer_has_alone_tells_it(tmp_path: Path, loss: str, task: str) -> None:
    """Whatever the folder is called: recipes for DPO's loss of KTO lie in one for KTO."""
    (tmp_path / "kto").mkdir()
    path = written(tmp_path / "kto", f"{TRL}{TRAINER}beta: 0.1\nmax_length: 512\nloss_type: {loss}\n")
    assert read_config_file(path).request.get("task") == task


def test_tokens_that_a_script_adds_are_not_passed_over(tmp_path: Path) -> None:
    """They make the token table and the head larger."""
    with pytest.raises(NotModelledError, match="num_visual_tokens"):
        read(tmp_path, f"{TRL}{TRAINER}num_visual_tokens: 16384\n")


@pytest.mark.parametrize(
    ("script", "model", "refused"),
    [
        ("src/mine/grpo.py", "Qwen/Qwen2-VL-7B-Instruct", True),
        ("trl/examples/scripts/grpo.py", "Qwen/Qwen2-VL-7B-Instruct", False),
        ("src/mine/grpo.py", "Qwen/Qwen2.5-7B-Instruct", False),
    ],
)
def test_whether_a_script_gives_images_to_grpo_is_not_known(
    script: str, model: str, *, refused: bool
) -> None:
    """One of TRL's folders gives those of the data alone, which are none where nothing says them."""
    words = (
        f"torchrun --nproc_per_node 8 {script} --model_name_or_path {model} --bf16 --num_generations 8 "
        "--max_prompt_length 512 --beta 0.1 --per_device_train_batch_size 8 --torch_dtype bfloat16"
    )
    found = check_job(command_job(words, CheckOptions()), from_flags({"gpu": "h200:8"}))
    assert ("gives images" in found.failure) is refused, found.failure
