"""Facts that follow from the version of a package, and the named amounts that those of DeepSpeed move."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from planner.calibration.score.rows import score_record
from planner.catalog import packages
from planner.catalog.location import data_dir
from planner.catalog.packages import TABLES, facts_of, package_names, package_path, unread_note
from planner.catalog.stacks import DEFAULT_NAMES, SWITCH_NAMES, load_stack, stack_ids
from planner.domain.prediction import Prediction
from planner.domain.run_record import RunRecord
from planner.domain.scenario import segments_grow
from planner.domain.term import Phase, TermName
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import InputFileError, NotModelledError, UnknownNameError, UsageError
from planner.files.structured import read_toml
from planner.intake.given.request import from_record
from planner.intake.resolve import resolve
from planner.predicting import estimate
from tests.extras import import_or_skip
from tests.jobs import resolved, typed

OFFLOADED = typed(
    "--model llama-2-7b --method full --gpu a100-80gb:2 --seq 1024 --sharding zero2 --offload optimizer"
)
RECORD: dict[str, Any] = {
    "id": "r", "source": "s", "source_group": "g", "model": "7b", "gpu": "a100-80gb", "method": "full",
    "seq_len": 512,
    "micro_batch": 1, "outcome": "ok",
}  # fmt: skip
PARAMS = 6_738_415_616


def predicted(**flags: object) -> Prediction:
    """ZeRO-2 with an offloaded optimizer on two cards, under the stack that hands DeepSpeed nothing."""
    return estimate(resolved({**OFFLOADED, "stack": "trl", **flags}))


def gpu_bytes(prediction: Prediction, name: TermName, phase: Phase) -> float:
    """Bytes of this term at the fullest moment of a phase."""
    return float(
        sum(
            float(term.n_bytes)
            for term in prediction.memory.terms
            if term.name == name and phase in term.phases
        )
    )


def host_term(prediction: Prediction, name: str) -> tuple[float, bool]:
    """Bytes of a host term, and whether it is pinned; nothing of a term that the job does not have."""
    found = ((float(term.n_bytes), term.pinned) for term in prediction.host.terms if term.name == name)
    return next(found, (0.0, False))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.12.6", (False, "never", "cast_on_host")),
        ("0.14.0", (False, "never", "cast_on_host")),
        ("0.14.1", (False, "always", "fp32_on_gpu")),
        ("0.16.9", (False, "always", "fp32_on_gpu")),
        ("0.17.0", (False, "always", "buffer_on_host")),
        ("0.18.3+cu12", (False, "as_set", "buffer_on_host")),
        ("0.19.4", (False, "as_set", "buffer_on_host")),
        ("0.19.5", (True, "as_set", "buffer_on_host")),
        ("1.0", (True, "as_set", "buffer_on_host")),
    ],
)
def test_the_switches_of_each_version_of_deepspeed(version: str, expected: tuple[object, ...]) -> None:
    """Each change holds from its own version on, and the last one for newer versions too."""
    settings = facts_of("deepspeed", version)["switches"]
    assert (
        tuple(settings[name].value for name in ("pins_offload", "pins_masters", "zero12_upload")) == expected
    )


@pytest.mark.parametrize("version", ["newest", "", "x.1", "-1"])
def test_what_is_no_version_is_refused(version: str) -> None:
    """Words and half versions are a usage error."""
    with pytest.raises(UsageError, match="is not a version of deepspeed"):
        facts_of("deepspeed", version)


def test_a_version_that_nobody_read_is_not_modelled() -> None:
    """Nothing is guessed about older versions; a record with one is left out with this reason."""
    with pytest.raises(NotModelledError, match=r"the oldest version that was read is 0\.12\.6"):
        facts_of("deepspeed", "0.12.5")
    score = score_record(RunRecord(**RECORD, versions=("deepspeed==0.9.5",)), Coefficients())
    assert "deepspeed 0.9.5 is not modelled" in score.not_modelled


def test_a_package_that_the_stack_does_not_run_is_refused_from_a_user_but_not_from_a_record() -> None:
    """A user must learn that the version changes nothing; a record states its environment whole."""
    with pytest.raises(UnknownNameError):
        facts_of("python", "3.10")
    for named, way_out in (("python==3.10", "no stack does"), ("litgpt==0.5.13", "these do: --stack litgpt")):
        with pytest.raises(
            UsageError, match=rf"does not run .*, only bitsandbytes, deepspeed, .*; {way_out}$"
        ):
            resolved({**OFFLOADED, "versions": named})
    with pytest.raises(UsageError, match="name==version"):
        resolved({**OFFLOADED, "versions": "deepspeed 0.16.4"})
    record = RunRecord(**RECORD, versions=("python==3.10", "litgpt==0.5.13", "deepspeed==0.14.0"))
    assert resolve(from_record(record), force=True).stack.zero12_upload == "cast_on_host"


def test_versions_turn_one_stack_into_another_and_say_which_facts_they_changed() -> None:
    """TRL 0.12 over Transformers 4.48 has four copies of the logits,
    and checkpointing and adapters of that time.
    """
    scenario = resolved(
        {**OFFLOADED, "stack": "trl", "versions": "TRL==0.12,Transformers==4.48,peft==0.11.1"}
    )
    stack = scenario.stack
    assert stack.loss_forward == ("compute", "float", "shifted", "log_softmax")
    assert (stack.defaults.loss, stack.defaults.checkpoint_reentrant, stack.defaults.adapter_dtype) == (
        "hf",
        True,
        "base",
    )
    assert (stack.sdpa_mask, stack.fused_experts, stack.kbit_upcast) == ("stream", False, "recast")
    assert stack.unread == ()
    note = next(each.note for each in scenario.assumptions if each.name == "versions")
    changed = dict(each.split("=") for each in note.removeprefix("changes ").split(", "))
    assert changed["loss_forward"] == "compute+float+shifted+log_softmax"
    assert changed["defaults.loss"] == "hf"
    assert "fused_norm" not in changed
    before, after = load_stack("trl").facts, stack.facts
    both = before.keys() & after.keys()
    assert changed.keys() & both == {name for name in both if before[name] != after[name]}


def test_versions_that_change_nothing_say_so() -> None:
    """The version that the stack has anyway."""
    scenario = resolved({**OFFLOADED, "stack": "trl", "versions": "peft==0.21.2"})
    note = next(each.note for each in scenario.assumptions if each.name == "versions")
    assert note == "no known fact of trl changes"
    assert replace(scenario.stack, versions=()) == replace(load_stack("trl"), versions=())


@pytest.mark.parametrize(
    ("package", "version", "stands_in"),
    [
        ("ms-swift", "4.2", "3.12.6"),
        ("trl", "1.17", "1.16.0"),
        ("transformers", "6.0", "5.23.0"),
        ("trl", "0.26.1", ""),
        ("trl", "1.8", ""),
        ("torch", "2.13", ""),
    ],
)
def test_versions_outside_the_ranges_that_were_read_are_warned_about(
    package: str, version: str, stands_in: str
) -> None:
    """Between two ranges and after the last one; inside them there is nothing to say."""
    asked = {**OFFLOADED, "stack": "swift" if package == "ms-swift" else "trl"}
    scenario = resolved({**asked, "versions": f"{package}=={version}"})
    warned = [each for each in scenario.warnings if "was not read" in each]
    assert len(warned) == bool(stands_in)
    if stands_in:
        assert f"{package} {version}: " in warned[0]
        assert f"{stands_in} stands in" in warned[0]
        of_older = resolved({**asked, "versions": f"{package}=={stands_in}"}).stack
        assert scenario.stack.facts == of_older.facts


@pytest.mark.parametrize("package", package_names())
def test_every_fact_of_a_package_has_a_name_that_stacks_know(package: str) -> None:
    """At the newest version that was read, which is inside its own range."""
    newest = packages._file(package).read[-1][1]
    assert unread_note(package, newest) == ""
    facts = facts_of(package, newest)
    assert set(facts) == set(TABLES)
    assert facts["switches"].keys() <= set(SWITCH_NAMES)
    for table in ("defaults", "quantized", "usual"):
        assert facts[table].keys() <= set(DEFAULT_NAMES)


@cache
def layers(stack_id: str) -> Mapping[str, Mapping[str, Any]]:
    """Files of a stack by name, from the lowest to the highest: packages, and stacks that it extends."""
    file = read_toml(data_dir() / "stacks" / f"{stack_id.replace('@', '-')}.toml")
    found = dict(layers(file["extends"])) if "extends" in file else {}
    for package in file.get("versions", {}):
        found.setdefault(package, read_toml(package_path(package)))
    return {**found, f"stack {stack_id}": file}


def steps_of(file: Mapping[str, Any], table: str, name: str) -> list[dict[str, Any]]:
    """What a file says of a fact, from old to new; a stack says one thing."""
    found = file.get(table, {}).get(name, [])
    return found if isinstance(found, list) else [found]


def lies_below(package: str, table: str, name: str) -> Iterator[bool]:
    """For each stack that runs ``package``: whether the next lower file that has this fact says the same at
    every version, and not merely assumes what the package was read for.
    """
    for stack_id in stack_ids():
        if package not in (files := layers(stack_id)):
            continue
        order = list(files)
        lower = [files[each] for each in order[: order.index(package)]]
        own = steps_of(files[package], table, name)
        said_below = (steps_of(each, table, name) for each in reversed(lower))
        below: list[dict[str, Any]] = next((steps for steps in said_below if steps), [{}])
        said = {repr(each.get("value")) for each in (*own, *below)}
        assumes = any(each.get("settled_by") == "assumed" for each in below)
        knows_better = assumes and any(each["settled_by"] != "assumed" for each in own)
        takes_back = table == "defaults" and any(steps_of(each, "quantized", name) for each in lower)
        yield len(said) == 1 and "since" not in below[0] and not (knows_better or takes_back)


@pytest.mark.parametrize("package", package_names())
def test_a_package_repeats_nothing_that_lies_below_it(package: str) -> None:
    """A fact that lower packages say in each stack, at each version, is theirs."""
    file = read_toml(package_path(package))
    facts = [(table, name) for table in ("defaults", "switches") for name in file.get(table, {})]
    assert [fact for fact in facts if all(lies_below(package, *fact))] == []


@pytest.mark.parametrize("package", package_names())
def test_each_step_of_a_fact_is_a_change(package: str) -> None:
    """A version that keeps a fact as it was is a part of that fact's source."""
    file = read_toml(package_path(package))
    kept = [
        (name, new["since"])
        for table in TABLES
        for name, steps in file.get(table, {}).items()
        for old, new in pairwise(steps)
        if (old["value"], old["settled_by"]) == (new["value"], new["settled_by"])
    ]
    assert kept == []


