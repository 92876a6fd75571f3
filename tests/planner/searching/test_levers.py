"""Levers: what could be changed about a job, their order, what they cost,
and that the flags do what they promise.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

import planner
from planner.domain.prediction import Prediction
from planner.domain.scenario import Scenario
from planner.errors import RefusedCombinationError
from planner.intake.given.request import from_flags, merge
from planner.intake.resolve import resolve
from planner.predicting import PRIORS, estimate, predict_with
from planner.report.prediction.advice import lever_choices
from planner.searching import levers as levers_module
from planner.searching.levers import MAX_ESTIMATES, MAX_PAIRS, Lever
from planner.searching.moves import CHEAP, KINDS, moves
from planner.searching.places import more_cards, more_nodes
from planner.searching.variants import refusals, with_flags
from planner.units import GIB, MIB
from tests.jobs import resolved, typed
from tests.planner.searching.jobs import (
    EAGER,
    FAR_TOO_LARGE,
    FULL_ON_SMALL,
    JOBS,
    LORA_TOO_LONG,
    OLD_CARD,
    QLORA_DIVIDED,
    QLORA_ON_MANY,
    Flags,
    scenario,
)

# Several tests ask about the same jobs.
levers = lru_cache(levers_module.levers)


def as_request(lever: Lever) -> Flags:
    """The flags of a lever as those of a request."""
    return {name.replace("-", "_"): value for name, value in lever.flags.items() if value is not None}


def by_flags(found: tuple[Lever, ...]) -> dict[str, Lever]:
    """Levers by their flags."""
    return {lever.flags_text: lever for lever in found}


def test_host_ram_is_told_wherever_a_change_takes_it() -> None:
    """Under ZeRO-2 every process clones the weights into RAM when it saves, although nothing is offloaded."""
    job = {"model": "llama-3.2-1b", "method": "full", "gpu": "rtx3090", "gpus": "4", "seq": "512"}
    zero2 = {**job, "sharding": "zero2"}
    before, after = (predict_with(resolved(each), PRIORS).host for each in (job, zero2))
    more = float(after.required_per_node_bytes) - float(before.required_per_node_bytes)
    assert more > 4 * GIB
    found = by_flags(levers_module.levers(resolved(job), alone=True))
    assert found["--sharding zero2"].host_bytes == pytest.approx(more, abs=1)


def test_a_cheaper_method_is_offered_with_what_it_takes_on_top() -> None:
    """A small card that 16-bit weights alone overfill: 4 bits, and no logits beside them."""
    job = {"model": "llama-3.1-8b", "method": "lora", "gpu": "rtx3060-12g", "seq": "2048"}
    found = by_flags(levers(resolved(job)))
    assert not found["--method qlora"].fits
    assert found["--method qlora --loss liger"].fits
    assert found["--method qlora --loss liger"].kind == "training"


@pytest.mark.every(4)
@pytest.mark.parametrize("name", JOBS)
def test_flags_do_what_the_lever_promises(name: str) -> None:
    """Typing a lever's flags after the job's own gives the verdict and the time that the lever states.

    All of it is that of the replay.
    """
    base = from_flags(JOBS[name])
    before = estimate(resolve(base))
    assert before.time is not None
    typed = [lever for lever in levers(resolve(base)) if None not in lever.flags.values()]
    assert len(typed) >= 4
    for lever in typed:
        changed = resolve(merge(base, from_flags(as_request(lever))))
        after = estimate(changed)
        assert after.verdict == lever.verdict, lever
        assert after.time is not None
        saved = float(before.memory.must_have_bytes) - float(after.memory.must_have_bytes)
        assert max(0, saved) == pytest.approx(lever.saves_bytes, abs=1), lever
        assert float(after.time.step_s) / float(before.time.step_s) == pytest.approx(lever.step_time_ratio), (
            lever
        )


@pytest.mark.parametrize("name", JOBS)
def test_settings_come_first_by_kind_and_what_fits_leads_each_kind(name: str) -> None:
    """Order: settings, other software, other cards, what changes the training; in each what is free, costs
    time, costs money or host RAM; in each of these what fits is first.
    """
    found = levers(scenario(JOBS[name]))
    places = [2 if {"gpu", "nodes"} & set(lever.flags) else int("stack" in lever.flags) for lever in found]
    keys = [
        (lever.kind == "training", place, KINDS.index(lever.kind), not lever.fits)
        for lever, place in zip(found, places, strict=True)
    ]
    assert keys == sorted(keys)
    assert all(lever.fits or lever.saves_bytes >= 64 * MIB for lever in found)
    free = [lever for lever in found if lever.kind == "free" and not lever.fits]
    for of_stack in (False, True):
        rest = [lever.saves_bytes for lever in free if ("stack" in lever.flags) == of_stack]
        assert rest == sorted(rest, reverse=True)


def test_of_what_is_enough_the_one_that_slows_least_comes_first() -> None:
    """A 1B full fine-tune on 8 GB: paging the optimizer keeps the step's time, ZeRO-3 multiplies it;
    other cards come last.
    """
    found = levers(scenario({"model": "1b", "method": "full", "gpu": "4060", "seq": "2048"}))
    bought = [lever for lever in found if lever.kind == "money" and lever.fits]
    assert bought[0].flags["optimizer"] == "paged_adamw_32bit"
    kept = [lever.step_time_ratio for lever in bought if "gpu" not in lever.flags]
    assert kept == sorted(kept, key=lambda ratio: round(ratio or 0, 2))
    assert 2 * (kept[0] or 0) < (kept[-1] or 0)
    assert ["gpu" in lever.flags for lever in bought] == [False] * len(kept) + [True] * (
        len(bought) - len(kept)
    )


def test_the_stack_is_offered_after_settings_before_cards_and_data() -> None:
    """A 24B model at 4,096 tokens on 24 GiB: Unsloth comes before cards and a shorter length,
    and needs little RAM.
    """
    found = levers(scenario({"model": "mistral-small-24b", "method": "qlora", "gpu": "4090", "seq": "4096"}))
    fitting = [lever for lever in found if lever.fits]
    stack = next(lever for lever in fitting if lever.flags == {"stack": "unsloth"})
    assert stack.host_bytes < 4 * GIB
    before, behind = fitting[: fitting.index(stack)], fitting[fitting.index(stack) + 1 :]
    assert not any("stack" in lever.flags or lever.hardware_text for lever in before)
    assert all(lever.hardware_text or lever.kind == "training" or "stack" in lever.flags for lever in behind)
    said = levers(
        scenario(typed("--model mistral-small-24b --method qlora --gpu 4090 --seq 4096 --stack hf-trainer@5"))
    )
    assert not any("stack" in lever.flags for lever in said)


def test_quantised_storage_is_a_lever_of_its_own() -> None:
    """34B QLoRA on two cards of 36 GiB needs less by it; where nothing is divided it is not offered."""
    offered = by_flags(levers(scenario(QLORA_DIVIDED)))
    assert offered["--quant-storage bf16"].saves_bytes > 0.4 * GIB
    assert not {
        lever for lever in levers(scenario(QLORA_ON_MANY)) if lever.flags_text == "--quant-storage bf16"
    }


def test_jobs_that_fit_have_levers_and_no_cards() -> None:
    """What saves memory is worth knowing where a job fits, too; other cards are not."""
    fitting = scenario({"model": "7b", "method": "qlora", "gpu": "4090", "seq": "2048"})
    assert estimate(fitting).verdict == "fits"
    found = levers(fitting)
    assert "--loss liger" in by_flags(found)
    assert not any("gpu" in lever.flags for lever in found)


def test_what_moves_to_the_host_says_how_much() -> None:
    """Offload costs host RAM, its text says how much; half the length does not."""
    offered = by_flags(levers(scenario(FULL_ON_SMALL)))
    offload = offered["--sharding zero3 --offload optimizer+params"]
    assert offload.kind == "money"
    assert offload.host_bytes > 100 * GIB
    assert f"{offload.host_bytes / GIB:.0f} GiB host RAM" in offload.cost_text
    assert offered["--seq 1024"].kind == "training"
    assert offered["--seq 1024"].host_bytes == 0


def test_what_is_in_host_ram_comes_back_where_that_is_short() -> None:
    """A node of 8 GiB cannot hold what ZeRO-3 offloads of a 1B model, and the card has room for all of it.
    A change that leaves too much there is no way out, though it saves some.
    """
    base: Flags = {"model": "1b", "method": "full", "gpu": "a100-40-sxm", "seq": "256", "sharding": "zero3"}
    offloaded = scenario({**base, "offload": "optimizer+params", "host_memory": "8GiB"})
    offered = by_flags(levers(offloaded))
    assert offered["--offload none"].fits
    assert estimate(with_flags(offloaded, {"offload": "none"})).verdict == "fits"
    less = offered["--offload optimizer"]
    assert less.verdict == "host_memory_short"
    assert 0 < less.saves_host_bytes < offered["--offload none"].saves_host_bytes


def test_costs_are_compared_where_a_price_was_said() -> None:
    """On the same card a sample costs as many times more as it takes longer and as there are more cards;
    else it is unknown.
    """
    base: Flags = {**FULL_ON_SMALL, "method": "lora", "optimizer": "adamw_torch_fused", "price": "1"}
    for lever in levers(scenario(base)):
        other_card = str(lever.flags.get("gpu", "rtx4090")).partition(":")[0] != "rtx4090"
        assert (lever.usd_ratio is None) == other_card, lever
        if set(lever.flags) == {"loss"}:
            assert lever.usd_ratio == pytest.approx(lever.step_time_ratio)
    assert all(lever.usd_ratio is None for lever in levers(scenario(FULL_ON_SMALL)))


def test_the_global_batch_stays_the_same() -> None:
    """A smaller micro-batch comes with as many more micro-steps, also where the batch is odd;
    more cards with fewer.
    """
    offered = by_flags(levers(scenario(LORA_TOO_LONG)))
    assert offered["--batch 1 --grad-accum 3"].step_time_ratio == pytest.approx(1, abs=0.2)
    assert "--batch 1 --grad-accum 2" not in offered
    accumulated = more_cards(scenario({**LORA_TOO_LONG, "grad_accum": "4"}))
    assert [(move.flags["gpu"], move.flags["grad-accum"]) for move in accumulated[:2]] == [
        ("rtx4090:2", "2"),
        ("rtx4090:4", "1"),
    ]


def test_a_mean_sample_that_no_longer_fits_is_cut_with_the_length() -> None:
    """A shorter length keeps the length of samples below it."""
    assert "--seq 1024" in by_flags(levers(scenario(LORA_TOO_LONG)))
    said = {**LORA_TOO_LONG, "tokens_per_sample": "1500", "padding": "max_length"}
    assert "--seq 1024 --tokens-per-sample 1024" in by_flags(levers(scenario(said)))


def test_modules_to_save_are_named_because_no_flag_empties_them() -> None:
    """Not training the head is asked for by leaving the flag out."""
    lever = next(lever for lever in levers(scenario(LORA_TOO_LONG)) if "modules-to-save" in lever.flags)
    assert lever.flags == {"modules-to-save": None}
    assert lever.flags_text == "without --modules-to-save"
    assert "lm_head" in lever.description


def test_offload_leaves_a_gpu_only_optimizer_behind() -> None:
    """8-bit states cannot step in host RAM: offload says Adam with it,
    and the pair with an 8-bit optimizer is never offered.
    """
    said = scenario({**FULL_ON_SMALL, "optimizer": "adamw_8bit"})
    offloads = [move for move in moves(said) if move.topic == "offload"]
    assert offloads
    assert all(move.flags["optimizer"] == "adamw_torch" for move in offloads)
    for lever in levers(scenario(FULL_ON_SMALL)):
        assert not ("--offload optimizer" in lever.flags_text and "8bit" in lever.flags_text)


def test_kernels_that_the_card_or_the_code_lacks_are_not_offered() -> None:
    """A T4 has no FlashAttention 2; a stack without a switch for Liger is not told to use it."""
    assert "flash2" not in " ".join(lever.flags_text for lever in levers(scenario(OLD_CARD)))
    eager = {move.flags["attention"] for move in moves(scenario(EAGER)) if move.topic == "attention"}
    assert eager == {"sdpa", "flash2"}
    no_liger = scenario({**FULL_ON_SMALL, "stack": "hf-trainer@4"})
    assert "liger" not in " ".join(lever.flags_text for lever in levers(no_liger))


def test_pairs_are_tried_only_where_no_single_change_is_enough() -> None:
    """A job that one change saves gets no pairs; one that needs two gets pairs that fit,
    of the cheapest kind that does, beside a cheaper method.
    """
    single = levers(scenario({**EAGER, "attention": "sdpa"}))
    assert any(lever.fits and lever.kind in ("free", "time") for lever in single)
    assert not any(" + " in lever.description for lever in single)
    every = [lever for lever in levers(scenario(FAR_TOO_LARGE)) if " + " in lever.description]
    pairs = [lever for lever in every if "method" not in lever.flags]
    assert 1 <= len(pairs) <= MAX_PAIRS
    assert all(lever.fits for lever in pairs)
    assert len({lever.flags_text for lever in pairs}) == len(pairs)
    assert {lever.kind for lever in pairs} == {"money"}


def test_who_keeps_the_stack_gets_an_answer_too() -> None:
    """Another stack alone is enough here, and so are two changes on this one."""
    job = {"model": "qwen2.5-0.5b", "method": "lora", "gpu": "4060", "seq": "8192"}
    enough = [lever.flags for lever in levers(scenario(job)) if lever.fits]
    assert {"stack": "unsloth"} in enough
    assert {"gradient-checkpointing": True, "loss": "liger"} in enough


def test_three_changes_that_cost_time_come_before_two_that_cost_host_ram() -> None:
    """An 8B full fine-tune under DDP on eight cards: checkpointing,
    a fused loss and sharding are the usual way, not offload.
    """
    job = typed("--model 8b --method full --gpu h100-sxm:8 --seq 8192 --batch 8 --stack hf-trainer@5")
    enough = [lever for lever in levers(scenario(job)) if lever.fits]
    assert enough[0].kind == "time"
    assert enough[0].description.count(" + ") == 2


def test_a_stack_whose_code_stands_in_the_way_does_not_hide_what_this_one_can_do() -> None:
    """LLaMA-Factory alone saves most of a mixture of experts, and with sharding on top nothing more: its
    pairs end no search among those of the job's own stack.
    """
    job = {"model": "qwen3-30b-a3b", "method": "lora", "gpu": "4090:2", "seq": "4096"}
    wanted = {"gradient-checkpointing": True, "sharding": "zero3", "offload": "optimizer+params"}
    assert wanted in [lever.flags for lever in levers(scenario(job)) if lever.fits]


def test_a_full_node_is_offered_more_nodes() -> None:
    """A 70B full fine-tune has room on two nodes of eight cards; its checkpoints come with them."""
    job = {"model": "70b", "method": "full", "gpu": "h100-sxm:8", "seq": "2048"}
    found = next(lever for lever in levers(scenario(job)) if "nodes" in lever.flags)
    assert found.fits
    assert found.flags == {"nodes": "2", "sharding": "fsdp", "gradient-checkpointing": True}
    assert found.hardware_text == "more nodes"
    assert "more nodes" in found.cost_text
    typed = estimate(resolved({**job, **as_request(found)}))
    assert typed.verdict == found.verdict


def test_no_change_takes_more_host_ram_than_servers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offload that wants more goes over more nodes, whose RAM is told beside them; where the RAM of a node is
    given, that alone decides.
    """
    monkeypatch.setattr(levers_module, "_MOST_HOST_BYTES", 100 * GIB)
    job: Flags = {"model": "8b", "method": "full", "gpu": "rtx3060-12g:8", "seq": "2048"}
    found = levers_module.levers(scenario(job))
    assert max(lever.host_bytes for lever in found) <= 100 * GIB
    spread = next(lever for lever in found if "offload" in lever.flags)
    assert (spread.fits, spread.flags["nodes"], spread.hardware_text) == (True, "2", "more nodes")
    assert spread.host_bytes > 50 * GIB
    known = levers_module.levers(scenario({**job, "host_memory": "400GB"}))
    assert any(lever.fits and lever.host_bytes > 100 * GIB for lever in known)


