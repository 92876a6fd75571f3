"""What a Trainer's own objects say, with stand-ins that have the attributes of the libraries' objects."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

import pytest

from planner.api.held import (
    TrainerJob,
    arguments_of,
    dtype_of_adapters,
    dtype_of_base,
    held_by,
    held_by_model,
    quantization_of,
    table_of,
    trained_and_frozen,
)
from planner.errors import NotModelledError, UsageError


class Arguments:
    """Training arguments."""

    def __init__(self, **table: Any) -> None:
        self.table = table

    def to_dict(self) -> dict[str, Any]:
        """As a table."""
        return self.table


def parameter(n: int, dtype: str, *, trained: bool = False, whole: int | None = None) -> SimpleNamespace:
    """One of ``n`` numbers here and ``whole`` on all GPUs."""
    found = SimpleNamespace(dtype=f"torch.{dtype}", requires_grad=trained, numel=lambda: n)
    if whole is not None:
        found.ds_numel = whole
    return found


def model_of(**parameters: Any) -> SimpleNamespace:
    """A module with these parameters."""
    named = {name.replace("__", "."): each for name, each in parameters.items()}
    return SimpleNamespace(named_parameters=named.items)


def test_only_a_trainer_or_its_arguments_hold_a_job() -> None:
    """Anything else is named in the refusal."""
    with pytest.raises(UsageError, match=r"takes a Trainer or its TrainingArguments, but it is 7"):
        held_by(7)
    args = Arguments()
    assert held_by(args, "config", "peft") == TrainerJob(args, None, "config", "peft")


def test_what_is_given_wins_over_what_the_trainer_holds() -> None:
    """A model is taken out of each wrapper, an empty or endless data set has no length."""
    inner = SimpleNamespace(config={"a": 1}, peft_config={"default": "lora"})
    wrapped = SimpleNamespace(module=SimpleNamespace(module=inner))
    trainer = SimpleNamespace(
        args=Arguments(), model=wrapped, train_dataset=[1, 2], accelerator=SimpleNamespace(state="s")
    )
    held = held_by(trainer)
    assert (held.model, held.model_config, held.peft_config) == (inner, {"a": 1}, "lora")
    assert (held.samples, held.accelerator) == (2, "s")
    assert held_by(trainer, {"b": 2}).model_config == {"b": 2}
    assert held_by(trainer, peft_config="mine").peft_config == "mine"
    assert [held_by_model(None, None, data).samples for data in (list[int](), iter([1]))] == [None, None]


def test_several_adapters_are_not_modelled() -> None:
    """Which one is trained is not known."""
    with pytest.raises(NotModelledError, match="2 adapters"):
        held_by_model(None, SimpleNamespace(config=None, peft_config={"a": 1, "b": 2}))


def test_values_of_libraries_become_plain_ones() -> None:
    """Enumerations by value, sets in order, keys that JSON has none for left out."""

    class Strategy(enum.Enum):
        STEPS = "steps"

    data: dict[Any, Any] = {"a": Strategy.STEPS, "b": {"v", "q"}, "c": 1 + 2j, ("d",): 1}
    assert table_of(data, "x") == {"a": "steps", "b": ["q", "v"], "c": "(1+2j)"}
    with pytest.raises(UsageError, match=r"x must be a config or a table"):
        table_of([1], "x")


def test_arguments_become_keys_of_a_config_file() -> None:
    """Without what is ``None`` or of scripts, with the kernel of the model and its own checkpointing."""
    layer = SimpleNamespace(gradient_checkpointing=True)
    model = SimpleNamespace(modules=lambda: [object(), layer])
    held = TrainerJob(
        Arguments(do_train=True, bf16=True, fp16=None), model, {"_attn_implementation": "eager"}
    )
    on = {"gradient_checkpointing": True, "activation_checkpointing": True}
    assert arguments_of(held) == {"bf16": True, "attn_implementation": "eager", **on}
    layer.gradient_checkpointing = False
    assert arguments_of(held) == {"bf16": True, "attn_implementation": "eager"}


@pytest.mark.parametrize(
    ("version", "strategy", "reshards", "offloads", "words"),
    [
        (2, None, True, False, ["full_shard"]),
        (2, None, False, True, ["shard_grad_op", "offload"]),
        (1, SimpleNamespace(name="HYBRID_SHARD"), True, True, ["hybrid_shard", "offload"]),
        (1, None, False, False, ["full_shard"]),
    ],
)
def test_fsdp_of_the_launcher(
    version: int, strategy: Any, reshards: bool, offloads: bool, words: list[str]
) -> None:
    """FSDP 2 has no strategy but whether it reshards; arguments that name FSDP win."""
    plugin = SimpleNamespace(
        fsdp_version=version,
        sharding_strategy=strategy,
        reshard_after_forward=reshards,
        cpu_offload=SimpleNamespace(offload_params=offloads),
        activation_checkpointing=False,
    )
    state = SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=plugin)
    config = {"version": version, "activation_checkpointing": False}
    found = arguments_of(TrainerJob(Arguments(), accelerator=state))
    assert found == {"fsdp": words, "fsdp_config": config}
    assert arguments_of(TrainerJob(Arguments(fsdp="x"), accelerator=state)) == {"fsdp": "x"}


def test_deepspeed_of_the_launcher() -> None:
    """Its config is taken, unless the arguments have one."""
    plugin = SimpleNamespace(hf_ds_config=SimpleNamespace(config={"zero_optimization": {"stage": 2}}))
    state = SimpleNamespace(deepspeed_plugin=plugin)
    found = arguments_of(TrainerJob(Arguments(), accelerator=state))
    assert found == {"deepspeed": {"zero_optimization": {"stage": 2}}}
    assert arguments_of(TrainerJob(Arguments(deepspeed="z"), accelerator=state)) == {"deepspeed": "z"}


def test_the_dtype_of_most_weights_is_that_of_the_base() -> None:
    """Norms in fp32 are few; packed bytes and adapters do not count."""
    model = model_of(
        norm=parameter(9, "float32"),
        linear=parameter(10, "bfloat16"),
        packed=parameter(99, "uint8"),
        q__lora_A__default=parameter(50, "float32", trained=True),
    )
    held = TrainerJob(None, model)
    assert (dtype_of_base(held), dtype_of_adapters(held)) == ("bfloat16", "float32")
    assert trained_and_frozen(held) == (50, 118)
    assert dtype_of_base(TrainerJob(None, None, {"torch_dtype": "torch.float16"})) == "float16"
    assert dtype_of_base(TrainerJob(None)) is None
    mixed = model_of(a__lora_A=parameter(1, "float32"), b__lora_B=parameter(1, "bfloat16"))
    assert dtype_of_adapters(TrainerJob(None, mixed)) is None


def test_divided_parameters_are_counted_whole_or_not_at_all() -> None:
    """ZeRO-3 leaves nothing of a parameter and keeps its count; FSDP's flat ones mix what is trained."""
    held = TrainerJob(None, model_of(a=parameter(0, "bfloat16", trained=True, whole=64)))
    assert trained_and_frozen(held) == (64, 0)
    flat = type("FlatParameter", (), {"requires_grad": True, "numel": lambda _: 5})()
    assert trained_and_frozen(TrainerJob(None, model_of(a=parameter(3, "float32"), b=flat))) is None
    assert trained_and_frozen(TrainerJob(None)) is None


def test_only_what_bitsandbytes_made_is_a_quantization_of_the_job() -> None:
    """A checkpoint that came packed otherwise is known to the model."""
    tables = ({"load_in_4bit": True}, {"quant_method": "gptq", "bits": 4})
    ours, packed = (TrainerJob(None, None, {"quantization_config": table}) for table in tables)
    assert quantization_of(ours) == {"load_in_4bit": True}
    assert quantization_of(packed) is None
    assert quantization_of(TrainerJob(None, None, {})) is None
