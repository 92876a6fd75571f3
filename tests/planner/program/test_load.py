"""What comes to the card before the first step, counted by hand for Llama 2 7B, Mixtral 8x7B and GPT-2."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import replayed
from planner.program.job import Job, job_of
from planner.program.load import load, load_whole
from planner.program.ops.sizes import unit_values
from planner.program.parameters import Weight
from planner.program.request_stream import RequestStream
from planner.units import GIB, KIB, MIB
from tests.jobs import job_by

TABLE = 32_000 * 4_096
SQUARE = 4_096**2


def job(model: str, method: str, *, gpu: str = "a100-80gb", **flags: object) -> Job:
    """One micro-batch of 512 tokens."""
    given = {"model": model, "method": method, "gpu": gpu, "seq": 512, "batch": 1, "attention": "eager"}
    return job_by({**given, **flags})


def with_stack(subject: Job, **switches: object) -> Job:
    """The same job on a stack with other switches."""
    scenario = subject.scenario
    return job_of(replace(scenario, stack=replace(scenario.stack, **switches)), Coefficients())  # type: ignore[arg-type]


def loaded(subject: Job) -> tuple[list[str], list[Weight]]:
    """Each request as ``+bytes`` or ``-bytes`` in the order of loading, and the record of parameters."""
    stream, values = RequestStream(), unit_values(subject)
    weights = load(stream, subject)
    sizes = [round(float(n * values[unit])) for n, unit in zip(stream.unit_bytes, stream.units, strict=True)]
    return [f"+{sizes[event]}" if event >= 0 else f"-{sizes[~event]}" for event in stream.events], weights


def most(requests: list[str]) -> int:
    """The most bytes that are there at once."""
    return max(accumulate(int(each) for each in requests))


def left(requests: list[str]) -> int:
    """Bytes that are still there."""
    return sum(int(each) for each in requests)


def test_a_full_base_is_every_parameter_once_and_cublas_takes_its_workspace() -> None:
    """GPT-2 large is tied: 774,030,080 parameters of 2 bytes; 8.125 MiB of workspace before Hopper, 32 MiB on
    it.
    """
    requests, weights = loaded(job("gpt2-large", "full", load_dtype="bf16"))
    assert left(requests) == 2 * 774_030_080 + 8 * MIB + 128 * KIB
    assert all(each.trained for each in weights)
    assert loaded(job("gpt2-large", "full", gpu="h200-sxm", load_dtype="bf16"))[0][-1] == f"+{32 * MIB}"


def test_deepspeed_casts_what_waits_in_host_ram_before_it_comes_to_the_card() -> None:
    """Qwen2.5-0.5B in fp32: with the Trainer 2 bytes of each of 494,032,768 parameters arrive, and nothing is
    replaced; where the loader brings the model, its 4 bytes are there, in one piece at first.
    """
    flags = {"sharding": "zero2", "gpus": 2, "load_dtype": "fp32", "precision": "bf16-mixed"}
    subject = job("qwen2.5-0.5b", "full", stack="hf-trainer@5", **flags)
    stream, values = RequestStream(), unit_values(subject)
    load_whole(stream, subject)
    assert min(stream.events) >= 0
    sizes = [float(n * values[unit]) for n, unit in zip(stream.unit_bytes, stream.units, strict=True)]
    assert sum(sizes) == 2 * 494_032_768
    on_card = loaded(with_stack(subject, loader_places="undivided"))[0]
    assert on_card[0] == f"+{4 * 494_032_768}"
    assert f"-{4 * 151_936 * 896}" in on_card


def test_a_4bit_matrix_arrives_whole_and_goes_when_its_scales_are_packed() -> None:
    """Half a byte for each weight; one byte for 64 of them, and four for 64 x 256.  fp32 scales, and those
    less their mean, pass; without a second quantisation they stay.
    """
    requests, weights = loaded(job("llama-2-7b", "qlora", load_dtype="bf16"))
    first = requests.index(f"+{2 * SQUARE}")
    packed = [
        f"+{2 * SQUARE}",
        f"+{SQUARE // 16}",
        f"+{SQUARE // 2}",
        f"+{SQUARE // 16}",
        f"+{SQUARE // 64}",
        f"+{SQUARE // 64 // 64}",
        f"-{SQUARE // 16}",
        f"-{SQUARE // 16}",
        f"-{2 * SQUARE}",
    ]
    assert requests[first : first + 9] == packed
    older, _ = loaded(
        with_stack(job("llama-2-7b", "qlora", load_dtype="bf16"), linear4bit_copies_scales=False)
    )
    first = older.index(packed[0])
    assert older[first : first + 7] == [*packed[:3], *packed[4:6], *packed[7:]]
    once, _ = loaded(job("llama-2-7b", "qlora", load_dtype="bf16", double_quant=False))
    first = once.index(packed[0])
    assert once[first : first + 4] == [packed[0], packed[1], packed[2], packed[8]]
    assert sum(each.packed for each in weights) == 7 * 32


def test_preparation_replaces_each_unpacked_tensor_by_an_fp32_copy_of_its_own() -> None:
    """The table's copy is made beside it, and then the table of 2 bytes goes; packed matrices stay."""
    requests, _ = loaded(job("llama-2-7b", "qlora", load_dtype="bf16"))
    widened = requests.index(f"+{4 * TABLE}")
    assert requests[widened + 1] == f"-{2 * TABLE}"
    assert requests.count(f"+{4 * TABLE}") == 2, "table and head"
    norms = with_stack(job("llama-2-7b", "qlora", load_dtype="bf16"), kbit_upcast="norms")
    assert f"+{4 * TABLE}" not in loaded(norms)[0]
    assert loaded(norms)[0].count(f"+{4 * 4_096}") == 65, "norms alone"


