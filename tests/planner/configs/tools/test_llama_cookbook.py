"""``finetuning.py`` of llama-cookbook: its arguments, beside its own run, its age, and what is refused."""

from __future__ import annotations

import pytest

from planner.domain.scenario import Scenario
from planner.errors import REFUSED_BY_TOOL, ExitCode
from planner.predicting import estimate
from planner.report.check.checked import Checked
from planner.units import GIB
from tests.files import answer_to, scenario_in

MODULE = "-m llama_cookbook.finetuning"
REST = "--model_name meta-llama/Llama-3.2-1B --output_dir out --batch_size_training 2"
ONE = f"python {MODULE} {REST}"
FSDP = f"torchrun --nnodes 1 --nproc_per_node 4 {MODULE} --enable_fsdp {REST}"
LORA = "--use_peft --peft_method lora"
ON_HOST = "FSDP_CPU_RAM_EFFICIENT_LOADING=1 ACCELERATE_USE_FSDP=1"
QLORA = f"{FSDP} {LORA} --quantization 4bit"


LIBRARIES = ["torch==2.9.0", "transformers==4.57.1", "peft==0.17.1", "bitsandbytes==0.48.1"]


def checked(command: str, **flags: object) -> Checked:
    """The answer to a command."""
    return answer_to(command, {"gpu": "h100-sxm"} | flags)


def scenario(command: str, **flags: object) -> Scenario:
    """The job of a command that is answered."""
    return scenario_in(checked(command, **flags))


# Dry runs of meta-llama/llama-cookbook 0e003351 with transformers 4.57.1, peft 0.17.1 and torch 2.13 on the
# CPU: GiB allocated and reserved in the first two steps, on one card or the first of four.
@pytest.mark.parametrize(
    ("arguments", "allocated", "reserved"),
    [
        (f"{ONE} {LORA} --quantization 8bit", 29.48, 34.24),
        (f"{ONE} {LORA} --quantization 4bit", 24.56, 26.83),
        (f"{ONE} {LORA} --use_fp16", 24.86, 27.12),
        (ONE, 32.10, 33.53),
        (FSDP, 14.78, 18.05),
        (f"{FSDP} --use_fp16", 14.78, 18.05),
        (f"{FSDP} {LORA}", 13.57, 16.14),
        (f"{FSDP} {LORA} --mixed_precision False", 13.57, 16.14),
        (f"{ON_HOST} {QLORA}", 13.18, 15.78),
        (f"{FSDP} --fsdp_config.fsdp_cpu_offload", 13.03, 17.71),
        (f"{FSDP} --fsdp_config.pure_bf16 --fsdp_config.optimizer anyprecision", 14.78, 18.05),
        (f"{FSDP} --fsdp_config.fsdp_activation_checkpointing False", 27.54, 30.53),
        (f"{FSDP} --gradient_accumulation_steps 2", 15.37, 18.21),
    ],
)
def test_bytes_are_those_of_its_own_run(arguments: str, allocated: float, reserved: float) -> None:
    """Within a quarter of a percent allocated, and 0.6 % reserved."""
    memory = estimate(scenario(arguments)).memory
    assert float(memory.allocated_peak_bytes) / GIB == pytest.approx(allocated, rel=0.0025)
    assert float(memory.reserved_peak_bytes) / GIB == pytest.approx(reserved, rel=0.006)


# The same of v0.0.2, whose weights are fp32: with the libraries of above.
@pytest.mark.parametrize(
    ("arguments", "allocated"),
    [
        (f"--enable_fsdp {LORA}", 14.13),
        (f"--enable_fsdp {LORA} --fsdp_config.pure_bf16", 13.57),
        ("--enable_fsdp", 16.49),
    ],
)
def test_bytes_of_the_older_script(arguments: str, allocated: float) -> None:
    """Its place tells its age."""
    command = f"torchrun --nproc_per_node 4 recipes/finetuning/finetuning.py {arguments} {REST}"
    job = scenario(command, versions=LIBRARIES)
    assert (job.stack.id, job.recipe.checkpoint_reentrant) == ("llama-recipes", False)
    assert float(estimate(job).memory.allocated_peak_bytes) / GIB == pytest.approx(allocated, rel=0.0025)


def test_its_defaults() -> None:
    """Four rows of 4,096 tokens, rank 8 on two matrices, an evaluation of one row."""
    job = scenario(f"python {MODULE} {LORA} --model_name meta-llama/Llama-3.2-1B")
    recipe = job.recipe
    assert recipe.adapter is not None
    adapter = recipe.adapter
    assert (int(adapter.rank), adapter.dropout, adapter.targets) == (8, 0.05, ("q_proj", "v_proj"))
    assert (recipe.batch.micro_batch, recipe.batch.seq_len, recipe.batch.padding) == (4, 4096, "packed")
    assert not recipe.gradient_checkpointing