def test_a_job_far_above_a_node_is_offered_offload_under_both_engines() -> None:
    """LoRA of a 405B on eight cards: FSDP with offload and checkpointing fits, takes no more host RAM than
    ZeRO-3 does, and comes before it; no other software is needed.
    """
    job = {"model": "405b", "method": "lora", "gpu": "h100-sxm:8", "seq": "4096"}
    enough = [lever for lever in levers(scenario(job)) if lever.fits]
    assert [lever.flags.get("sharding") for lever in enough[:2]] == ["fsdp", "zero3"]
    assert not any("stack" in lever.flags and "method" not in lever.flags for lever in enough)
    typed = estimate(resolved({**job, **as_request(enough[0])}))
    assert typed.verdict == "fits"
    assert enough[0].host_bytes <= enough[1].host_bytes


def test_where_no_two_changes_are_enough_more_are_put_on_top() -> None:
    """LoRA of a 30B mixture on one 24 GB card, of 16k tokens: three changes together, on the card itself."""
    job = {"model": "qwen3-30b-a3b", "method": "lora", "gpu": "4090", "seq": "16384", "sharding": "zero3"}
    (enough,) = [each for each in levers(scenario(job)) if each.fits and not each.hardware_text]
    assert len(enough.flags) == 3
    assert estimate(resolved({**job, **as_request(enough)})).verdict == "fits"