@pytest.mark.parametrize(
    ("method", "flags", "upcast"),
    [
        ("qlora", {}, "norms"),
        ("qlora", {"precision": "fp16-mixed"}, "all"),
        ("qlora", {"gpus": 2, "sharding": "zero3"}, "none"),
        ("int8", {}, "all"),
    ],
)
def test_what_trl_turns_to_fp32(method: str, flags: dict[str, Any], upcast: str) -> None:
    """Llama 3.1 8B with trained token table and head ran on an L4 of 24 GB (philschmid's guide of 2025):
    in fp32 they and their states would need 27 GiB.
    """
    subject = job("llama-2-7b", method, stack="trl@0", **{"precision": "bf16-mixed", **flags})
    assert subject.stack.kbit_upcast_over(subject.recipe) == upcast


@pytest.mark.parametrize(
    ("method", "flags", "passes"),
    [
        ("qlora", {}, True),
        ("lora", {}, False),
        ("lora", {"gpus": 2}, True),
        ("qlora", {"gpus": 2, "sharding": "zero3"}, False),
        ("qlora", {"gpus": 2, "sharding": "fsdp"}, False),
    ],
)
def test_ends_pass_through_fp32_where_they_are_on_the_card(
    method: str, flags: dict[str, Any], passes: bool
) -> None:
    """The head in fp32 beside that in 16 bits, behind the table in fp32; nothing of it is left.

    The dry run of Axolotl 0.19 itself (QLoRA, Qwen2.5 0.5B, 128 tokens) peaks at 0.93 GiB while it loads,
    and at 0.67 GiB afterwards.  Its published run of Qwen2.5 Coder 7B (mwill20/SecureCLI-Tuner) says
    8.5 GiB, where the step needs 6.8.
    """
    subject = job("llama-2-7b", method, load_dtype="bf16", **flags)
    plain, through = (
        loaded(with_stack(subject, kbit_upcast="none", loads_through_fp32=each))[0] for each in (False, True)
    )
    assert left(through) == left(plain)
    more = most(through) - most(plain)
    assert (more > 5 * TABLE, more == 0) == (passes, not passes)


def test_axolotl_leaves_experts_in_fp32_and_takes_norms_and_ends_back() -> None:
    """Experts that are one tensor are not packed; preparation widens them, where no engine gathers weights.

    The dry run of Axolotl 0.19 itself (QLoRA, Granite 3.1 1B-A400M, 128 tokens) allocates 4.82 GiB, as here;
    experts in bf16 would need 2.6.
    """
    switches: dict[str, Any] = {"kbit_upcast": "layers", "fused_experts": True}
    divided: dict[str, Any] = {"gpus": 2, "sharding": "zero3"}
    for flags, dtype in (({}, "fp32"), (divided, "bf16")):
        subject = with_stack(job("mixtral-8x7b", "qlora", load_dtype="bf16", **flags), **switches)
        base = [each for each in loaded(subject)[1] if not each.packed and not each.adapter]
        inside = {each.dtype for each in base if not each.outside and each.kind != "norm"}
        assert inside == {dtype}
        assert {each.dtype for each in base if each.outside or each.kind == "norm"} == {"bf16"}


