"""What would make a job fit: the changes offered, their order, and that the flags do what the estimate says."""

from __future__ import annotations

import shlex

import pytest

from planner.domain.scenario import Scenario
from planner.intake.request import from_flags, merge
from planner.intake.resolve import resolve
from planner.prediction import estimate, predict_with
from planner.searching import explain
from planner.searching.explain import MAX_ESTIMATES, MAX_PAIRS, Change, changes_that_fit
from planner.searching.moves import MAX_LARGER_CARDS, Move, larger_cards, moves
from planner.searching.variants import refusals
from planner.units import GIB, MIB

Flags = dict[str, object]
FULL_ON_SMALL: Flags = {"model": "7b", "method": "full", "gpu": "4090", "seq": "2048", "batch": "4", "optimizer": "adamw_torch"}
LORA_TOO_LONG: Flags = {"model": "7b", "method": "lora", "gpu": "4090", "seq": "2048", "batch": "3", "modules_to_save": "lm_head"}
MANY_CARDS: Flags = {"model": "70b", "method": "full", "gpu": "h100-sxm:8", "nodes": "2", "seq": "4096", "precision": "bf16"}
QLORA_ON_MANY: Flags = {"model": "70b", "method": "qlora", "gpu": "4090:4", "seq": "1024"}
OLD_CARD: Flags = {"model": "3b", "method": "full", "gpu": "t4", "seq": "2048"}
EAGER: Flags = {"model": "7b", "method": "lora", "gpu": "4090", "seq": "4096", "attention": "eager", "batch": "2"}
ZERO: Flags = {"model": "14b", "method": "full", "gpu": "a100-40gb:4", "seq": "1024", "sharding": "zero2", "batch": "2"}
FAR_TOO_LARGE: Flags = {"model": "70b", "method": "full", "gpu": "4090:2", "seq": "2048", "batch": "2"}
JOBS = {
    "far too large": FAR_TOO_LARGE,
    "full": FULL_ON_SMALL,
    "lora": LORA_TOO_LONG,
    "many": MANY_CARDS,
    "qlora": QLORA_ON_MANY,
    "t4": OLD_CARD,
    "eager": EAGER,
    "zero2": ZERO,
}


def scenario(flags: Flags) -> Scenario:
    """A resolved scenario."""
    return resolve(from_flags(flags))


def as_request(flags: str) -> Flags:
    """``--batch 2 --gradient-checkpointing`` as the flags of a request."""
    said: Flags = {}
    name = ""
    for word in shlex.split(flags):
        if word.startswith("--"):
            name = word.removeprefix("--")
            said[name] = True
        else:
            said[name] = word
    return said


def flags_of(move: Move) -> str:
    """The flags of a move as a user types them."""
    return " ".join(f"--{name}" if value is True else f"--{name} {value}" for name, value in move.flags.items())


def by_flags(changes: tuple[Change, ...]) -> dict[str, Change]:
    """Changes by their flags."""
    return {change.flags: change for change in changes}


@pytest.mark.parametrize("name", JOBS)
def test_flags_do_what_the_change_promises(name: str) -> None:
    """Typing a change's flags after the job's own gives the verdict, the saving and the time that the change states."""
    base = from_flags(JOBS[name])
    before = estimate(resolve(base))
    assert before.time is not None
    typed = [change for change in changes_that_fit(resolve(base)) if change.flags]
    assert len(typed) >= 4
    for change in typed:
        after = estimate(resolve(merge(base, from_flags(as_request(change.flags)))))
        assert after.time is not None
        assert (after.verdict == "fits") == change.fits, change
        saved = float(before.memory.must_have_bytes) - float(after.memory.must_have_bytes)
        if "--gpu " not in change.flags:
            assert saved == pytest.approx(change.saves_bytes, abs=1), change
        assert float(after.time.step_s) / float(before.time.step_s) == pytest.approx(change.step_time_ratio), change


@pytest.mark.parametrize("name", JOBS)
def test_what_fits_comes_first_and_the_fastest_of_it_first(name: str) -> None:
    """The list is: changes that make it fit by step time, larger cards by size, then what is not enough by what it saves."""
    changes = changes_that_fit(scenario(JOBS[name]))
    kinds = [(not change.fits, change.flags.startswith("--gpu ")) for change in changes]
    assert kinds == sorted(kinds)
    for kind in set(kinds):
        mine = [change for change, each in zip(changes, kinds, strict=True) if each == kind]
        if kind[0]:
            assert [change.saves_bytes for change in mine] == sorted((change.saves_bytes for change in mine), reverse=True)
        elif not kind[1]:
            assert [change.step_time_ratio for change in mine] == sorted(float(change.step_time_ratio or 0) for change in mine)


