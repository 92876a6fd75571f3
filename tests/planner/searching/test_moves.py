"""Single changes of a job: which are offered, with which flags, and what they cost."""

from __future__ import annotations

from planner.searching.moves import Move, moves, smaller_batches
from planner.searching.places import MAX_LARGER_CARDS, divided_sequences, larger_cards
from planner.searching.variants import with_flags
from planner.units import GIB
from tests.jobs import typed
from tests.planner.searching.jobs import FULL_ON_SMALL, MANY_CARDS, QLORA_ON_MANY, Flags, scenario


def flags_of(move: Move) -> str:
    """The flags of a move as a user types them."""
    return " ".join(
        f"--{name}" if value is True else f"--{name} {value}" for name, value in move.flags.items()
    )


def test_a_full_fine_tune_is_offered_the_usual_ways_out() -> None:
    """A 7B full fine-tune on 24 GiB: loss, checkpointing, micro-batch, optimizers, offload,
    adapters, length.
    """
    offered = {flags_of(move): move.kind for move in moves(scenario(FULL_ON_SMALL))}
    assert offered == {
        "--loss liger": "free",
        "--attention flash2": "free",
        "--optimizer adamw_torch_fused": "free",
        "--gradient-checkpointing": "time",
        "--batch 2 --grad-accum 2": "time",
        "--batch 1 --grad-accum 4": "time",
        "--optimizer paged_adamw_32bit": "money",
        "--sharding zero2 --offload optimizer": "money",
        "--sharding zero3 --offload optimizer+params": "money",
        "--optimizer adamw_8bit": "training",
        "--optimizer paged_adamw_8bit": "training",
        "--method lora": "training",
        "--method qlora": "training",
        "--seq 1024": "training",
    }


def test_states_of_adapters_are_too_small_to_be_moved_alone() -> None:
    """What such an offload saved would be that of another dtype; of large adapters it is worth it."""
    lora = {**FULL_ON_SMALL, "method": "lora"}
    offered = [
        "--sharding zero2 --offload optimizer" in {flags_of(move) for move in moves(scenario(job))}
        for job in (lora, {**lora, "lora_rank": 256})
    ]
    assert offered == [False, True]


def test_adapters_leave_fused_experts_alone() -> None:
    """Which PEFT adapts by a copy of them; no dense model is offered fewer adapters."""
    offered = [
        "--lora-targets attention" in {flags_of(move) for move in moves(scenario({**job, "method": "lora"}))}
        for job in ({**FULL_ON_SMALL, "model": "mixtral-8x7b"}, FULL_ON_SMALL)
    ]
    assert offered == [True, False]


def test_a_vllm_beside_the_training_may_sleep() -> None:
    """Not one that does, nor one on other cards."""
    grpo = {**FULL_ON_SMALL, "task": "grpo", "stack": "trl", "generations": 4}
    beside = {"generator": "vllm", "vllm_memory": "0.6"}
    offered = [
        "--vllm-sleep" in {flags_of(move) for move in moves(scenario({**grpo, **more}))}
        for more in (beside, {**beside, "vllm_sleep": True}, {})
    ]
    assert offered == [True, False, False]


def test_several_cards_are_offered_sharding_with_what_it_needs() -> None:
    """ZeRO turns pure bf16 into mixed; 4-bit weights are divided only with a storage dtype;
    one card is not offered sharding.
    """
    pure = {
        move.flags["sharding"]: move.flags for move in moves(scenario(MANY_CARDS)) if move.topic == "sharding"
    }
    assert pure["zero3"] == {"sharding": "zero3", "precision": "bf16-mixed"}
    assert pure["fsdp"] == {"sharding": "fsdp"}
    four_bit = {
        move.flags["sharding"]: move.flags
        for move in moves(scenario(QLORA_ON_MANY))
        if move.topic == "sharding"
    }
    assert four_bit["zero3"]["quant-storage"] == "bf16"
    assert "quant-storage" not in four_bit["zero2"]
    assert not [move for move in moves(scenario(FULL_ON_SMALL)) if move.topic == "sharding"]


