"""From what was said to a scenario: parsing, defaults, origins, and the words about what cannot be used."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.catalog.hosts import host_ids, load_host
from planner.catalog.location import data_dir
from planner.catalog.stacks import load_stack, stack_ids
from planner.domain.run_record import RunRecord
from planner.domain.scenario import Assumption, Scenario
from planner.errors import InputFileError, NotModelledError, RefusedCombinationError, UnknownNameError, UsageError
from planner.intake.fields import REQUEST_FIELDS
from planner.intake.linears import linear_names
from planner.intake.request import MAX_CONFIG_BYTES, Given, ScenarioRequest, from_flags, from_record, from_toml, merge
from planner.intake.resolve import DEFAULT_STACK, resolve
from planner.records import read_records
from planner.units import GIB

BASE = {"model": "7b", "method": "lora", "gpu": "4090", "seq": 1024}
RECORD = RunRecord(
    id="doc-1", source="doc", source_group="doc", model="llama-2-7b", gpu="rtx4090", method="lora", outcome="ok",
    gpus_per_node=2, micro_batch=4, seq_len=512, n_samples=1100, lora_targets=("q_proj",), precision="fp16-mixed",
)  # fmt: skip


def scenario_of(**flags: object) -> Scenario:
    """The scenario of BASE with these flags."""
    return resolve(from_flags(BASE | flags))


def assumption(scenario: Scenario, name: str) -> Assumption:
    """The one entry about a value."""
    (entry,) = [entry for entry in scenario.assumptions if entry.name == name]
    return entry


# ---- fields -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("seq", "1024", 1024),
        ("seq", " 16_384 ", 16384),
        ("seq", 1024.0, 1024),
        ("price", "2.5", 2.5),
        ("price", 2, 2.0),
        ("epochs", "1e-1", 0.1),
        ("gpu_memory", "23.5GiB", round(23.5 * GIB)),
        ("gpu_reserved", "0 MiB", 0),
        ("double_quant", "Yes", True),
        ("double_quant", False, False),
        ("optimizer", "ADAMW-TORCH", "adamw_torch"),
        ("precision", "bf16_mixed", "bf16-mixed"),
        ("load_dtype", "bfloat16", "bf16"),
        ("lora_targets", "q_proj; v_proj,q_proj", ("q_proj", "v_proj")),
        ("lora_targets", ["all-linear"], ("all-linear",)),
        ("model", "  Llama-2-7b ", "Llama-2-7b"),
        ("model", "\u767e\u5ddd", "\u767e\u5ddd"),
    ],
)
def test_a_value_is_read(name: str, text: object, value: object) -> None:
    """Text as people type it, and what TOML and records hold, become the type of the field."""
    parsed = REQUEST_FIELDS[name].parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "-inf", "1e30", "9" * 5000, "1.5", "", "x", True, None, [], 10**400])
@pytest.mark.parametrize("name", [name for name, field in REQUEST_FIELDS.items() if field.kind == "integer"])
def test_counts_out_of_range_are_refused_with_the_range(name: str, value: object) -> None:
    """Negative, zero, NaN, infinite, huge and non-whole counts all name the field and what is allowed."""
    with pytest.raises(UsageError, match=rf"^{name} must be a whole number from 1 to [0-9,]+, but it is ") as caught:
        REQUEST_FIELDS[name].parse(value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e400", "x", "", True, None, float("nan"), float("inf"), 10**400])
@pytest.mark.parametrize("name", [name for name, field in REQUEST_FIELDS.items() if field.kind == "number"])
def test_numbers_out_of_range_are_refused_with_the_range(name: str, value: object) -> None:
    """The same for numbers with a fraction."""
    with pytest.raises(UsageError, match=rf"^{name} must be a number (above|from) 0 to "):
        REQUEST_FIELDS[name].parse(value)


@pytest.mark.parametrize("value", ["24", "-1GiB", "nan GiB", "24 apples", "", "9" * 400 + "GiB", 24, None, "17000TiB"])
@pytest.mark.parametrize("name", [name for name, field in REQUEST_FIELDS.items() if field.kind == "size"])
def test_sizes_need_a_unit_and_a_range(name: str, value: object) -> None:
    """A bare number is no size: 24 could be GB or GiB."""
    with pytest.raises(UsageError, match=rf"^{name} must be a size"):
        REQUEST_FIELDS[name].parse(value)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("seq", 16_777_216), ("batch", 65_536), ("lora_rank", 65_536), ("gpus", 1_024), ("nodes", 100_000)],
)
def test_the_upper_limits(name: str, limit: int) -> None:
    """The limit itself is allowed, one more is not."""
    assert REQUEST_FIELDS[name].parse(limit) == limit
    with pytest.raises(UsageError, match=f"{limit:,}"):
        REQUEST_FIELDS[name].parse(limit + 1)


@pytest.mark.parametrize(("name", "typed", "meant"), [("method", "qlorra", "qlora"), ("optimizer", "adamw", "adamw_torch")])
def test_an_unknown_choice_names_the_nearest(name: str, typed: str, meant: str) -> None:
    """A typing error is answered with what was probably meant."""
    with pytest.raises(UnknownNameError, match=f"unknown {name} '{typed}'; nearest: .*{meant}"):
        REQUEST_FIELDS[name].parse(typed)


def test_every_field_explains_itself() -> None:
    """Each field has help, a flag, and a range or choices where its kind has some."""
    for name, field in REQUEST_FIELDS.items():
        assert field.name == name
        assert field.flag == f"--{name.replace('_', '-')}"
        assert len(field.help) > 15
        assert bool(field.choices) == (field.kind == "choice")
        assert (field.low is not None and field.high is not None) == (field.kind in ("integer", "number", "size"))


# ---- requests -----------------------------------------------------------------------------------------------------------------


def test_flags_take_hyphens_and_underscores() -> None:
    """Both spellings mean one field, and an absent flag says nothing."""
    request = from_flags({"lora-rank": "8", "lora_dropout": None, "grad_accum": 2})
    assert request.values == {"lora_rank": Given(8, "cli"), "grad_accum": Given(2, "cli")}


def test_an_unknown_flag_names_the_nearest() -> None:
    """A typing error in the name of a flag is answered with flags."""
    with pytest.raises(UnknownNameError, match="unknown flag '--lora-rnk'; nearest: --lora-rank"):
        from_flags({"lora-rnk": 8})


def test_one_flag_given_twice_is_refused() -> None:
    """Two spellings of one flag are two values for it."""
    with pytest.raises(UsageError, match="given twice"):
        from_flags({"lora-rank": 8, "lora_rank": 16})


def test_a_toml_file_gives_every_value_its_line(tmp_path: Path) -> None:
    """The origin of a value from a file is the line that sets it."""
    path = tmp_path / "job.toml"
    path.write_text('# a job\nmodel = "7b"\n\nlora-targets = ["q_proj", "v_proj"]\nseq = 1024\n"gpu" = "4090:2"\n')
    request = from_toml(path)
    assert {name: given.origin for name, given in request.values.items()} == {
        "model": f"{path}:2",
        "lora_targets": f"{path}:4",
        "seq": f"{path}:5",
        "gpu": f"{path}:6",
    }
    assert request.get("lora_targets") == ("q_proj", "v_proj")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"seq = 1024\nsequence = 5\n", ":2: unknown key 'sequence'; nearest: seq"),
        (b"model = '7b'\nseq = -1\n", ":2: seq must be a whole number from 1 to 16,777,216, but it is -1"),
        (b"seq = nan\n", ":1: seq must be a whole number"),
        (b"[model]\nname = '7b'\n", ":1: model must be text, but it is a value of type dict"),
        (b"gpu_memory = 24\n", ":1: gpu_memory must be a size with a unit"),
        (b"lora-rank = 8\nlora_rank = 8\n", ":2: 'lora_rank' is given twice"),
        (b"seq = \n", ":1: not valid TOML"),
        (b"model = '\xff'\n", ":1: not UTF-8 text"),
        (b"a = " + b"[" * 20_000, ": not valid TOML"),
        (b"seq = " + b"9" * 5000, ": not valid TOML"),
        (b"#" * (MAX_CONFIG_BYTES + 1), ": larger than the limit of 1.0 MiB"),
    ],
)
def test_a_broken_toml_file_is_refused_with_its_line(tmp_path: Path, content: bytes, problem: str) -> None:
    """Each way in which a configuration file can be broken has a message with file and line."""
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    with pytest.raises(InputFileError) as caught:
        from_toml(path)
    assert str(caught.value).startswith(f"{path}{problem}")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A missing file and a folder are said."""
    with pytest.raises(InputFileError, match="no such file"):
        from_toml(tmp_path / "none.toml")
    with pytest.raises(InputFileError, match="not a regular file"):
        from_toml(tmp_path)