@pytest.mark.parametrize("name", JOBS)
def test_changes_save_memory_and_break_no_rule(name: str) -> None:
    """Each change saves at least 16 MiB, except larger cards, which are offered only where the job fits on them."""
    for change in changes_that_fit(scenario(JOBS[name])):
        if change.flags.startswith("--gpu "):
            assert change.fits
        else:
            assert change.saves_bytes >= 16 * MIB
        # A refused combination would raise here.
        resolve(merge(from_flags(JOBS[name]), from_flags(as_request(change.flags))))


def test_a_full_fine_tune_is_offered_the_usual_ways_out() -> None:
    """A 7B full fine-tune on 24 GiB: checkpointing, micro-batch, 8-bit and fused optimizers, adapters, offload, length."""
    offered = {flags_of(move) for move in moves(scenario(FULL_ON_SMALL))}
    assert offered == {
        "--gradient-checkpointing",
        "--batch 2 --grad-accum 2",
        "--batch 1 --grad-accum 4",
        "--seq 1024",
        "--loss liger",
        "--optimizer adamw_torch_fused",
        "--optimizer adamw_8bit",
        "--optimizer paged_adamw_8bit",
        "--method lora",
        "--method qlora",
        "--sharding zero2 --offload optimizer",
        "--sharding zero3 --offload optimizer+params",
        "--attention flash2",
    }


def test_the_global_batch_stays_the_same() -> None:
    """A smaller micro-batch comes with as many more micro-steps, also where the batch is odd."""
    offered = by_flags(changes_that_fit(scenario(LORA_TOO_LONG)))
    assert offered["--batch 1 --grad-accum 3"].step_time_ratio == pytest.approx(1, abs=0.2)
    assert "--batch 1 --grad-accum 2" not in offered


def test_half_the_length_says_that_it_changes_the_data() -> None:
    """A shorter length is not the same job, and the change says so; a mean sample that no longer fits is cut with it."""
    change = by_flags(changes_that_fit(scenario(LORA_TOO_LONG)))["--seq 1024"]
    assert "changes the data" in change.description
    said = {**LORA_TOO_LONG, "tokens_per_sample": "1500", "padding": "max_length"}
    assert "--seq 1024 --tokens-per-sample 1024" in by_flags(changes_that_fit(scenario(said)))


def test_modules_to_save_are_named_because_no_flag_empties_them() -> None:
    """Not training the head is asked for by leaving the flag out."""
    change = next(change for change in changes_that_fit(scenario(LORA_TOO_LONG)) if not change.flags)
    assert "lm_head" in change.description
    assert "leave --modules-to-save out" in change.description


def test_several_cards_are_offered_sharding_with_what_it_needs() -> None:
    """ZeRO turns pure bf16 into mixed; 4-bit weights are divided only with a storage dtype; one card is not offered sharding."""
    pure = {move.flags["sharding"]: move.flags for move in moves(scenario(MANY_CARDS)) if move.topic == "sharding"}
    assert pure["zero3"] == {"sharding": "zero3", "precision": "bf16-mixed"}
    assert pure["fsdp"] == {"sharding": "fsdp"}
    four_bit = {move.flags["sharding"]: move.flags for move in moves(scenario(QLORA_ON_MANY)) if move.topic == "sharding"}
    assert four_bit["zero3"]["quant-storage"] == "bf16"
    assert "quant-storage" not in four_bit["zero2"]
    assert not [move for move in moves(scenario(FULL_ON_SMALL)) if move.topic == "sharding"]


def test_offload_leaves_a_gpu_only_optimizer_behind() -> None:
    """8-bit states cannot step in host RAM: offload says Adam with it, and the pair with an 8-bit optimizer is never offered."""
    said = scenario({**FULL_ON_SMALL, "optimizer": "adamw_8bit"})
    offloads = [move for move in moves(said) if move.topic == "offload"]
    assert offloads
    assert all(move.flags["optimizer"] == "adamw_torch" for move in offloads)
    for change in changes_that_fit(scenario(FULL_ON_SMALL)):
        assert not ("--offload optimizer" in change.flags and "8bit" in change.flags)


