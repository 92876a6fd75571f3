"""One rank of recipes under FSDP, beside dry runs of the tools themselves on torch 2.13: torchtune 0.2.1,
and NeMo AutoModel 0.5.0 whose compiled norm was torch's fused one.
"""

from __future__ import annotations

from typing import Any

import pytest

from planner.memory.replayed import replayed
from planner.program.job import Job
from planner.program.step import step_of
from planner.units import GIB
from tests.jobs import job_by, typed

TORCHTUNE: dict[str, Any] = typed(
    "--stack torchtune@0.2 --batch 2 --grad-accum 2 --seq 512 --precision bf16 --load-dtype bf16 "
    "--optimizer adamw_torch"
)
TABLES = "rotary_tables=pairs_of_layers,rotary_positions=8192"
LORA: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm:4",
    "method": "lora",
    "lora_targets": "q_proj,v_proj",
    "gradient_checkpointing": False,
    "switches": f"{TABLES},keeps_outputs=false",
}
GEMMA: dict[str, Any] = typed(
    f"--model gemma-2b --gpu h100-sxm:2 --method full --gradient-checkpointing --switches {TABLES}"
)
AUTOMODEL: dict[str, Any] = typed(
    "--stack automodel --gpu h100-sxm:8 --method full --batch 1 --seq 1024 --load-dtype bf16 "
    "--optimizer adamw_torch --attention sdpa --no-gradient-checkpointing"
)
OTHERS = "checkpoints_parts=false,caches_keys=true,fused_norm=false"
"""What a model without a class of AutoModel's own has."""

ADAPTERS: dict[str, Any] = typed(
    "--model llama-3.2-1b --method lora --lora-rank 8 --lora-dropout 0.0 --lora-targets 'regex:.*'"
)
"""On all matrices and the head.  Scaled and added as PEFT does it, it reserved 6.66."""


def job(**flags: object) -> Job:
    """A job on a card without a limit."""
    return job_by(flags)


@pytest.mark.parametrize(
    ("flags", "allocated", "reserved", "within"),
    [
        (TORCHTUNE | LORA, 12.6714, 13.9336, 0.003),
        (TORCHTUNE | GEMMA, 14.4973, 21.3223, 0.035),
        (AUTOMODEL | {"model": "llama-3.2-1b", "gradient_checkpointing": True}, 4.3347, 7.2617, 0.002),
        (AUTOMODEL | {"model": "mistral-7b-v0.1", "switches": OTHERS}, 13.8563, 18.1270, 0.002),
        (
            AUTOMODEL
            | {"model": "gemma-2-9b", "batch": 2, "seq": 2048, "attention": "eager", "switches": OTHERS},
            113.7491,
            124.7813,
            0.002,
        ),
        (AUTOMODEL | ADAPTERS, 4.5794, 6.4160, 0.002),
    ],
    ids=[
        "torchtune LoRA",
        "torchtune Gemma",
        "own class with checkpoints",
        "Mistral",
        "eager Gemma 2",
        "adapters",
    ],
)
def test_recipes_beside_their_own_dry_runs(
    flags: dict[str, Any], allocated: float, reserved: float, within: float
) -> None:
    """GiB, allocated to 0.2 %; of Gemma's reserved bytes 3 % are not explained."""
    done = replayed(job(**flags))
    assert done.allocated_bytes / GIB == pytest.approx(allocated, rel=0.002)
    assert done.reserved_bytes / GIB == pytest.approx(reserved, rel=within)


def test_keys_and_values_are_copied_without_checkpoints_alone() -> None:
    """Into a cache, one copy after the other, that the loop refers to until backward is over."""

    def cached(**flags: object) -> int:
        stream = step_of(job(**AUTOMODEL | {"model": "mistral-7b-v0.1", **flags}))
        begins, phase, found = dict(stream.phases), "", 0
        for index, event in enumerate(stream.events):
            phase = begins.get(index, phase)
            found += phase == "forward_2" and event >= 0 and stream.place(event)[1:] == ("self_attn", "cat")
        return found

    plain = cached(switches=OTHERS.replace("caches_keys=true", "caches_keys=false"))
    assert cached(switches=OTHERS) == plain + 2 * 32
    same = {"gradient_checkpointing": True}
    without = cached(switches=OTHERS.replace("caches_keys=true", "caches_keys=false"), **same)
    assert cached(switches=OTHERS, **same) == without


def test_a_loop_begins_with_an_empty_cache_where_its_own_code_says_so() -> None:
    """Nothing else differs."""
    given = AUTOMODEL | {"model": "llama-3.2-1b"}
    assert len(step_of(job(**given, switches="fsdp_empties=true")).emptied) == 1
    assert not step_of(job(**given, switches="fsdp_empties=false")).emptied


def test_dropout_of_adapters_ended_with_the_builders_default() -> None:
    """torchtune 0.3 has none."""
    rates = [
        job(**TORCHTUNE | LORA | {"stack": stack}).recipe.adapter for stack in ("torchtune@0.2", "torchtune")
    ]
    assert [each and each.dropout for each in rates] == [0.05, 0.0]