def test_stacks_name_versions_that_were_read() -> None:
    """A stack stands for versions whose facts are known, and every package with facts is run by one."""
    used = {
        (package, version) for stack_id in stack_ids() for package, version in load_stack(stack_id).versions
    }
    assert [note for package, version in used if (note := unread_note(package, version))] == []
    assert {package for package, _ in used} == set(package_names())


def test_a_template_of_the_stack_wins_over_the_version() -> None:
    """LLaMA-Factory's file says pin_memory true and overlap_comm false,
    whatever DeepSpeed would do by itself.
    """
    stack = load_stack("llama-factory", (("deepspeed", "0.16.4"),))
    assert stack.pins_offload
    assert not stack.zero12_overlap
    assert stack.zero12_upload == "fp32_on_gpu"
    assert dict(stack.versions)["deepspeed"] == "0.16.4"


@pytest.mark.parametrize(
    ("stack", "one", "two"),
    [
        ("axolotl", True, True),
        ("axolotl@0.8", True, True),
        ("unsloth", True, True),
        ("unsloth@2024", True, True),
        ("unsloth@2024-01", False, False),
        ("torchtitan@2024", True, True),
        ("llama-factory", False, True),
        ("llama-factory@0.8", False, False),
        ("trl", False, False),
    ],
)
def test_whose_segments_grow_on_one_gpu_and_on_two(stack: str, one: bool, two: bool) -> None:
    """Tools that set it for all jobs, for those that they start on several GPUs, or not at all."""
    found = load_stack(stack)
    assert (segments_grow(found, 1), segments_grow(found, 2)) == (one, two)


