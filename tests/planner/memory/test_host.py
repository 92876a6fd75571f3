"""What offload keeps in host RAM, counted by hand: buffers one by one,
each pinned one rounded up by itself.
"""

from __future__ import annotations

from functools import partial

import pytest

from planner.domain.prediction import Prediction
from planner.memory.host import predict_host
from planner.predicting import estimate
from planner.program.job import Job
from planner.units import MIB
from tests.jobs import job_by, resolved, typed

# Qwen2.5-7B at rank 8, by layer: nine LoRA matrices of 3,584 features, two of 512 and three of 18,944;
# 28 layers.
LORA = ((9, 8 * 3_584), (2, 8 * 512), (3, 8 * 18_944))
LAYERS = 28


job = partial(
    job_by,
    (
        "--model qwen2.5-7b --gpu a100-80gb --gpus 2 --seq 1024 --batch 1 --stack hf-trainer@5 --method lora "
        "--lora-rank 8 --lora-targets all-linear"
    ),
)
"""A LoRA of every matrix of Qwen2.5-7B over two cards; DeepSpeed pins what it offloads."""


def held(subject: Job) -> dict[str, float]:
    """Host memory of a process by name."""
    return {term.name: float(term.n_bytes) for term in predict_host(subject).terms}


def up(n_bytes: float) -> int:
    """The power of two that a pinned block takes."""
    return 1 << (int(n_bytes) - 1).bit_length()


def test_zero2_keeps_the_largest_gradient_and_with_accumulation_each_of_its_own() -> None:
    """4 bytes for each parameter of the half; 16-bit gradients one by one; the largest,
    of 8 x 18,944 elements, once more.
    """
    trained = LAYERS * sum(count * elements for count, elements in LORA)
    once = held(job(sharding="zero2", offload="optimizer", grad_accum=1))["offloaded_gradients"]
    assert once == up(4 * trained / 2) + up(2 * 8 * 18_944)
    twice = held(job(sharding="zero2", offload="optimizer", grad_accum=4))["offloaded_gradients"]
    assert twice - once == LAYERS * sum(count * up(2 * elements) for count, elements in LORA) / 2


def test_masters_and_moments_of_the_partition_are_on_the_host() -> None:
    """Each of two cards holds half of the 7.6e9 parameters: 12 bytes for each.  With NVMe two sub-groups of
    1e9 of them are in RAM, or all where they are fewer.
    """
    full = {"method": "full", "lora_rank": None, "lora_targets": None, "sharding": "zero3"}
    offloaded = job(**full, offload="optimizer+params")
    assert held(offloaded)["offloaded_optimizer"] == pytest.approx(12 * offloaded.trained / 2, rel=1e-6)
    assert held(job(**full, offload="optimizer-nvme"))["offloaded_optimizer"] == 12 * 2e9
    small = job(**full, offload="optimizer", optimizer="adamw_8bit", versions=["bitsandbytes==0.50.2"])
    per_element = 4 + 2 + 2 * 4 / 256
    found = held(small)["offloaded_optimizer"]
    assert found == pytest.approx(per_element * small.trained / 2, rel=1e-6)
    few = job(sharding="zero3", offload="optimizer-nvme")
    assert held(few)["offloaded_optimizer"] == 12 * few.trained / 2


@pytest.mark.parametrize(
    ("optimizer", "n_states"), [("sgd", 0), ("lion", 1), ("rmsprop", 1), ("adafactor", 1)]
)
def test_states_on_the_host_are_those_that_the_optimizer_keeps(optimizer: str, n_states: int) -> None:
    """A partition is flat, so that Adafactor keeps a square for each element."""
    full = {"method": "full", "lora_rank": None, "lora_targets": None, "optimizer": optimizer}
    zero3 = job(**full, sharding="zero3", offload="optimizer")
    per_element = 4 + 4 * n_states
    assert held(zero3)["offloaded_optimizer"] == pytest.approx(per_element * zero3.trained / 2, rel=1e-6)
    parts, adam = (
        held(job(**full | more, sharding="fsdp1", offload="optimizer+params"))["offloaded_optimizer"]
        for more in ({}, {"optimizer": "adamw_torch"})
    )
    state = held(zero3)["offloaded_optimizer"] / per_element
    assert adam - parts == pytest.approx((2 - n_states) * 4 * state, rel=1e-3)