def test_a_cheaper_method_is_offered_with_its_base_divided() -> None:
    """LoRA of a 70B on two 24 GB cards: QLoRA under FSDP, as people run it there,
    takes less host RAM than LoRA from the host does.
    """
    job = {"model": "70b", "method": "lora", "gpu": "4090:2", "seq": "2048"}
    enough = [lever for lever in levers(scenario(job)) if lever.fits]
    (offered,) = (lever for lever in enough if lever.flags.get("method") == "qlora")
    assert (offered.flags["sharding"], offered.flags["quant-storage"]) == ("fsdp", "bf16")
    assert estimate(resolved({**job, **as_request(offered)})).verdict == "fits"
    assert 0 < offered.host_bytes < enough[0].host_bytes / 2


@pytest.mark.parametrize(("model", "gpu"), [("llama-3.1-70b", "4090:2"), ("405b", "h100-sxm:8")])
def test_a_4bit_base_that_newer_software_loads_whole_is_divided_by_older(model: str, gpu: str) -> None:
    """Transformers 5 has all of it on each GPU first; what is offered fits when it is typed."""
    job = {"model": model, "method": "qlora", "gpu": gpu, "seq": "1024"}
    (first, *_) = (lever for lever in levers(scenario(job)) if lever.fits)
    assert (first.flags["stack"], first.flags["sharding"]) == ("trl@0.24", "fsdp")
    assert estimate(resolved({**job, **as_request(first)})).verdict == "fits"