def test_a_script_for_several_nodes_lets_no_segments_grow() -> None:
    """torchtitan's script for one node sets the allocator, and that for several does not."""
    found = load_stack("torchtitan@2024")
    assert segments_grow(found, 8, 1)
    assert not segments_grow(found, 16, 2)
    assert segments_grow(load_stack("axolotl"), 16, 2)


def test_older_unsloth_makes_products_of_adapters_apart_and_rounds_sizes() -> None:
    """Inputs of layers went to host RAM in the course of 2024."""
    found = {name: load_stack(name) for name in ("unsloth", "unsloth@2024", "unsloth@2024-01")}
    assert {name: (each.adapter_kernels, each.roundup_divisions) for name, each in found.items()} == {
        "unsloth": ("fused", 0),
        "unsloth@2024": ("fused_apart", 32),
        "unsloth@2024-01": ("fused_apart", 0),
    }
    offloads = {name: each.defaults.offload for name, each in found.items()}
    assert offloads == {
        "unsloth": "activations",
        "unsloth@2024": "activations",
        "unsloth@2024-01": "none",
    }


@pytest.mark.parametrize(
    ("version", "offload", "segments", "adapters"),
    [("2024.1", "none", "off", "base"), ("2024.4", "activations", "on", "fp32")],
)
def test_unsloth_of_april_2024_offloads_but_has_whole_logits(
    version: str, offload: str, segments: str, adapters: str
) -> None:
    """Long sequences on an 80 GB card: the logits were the limit for half a year more."""
    stack = load_stack("unsloth@2024", (("unsloth", version),))
    assert (stack.defaults.offload, stack.expandable_segments, stack.defaults.adapter_dtype) == (
        offload,
        segments,
        adapters,
    )
    assert stack.defaults.loss == "hf"
    assert stack.widens_outputs