def test_flags_win_over_a_file() -> None:
    """Merging keeps what only one side says, and the override where both do."""
    base = ScenarioRequest({"seq": Given(512, "f:1"), "batch": Given(4, "f:2")})
    assert merge(base, from_flags({"seq": 1024})).values == {"seq": Given(1024, "cli"), "batch": Given(4, "f:2")}


def test_a_counted_gpu_on_the_command_line_replaces_the_count_of_the_file() -> None:
    """`--gpu X:4` over a file with `gpus = 2` is no contradiction: the flag says both."""
    base = from_flags(BASE | {"gpus": 2})
    assert resolve(merge(base, from_flags({"gpu": "4090:4"}))).hardware.gpus_per_node == 4
    assert resolve(merge(from_flags(BASE | {"gpu": "4090:4"}), from_flags({"gpus": 3}))).hardware.gpus_per_node == 3
    assert resolve(merge(base, from_flags({"gpu": "a100-80-sxm"}))).hardware.gpus_per_node == 2


def test_a_record_asks_for_its_configuration() -> None:
    """Columns become fields, blanks stay open, and every origin names the record."""
    request = from_record(RECORD)
    assert {name: given.value for name, given in request.values.items()} == {
        "model": "llama-2-7b",
        "gpu": "rtx4090",
        "method": "lora",
        "gpus": 2,
        "batch": 4,
        "seq": 512,
        "samples": 1100,
        "lora_targets": ("q_proj",),
        "precision": "fp16-mixed",
    }
    assert {given.origin for given in request.values.values()} == {"record:doc-1"}