def test_an_unpacked_base_is_widened_only_where_the_stack_prepares_it_too() -> None:
    """Every 16-bit tensor is replaced: what stays has 4 bytes for each of 6.74e9 parameters."""
    plain = job("llama-2-7b", "lora", load_dtype="bf16")
    both = [left(loaded(subject)[0]) for subject in (plain, with_stack(plain, prepares_unquantized=True))]
    assert both[1] - both[0] == 2 * 6_738_415_616


def test_a_copy_of_adapters_is_as_large_as_they_are() -> None:
    """The reference of a trainer that is handed a model with adapters, in fp32 as PEFT makes it.

    The dry run of such a program (TRL 1.16, DPO of Qwen2.5-0.5B, rank 64 of all matrices) allocates 0.13 GiB
    more than where the trainer makes the adapters.
    """
    plain = job(
        "qwen2.5-0.5b", "lora", load_dtype="bf16", lora_rank=64, lora_targets="all-linear", task="dpo"
    )
    both = [left(loaded(each)[0]) for each in (plain, with_stack(plain, copies_adapters=True))]
    assert round((both[1] - both[0]) / GIB, 2) == 0.13


def test_int8_is_made_of_an_fp16_copy_beside_the_loaded_matrix() -> None:
    """One byte for each weight and an fp32 scale for each row stay."""
    requests, _ = loaded(job("llama-2-7b", "int8", load_dtype="fp16"))
    first = requests.index(f"+{2 * SQUARE}")
    whole = f"{2 * SQUARE}"
    assert requests[first : first + 6] == [
        f"+{whole}",
        f"+{whole}",
        f"+{SQUARE}",
        f"+{4 * 4_096}",
        f"-{whole}",
        f"-{whole}",
    ]


def test_gptq_matrices_come_packed_and_nothing_is_widened() -> None:
    """Half a byte for each weight, a scale and a packed zero for 128 of them, four for each input;
    nothing is freed.
    """
    requests, _ = loaded(job("llama-2-7b", "lora", quantization="gptq-int4", load_dtype="fp16"))
    first = requests.index(f"+{SQUARE // 2}")
    scales, zeros = 2 * SQUARE // 128, SQUARE // 2 // 128
    assert requests[first : first + 4] == [f"+{SQUARE // 2}", f"+{scales}", f"+{zeros}", f"+{4 * 4_096}"]
    assert not [each for each in requests if each.startswith("-")]


def test_matrices_in_fp8_come_as_they_are_stored() -> None:
    """A byte for each weight, four for each square of 128 x 128; what is not packed stays in 16 bits."""
    requests, weights = loaded(job("Qwen/Qwen3-8B-FP8", "lora", gpu="h100-sxm"))
    first = requests.index(f"+{SQUARE}")
    assert requests[first + 1] == f"+{4 * SQUARE // 128**2}"
    assert {each.dtype for each in weights if not each.packed and not each.adapter} == {"bf16"}