@pytest.mark.parametrize(
    ("version", "attention"), [("2024.12.4", "sdpa"), ("2025.9.8", "eager"), ("2026.10.9", "sdpa")]
)
def test_unsloth_of_2025_runs_gemma_3_with_eager_attention(version: str, attention: str) -> None:
    """Its loader keeps sdpa from that model, and only later has flex attention for it."""
    flags = {"model": "gemma-3-12b", "method": "qlora", "gpu": "h100-sxm", "seq": 2048, "stack": "unsloth"}
    scenario = resolved({**flags, "versions": f"unsloth=={version}"})
    assert scenario.recipe.attention == attention


def test_older_axolotl_rounds_sizes_and_reserves_more() -> None:
    """Up to 0.8 its allocator rounds to sixteenths of a power of two; now its segments grow, and no more."""
    flags = {"model": "qwen2.5-0.5b", "method": "lora", "gpu": "4090", "seq": 500, "stack": "axolotl"}
    new, old = (estimate(resolved({**flags, "switches": f"roundup_divisions={n}"})).memory for n in (0, 16))
    assert load_stack("axolotl@0.8").roundup_divisions == 16
    assert load_stack("axolotl").roundup_divisions == 0
    assert old.allocated_peak_bytes > 1.005 * float(new.allocated_peak_bytes)


def test_staging_on_the_gpu_is_a_term_of_the_step() -> None:
    """0.14.1 to 0.16.9 bring the fp32 partition to the GPU: 4 bytes per parameter over two processes;
    0.19.8 does not.
    """
    old, new = predicted(versions="deepspeed==0.16.4"), predicted()
    # Norms are a group of their own, which comes after.
    assert gpu_bytes(old, "optimizer_temporaries", "optimizer_step") == pytest.approx(
        4 * PARAMS / 2, rel=1e-4
    )
    assert gpu_bytes(new, "optimizer_temporaries", "optimizer_step") == 0
    assert host_term(old, "upload_buffer")[0] == 0
    assert host_term(new, "upload_buffer")[0] >= 2 * PARAMS / 2


def test_pinning_rounds_host_buffers() -> None:
    """12.6 GiB of masters stay as they are in pageable memory and become 16 GiB when pinned;
    so does the largest gradient.
    """
    pinned, always, never = (
        predicted(versions=f"deepspeed=={version}") for version in ("0.19.8", "0.18.2", "0.14.0")
    )
    exact, rounded = 4 * PARAMS / 2, 2**34
    assert host_term(pinned, "offloaded_gradients") == (rounded + 2**28, True)
    assert host_term(always, "offloaded_gradients") == (exact + 2 * 32_000 * 4_096, False)
    assert [host_term(each, "offloaded_optimizer") for each in (pinned, always, never)] == [
        (rounded + 2 * exact, True),
        (rounded + 2 * exact, True),
        (3 * exact, False),
    ]
    assert host_term(never, "upload_buffer") == (2 * PARAMS / 2, False)