def test_what_a_record_leaves_open_is_an_assumption() -> None:
    """A source that is silent did not choose the stack's default; the note says whose default it is."""
    entry = assumption(resolve(from_record(RECORD)), "optimizer")
    assert (entry.origin, entry.value) == ("assumed", load_stack(DEFAULT_STACK).defaults.optimizer)
    assert DEFAULT_STACK in entry.note


@pytest.mark.parametrize(
    "change",
    [{"gradient_checkpointing": "selective"}, {"optimizer": "adamw_apex_fused"}, {"tensor_parallel": 2}, {"seq_len": None}],
)
def test_a_record_that_no_formula_covers(change: dict[str, object]) -> None:
    """Selective checkpointing, other optimizers, parallelism inside a layer, and no length at all: not modelled."""
    with pytest.raises(NotModelledError):
        resolve(from_record(replace(RECORD, **change)))  # type: ignore[arg-type]


@pytest.mark.skipif(not list((data_dir() / "published").glob("*.csv")), reason="no published rows in this checkout")
def test_every_published_row_becomes_a_scenario() -> None:
    """No row of the numbered documents is refused, and each scenario has the sizes of its row."""
    for record in read_records([str(data_dir() / "published" / "[0-9]*.csv")]).records:
        scenario = resolve(from_record(record))
        assert scenario.recipe.batch.seq_len == record.seq_len
        assert scenario.hardware.world_size == (record.nodes or 1) * (record.gpus_per_node or 1)
        assert record.stack is None or scenario.stack.id == record.stack


# ---- resolving ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"load_dtype": "bf16"}, "bf16"),
        ({"load_dtype": "fp32"}, "fp32"),
        ({}, "fp32"),
        ({"load_dtype": "bf16", "adapter_dtype": "fp32"}, "fp32"),
        ({"quantization": "nf4"}, "fp32"),
        ({"load_dtype": "fp16", "precision": "fp16-mixed"}, "fp32"),
        ({"load_dtype": "fp16", "precision": "fp16-mixed", "sharding": "zero2", "gpus": 2}, "fp16"),
        ({"load_dtype": "fp16", "stack": "firefly"}, "fp32"),
        ({"load_dtype": "bf16", "stack": "hf-trainer@5"}, "fp32"),
    ],
)
def test_adapters_follow_the_base_before_peft_0_12(flags: dict[str, object], expected: str) -> None:
    """Under Transformers 4 a 16-bit base has 16-bit adapters, unless the base is prepared or gradients are scaled natively."""
    adapter = scenario_of(**{"method": "lora", "stack": "hf-trainer@4", **flags}).recipe.adapter
    assert adapter is not None
    assert adapter.dtype == expected