@pytest.mark.parametrize(("model", "scales"), [
    ("TechxGenus/Meta-Llama-3-8B-Instruct-AWQ", [2 * SQUARE // 128, SQUARE // 2 // 128]),
    ("ISTA-DASLab/Meta-Llama-3-8B-Instruct-AQLM-2Bit-1x16", [2 * 4_096, 2 * 65_536 * 8]),
    ("hugging-quants/Meta-Llama-3.1-70B-BNB-NF4-BF16", [4 * SQUARE // 64, 4 * 4 * SQUARE // 64 // 256]),
])  # fmt: skip
def test_a_packed_checkpoint_arrives_packed(model: str, scales: list[int]) -> None:
    """The first matrix, and what unpacking reads: no weight passes by whole."""
    requests, weights = loaded(job(model, "lora"))
    first = next(each for each in weights if each.packed)
    packed = round(first.count / (4 if "AQLM" in model else 2))
    place = requests.index(f"+{packed}")
    assert requests[place : place + 3] == [f"+{packed}", *(f"+{each}" for each in scales)]
    assert f"+{round(2 * first.count)}" not in requests


@pytest.mark.parametrize(("method", "element_bytes"), [("lora", 2), ("qlora", 4)])
def test_saved_modules_are_copied_in_the_dtype_of_their_originals(method: str, element_bytes: int) -> None:
    """Table and head once more, at their places among the adapters; their originals stay."""
    _, weights = loaded(job("llama-2-7b", method, load_dtype="bf16", modules_to_save="embed_tokens,lm_head"))
    copies = [each for each in weights if each.adapter and each.count == TABLE]
    assert [each.name for each in copies] == ["embed_tokens", "head"]
    assert [each.unit_bytes for each in copies] == [element_bytes * TABLE] * 2


def test_the_experts_of_a_layer_have_one_adapter_with_a_rank_for_each() -> None:
    """Gate and up are one tensor with twice the rank: 8 x 2 x 8 x 4,096 elements of ``A``; quantisers skip
    them.
    """
    _, weights = loaded(job("mixtral-8x7b", "qlora", lora_targets="all-linear", lora_rank=8))
    named = {each.name: each for each in weights}
    assert named["layer 0 gate_up_proj lora_A"].count == 8 * 2 * 4_096
    assert named["layer 0 gate_up_proj lora_B"].count == 8 * 2 * 2 * 14_336
    experts = named["layer 0 gate_up_proj"]
    assert (experts.packed, experts.dtype, experts.count) == (False, "fp32", 8 * 4_096 * 2 * 14_336)


def test_the_engine_of_deepspeed_halves_what_preparation_widened() -> None:
    """Table, head and adapters end in bf16."""
    _, weights = loaded(job("llama-2-7b", "qlora", gpu="a100-80gb:2", sharding="zero2", load_dtype="bf16"))
    assert {each.dtype for each in weights if not each.packed} == {"bf16"}


def test_a_buffer_for_expanded_weights_is_as_large_as_the_largest_matrix() -> None:
    """Unsloth: bf16 and an fp32 scale of every 64 elements; none over a base of 16 bits."""
    largest = 4_096 * 11_008
    requests, _ = loaded(job("llama-2-7b", "qlora", stack="unsloth", attention="flash2"))
    assert requests[-2:] == [f"+{2 * largest}", f"+{4 * largest // 64}"]
    assert (
        loaded(job("llama-2-7b", "lora", stack="unsloth", attention="flash2"))[0][-1]
        == f"+{8 * MIB + 128 * KIB}"
    )


@pytest.mark.parametrize("model", ["gpt-oss-20b", "qwen3-30b-a3b"])
def test_unsloth_packs_experts_that_other_quantisers_skip(model: str) -> None:
    """All of them, or none."""
    subject = job(model, "qlora", gpu="h200-sxm", stack="unsloth", attention="sdpa", lora_targets="attention")
    experts = {
        each.name for group in subject.model.groups for each in group.block.linears if each.group == "expert"
    }
    assert experts

    def packed(asked: Job) -> set[bool]:
        return {each.packed for each in loaded(asked)[1] if each.name.split()[-1] in experts}

    assert packed(subject) == {True}
    assert packed(with_stack(subject, quantizes_experts="never")) == {False}


def test_transformers_takes_a_k_bit_model_in_one_piece_first() -> None:
    """Llama 2 7B in nf4: half a byte of each packed element and two of table, head and norms; in 4.52 to 4.57
    a byte of each.
    """
    packed, rest = 32 * (4 * SQUARE + 3 * 4_096 * 11_008), 2 * TABLE + 65 * 4_096
    subject = job("llama-2-7b", "qlora", load_dtype="bf16", stack="trl")
    assert loaded(subject)[0][:2] == [f"+{packed // 2 + 2 * rest}", f"-{packed // 2 + 2 * rest}"]
    older = with_stack(subject, loader_reserves="half")
    assert loaded(older)[0][:2] == [f"+{packed + rest}", f"-{packed + rest}"]
    assert loaded(with_stack(subject, loader_reserves="nothing"))[0][0] == f"+{2 * TABLE}"


def test_that_piece_is_half_of_what_the_card_has_free_where_the_model_is_larger() -> None:
    """4.52 to 4.57 leave 1.2 GiB, and halve what is left: Unsloth's notebook of Llama 3.3 70B on an A100
    80 GB had 39.2 GiB reserved when its trainer was built, of Qwen3 32B on 40 GB 19.1.
    """
    small = with_stack(job("llama-2-7b", "qlora", stack="trl", gpu="rtx4060"), loader_reserves="half")
    visible = small.hardware.gpu.visible_memory_bytes
    assert visible is not None
    free = visible - Coefficients().context_bytes - 1.2 * GIB
    assert loaded(small)[0][0] == f"+{round(free / 2)}"
    versions = "unsloth==2025.9.1,transformers==4.55.4"
    for model, gpu, most in (("Llama-3.3-70B-Instruct", "a100-80-sxm", 40), ("Qwen3-32B", "a100-40-sxm", 20)):
        subject = job(f"unsloth/{model}-bnb-4bit", "lora", gpu=gpu, stack="unsloth@2024", versions=versions)
        assert max(each.reserved_bytes for each in replayed(subject).phases[:2]) < most * GIB


@pytest.mark.parametrize(
    ("stack", "flags", "places"),
    [
        ("trl", {}, True),
        ("trl", {"gpus": 2}, False),
        ("trl-0.24", {}, False),
        ("hf-trainer@5", {}, False),
        ("llama-factory", {"gpus": 2}, True),
        ("llama-factory", {"gpus": 2, "sharding": "zero2"}, True),
    ],
)
def test_a_whole_model_that_the_loader_brings_comes_in_one_piece_first(
    stack: str, flags: dict[str, Any], places: bool
) -> None:
    """6,738,415,616 weights of Llama 2 7B; else the table is the first to come."""
    requests, _ = loaded(job("llama-2-7b", "lora", load_dtype="bf16", stack=stack, **flags))
    whole = 2 * 6_738_415_616
    assert requests[:2] == [f"+{whole}", f"-{whole}"] if places else requests[0] == f"+{2 * TABLE}"


def test_transformers_5_loads_by_the_names_of_tensors() -> None:
    """The head before the table, layer 2 before layer 10, ``mlp`` before ``self_attn``, each by the alphabet;
    a stack that does not sort takes the model's order.
    """

    def order(subject: Job) -> list[str]:
        stream = RequestStream()
        weights = [each for each in load_whole(stream, subject) if not each.adapter and each.kind != "norm"]
        return [each.name for each in sorted(weights, key=lambda each: each.slot)]

    subject = job("llama-2-7b", "lora", load_dtype="bf16", stack="llama-factory")
    names = order(subject)
    matrices = ["down_proj", "gate_proj", "up_proj", "k_proj", "o_proj", "q_proj", "v_proj"]
    assert names[:2] == ["head", "embed_tokens"]
    assert names[2:] == [f"layer {layer} {each}" for layer in range(32) for each in matrices]
    unsorted = order(with_stack(subject, loads_sorted=False))
    assert unsorted[:3] == ["embed_tokens", "layer 0 q_proj", "layer 0 k_proj"]
    assert unsorted == order(with_stack(subject, loader_places="kbit"))


def test_the_names_of_gpt_2_stand_in_another_order() -> None:
    """``h`` before ``wpe`` and ``wte``, and in a layer ``attn`` before ``mlp``."""
    stream = RequestStream()
    weights = load_whole(stream, job("gpt2-large", "qlora", load_dtype="bf16"))
    loaded = [each.name for each in sorted(weights, key=lambda each: each.slot) if each.packed]
    matrices = [name for name in loaded if name.startswith("layer 3 ")]
    assert matrices[0] == "layer 3 c_attn"
    assert loaded[-1].startswith("layer 35 ")
    table = next(slot for slot in range(len(stream.units)) if stream.place(slot) == ("load", "wte", "weight"))
    assert table > max(each.slot for each in weights if each.packed)


def test_the_trainer_gives_the_cache_back_when_the_model_is_there() -> None:
    """Not a loop of one's own, nor where DeepSpeed's engine brings the model to the card."""

    def emptied(subject: Job) -> int:
        stream = RequestStream()
        load(stream, subject)
        return len(stream.emptied)

    assert emptied(job("gpt2-large", "full", stack="trl")) == 1
    assert emptied(job("gpt2-large", "full", stack="hf-loop")) == 0
    assert emptied(job("gpt2-large", "full", stack="trl", gpu="a100-80gb:2", sharding="zero2")) == 0


def test_experts_that_are_widened_arrive_by_their_names() -> None:
    """Each ``gate_up`` leaves a hole that ``down`` fills in fp32, and each ``down`` one that nothing fills.

    A program of Transformers 5.23 with prepare_model_for_kbit_training over Granite 3.1 1B-A400M, run dry,
    reserves 5.50 GiB when it has loaded and 7.38 GiB at its peak; the other way round it were 4.87 and 6.88.
    """
    requests, _ = loaded(job("granite-3.1-1b-a400m", "qlora", stack="hf-trainer@5"))
    arrived = [int(each) // MIB for each in requests if int(each) > 8 * MIB]
    assert arrived[1:6] == [96, 32, 64, 32, 64]
