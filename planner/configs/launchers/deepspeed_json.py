"""A DeepSpeed configuration (JSON), handed to a trainer, referred to by another file, or alone.

Keys and defaults: DeepSpeed 0.19.8 runtime/zero/config.py and runtime/constants.py; what ``auto`` stands for:
Transformers 5.23 integrations/deepspeed.py ``trainer_config_process``.
"""

from __future__ import annotations

from planner.configs.launchers.zero import AUTO, TOOL, read_zero, say_zero
from planner.configs.said_by_file import Reading
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.errors import UsageError, show
from planner.words import words

__all__ = ["TOOL", "read_deepspeed"]

MARKS = frozenset(names_in("deepspeed.toml", "marks"))
_HARMLESS = names_in("deepspeed.toml", "harmless")
_UNMODELLED = texts_in("deepspeed.toml", "unmodelled")
_REMARKS = texts_in("deepspeed.toml", "remarks")
_ENGINE_UNMODELLED = texts_in("deepspeed.toml", "unmodelled_of_engine")

# The stage that divides weights.
_DIVIDES = 3


def read_deepspeed(keys: Keys, reading: Reading) -> None:
    """Enter what a DeepSpeed configuration says.

    What a trainer has said before must agree, as Transformers and Accelerate check it;
    ``auto`` is what they said.

    Raises:
        UsageError: a value that cannot be used, or that contradicts the trainer's.
        NotModelledError: something that no formula covers.
    """
    keys.refuse_switched_on(_UNMODELLED)
    _read_degrees(keys, reading)
    _read_sizes(keys, reading)
    _read_precision(keys, reading)
    _read_sums(keys, reading)
    for name, text in _REMARKS.items():
        if keys.get(name):
            reading.remark(keys.where(name), text)
    zero = keys.part("zero_optimization")
    if zero is None:
        say_zero(keys, "zero_optimization", None, reading)
    else:
        say_zero(zero, "stage", zero.get("stage"), reading)
        read_zero(zero, reading)
        if zero.get("stage") == _DIVIDES and not any(_is_on(keys, name) for name in ("bf16", "fp16")):
            reading.dtype_left_open = keys.where("bf16")
    _read_optimizer(keys, reading)
    keys.skip(_HARMLESS)


def _is_on(keys: Keys, name: str) -> bool:
    part = keys.part(name)
    return part is not None and part.get("enabled") is True


def _read_sums(keys: Keys, reading: Reading) -> None:
    """Enter the dtype of sums: one wider than gradients takes copies.

    Where sequences are divided that is another key's (runtime/engine.py:2182).
    Ignored: stage 0, and one of 16 bits that is not that of gradients.
    """
    name, zero = "communication_data_type", keys.part("zero_optimization")
    of_sequences = keys.text(f"seq_parallel_{name}")
    wide = keys.text(name) == "fp32" and zero is not None and bool(zero.get("stage"))
    if wide:
        reading.switch("zero_sums_fp32", "always", keys.where(name))
    elif keys.get(name):
        reading.remark(keys.where(name), "gradients are counted as reduced in their own dtype")
    if of_sequences not in (None, "fp32") and not wide:
        reading.switch("zero_sums_fp32", "never", keys.where(f"seq_parallel_{name}"))


def _read_degrees(keys: Keys, reading: Reading) -> None:
    """Enter over how many GPUs DeepSpeed divides matrices (AutoTP)."""
    keys.refuse_above_one({"sequence_parallel_size": "a sequence-parallel degree"})
    parallel = keys.part("tensor_parallel")
    if parallel is None:
        return
    degree = parallel.count("autotp_size") if parallel.get("autotp_size") else None
    parallel.skip(("autotp_size", "dtype"))
    if degree is None or degree == 1:
        parallel.refuse_above_one({"tp_size": "a tensor-parallel degree"})
        parallel.skip_rest()
        return
    parallel.refuse_rest("AutoTP is modelled as autotp_size alone has it")
    reading.say("tensor_parallel", degree, parallel.where("autotp_size"))


def _read_sizes(keys: Keys, reading: Reading) -> None:
    for name, target in (
        ("train_micro_batch_size_per_gpu", "batch"),
        ("gradient_accumulation_steps", "grad_accum"),
    ):
        if keys.get(name) not in (None, AUTO):
            _agree(keys, reading, name, target, keys.count(name))
    if keys.get("train_batch_size") not in (None, AUTO):
        reading.total_batch = (keys.count("train_batch_size") or 0, keys.where("train_batch_size"))