def test_every_choice_of_the_recipe_is_an_assumption_once() -> None:
    """Whatever was not said has an entry too, each name once, and each origin is one of the documented kinds."""
    scenario = scenario_of(stack="trl")
    names = [entry.name for entry in scenario.assumptions]
    runs = {"samples", "epochs", "price", "eval_samples", "eval_batch"}
    absent = runs | {"versions", "switches", "link", "tensor_parallel", "pipeline_parallel", "context_parallel"}
    assert len(names) == len(set(names))
    assert set(names) == set(REQUEST_FIELDS) - absent
    assert {entry.origin for entry in scenario.assumptions} <= {"cli", "assumed", "catalog", "derived", "default:trl"}


def test_the_default_stack_is_an_assumption() -> None:
    """Nobody said the stack, so it is printed as assumed, and its settings as its own."""
    scenario = scenario_of()
    assert (assumption(scenario, "stack").value, assumption(scenario, "stack").origin) == ("hf-trainer@5", "assumed")
    assert assumption(scenario, "lora_rank").origin == "default:hf-trainer@5"


@pytest.mark.parametrize("missing", ["model", "method", "gpu", "seq"])
def test_what_has_no_default_must_be_said(missing: str) -> None:
    """Nothing is guessed about the model, the method, the card and the length."""
    with pytest.raises(UsageError, match=missing):
        resolve(from_flags({name: value for name, value in BASE.items() if name != missing}))


def test_a_size_says_which_model_it_means() -> None:
    """A bare size is documented, and the report says what it stands for."""
    entry = assumption(scenario_of(), "model")
    assert (entry.value, entry.origin) == ("llama-2-7b", "cli")
    assert "7b" in entry.note


def test_unknown_names_are_refused_with_the_nearest() -> None:
    """Models, GPUs, hosts and stacks that no catalog knows."""
    for flag, typed, meant in [
        ("model", "llama-2-7c", "llama-2-7b"),
        ("gpu", "rtx4091", "rtx4090"),
        ("host", "server-128g", "server-256g"),
        ("stack", "hf-trainer@6", "hf-trainer@5"),
    ]:
        with pytest.raises(UnknownNameError, match=f"unknown {flag} '{typed}'.*{meant}|unknown GPU '{typed}'.*{meant}"):
            scenario_of(**{flag: typed})


def test_gpus_per_node_are_counted_after_the_colon() -> None:
    """`X:n` is n per node, with the origin of the flag, and shards nothing unless told to."""
    scenario = scenario_of(gpu="4090:2", nodes=3)
    assert (scenario.hardware.gpus_per_node, scenario.hardware.world_size) == (2, 6)
    assert assumption(scenario, "gpus") == Assumption("gpus", "2", "cli")
    assert (scenario.recipe.sharding, assumption(scenario, "sharding").origin) == ("ddp", "assumed")
    assert assumption(scenario, "link").value == "pcie"


@pytest.mark.parametrize("gpu", ["4090:0", "4090:x", "4090:", ":2", "4090:1025", "4090:-1"])
def test_a_count_that_is_none_is_refused(gpu: str) -> None:
    """What follows the colon must be a number of GPUs."""
    with pytest.raises(UsageError):
        scenario_of(gpu=gpu)


def test_two_counts_must_agree() -> None:
    """`--gpu X:2 --gpus 4` contradicts itself; the same number twice does not."""
    with pytest.raises(UsageError, match="give the count once"):
        scenario_of(gpu="4090:2", gpus=4)
    assert scenario_of(gpu="4090:2", gpus=2).hardware.gpus_per_node == 2