def test_a_frozen_base_in_32_bits_is_loaded_in_16_instead() -> None:
    """TRL's script loads fp32 where nothing says otherwise; a full fine-tune trains what it loads."""
    job = {"model": "7b", "method": "lora", "gpu": "4090", "seq": "2048", "stack": "trl"}
    found = by_flags(levers(scenario(job)))["--load-dtype bf16"]
    assert found.fits
    assert found.kind == "free"
    assert found.saves_bytes > 10 * GIB
    for other in ({**job, "load_dtype": "bf16"}, {**job, "method": "full"}, {**job, "method": "qlora"}):
        assert "load" not in {move.topic for move in moves(scenario(other))}


def test_a_node_with_free_slots_is_not_offered_more_nodes() -> None:
    """Cards come before nodes; one node of few cards never fills up."""
    assert not more_nodes(scenario({**FULL_ON_SMALL, "gpus": "4"}))
    assert [move.flags["nodes"] for move in more_nodes(scenario({**FULL_ON_SMALL, "gpus": "8"}))] == [
        "2",
        "4",
        "8",
        "16",
    ]


@pytest.mark.parametrize("name", JOBS)
def test_the_number_of_estimates_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of estimates is bounded, whatever the job."""
    calls = 0

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += bool(kwargs.get("quick"))
        return predict_with(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(levers_module, "predict_with", counted)
    levers_module.levers(scenario(JOBS[name]))
    assert 5 < calls <= MAX_ESTIMATES


def test_a_forced_job_still_gets_advice() -> None:
    """A rule that the job breaks already (forced) does not silence every lever."""
    forced = resolved({**FULL_ON_SMALL, "sharding": "none", "offload": "optimizer"}, force=True)
    assert refusals(forced).keys() == {"offload-without-engine"}
    assert "--gradient-checkpointing" in by_flags(levers(forced))


def test_advice_for_a_tight_job_leaves_room() -> None:
    """A job that fits with little room has levers too, and it fits with each of them."""
    tight = scenario({"model": "7b", "method": "qlora", "gpu": "4090", "seq": "2048", "batch": "2"})
    prediction = estimate(tight)
    assert prediction.verdict == "fits"
    offered = levers(tight)
    assert "--batch 1 --grad-accum 2" in by_flags(offered)
    assert all(lever.fits for lever in offered)


def test_quantising_fused_experts_is_no_advice() -> None:
    """Where the quantiser would skip most of a mixture of experts, a 4-bit base is not offered."""
    experts = scenario({"model": "mixtral-8x7b", "method": "lora", "gpu": "a100-80gb", "seq": "1024"})
    assert "--method qlora" not in by_flags(levers(experts))


def test_attention_with_sinks_gets_no_flash_attention_2() -> None:
    """FlashAttention 2 takes no sinks, and the kernel in its place has no gradients of theirs."""
    for stack in ("hf-trainer@5", "unsloth"):
        said: Flags = {
            "model": "gpt-oss-20b",
            "method": "lora",
            "gpu": "h100-sxm",
            "seq": "4096",
            "stack": stack,
        }
        assert not any("flash2" in lever.flags_text for lever in levers(scenario(said)))
    with pytest.raises(RefusedCombinationError, match="kernel-not-in-model-code"):
        scenario({**said, "attention": "flash2"})
    assert scenario({**said, "stack": "trl", "attention": "flash2"}).recipe.attention == "flash2"


def test_no_lever_asks_for_more_than_what_is_enough() -> None:
    """Two more cards are no advice where the storage dtype that goes with them makes the job fit by
    itself.
    """
    found = levers(scenario(QLORA_DIVIDED))
    assert not [lever for lever in found if {"gpu", "quant-storage"} <= lever.flags.keys()]


def test_what_asks_for_more_than_what_is_enough_is_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divided 4-bit weights fit: the same with all of it in host RAM is no estimate of its own, which takes
    ten seconds where each of many experts is a tensor.
    """
    tried = list[str]()

    def told(after: Scenario, *args: Any, **kwargs: Any) -> Prediction:
        tried.append(f"{after.stack.id} {after.recipe.offload}")
        return predict_with(after, *args, **kwargs)

    monkeypatch.setattr(levers_module, "predict_with", told)
    found = levers_module.levers(
        scenario({"model": "405b", "method": "qlora", "gpu": "h100-sxm:8", "seq": "1024"})
    )
    assert [lever for lever in found if lever.fits and "offload" not in lever.flags]
    assert {each for each in tried if each.startswith("trl@0.24")} == {"trl@0.24 none"}