def test_sub_groups_of_no_elements_are_parameters() -> None:
    """``sub_group_size`` 0, as in a file of Axolotl: each parameter is a group.  NVMe keeps two of the
    largest, the token table of 152,064 x 3,584; a gradient of each waits on the host.
    """
    full = {"method": "full", "lora_rank": None, "lora_targets": None, "sharding": "zero3"}
    alone = {**full, "switches": "zero3_sub_group_elements=0"}
    assert held(job(**alone, offload="optimizer-nvme"))["offloaded_optimizer"] == 12 * 152_064 * 3_584
    whole, apart = (held(job(**each, offload="optimizer"))["offloaded_gradients"] for each in (full, alone))
    assert apart == pytest.approx(whole, rel=0.5)


@pytest.mark.parametrize(
    ("said", "copies"),
    [
        ({"sharding": "ddp"}, True),
        ({"sharding": "zero2"}, True),
        ({"sharding": "ddp", "load_dtype": "bf16"}, False),
        ({"sharding": "zero3"}, False),
        ({"sharding": "ddp", "stack": "llama-factory"}, False),
        ({"sharding": "ddp", "stack": "plain-torch"}, False),
    ],
)
def test_16_bit_files_become_fp32_in_host_ram(said: dict[str, str], copies: bool) -> None:
    """4 bytes of each weight in each of two processes, before they move to the cards."""
    subject = job(**{"stack": "hf-trainer@5", "load_dtype": "fp32", "method": "lora", **said})
    host, whole = predict_host(subject), 4 * subject.base_params
    assert held(subject).get("loaded_weights", 0) == whole * copies
    if copies:
        assert host.required_per_node_bytes == 2 * (whole + held(subject)["process"])
        assert host.steps_per_node_bytes < host.required_per_node_bytes < host.setup_per_node_bytes


def test_stages_1_and_2_copy_all_weights_to_the_host_to_save() -> None:
    """Frozen ones too, on every process, as they lie on the GPU:
    2 bytes of each weight and of the adapters; not in the steps.
    """
    trained = LAYERS * sum(count * elements for count, elements in LORA)
    for sharding in ("zero1", "zero2"):
        subject = job(sharding=sharding)
        host = predict_host(subject)
        assert held(subject)["saved_copy"] == 2 * subject.base_params + 2 * trained
        assert host.per_process_bytes == host.steps_per_process_bytes + held(subject)["saved_copy"]
        assert host.required_per_node_bytes == host.per_node_bytes == 2 * host.per_process_bytes
        assert "saved_copy" not in held(job(sharding=sharding, stack="hf-loop"))
    assert "saved_copy" not in held(job(sharding="ddp"))


def test_a_node_that_is_short_only_when_it_saves_says_so() -> None:
    """Two copies of 14 GiB do not fit beside two processes into 24 GiB; with less than the steps need,
    saving is not named.
    """
    flags = typed("--model qwen2.5-7b --method lora --gpu a100-80gb --gpus 2 --seq 1024 --sharding zero2")
    saving, always = (estimate(resolved({**flags, "host_memory": size})) for size in ("24GiB", "4GiB"))
    assert saving.verdict == always.verdict == "host_memory_short"
    assert "of host RAM while it saves, " in saving.reason
    assert "of host RAM, " in always.reason


def test_fsdp_keeps_shards_gradients_and_moments_and_no_copy() -> None:
    """fp32 shards and gradients are pinned one by one, two moments are not pinned;
    nothing waits in 16 bits to be sent.
    """
    found = held(job(sharding="fsdp", offload="optimizer+params"))
    alone = LAYERS * sum(count * up(4 * elements / 2) for count, elements in LORA)
    exact = LAYERS * sum(count * 4 * elements / 2 for count, elements in LORA)
    assert found["offloaded_gradients"] == alone
    assert found["offloaded_optimizer"] == pytest.approx(alone + 2 * exact)
    assert not {"upload_buffer", "pinned_cache"} & set(found)


def test_fsdp1_pins_a_part_and_a_gradient_of_each_flat_parameter() -> None:
    """Those of a layer lie in one tensor, those around the layers in another; frozen ones get a gradient,
    too.  Each adapter is flat by itself.
    """
    found = held(job(sharding="fsdp1", offload="optimizer+params"))
    square, narrow, wide, table = 3_584 * 3_584, 3_584 * 512, 3_584 * 18_944, 152_064 * 3_584
    layer = 2 * square + 2 * narrow + 3 * wide + 3_584 + 2 * 512 + 2 * 3_584
    frozen = LAYERS * up(2 * layer / 2) + up(2 * (2 * table + 3_584) / 2)
    assert found["offloaded_parameters"] == frozen
    trained = LAYERS * sum(count * up(4 * elements / 2) for count, elements in LORA)
    assert found["offloaded_gradients"] == trained + frozen