def test_memory_given_replaces_the_catalog() -> None:
    """A vGPU or a MIG slice is its parent card with another memory, which then has the user as its origin."""
    scenario = scenario_of(gpu_memory="10GiB", gpu_reserved="600MiB")
    assert scenario.hardware.gpu.visible_memory_bytes == 10 * GIB
    assert scenario.hardware.gpu.origin_of("visible_memory_bytes") == "user"
    assert assumption(scenario, "gpu_reserved") == Assumption("gpu_reserved", "600.0 MiB", "cli")


def test_an_unlisted_card_is_usable_with_its_memory() -> None:
    """A card that no catalog knows has a memory verdict when its memory is said, and nothing is invented about its speed."""
    gpu = scenario_of(gpu="rtx6090", gpu_memory="48GiB").hardware.gpu
    assert (gpu.id, gpu.visible_memory_bytes, gpu.bf16_flop_per_s) == ("rtx6090", 48 * GIB, None)
    assert resolve(from_flags({**BASE, "gpu": None, "gpu_memory": "48GiB"})).hardware.gpu.id == "unlisted"


def test_the_host_is_unknown_unless_said() -> None:
    """Host RAM comes from the host's entry, from the user, or stays unknown."""
    assert scenario_of().hardware.host.memory_bytes is None
    assert scenario_of(host="server-256g").hardware.host.memory_bytes == 256 * GIB
    assert scenario_of(host="server-256g", host_memory="64GiB").hardware.host.memory_bytes == 64 * GIB


def test_method_names_that_mean_a_quantisation() -> None:
    """`qlora` is lora over nf4 with double quantisation, `int8` lora over int8; the rest says its own quantisation."""
    for method, base, doubled in [
        ("qlora", "nf4", True),
        ("int8", "int8", False),
        ("lora", "none", False),
        ("full", "none", False),
    ]:
        recipe = scenario_of(method=method).recipe
        assert (recipe.numerics.quantization, recipe.numerics.double_quant) == (base, doubled)
        assert recipe.method == ("full" if method == "full" else "lora")
        assert (recipe.adapter is None) == (method == "full")


def test_qlora_takes_another_4_bit_format() -> None:
    """fp4 keeps the double quantisation of the name; GPTQ has none; int8 contradicts it."""
    assert scenario_of(method="qlora", quantization="fp4").recipe.numerics.double_quant
    assert not scenario_of(method="qlora", quantization="gptq-int4").recipe.numerics.double_quant
    assert not scenario_of(method="lora", quantization="nf4").recipe.numerics.double_quant
    with pytest.raises(RefusedCombinationError, match="qlora allows nf4, fp4, gptq-int4, quantization says int8"):
        scenario_of(method="qlora", quantization="int8")


def test_a_quantised_base_may_have_other_defaults() -> None:
    """k-bit preparation turns checkpointing on where the Trainer alone leaves it off."""
    assert not scenario_of(method="lora").recipe.gradient_checkpointing
    assert scenario_of(method="qlora").recipe.gradient_checkpointing
    assert not scenario_of(method="qlora", gradient_checkpointing=False).recipe.gradient_checkpointing


def test_a_card_without_bf16_gets_fp16() -> None:
    """Where nobody asked for bf16, a T4 computes and loads in fp16, and says why; with loss scaling a full fine-tune is fp32."""
    scenario = scenario_of(gpu="t4")
    assert (scenario.recipe.numerics.precision, scenario.recipe.numerics.load_dtype) == ("fp16-mixed", "fp16")
    assert assumption(scenario, "precision").origin == "assumed"
    assert "no bf16" in assumption(scenario, "precision").note
    assert scenario_of(gpu="t4", method="full").recipe.numerics.load_dtype == "fp32"
    assert scenario_of(gpu="t4", precision="bf16-mixed").recipe.numerics.precision == "bf16-mixed"


def test_the_load_dtype_is_that_of_the_checkpoint_or_of_the_stack() -> None:
    """Transformers 5 takes the checkpoint's dtype, TRL fp32."""
    assert scenario_of(model="qwen2.5-7b").recipe.numerics.load_dtype == "bf16"
    assert "checkpoint" in assumption(scenario_of(model="qwen2.5-7b"), "load_dtype").note
    assert scenario_of(model="qwen2.5-7b", stack="trl").recipe.numerics.load_dtype == "fp32"