def test_a_stack_without_deepspeed_is_not_advised_to_use_it() -> None:
    """torchtune divides by FSDP2 alone: no lever of a job under it asks for ZeRO."""
    found = levers(
        scenario({"model": "8b", "method": "full", "gpu": "4090:4", "seq": "4096", "stack": "torchtune"})
    )
    assert found
    assert not any(str(lever.flags.get("sharding")).startswith("zero") for lever in found)


def test_host_ram_of_less_than_a_gib_is_not_called_money() -> None:
    """Paging the small optimizer of adapters takes some host RAM; only other cards cost money."""
    # bitsandbytes pages the states of matrices of at least 100,000 elements: 32 x 4,096.
    found = by_flags(
        levers(scenario({"model": "7b", "method": "qlora", "gpu": "4090", "seq": "1024", "lora_rank": "32"}))
    )
    paged = found["--optimizer paged_adamw_32bit"]
    assert paged.host_bytes < GIB
    shown = lever_choices("", [paged], "fits").rows[0].facts
    assert shown[1].startswith("<1 GiB RAM")


def test_where_host_ram_is_short_levers_save_host_ram() -> None:
    """Checkpointing saves 57 GiB of the card and nothing of what is short; adapters have few states there."""
    base = {"model": "70b", "method": "full", "gpu": "h100-sxm:8", "sharding": "zero3", "seq": "2k"}
    short = scenario({**base, "offload": "optimizer+params", "host_memory": "256GiB"})
    found = by_flags(levers(short))
    assert "--gradient-checkpointing" not in found
    both = found["--method lora --gradient-checkpointing"]
    assert both.fits
    assert both.saves_host_bytes > 1500 * GIB
    choices = lever_choices("", [both], "host_memory_short")
    assert choices.columns[0] == "saves RAM"
    assert choices.rows[0].facts[0] == f"{both.saves_host_bytes / GIB:,.0f} GiB"


