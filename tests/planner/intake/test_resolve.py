"""From what was said to a scenario: origins, assumptions, and the words about what cannot be used."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.catalog.location import data_dir
from planner.catalog.stacks import load_stack
from planner.errors import NotModelledError, UnknownNameError, UsageError
from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.given.request import from_flags, from_record, from_toml, merge
from planner.intake.resolve import DEFAULT_STACK, resolve
from planner.records import read_records
from planner.words import words
from tests.files import written
from tests.jobs import resolved
from tests.planner.intake.jobs import BASE, RECORD, assumption, scenario_of


def test_what_a_record_leaves_open_is_an_assumption() -> None:
    """A source that is silent did not choose the stack's default; the note says whose default it is."""
    entry = assumption(resolve(from_record(RECORD)), "optimizer")
    assert (entry.origin, entry.value) == ("assumed", load_stack(DEFAULT_STACK).defaults.optimizer)
    assert DEFAULT_STACK in entry.note


@pytest.mark.parametrize(
    "change",
    [
        {"gradient_checkpointing": "selective"},
        {"optimizer": "adamw_apex_fused"},
        {"pipeline_parallel": 2},
        {"seq_len": None},
    ],
)
def test_a_record_that_no_formula_covers(change: dict[str, object]) -> None:
    """Selective checkpointing, other optimizers, pipelines of layers, and no length at all: not modelled."""
    with pytest.raises(NotModelledError):
        resolve(from_record(replace(RECORD, **change)))  # type: ignore[arg-type]


@pytest.mark.skipif(
    not list((data_dir() / "published").glob("*.csv")), reason="no published rows in this checkout"
)
def test_every_published_row_becomes_a_scenario() -> None:
    """No row of the numbered documents is refused, and each scenario has the sizes of its row."""
    for record in read_records([str(data_dir() / "published" / "[0-9]*.csv")]).records:
        scenario = resolve(from_record(record))
        assert scenario.recipe.batch.seq_len == record.seq_len
        assert scenario.hardware.world_size == (record.nodes or 1) * (record.gpus_per_node or 1)
        assert record.stack is None or scenario.stack.id == record.stack


def test_every_choice_of_the_recipe_is_an_assumption_once() -> None:
    """Whatever was not said has an entry too, each name once,
    and each origin is one of the documented kinds.
    """
    scenario = scenario_of(stack="trl")
    names = [entry.name for entry in scenario.assumptions]
    runs = {"samples", "epochs", "price", "eval_samples", "eval_batch"}
    absent = runs | set(
        words(
            """
        num_labels teacher_model generations completion_length generation_steps iterations
        compare_reference generator vllm_memory vllm_sleep vllm_tensor_parallel reward_model reward_dtype
        data tokenizer train_layers images_per_sample image_size freeze dora oft_block_size vera
        optimizer_rank versions switches link link_gb_per_s pcie_lanes pcie_generation power_limit_w
        tensor_parallel pipeline_parallel pipeline_schedule pipeline_microbatches pipeline_runs
        pipeline_first_layers
        pipeline_last_layers context_parallel device_map replicas expert_parallel
        expert_tensor_parallel hpz fp8 qat qat_group
        """
        )
    )
    assert len(names) == len(set(names))
    assert set(names) == set(REQUEST_FIELDS) - absent
    assert {entry.origin for entry in scenario.assumptions} <= set(
        words("cli assumed catalog derived default:trl")
    )


def test_the_default_stack_is_an_assumption() -> None:
    """Nobody said the stack, so it is printed as assumed, and its settings as its own."""
    scenario = scenario_of()
    assert (assumption(scenario, "stack").value, assumption(scenario, "stack").origin) == (
        "hf-trainer@5",
        "assumed",
    )
    assert assumption(scenario, "lora_rank").origin == "default:hf-trainer@5"


@pytest.mark.parametrize("missing", ["model", "method", "gpu", "seq"])
def test_what_has_no_default_must_be_said(missing: str) -> None:
    """Nothing is guessed about the model, the method, the card and the length."""
    with pytest.raises(UsageError, match=missing):
        resolved({name: value for name, value in BASE.items() if name != missing})


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
        with pytest.raises(
            UnknownNameError, match=f"unknown {flag} '{typed}'.*{meant}|unknown GPU '{typed}'.*{meant}"
        ):
            scenario_of(**{flag: typed})