def test_attention_falls_back_where_the_code_has_no_kernel() -> None:
    """BLOOM has only eager attention in Transformers; a default of flash attention gives way on an old card."""
    assert scenario_of(model="bloom-3b").recipe.attention == "eager"
    assert scenario_of(model="qwen-7b", stack="qwen-finetune").recipe.attention == "flash2"
    assert scenario_of(model="qwen-7b", stack="qwen-finetune", gpu="t4").recipe.attention == "sdpa"


def test_deepspeed_has_masters_unless_told_otherwise() -> None:
    """A stack that trains in pure bf16 keeps fp32 masters once DeepSpeed runs the step."""
    pure = next(name for name in stack_ids() if load_stack(name).defaults.precision == "bf16")
    assert scenario_of(stack=pure).recipe.numerics.precision == "bf16"
    assert scenario_of(stack=pure, sharding="zero2").recipe.numerics.precision == "bf16-mixed"


def test_sizes_that_nobody_says() -> None:
    """One sample, one micro-step, every sample as long as the sequence: assumed."""
    scenario = scenario_of(padding="packed")
    batch = scenario.recipe.batch
    assert (batch.micro_batch, batch.grad_accum, batch.tokens_per_sample, batch.padding) == (1, 1, 1024, "packed")
    assert {assumption(scenario, name).origin for name in ("batch", "grad_accum", "tokens_per_sample")} == {"assumed"}


def test_the_run_is_priced_only_when_asked() -> None:
    """Samples bring an assumed single epoch into the list; price is per GPU and hour."""
    run = scenario_of(samples=1000, price="1.5").run
    assert (run.n_samples, run.epochs, run.usd_per_gpu_hour) == (1000, 1.0, 1.5)
    assert scenario_of().run.n_samples is None


@pytest.mark.parametrize("name", ["tensor_parallel", "pipeline_parallel", "context_parallel"])
def test_parallelism_inside_the_model_is_not_modelled(name: str) -> None:
    """Above 1 there is no verdict rather than a wrong one; --force does not change that."""
    assert scenario_of(**{name: 1}).recipe == scenario_of().recipe
    with pytest.raises(NotModelledError, match="of 2 is not modelled"):
        resolve(from_flags(BASE | {name: 2}), force=True)


def test_linear_names_of_a_model() -> None:
    """The names that lora_targets may use, in the order of the model."""
    names = linear_names(scenario_of().model)
    assert names == ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


# ---- hosts and stacks ---------------------------------------------------------------------------------------------------------


def test_every_host_has_a_source() -> None:
    """Each entry loads under its own name, and the unknown host knows nothing."""
    for host_id in host_ids():
        assert load_host(host_id.upper()).id == host_id
        assert load_host(host_id).source
    unknown = load_host("unknown")
    assert (unknown.cores, unknown.memory_bytes, unknown.memory_bandwidth_bytes_per_s, unknown.pcie_generation) == (None,) * 4


def stack_file(folder: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]) -> Path:
    """A copy of a stack file with one text replaced, in a catalog of its own."""
    text = (data_dir() / "stacks" / "trl.toml").read_text(encoding="utf-8")
    assert change[0] in text
    path = folder / "stacks" / "broken.toml"
    path.parent.mkdir()
    path.write_text(text.replace('id = "trl"', 'id = "broken"', 1).replace(*change, 1), encoding="utf-8")
    monkeypatch.setattr("planner.catalog.stacks.data_dir", lambda: folder)
    load_stack.cache_clear()
    return path


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("schema = 1", "schema = 2"), "key 'schema'"),
        (("[defaults.lora_rank]", "[defaults.lora_rnk]"), "unknown key 'defaults.lora_rnk'"),
        (("[switches.fused_mlp]", "[switches.fused_mpl]"), "unknown key 'switches.fused_mpl'"),
        (('settled_by = "source_code"', 'settled_by = "rumour"'), "settled_by"),
        (
            ("[defaults.precision]\nvalue = ", "[defaults.precision]\ncolour = 1\nvalue = "),
            "unknown key 'defaults.precision.colour'",
        ),
        (('"bf16-mixed"', '"bf17"'), "key 'defaults.precision.value' must be one of bf16, fp16"),
        (("value = 16\n", "value = 0\n"), "key 'defaults.lora_rank.value' must be from 1 to"),
        (("value = 16\n", "value = true\n"), "key 'defaults.lora_rank.value' must be a whole number"),
        (("[switches.loss_forward]\nvalue = [", "[switches.loss_forward]\nvalue = [1, "), "must be a list of compute, float"),
    ],
)
def test_a_broken_stack_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], problem: str
) -> None:
    """A stack file states every switch, nothing else, each with what settled it; the message names file and key."""
    path = stack_file(tmp_path, monkeypatch, change)
    with pytest.raises(InputFileError) as caught:
        load_stack("broken")
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)