@pytest.mark.parametrize(
    "flags",
    [
        {"model": "7b", "method": "qlora", "gpu": "4090", "seq": "1024"},
        {"model": "7b", "method": "full", "gpu": "a100-80gb:4", "seq": "2048", "sharding": "fsdp"},
        {"model": "8b", "method": "lora", "gpu": "h100-sxm", "seq": "4096", "gradient_checkpointing": False},
    ],
    ids=["qlora", "fsdp", "lora"],
)
def test_cheap_levers_are_those_of_all_kinds(flags: Flags) -> None:
    """Of a job that fits the first answer shows two kinds, which others do not change."""
    scenario = resolved(flags)
    assert predict_with(scenario, PRIORS).verdict == "fits"
    every = levers(scenario)
    cheap = levers(scenario, kinds=CHEAP)
    assert cheap == tuple(each for each in every if each.kind in CHEAP)
    assert {each.kind for each in every} - set(CHEAP)


def test_nothing_is_free_because_its_time_is_not_known() -> None:
    """Of a card whose rates nobody knows no step time is predicted; checkpointing costs time all the same."""
    unlisted = scenario({"model": "7b", "method": "full", "gpu_memory": "40GiB", "seq": "2048"})
    lever = next(each for text, each in by_flags(levers(unlisted)).items() if "checkpointing" in text)
    assert (lever.kind, lever.step_time_ratio) == ("time", None)
    assert "free" not in lever.cost_text
    assert lever.cost_text.endswith("time")
    other = next(each for text, each in by_flags(levers(unlisted)).items() if text == "--loss liger")
    assert (other.kind, other.cost_text) == ("free", "time unknown")