def _agree(keys: Keys, reading: Reading, name: str, target: str, value: object) -> None:
    """Enter a size; a trainer's other value is refused, as Transformers refuses it."""
    before = reading.said.get(target)
    if before is not None and before.value != value:
        raise UsageError(
            f"{keys.where(name)} is {show(value)}, but {before.origin} is {show(before.value)}: the "
            "libraries refuse that; "
            'write "auto" in the DeepSpeed file'
        )
    reading.say(target, value, keys.where(name))


def _read_precision(keys: Keys, reading: Reading) -> None:
    for name, precision in (("bf16", "bf16-mixed"), ("fp16", "fp16-mixed")):
        part = keys.part(name)
        if part is None:
            continue
        part.skip(
            words(
                """
                loss_scale loss_scale_window hysteresis consecutive_hysteresis min_loss_scale
                initial_scale_power
                """
            )
        )
        part.skip(("auto_cast", "check_overflow", "immediate_grad_update"))
        part.refuse_switched_on(_ENGINE_UNMODELLED)
        enabled = part.get("enabled")
        if enabled in (None, AUTO):
            continue
        if part.flag("enabled"):
            if "precision" in reading.needs and reading.value("precision") is None:
                other = f"{reading.path} has neither bf16 nor fp16 on"
                raise UsageError(
                    f"{part.where('enabled')} is true, but {other}: Transformers refuses that; "
                    'write "auto" here'
                )
            _agree(part, reading, "enabled", "precision", precision)
        elif reading.value("precision") == precision:
            _agree(part, reading, "enabled", "precision", "off")


def _read_optimizer(keys: Keys, reading: Reading) -> None:
    """An optimizer that the file names takes the place of the trainer's: Adam, on the GPU fused unless it is
    torch's, else DeepSpeed's on the CPU.

    DeepSpeed makes it of all trained weights in one group.  Source: transformers 5.23
    integrations/deepspeed.py deepspeed_optim_sched (``DummyOptim(params=model_parameters)``);
    deepspeed 0.19.8 runtime/engine.py _configure_basic_optimizer, get_optimizer_configuration.
    """
    offloaded = str(reading.value("offload") or "none").startswith("optimizer")
    forced = keys.flag("zero_force_ds_cpu_optimizer") is not False
    part = keys.part("optimizer")
    if part is None:
        if offloaded and forced:
            swap_for_cpu_adam(reading, reading.said["offload"].origin)
        return
    kind = part.text("type") or ""
    part.skip(("legacy_fusion",))
    if kind.lower() not in ("adam", "adamw"):
        raise part.not_modelled(
            "type", f"DeepSpeed's optimizer '{show(kind)}' is not modelled; Adam and AdamW are"
        )
    params = part.section("params")
    torchs = bool(params.flag("torch_adam"))
    if offloaded and (torchs or params.flag("fp32_optimizer_states") is False):
        name = "torch_adam" if torchs else "fp32_optimizer_states"
        raise params.not_modelled(name, "in host RAM DeepSpeed's own Adam with states in fp32 is modelled")
    params.skip_rest()
    reading.said.pop("optimizer", None)
    ours, note = "adamw_torch_fused", "DeepSpeed's FusedAdam: one kernel, two fp32 states"
    if offloaded or torchs:
        ours, note = "adamw_torch", "torch's own" if torchs else "DeepSpeed's own Adam, on the CPU"
    reading.say("optimizer", ours, part.where("type"), note)
    reading.switch("one_optimizer_group", True, part.where("type"))


def swap_for_cpu_adam(reading: Reading, origin: str) -> None:
    """Enter that Accelerate puts DeepSpeedCPUAdam in the place of any optimizer whose states DeepSpeed
    offloads.

    Source: accelerate 1.15.0 accelerator.py:2374-2384 and utils/deepspeed.py:29-94: Lion of 32 bits becomes
    DeepSpeedCPULion, all others Adam, unless ``zero_force_ds_cpu_optimizer`` is false.
    """
    before = reading.said.get("optimizer")
    if before is None or OPTIMIZER_FACTS[before.value].on_host == "deepspeed":
        return
    del reading.said["optimizer"]
    reading.say("optimizer", "adamw_torch", origin, "DeepSpeedCPUAdam, which Accelerate swaps in")
    reading.remark(
        before.origin,
        f"{show(before.value)} is swapped for DeepSpeedCPUAdam, because DeepSpeed offloads its states",
    )