def test_fsdp2_comes_with_an_optimizer_that_can_step_it() -> None:
    """bitsandbytes cannot step DTensors: the move to FSDP2 says Adam with it,
    and under FSDP2 no 8-bit optimizer is offered.
    """
    said = {**FULL_ON_SMALL, "gpus": 4, "sharding": "ddp"}
    to_fsdp = [
        move
        for move in moves(scenario({**said, "optimizer": "adamw_8bit"}))
        if move.flags.get("sharding") == "fsdp"
    ]
    assert to_fsdp
    assert all(move.flags["optimizer"] == "adamw_torch" for move in to_fsdp)
    for sharding, offered in (
        ("fsdp", set()),
        ("zero3", {"paged_adamw_32bit", "adamw_8bit", "paged_adamw_8bit"}),
    ):
        under = moves(scenario({**said, "sharding": sharding, "optimizer": "adamw_torch_fused"}))
        assert {move.flags["optimizer"] for move in under if move.topic == "optimizer"} == offered


def test_larger_cards_hold_the_need_and_differ_in_size() -> None:
    """Three sizes at most, ascending, each with room for what must be held; the count of GPUs goes along."""
    cards = larger_cards(scenario(MANY_CARDS), 100 * GIB)
    sizes = [move.hardware.gpu.visible_memory_bytes or 0 for move in cards if move.hardware]
    assert 1 <= len(cards) <= MAX_LARGER_CARDS
    assert sizes == sorted(set(sizes))
    assert sizes[0] >= 100 * GIB
    assert all(str(move.flags["gpu"]).endswith(":8") for move in cards)
    assert larger_cards(scenario(MANY_CARDS), 10_000 * GIB) == ()


def test_a_large_evaluation_is_made_as_small_as_the_training() -> None:
    """It costs nothing; the typed flag gives the same job."""
    base: Flags = typed("--model qwen2.5-0.5b --method lora --gpu 3060 --seq 2048 --eval-batch 16")
    move = next(move for move in moves(scenario(base)) if move.topic == "evaluation")
    assert (flags_of(move), move.kind) == ("--eval-batch 1", "free")
    changed = with_flags(scenario(base), move.flags)
    assert changed.run == scenario({**base, "eval_batch": "1"}).run
    assert not [move for move in moves(changed) if move.topic == "evaluation"]


def test_batches_halve_down_to_one_sample() -> None:
    """The samples of an optimizer step stay as many; what does not halve goes to one sample at once."""
    several = {**FULL_ON_SMALL, "batch": 24, "grad_accum": 2}
    assert [flags_of(move) for move in smaller_batches(scenario(several))] == [
        "--batch 12 --grad-accum 4",
        "--batch 6 --grad-accum 8",
        "--batch 3 --grad-accum 16",
        "--batch 1 --grad-accum 48",
    ]
    assert not smaller_batches(scenario({**several, "batch": 1}))


def test_long_sequences_of_one_sample_are_divided_as_the_software_can() -> None:
    """The Trainer wants ZeRO, and rows that are filled; Axolotl FlashAttention; who accumulates gradients
    over more steps keeps the global batch.
    """
    long: Flags = {"model": "llama-3.1-8b", "method": "lora", "gpu": "h100-sxm:4", "seq": "64k"}
    assert [flags_of(move) for move in divided_sequences(scenario({**long, "grad_accum": 3}))] == [
        "--context-parallel 2 --padding packed --sharding zero3 --grad-accum 6",
        "--context-parallel 4 --padding packed --sharding zero3 --grad-accum 12",
    ]
    assert flags_of(divided_sequences(scenario({**long, "stack": "axolotl"}))[0]) == (
        "--context-parallel 2 --padding packed --attention flash2 --grad-accum 2"
    )
    for other in ({"seq": "8k"}, {"batch": 2}, {"tokens_per_sample": 30_000}, {"gpu": "h100-sxm"}):
        assert not divided_sequences(scenario({**long, **other}))


def test_layers_that_are_divided_have_moves_too() -> None:
    """Nobody counts what is trained of a whole pipeline."""
    job: Flags = {"model": "llama-3.1-8b", "method": "lora", "gpu": "4090:2", "seq": "2k"}
    offered = {flags_of(move) for move in moves(scenario({**job, "device_map": "auto"}))}
    assert {"--gradient-checkpointing", "--loss liger"} <= offered