def test_fsdp2_comes_with_an_optimizer_that_can_step_it() -> None:
    """bitsandbytes cannot step DTensors: the move to FSDP2 says Adam with it, and under FSDP2 no 8-bit optimizer is offered."""
    said = {**FULL_ON_SMALL, "gpus": 4, "sharding": "ddp"}
    to_fsdp = [move for move in moves(scenario({**said, "optimizer": "adamw_8bit"})) if move.flags.get("sharding") == "fsdp"]
    assert to_fsdp
    assert all(move.flags["optimizer"] == "adamw_torch" for move in to_fsdp)
    for sharding, offered in (("fsdp", set()), ("zero3", {"adamw_8bit", "paged_adamw_8bit"})):
        under = moves(scenario({**said, "sharding": sharding, "optimizer": "adamw_torch_fused"}))
        assert {move.flags["optimizer"] for move in under if move.topic == "optimizer"} == offered


def test_kernels_that_the_card_or_the_code_lacks_are_not_offered() -> None:
    """A T4 has no FlashAttention 2; a stack without a switch for Liger is not told to use it."""
    assert "flash2" not in " ".join(change.flags for change in changes_that_fit(scenario(OLD_CARD)))
    eager = {move.flags["attention"] for move in moves(scenario(EAGER)) if move.topic == "attention"}
    assert eager == {"sdpa", "flash2"}
    no_liger = scenario({**FULL_ON_SMALL, "stack": "hf-trainer@4"})
    assert "liger" not in " ".join(change.flags for change in changes_that_fit(no_liger))


def test_pairs_are_tried_only_where_no_single_change_is_enough() -> None:
    """A job that one change saves gets no pairs; one that needs two gets pairs that fit, at most six."""
    single = changes_that_fit(scenario(LORA_TOO_LONG))
    assert any(change.fits and "--gpu" not in change.flags for change in single)
    assert not any("; and " in change.description for change in single)
    pairs = [change for change in changes_that_fit(scenario(FAR_TOO_LARGE)) if "; and " in change.description]
    assert 1 <= len(pairs) <= MAX_PAIRS
    assert all(change.fits for change in pairs)
    assert len({change.flags for change in pairs}) == len(pairs)


@pytest.mark.parametrize("name", JOBS)
def test_the_number_of_estimates_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice costs at most 60 estimates, whatever the job."""
    calls = 0

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return predict_with(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(explain, "predict_with", counted)
    changes_that_fit(scenario(JOBS[name]))
    assert 5 < calls <= MAX_ESTIMATES


def test_larger_cards_hold_the_need_and_differ_in_size() -> None:
    """Three sizes at most, ascending, each with room for what must be held; the count of GPUs goes along."""
    cards = larger_cards(scenario(MANY_CARDS), 100 * GIB)
    sizes = [move.gpu.visible_memory_bytes or 0 for move in cards if move.gpu]
    assert 1 <= len(cards) <= MAX_LARGER_CARDS
    assert sizes == sorted(set(sizes))
    assert sizes[0] >= 100 * GIB
    assert all(str(move.flags["gpu"]).endswith(":8") for move in cards)
    assert larger_cards(scenario(MANY_CARDS), 10_000 * GIB) == ()


def test_a_forced_job_still_gets_advice() -> None:
    """A rule that the job breaks already (forced) does not silence every change."""
    forced = resolve(from_flags({**FULL_ON_SMALL, "sharding": "none", "offload": "optimizer"}), force=True)
    assert refusals(forced).keys() == {"offload-without-engine"}
    assert "--gradient-checkpointing" in by_flags(changes_that_fit(forced))


def test_advice_for_a_tight_job_leaves_room() -> None:
    """A job that fits with little room is offered changes too, and it fits with each of them."""
    tight = scenario({"model": "7b", "method": "qlora", "gpu": "4090", "seq": "2048", "batch": "2"})
    prediction = estimate(tight)
    assert prediction.verdict == "fits"
    offered = changes_that_fit(tight)
    assert "--batch 1 --grad-accum 2" in by_flags(offered)
    assert all(change.fits for change in offered)


def test_quantising_fused_experts_is_no_advice() -> None:
    """Where the quantiser would skip most of a mixture of experts, a 4-bit base is not offered."""
    experts = scenario({"model": "mixtral-8x7b", "method": "lora", "gpu": "a100-80gb", "seq": "1024"})
    assert "--method qlora" not in by_flags(changes_that_fit(experts))