def test_the_run_is_priced_only_when_asked() -> None:
    """Samples bring an assumed single epoch into the list; price is per GPU and hour."""
    run = scenario_of(samples=1000, price="1.5").run
    assert (run.n_samples, run.epochs, run.usd_per_gpu_hour) == (1000, 1.0, 1.5)
    assert scenario_of().run.n_samples is None


@pytest.mark.parametrize("name", ["tensor_parallel", "pipeline_parallel", "context_parallel"])
def test_a_degree_of_one_changes_nothing(name: str) -> None:
    """What configuration files say of parallelism that is off."""
    assert scenario_of(**{name: 1}).recipe == scenario_of().recipe


def test_a_switch_that_is_said_replaces_the_stacks_own() -> None:
    """Flags, numbers, words and lists of words, each in the type of its switch, with their place;
    the others stay.
    """
    said = (
        "zero12_overlap=false;zero12_bucket_elements=200000000;kbit_upcast=norms;loss_forward=compute+float"
    )
    scenario = scenario_of(switches=said)
    stack, own = scenario.stack, load_stack(DEFAULT_STACK)
    assert (stack.zero12_overlap, stack.zero12_bucket_elements, stack.kbit_upcast) == (
        False,
        200_000_000,
        "norms",
    )
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
        ("kbit_upcast=some", "must be one of none, norms, layers, all, recast"),
        ("loss_forward=compute+magic", "must be a list of"),
        ("zero12_overlap=true;zero12_overlap=false", "is given twice"),
        ("zero12_overlop=true", "unknown switch 'zero12_overlop'; nearest: zero12_overlap"),
    ],
)
def test_a_switch_that_cannot_be_is_refused(said: str, sentence: str) -> None:
    """Unknown switches list the nearest, wrong values say what can be."""
    with pytest.raises(UsageError, match=re.escape(sentence)):
        scenario_of(switches=said)


def test_a_file_that_is_called_assumed_says_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is assumed is asked of the value, and is no matter of what the text of its origin begins with."""
    written(tmp_path, 'precision = "bf16"\n', "assumed.toml")
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


@pytest.mark.parametrize(
    ("stack", "quantization", "reentrant", "dtype"),
    [
        ("trl", "none", True, "bf16"),
        ("trl", "nf4", True, "bf16"),
        ("hf-trainer@5", "none", False, "fp32"),
        ("trl@0.24", "none", None, "fp32"),
    ],
)
def test_trl_forces_reentrant_checkpoints_and_adapters_of_the_base_under_zero3(
    stack: str, quantization: str, reentrant: bool | None, dtype: str
) -> None:
    """LoRA of Llama 3.2 1B on four GPUs: 4.74 GiB without either, 4.38 in TRL's own run, 4.41 with both."""
    flags = {"model": "llama-3.2-1b", "method": "lora", "gpu": "a100-80gb", "gpus": 4, "seq": 512}
    flags |= {"sharding": "zero3", "stack": stack, "quantization": quantization, "load_dtype": "bf16"}
    recipe = resolved({**flags, "gradient_checkpointing": True}).recipe
    assert recipe.adapter is not None
    assert recipe.adapter.dtype == dtype
    assert reentrant in (None, recipe.checkpoint_reentrant)


def test_vera_has_the_defaults_of_its_own_config() -> None:
    """PEFT's VeraConfig drops nothing and has a rank of its own, whatever the stack does with LoRA."""
    flags = {"model": "8b", "method": "lora", "gpu": "a100-80-sxm", "seq": "512", "stack": "trl"}
    adapters = [resolved({**flags, **more}).recipe.adapter for more in ({}, {"vera": True})]
    assert [(each.rank, each.dropout) for each in adapters if each] == [(16, 0.05), (256, 0.0)]


@pytest.mark.parametrize(
    ("flags", "load_dtype"),
    [
        ("--sharding zero3 --precision fp32", "fp32"),
        ("--sharding zero3 --precision fp32 --load-dtype bf16", "fp32"),
        ("--sharding zero3", "bf16"),
        ("--sharding zero3 --precision fp32 --switches zero_init=false --method lora", "bf16"),
        ("--sharding fsdp --precision fp32", "bf16"),
    ],
)
def test_zero3_divides_weights_in_fp32_where_nothing_turns_on_16_bits(flags: str, load_dtype: str) -> None:
    """``zero.Init`` makes them so, whatever dtype ``from_pretrained`` is asked for."""
    scenario = resolved(f"--model qwen3-0.6b --method full --gpu a100-80-sxm:4 --seq 512 {flags}")
    assert scenario.recipe.numerics.load_dtype == load_dtype
