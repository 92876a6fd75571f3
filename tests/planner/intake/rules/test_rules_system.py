"""What rules about cards, sharding and kernels say with numbers, and where their limits lie."""

from __future__ import annotations

import pytest

from tests.planner.intake.jobs import warned


def test_a_mask_of_packed_samples_is_told_by_its_size() -> None:
    """8 rows of 2,048 tokens in one row are 16,384 squared pairs of 2 bytes; below 64 MiB nothing is said."""
    packed = {
        "stack": "trl",
        "padding": "packed",
        "seq": 2048,
        "attention": "sdpa",
        "precision": "bf16-mixed",
    }
    rows = {**packed, "batch": 8, "switches": ["packed_mask=rows", "sdpa_mask=bool"]}
    one_row = {**packed, "batch": 8, "switches": ["packed_mask=one_row", "sdpa_mask=bool"]}
    assert "0.06 GiB" in warned("packed-samples-masked", **rows)
    assert "0.50 GiB" in warned("packed-samples-masked", **one_row)
    assert not warned("packed-samples-masked", **{**rows, "batch": 7})
    assert not warned("packed-samples-masked", **{**one_row, "attention": "flash2"})


@pytest.mark.parametrize(
    ("gpu", "gpus", "answers"),
    [("h100-sxm", 16, False), ("h100-sxm", 17, True), ("gb200", 72, False), ("gb200", 73, True)],
)
def test_gpus_of_one_node_are_those_that_nvlink_joins(gpu: str, gpus: int, answers: bool) -> None:
    """16 of a DGX-2, 72 of a rack with NVL72."""
    assert bool(warned("many-gpus-in-a-node", gpu=gpu, gpus=gpus, model="qwen2.5-0.5b")) == answers


@pytest.mark.parametrize(("given", "answers"), [("23GiB", False), ("24GiB", False), ("24.5GiB", True)])
def test_a_card_has_no_more_than_it_is_sold_with(given: str, answers: bool) -> None:
    """The label itself is allowed."""
    said = warned("gpu-memory-above-label", gpu_memory=given)
    assert bool(said) == ("24.50 GiB against 24.00 GiB" in said) == answers


def test_reserved_memory_leaves_something_for_the_job() -> None:
    """All of the card is too much, a byte less of it is not."""
    taken = {"gpu_memory": "20GiB"}
    assert "20.00 GiB of 20.00 GiB" in warned("reserved-fills-card", **taken, gpu_reserved="20GiB")
    assert not warned("reserved-fills-card", **taken, gpu_reserved="19.99GiB")


@pytest.mark.parametrize(
    ("offload", "sharding", "rule"),
    [
        ("optimizer", "ddp", "offload-without-engine"),
        ("optimizer", "zero1", ""),
        ("params", "zero2", "params-offload-below-stage-3"),
        ("params", "zero3", ""),
        ("optimizer-nvme", "fsdp", "nvme-without-stage-3"),
        ("optimizer", "fsdp", "fsdp-offloads-both"),
        ("optimizer+params", "fsdp1", ""),
    ],
)
def test_who_offloads_what(offload: str, sharding: str, rule: str) -> None:
    """Each engine has its own pairs; what one has is refused by none of the rules."""
    rules = (
        "offload-without-engine",
        "params-offload-below-stage-3",
        "nvme-without-stage-3",
        "fsdp-offloads-both",
    )
    job = {"offload": offload, "sharding": sharding, "gpus": 2, "host_memory": "256GB"}
    assert [each for each in rules if warned(each, **job)] == ([rule] if rule else [])


def test_two_copies_need_what_they_are_copies_of() -> None:
    """hpz of ZeRO-3 and replicas of hsdp; the message names the sharding that is there."""
    assert "sharding is zero2" in warned("hpz-without-zero3", gpus=4, sharding="zero2", hpz=2)
    assert not warned("hpz-without-zero3", gpus=4, sharding="zero2", hpz=1)
    assert "sharding is fsdp" in warned("replicas-without-hsdp", gpus=4, sharding="fsdp", replicas=2)
    assert warned("hsdp-on-one-node", gpus=4, sharding="hsdp")
    assert not warned("hsdp-on-one-node", gpus=4, sharding="hsdp", replicas=2)


def test_a_backward_without_sinks_is_warned_of() -> None:
    """GPT-OSS has sinks: flash2 becomes FlashAttention 3, whose backward knows none."""
    job = {"model": "gpt-oss-20b", "gpu": "h100-sxm"}
    assert "gradients are not exact" in warned("backward-without-sinks", attention="flash2", **job)
    assert not warned("backward-without-sinks", attention="eager", **job)


@pytest.mark.parametrize(
    ("changed", "answers"),
    [
        ({}, True),
        ({"gpu": "l40s"}, False),
        ({"versions": ["torch==2.10.0"]}, False),
        ({"attention": "flash2"}, False),
        ({"padding": "max_length"}, False),
        ({"switches": ["cudnn_attention=false"]}, False),
    ],
)
def test_cudnn_plans_for_each_length(changed: dict[str, object], answers: bool) -> None:
    """On Hopper from torch 2.11 on, where batches have lengths of their own."""
    asked = {
        "model": "qwen2.5-0.5b", "gpu": "h100-sxm", "seq": 1024, "tokens_per_sample": 300,
        "padding": "longest", "attention": "sdpa",
    }  # fmt: skip
    assert bool(warned("plan-for-each-shape", **{**asked, **changed})) == answers


@pytest.mark.parametrize(
    ("model", "name", "is_other"),
    [
        ("mistral-7b", "MistralDecoderLayer", False),
        ("mistral-7b", "LlamaDecoderLayer", True),
        ("chatglm3-6b", "GLMBlock", False),
        ("llava-1.5-7b", "LlamaDecoderLayer", False),
    ],
)
def test_layers_are_called_after_the_architecture(model: str, name: str, is_other: bool) -> None:
    """Those of a checkpoint's own code as they please."""
    job = {"model": model, "sharding": "fsdp", "gpus": 2, "switches": [f"fsdp_layer_class={name}"]}
    assert bool(warned("fsdp-class-of-another", **job)) == is_other