def test_packed_matrices_of_a_flat_parameter_are_counted_in_bytes() -> None:
    """Half a byte for each element, of two cards; QLoRA of Llama 3.1 8B had 5 GiB for the 3 of the trace."""
    flags = {"method": "qlora", "quant_storage": "bf16", "switches": "kbit_upcast=none"}
    found = held(job(sharding="fsdp1", offload="optimizer+params", **flags))
    square, narrow, wide, table = 3_584 * 3_584, 3_584 * 512, 3_584 * 18_944, 152_064 * 3_584
    packed = (2 * square + 2 * narrow + 3 * wide) / 2
    layer = packed + 2 * (3_584 + 2 * 512 + 2 * 3_584)
    frozen = LAYERS * up(layer / 2) + up(2 * (2 * table + 3_584) / 2)
    assert found["offloaded_parameters"] == frozen


def test_zero3_pins_each_frozen_part_alone_and_trained_ones_twice() -> None:
    """Half of each 16-bit matrix above the threshold of 35,840 elements,
    then fp32 adapters in one buffer; old blocks stay.
    """
    found = held(job(sharding="zero3", offload="optimizer+params"))
    square, narrow, wide, table = 3_584 * 3_584, 3_584 * 512, 3_584 * 18_944, 152_064 * 3_584
    layer = 2 * up(square) + 2 * up(narrow) + 3 * up(wide)
    buffer = up(4 * LAYERS * sum(count * elements for count, elements in LORA) / 2)
    assert found["offloaded_parameters"] == LAYERS * layer + 2 * up(table) + buffer
    # Matrices of 8 x 3,584 and less persist on the card.
    assert found["pinned_cache"] == LAYERS * 3 * up(4 * 8 * 18_944 / 2)


def test_a_second_copy_of_offloaded_parameters_is_on_the_host_with_small_ones() -> None:
    """Half of every parameter once more, each pinned alone: matrices, biases, norms, tables and adapters."""
    one, two = (held(job(sharding="zero3", offload="optimizer+params", hpz=hpz)) for hpz in (1, 2))
    square, narrow, wide, table = 3_584 * 3_584, 3_584 * 512, 3_584 * 18_944, 152_064 * 3_584
    layer = 2 * up(square) + 2 * up(narrow) + 3 * up(wide) + 3 * up(3_584) + 2 * up(512)
    adapters = LAYERS * sum(count * up(4 * elements / 2) for count, elements in LORA)
    copies = LAYERS * layer + 2 * up(table) + up(3_584) + adapters
    assert two["offloaded_parameters"] - one["offloaded_parameters"] == copies


# Llama 3.1 8B: 32 layers of 4,096 features.  Unsloth moves what layers read to the host.
UNSLOTH = {"model": "llama-3.1-8b", "method": "qlora", "gpu": "a100-80-sxm", "stack": "unsloth"}


def moved(**flags: object) -> Prediction:
    """The estimate of such a job."""
    return estimate(resolved({**UNSLOTH, **flags}))


def inputs_of(prediction: Prediction) -> float:
    """Host RAM of inputs of layers."""
    return sum(float(term.n_bytes) for term in prediction.host.terms if term.name == "offloaded_activations")


def test_inputs_of_all_layers_are_on_the_host_where_they_leave() -> None:
    """16,384 tokens of 4,096 features in bf16 are a power of two already."""
    assert inputs_of(moved(seq=16_384)) == 32 * 16_384 * 4096 * 2
    assert inputs_of(moved(seq=16_384, offload="none")) == 0


def test_older_unsloth_does_not_pin_them() -> None:
    """Pageable memory is not rounded."""
    older = moved(seq=20_480, stack="unsloth@2024")
    assert inputs_of(older) == 32 * 160 * MIB
    assert not any(term.pinned for term in older.host.terms if term.name == "offloaded_activations")


def test_inputs_that_host_ram_has_no_room_for_are_not_pinned() -> None:
    """Pinned blocks are rounded up to 256 MiB of 160 MiB; a host with less takes them as they are,
    one without is short.
    """
    exact, rounded = 32 * 160 * MIB, 32 * 256 * MIB
    assert inputs_of(moved(seq=20_480, host_memory="64GiB")) == rounded
    tight = moved(seq=20_480, host_memory="8GiB")
    assert exact <= inputs_of(tight) < rounded
    assert tight.verdict == "fits"
    short = moved(seq=20_480, host_memory="6GiB")
    assert inputs_of(short) == exact
    assert short.verdict == "host_memory_short"