def test_keys_of_its_tables() -> None:
    """An argument may name the table that it is of; lists are those of Python or bare."""
    text = "--lora_config.r 16 --lora_config.target_modules [q_proj,k_proj,v_proj] --train_config.lr 1e-5"
    adapter = scenario(f"{ONE} {LORA} {text} --samsum_dataset.trust_remote_code=True").recipe.adapter
    assert adapter is not None
    assert (int(adapter.rank), adapter.targets) == (16, ("q_proj", "k_proj", "v_proj"))


def test_layers_that_run_twice_again_take_longer() -> None:
    """Transformers checkpoints a layer inside of torch's checkpoint, since 2024-07-11."""
    job = scenario(f"{FSDP} {LORA}")
    assert job.stack.checkpoints_itself
    once = scenario(f"{FSDP} {LORA} --fsdp_config.fsdp_activation_checkpointing False")
    slow, fast = estimate(job).time, estimate(once).time
    assert slow is not None
    assert fast is not None
    assert float(slow.step_s) > 1.3 * float(fast.step_s)


@pytest.mark.parametrize(
    ("script", "stack"),
    [
        ("examples/finetuning.py", "llama-recipes"),
        ("recipes/finetuning/finetuning.py", "llama-recipes"),
        ("recipes/quickstart/finetuning/finetuning.py", "llama-cookbook"),
        ("getting-started/finetuning/finetuning.py", "llama-cookbook"),
        ("-m llama_recipes.finetuning", "llama-cookbook"),
        ("finetuning.py", "llama-cookbook"),
    ],
)
def test_its_place_tells_its_age(script: str, stack: str) -> None:
    """Where it does not, the newer one is taken."""
    assert scenario(f"python {script} {LORA} {REST}").stack.id == stack


def test_a_script_that_may_be_older_fits_only_if_both_do() -> None:
    """The older one has weights in fp32: 7 GiB more here, and the answer is of both."""
    rest = f"{LORA} {REST}"
    either, newer = (
        checked(f"python {script} {rest}", gpu="a10g", gpu_memory="19GiB", batch=1)
        for script in ("finetuning.py", "getting-started/finetuning/finetuning.py")
    )
    assert (newer.exit_code, either.exit_code) == (ExitCode.FITS, ExitCode.UNCERTAIN)


def test_padded_samples_need_a_length() -> None:
    """They are not cut: the longest decides."""
    found = checked(f"{ONE} {LORA} --batching_strategy padding")
    assert "--seq" in found.failure


@pytest.mark.parametrize(
    "arguments",
    [
        f"{FSDP} {LORA} --quantization 8bit",
        f"{FSDP} --fsdp_config.sharding_strategy ShardingStrategy.SHARD_GRAD_OP",
        f"{ONE} {LORA} --quantization int4",
        f"{ONE} --batching_strategy rows",
        f"python {MODULE} {LORA} --model_name mistralai/Mistral-7B-v0.1",
    ],
)
def test_what_the_script_stops_at(arguments: str) -> None:
    """Dry runs ended there: 8 bits under FSDP, a strategy that arrives as text, other architectures."""
    assert REFUSED_BY_TOOL in checked(arguments).failure


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (f"{ONE} --use_peft --peft_method llama_adapter", "peft_method"),
        (f"{ONE} --quantization 8bit", "quantization"),
        (f"{ONE} --use_fp16", "use_fp16"),
        (f"{FSDP} --fsdp_config.use_fp16", "fsdp_config.use_fp16"),
        (f"{FSDP} --freeze_layers --num_freeze_layers 8", "freeze_layers"),
        (f"{FSDP} --micro_batch_size 1", "micro_batch_size"),
        (f"{ONE} {LORA} --from_peft_checkpoint out", "from_peft_checkpoint"),
        (f"{ONE} {LORA} --lora_r 64", "lora_r"),
        (QLORA, "ACCELERATE_USE_FSDP=1"),
        (f"PYTORCH_NO_CUDA_MEMORY_CACHING=1 {FSDP}", "PYTORCH_NO_CUDA_MEMORY_CACHING=1"),
        (f"torchrun --nproc_per_node 4 {MODULE} {LORA} {REST}", "--enable_fsdp"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(arguments: str, named: str) -> None:
    """Exit code 6, with the key."""
    found = checked(arguments)
    assert found.failure_code == ExitCode.NOT_MODELLED
    assert named in found.failure


def test_keys_without_effect_are_said() -> None:
    """The optimizer's name without pure_bf16."""
    found = checked(f"{FSDP} --fsdp_config.optimizer anyprecision --flop_counter")
    said = " ".join(f"{where} {text}" for where, text in found.remarks)
    assert "optimizer has no effect" in said
    assert "flop_counter" in said