def test_without_overlap_there_is_one_bucket_and_nothing_hides() -> None:
    """Two buckets of 5e8 gradients where reduction overlaps backward, one where it does not;
    then collectives hide nothing.
    """
    flags = {"offload": "none", "gpu": "h200-sxm:8"}
    one, two = predicted(**flags), predicted(**flags, stack="hf-trainer@5")
    assert gpu_bytes(one, "gradient_buckets", "loss") == 5e8 * 2
    assert gpu_bytes(two, "gradient_buckets", "loss") == 5e8 * 2 * 2
    hidden = []
    for each in (one, two):
        assert each.time is not None
        hidden += [float(term.overlapped_s) for term in each.time.terms if term.name == "collectives"]
    assert hidden[0] == 0
    assert hidden[1] > 0


def test_older_versions_make_their_buckets_before_the_loss_runs_backward() -> None:
    """Up to 0.18.2 the bucket of 5e8 gradients lies beside the gradients of the logits;
    from 0.18.3 on it comes after them.
    """
    early, late = (
        predicted(offload="none", gpu="h200-sxm:2", versions=f"deepspeed=={version}")
        for version in ("0.18.2", "0.18.3")
    )
    # With the bucket there all the time, the phase is fullest where the loss itself is; else later,
    # when the bucket has come.
    assert (
        gpu_bytes(early, "gradient_buckets", "loss") == gpu_bytes(late, "gradient_buckets", "loss") == 5e8 * 2
    )
    assert gpu_bytes(early, "logits_and_loss", "loss") > 10 * gpu_bytes(late, "logits_and_loss", "loss")


def test_offloaded_gradients_pass_through_one_tensor_on_the_gpu() -> None:
    """The largest tensor (the token table, 32,000 x 4,096) in 16 bits, only where gradients are offloaded."""
    assert gpu_bytes(predicted(), "gradient_buckets", "forward") == 32_000 * 4_096 * 2
    assert gpu_bytes(predicted(offload="none"), "gradient_buckets", "forward") == 0


def test_the_table_agrees_with_the_installed_deepspeed() -> None:
    """Defaults of pin_memory and overlap_comm, read from DeepSpeed's own configuration classes."""
    import_or_skip("deepspeed")
    from deepspeed import __version__
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig

    settings = facts_of("deepspeed", __version__)["switches"]
    assert DeepSpeedZeroOffloadOptimizerConfig().pin_memory == settings["pins_offload"].value
    assert DeepSpeedZeroConfig(stage=2).overlap_comm == settings["zero12_overlap"].value


GOOD = '{{ since = "{}", value = false, settled_by = "assumed", source = "a test" }},'


@pytest.mark.parametrize(
    ("read", "since", "problem"),
    [
        ('[["1.0", "3.0"]]', ("0.9", "2.0"), "'switches.pins_offload' must run from the oldest"),
        ('[["1.0", "3.0"]]', ("1.0", "3.0", "2.0"), "'switches.pins_offload' must run from the oldest"),
        ('[["1.0", "3.0"]]', ("1.0", "1.0"), "'switches.pins_offload' must run from the oldest"),
        ('[["1.0", "3.0"]]', (), "'switches.pins_offload' must run from the oldest"),
        ('[["1.0", "3.0"], ["2.0", "4.0"]]', ("1.0",), "key 'read' must hold pairs"),
        ('[["1.0"]]', ("1.0",), "key 'read' must hold pairs"),
        ("[]", ("1.0",), "key 'read'"),
    ],
)
def test_a_table_out_of_order_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str, since: tuple[str, ...], problem: str
) -> None:
    """A list that starts before the oldest version,
    goes back or repeats one would give a wrong answer without a word.
    """
    (tmp_path / "packages").mkdir()
    facts = "".join(GOOD.format(each) for each in since)
    text = f'schema = 1\npackage = "engine"\nread = {read}\n[switches]\npins_offload = [{facts}]\n'
    (tmp_path / "packages" / "engine.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(packages, "data_dir", lambda: tmp_path)
    packages.package_names.cache_clear()
    try:
        with pytest.raises(InputFileError, match=re.escape(problem)):
            facts_of("engine", "1.5")
    finally:
        packages.package_names.cache_clear()