def test_the_largest_micro_batch_that_fits_is_offered() -> None:
    """64 samples at once are far too many for a small card; one at a time is fewer than it has room for."""
    job: Flags = {"model": "gpt2", "method": "full", "gpu": "t4", "seq": "1024", "batch": "64"}
    offered = [lever for lever in levers(scenario(job)) if lever.flags.keys() == {"batch", "grad-accum"}]
    fitting = next(lever for lever in offered if lever.fits)
    size = int(str(fitting.flags["batch"]))
    assert 1 < size < 32
    doubled = {"batch": str(2 * size), "grad_accum": str(32 // size)}
    assert predict_with(scenario({**job, **doubled}), PRIORS).verdict != "fits"


@pytest.mark.parametrize(("method", "seq", "more"), [("lora", "128k", 0), ("full", "512k", 2)])
def test_a_sequence_that_is_too_long_is_divided_over_the_gpus(method: str, seq: str, more: int) -> None:
    """Alone where that is enough, else with what saves most beside it; the job then fits as it says."""
    job: Flags = {"model": "llama-3.1-8b", "method": method, "gpu": "h100-sxm:8", "seq": seq}
    job |= {"sharding": "fsdp"} if more else {"gradient_checkpointing": True, "loss": "liger"}
    divided = [lever for lever in levers(scenario(job)) if lever.fits and "context-parallel" in lever.flags]
    assert len(divided) == 1
    assert len(divided[0].flags.keys() - {"context-parallel", "padding", "sharding", "grad-accum"}) == more
    assert predict_with(scenario({**job, **as_request(divided[0])}), PRIORS).verdict == "fits"


def test_software_that_divides_longer_sequences_is_found() -> None:
    """1.25 million tokens are too many for the assumed stack on eight GPUs, with whatever helps; another one
    has room for them.  Where the stack was given, nobody is sent to another.
    """
    job: Flags = {"model": "llama-3.1-8b", "method": "lora", "gpu": "h100-sxm:8", "seq": "1.25m"}
    (found,) = (lever for lever in levers(scenario(job)) if lever.fits)
    assert {"stack", "context-parallel"} <= found.flags.keys()
    assert not any(lever.fits for lever in levers(scenario({**job, "stack": "hf-trainer@5"})))


def test_the_way_goes_on_where_only_the_quick_answer_fits() -> None:
    """A million tokens on eight GPUs fit a quick reading, and are uncertain by their replay and its interval:
    the change that is missing is found, as for the 48,576 tokens more of ``1m``.
    """
    for seq in (1_000_000, 1_048_576):
        answer = planner.estimate(model="llama-3.1-8b", method="lora", gpu="h100-sxm:8", seq=seq)
        assert any(lever.fits and "context-parallel" in lever.flags for lever in answer.levers)


def test_a_million_tokens_find_software_that_has_the_inputs_of_layers_in_host_ram() -> None:
    """Shared by eight GPUs they are too many for the assumed stack; the answer says the loss of the other."""
    job: Flags = {"model": "llama-3.1-8b", "method": "full", "gpu": "h100-sxm:8", "seq": "1m"}
    (found,) = (lever for lever in levers(scenario(job)) if lever.fits)
    assert found.flags.items() >= {"stack": "trl", "loss": "chunked", "offload": "activations"}.items()
    assert predict_with(scenario({**job, **as_request(found)}), PRIORS).verdict == "fits"


def test_layers_that_keep_some_operators_are_offered_to_keep_their_input_alone() -> None:
    """The default of torchtitan keeps products and attention of each checkpointed layer."""
    job: Flags = {"model": "llama-3.1-8b", "method": "full", "gpu": "h100-sxm:8", "stack": "torchtitan"}
    lever = by_flags(levers(scenario({**job, "sharding": "fsdp", "seq": "32k"})))["--checkpoint-policy full"]
    assert (lever.kind, lever.fits) == ("time", True)