def test_a_stack_without_a_switch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing switch is named: there is no silent default."""
    table = (data_dir() / "stacks" / "trl.toml").read_text(encoding="utf-8")
    start = table.index("[switches.pinned_rounding]")
    end = table.find("\n[", start + 1)
    path = stack_file(tmp_path, monkeypatch, (table[start : end if end > 0 else len(table)], "\n"))
    with pytest.raises(InputFileError, match=r"missing key 'switches.pinned_rounding'"):
        load_stack("broken")
    assert path.exists()


@pytest.mark.parametrize("name", ["", " ", "../stacks/trl", "trl.toml", "x" * 5000, "hf-trainer@", "trl\0"])
def test_a_name_that_is_no_stack(name: str) -> None:
    """Paths, endless and empty names are unknown names, nothing more."""
    with pytest.raises(UnknownNameError, match="unknown stack"):
        load_stack(name)


# ---- switches of the stack ----------------------------------------------------------------------------------------------------


def test_a_switch_that_is_said_replaces_the_stacks_own() -> None:
    """Flags, numbers, words and lists of words, each in the type of its switch, with their place; the others stay."""
    said = "zero12_overlap=false;zero12_bucket_elements=200000000;kbit_upcast=norms;loss_forward=compute+float"
    scenario = scenario_of(switches=said)
    stack, own = scenario.stack, load_stack(DEFAULT_STACK)
    assert (stack.zero12_overlap, stack.zero12_bucket_elements, stack.kbit_upcast) == (False, 200_000_000, "norms")
    assert stack.loss_forward == ("compute", "float")
    assert (stack.id, stack.loss_backward) == (own.id, own.loss_backward)
    assert assumption(scenario, "switches").origin == "cli"
    assert ("kbit_upcast", "document_text", "said for this job: cli") in stack.settled


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("zero12_overlap", "must be written name=value"),
        ("zero12_overlap=maybe", "switch zero12_overlap must be true or false, but it is 'maybe'"),
        ("zero12_bucket_elements=-1", "must be from 0 to"),
        ("kbit_upcast=some", "must be one of none, norms, all"),
        ("loss_forward=compute+magic", "must be a list of"),
        ("zero12_overlap=true;zero12_overlap=false", "is given twice"),
        ("zero12_overlop=true", "unknown switch 'zero12_overlop'; nearest: zero12_overlap"),
    ],
)
def test_a_switch_that_cannot_be_is_refused(said: str, sentence: str) -> None:
    """Unknown switches list the nearest, wrong values say what can be."""
    with pytest.raises(UsageError, match=re.escape(sentence)):
        scenario_of(switches=said)


def test_the_weights_may_be_loaded_in_the_dtype_of_the_checkpoint() -> None:
    """``checkpoint`` is the dtype that the model's file names, with the place where it was asked for."""
    entry = assumption(scenario_of(stack="trl", load_dtype="checkpoint"), "load_dtype")
    assert (entry.value, entry.origin, entry.note) == ("fp16", "cli", "the dtype of the checkpoint")


def test_a_file_that_is_called_assumed_says_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is assumed is asked of the value, and is no matter of what the text of its origin begins with."""
    file = tmp_path / "assumed.toml"
    file.write_text('precision = "bf16"\n')
    monkeypatch.chdir(tmp_path)
    scenario = resolve(merge(from_toml("assumed.toml"), from_flags(BASE)))
    entries = {name: scenario.assumption(name) for name in ("precision", "attention", "batch", "gpu_memory")}
    assert {name: entry.is_assumed for name, entry in entries.items() if entry} == {
        "precision": False,
        "attention": True,
        "batch": True,
        "gpu_memory": False,
    }
    assert scenario.assumption("no_field") is None
