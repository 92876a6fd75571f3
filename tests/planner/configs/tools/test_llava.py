"""LLaVA's own script: what its scripts of 1.5 say, its defaults, and what is refused."""

from __future__ import annotations

import pytest

from planner.api.checks import check_job, command_job
from planner.api.files import CheckOptions
from planner.domain.scenario import Scenario
from planner.errors import ExitCode
from planner.intake.given.request import from_flags
from planner.report.check.checked import Checked
from tests.files import answer_to, scenario_in

# As scripts/v1_5/pretrain.sh of c121f0432 has them.
REST = (
    "--version v1 --data_path data.json --image_folder images --mm_vision_select_layer -2 "
    "--mm_use_im_start_end False --mm_use_im_patch_token False --image_aspect_ratio pad "
    "--output_dir out --num_train_epochs 1 --per_device_train_batch_size 16 --evaluation_strategy no "
    "--save_steps 50000 --learning_rate 2e-5 --tf32 True --gradient_checkpointing True "
    "--dataloader_num_workers 4 --lazy_preprocess True --bf16 True"
)
MODEL = "--model_name_or_path lmsys/vicuna-7b-v1.5 --model_max_length 2048"
TOWER = "--vision_tower openai/clip-vit-large-patch14-336 --mm_projector_type mlp2x_gelu"
ENGINE = "--deepspeed ./scripts/zero3.json"
START = "deepspeed llava/train/train_mem.py"


def checked(arguments: str, start: str = START) -> Checked:
    """The answer to a command."""
    return answer_to(f"{start} {arguments} {REST}", {"gpu": "a100-80-sxm:8"})


def job_of(arguments: str, start: str = START) -> Scenario:
    """The job of a command."""
    return scenario_in(checked(arguments, start))


def test_what_its_own_scripts_say() -> None:
    """All but the tower learns, in bf16, by the file of ZeRO that lies beside the script there."""
    job = job_of(f"{MODEL} {TOWER} {ENGINE}")
    recipe = job.recipe
    assert (job.model.id, job.stack.id) == ("llava-1.5-7b", "hf-trainer@4")
    assert (recipe.method, recipe.frozen) == ("full", ("vision_tower",))
    assert (recipe.attention, recipe.batch.seq_len, recipe.batch.micro_batch) == ("flash2", 2048, 16)
    assert (recipe.numerics.load_dtype, recipe.sharding.name) == ("bf16", "zero3")
    assert recipe.batch.images is not None
    assert recipe.batch.images.per_sample == 1


def test_processes_of_the_launcher_are_counted_beside_a_file_of_the_repository() -> None:
    """The number that ``deepspeed`` is given, where ``scripts/zero3.json`` is known and not here."""
    command = f"deepspeed --num_gpus 4 llava/train/train_mem.py {MODEL} {TOWER} {ENGINE} {REST}"
    found = answer_to(command, {"gpu": "a100-80-sxm"})
    assert found.subject is not None, found.failure
    assert found.subject.scenario.hardware.world_size == 4


def test_a_projector_alone() -> None:
    """The first stage; ``train.py`` takes the kernel that Transformers takes."""
    job = job_of(f"{MODEL} {TOWER} {ENGINE} --tune_mm_mlp_adapter True", "deepspeed llava/train/train.py")
    assert job.recipe.frozen == ("vision_tower", "language_model")
    assert job.recipe.attention == "sdpa"


def test_adapters_reach_the_language_model_alone() -> None:
    """The projector beside them learns whole, which is said."""
    found = checked(f"{MODEL} {TOWER} {ENGINE} --lora_enable True --lora_r 128")
    assert found.subject is not None, found.failure
    recipe = found.subject.scenario.recipe
    assert recipe.adapter is not None
    assert (recipe.adapter.rank, recipe.adapter.dropout) == (128, 0.05)
    assert recipe.frozen == ("vision_tower", "projector")
    assert any("projector learns" in text for _, text in found.remarks)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (f"{MODEL} --vision_tower openai/clip-vit-large-patch14", "the tower clip-vit-large-patch14 is not"),
        (f"{MODEL} {TOWER} --bits 4", "a quantised base"),
        (f"{MODEL} {TOWER} --freeze_backbone True", "frozen language model"),
        (f"{MODEL} {TOWER} --depth_path a", "no argument of LLaVA"),
        (f"{MODEL} {TOWER} --lora_enable True --tune_mm_mlp_adapter True", "beside tune_mm_mlp_adapter"),
        (f"{MODEL} {TOWER} --image_aspect_ratio anyres", "anyres"),
        (f"--model_name_or_path Qwen/Qwen2-7B {TOWER}", "LLaVA on Qwen/Qwen2-7B is not modelled"),
    ],
)
def test_other_parts_and_forks_are_refused(arguments: str, sentence: str) -> None:
    """What the script does with them was not read."""
    text = f"{arguments} {ENGINE}"
    given = from_flags({"gpu": "a100-80-sxm:8"})
    rest = REST.replace("--image_aspect_ratio pad ", "") if "anyres" in text else REST
    found = check_job(command_job(f"{START} {text} {rest}", CheckOptions()), given, advise=False)
    assert found.failure_code == ExitCode.NOT_MODELLED
    assert sentence in found.failure


def test_a_script_elsewhere_is_not_llavas() -> None:
    """A fork that moved it changed more than its place."""
    found = checked(f"{MODEL} {TOWER} {ENGINE}", "deepspeed mine/train_mem.py")
    assert found.subject is None
