"""Losses, their logits counted by hand."""

from __future__ import annotations

import pytest

from planner.memory.replayed import replayed
from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.step import parts_of
from planner.units import GIB
from tests.extras import import_or_skip
from tests.jobs import job_by
from tests.planner.program.head.test_ends import BATCH, SEQ, job

VOCABULARY, HIDDEN, TOKENS = 128_256, 4096, BATCH * SEQ
SHIFTED = BATCH * (SEQ - 1)


def peak(asked: Job, words: int = VOCABULARY) -> int:
    """Most bytes of tensors as wide as the vocabulary that are alive at once in the head."""
    template, values = parts_of(asked)[-1].template, unit_values(asked)
    alive = most = 0
    for stage in ("forward", "forward_end", "forward_out", "backward"):
        for event in template.stages[stage]:
            slot = event if event >= 0 else ~event
            if slot >= len(template.units) or slot < 2:
                continue
            n_bytes = int(template.unit_bytes[slot] * values[template.units[slot]])
            if template.unit_bytes[slot] in (2 * words, 4 * words):
                alive += n_bytes if event >= 0 else -n_bytes
                most = max(most, alive)
    return most


def lora(**flags: object) -> Job:
    """LoRA in bf16 all through, so that no logits are handed back in fp32."""
    return job(method="lora", precision="bf16", adapter_dtype="bf16", gradient_checkpointing=True, **flags)


def test_log_softmax_its_gradient_and_the_gradient_below_it() -> None:
    """Three fp32 tensors, when the 16-bit logits have gone."""
    assert peak(lora()) == TOKENS * VOCABULARY * 12


def test_one_eighth_at_a_time() -> None:
    """The same of one piece."""
    assert peak(lora(loss="chunked")) == TOKENS // 8 * VOCABULARY * 12


def test_layers_run_once_for_all_losses() -> None:
    """Another head follows the same layers."""
    one, other = parts_of(lora(loss="hf")), parts_of(lora(loss="liger"))
    assert all(each.template is same.template for each, same in zip(one[1:-1], other[1:-1], strict=True))
    assert one[-1].template is not other[-1].template


def test_liger_keeps_one_buffer_of_a_power_of_two_rows() -> None:
    """Its kernel writes gradients into the logits."""
    # 2048 tokens / ceil(128256 / 4096) = 64.
    assert peak(lora(loss="liger")) == 64 * VOCABULARY * 2


def test_a_trained_head_under_liger_has_its_gradient_in_the_forward_pass() -> None:
    """It stays when the backward pass is over."""
    asked = job(method="full", precision="bf16", gradient_checkpointing=True, loss="liger")
    head = parts_of(asked)[-1].template
    made = [
        slot
        for slot in head.stages["forward"]
        if slot >= 0 and head.unit_bytes[slot] == VOCABULARY * HIDDEN * 2
    ]
    assert len(made) == 1
    assert ~made[0] not in head.stages["backward"]


def test_cut_cross_entropy_makes_no_logits_and_both_gradients_in_backward() -> None:
    """A dry run of Axolotl 0.19 with its plugin (full, LFM2 350M) has nothing else that is large there."""
    cut = "cut_cross_entropy=true"
    asked = job(method="full", precision="bf16", gradient_checkpointing=True, loss="liger", switches=cut)
    head = parts_of(asked)[-1].template
    large = [slot for slot in head.stages["forward"] if slot >= 0 and head.unit_bytes[slot] >= 2 * VOCABULARY]
    assert not large
    backward = [head.unit_bytes[slot] for slot in head.stages["backward"] if slot >= 0]
    assert backward.count(VOCABULARY * HIDDEN * 2) == 1


def test_liger_casts_a_weight_in_fp32_for_each_piece_beside_the_copy_that_autocast_keeps() -> None:
    """The second piece finds the copy that the first one left, and makes a transposed one of its own.

    LLaMA-Factory's own run of Llama 3.2 1B (``stage: pt``, full, ``enable_liger_kernel``, 4 x 1,024 tokens)
    has both at its allocated peak: 22.82 GiB.
    """
    wide = {"method": "full", "precision": "bf16-mixed", "load_dtype": "fp32"}
    head = parts_of(job(**wide, gradient_checkpointing=True, loss="liger"))[-1].template
    alive = most = 0
    for event in head.stages["forward"]:
        slot = event if event >= 0 else ~event
        if slot < len(head.units) and head.unit_bytes[slot] == VOCABULARY * HIDDEN * 2:
            alive += 1 if event >= 0 else -1
            most = max(most, alive)
    assert most == 2


@pytest.mark.parametrize(
    ("sums", "of_16_bit", "of_fp32"), [("never", 0, 0), ("16-bit", 1, 0), ("always", 1, 1)]
)
def test_liger_sums_the_gradient_of_a_trained_head_wide_in_some_versions(
    sums: str, of_16_bit: int, of_fp32: int
) -> None:
    """A product in 16 bits and its fp32 copy, beside the gradient.

    TRL 0.23.1 with liger-kernel 0.6.2 (full, Qwen2.5 7B under ZeRO-3 on eight H100, 2 x 4,001 tokens)
    allocates 22.86 GiB in a dry run, in the loss; without these two it would be 20.6, in the backward pass.
    """
    narrow = {"method": "full", "precision": "bf16", "gradient_checkpointing": True, "loss": "liger"}
    wide = {**narrow, "precision": "bf16-mixed", "load_dtype": "fp32"}
    for more, expected in ((narrow, of_16_bit), (wide, 1 + of_fp32)):
        asked = job(**more, switches=f"liger_sums_wide={sums}")
        head = parts_of(asked)[-1].template
        made = [head.unit_bytes[slot] for slot in head.stages["forward"] if slot >= 0]
        assert made.count(VOCABULARY * HIDDEN * 4) == expected


def test_a_frozen_weight_in_fp32_is_cast_for_each_product_and_never_kept() -> None:
    """Autocast caches what requires a gradient alone (torch 2.13 autocast_mode.cpp cached_cast)."""
    head = parts_of(job(method="qlora", precision="bf16-mixed", loss="liger", gradient_checkpointing=True))[
        -1
    ]
    casts, alive, most = 0, 0, 0
    for event in head.template.stages["forward"]:
        slot = event if event >= 0 else ~event
        if slot < len(head.template.units) and head.template.unit_bytes[slot] == VOCABULARY * HIDDEN * 2:
            casts, alive = casts + (event >= 0), alive + (1 if event >= 0 else -1)
            most = max(most, alive)
    assert (casts, most) == (4, 1)


def test_torchtune_has_the_logits_of_all_eighths_and_an_fp32_copy_of_one() -> None:
    """Two bytes, four of the log-softmax, and an eighth of four; in backward the logits have gone."""
    assert peak(lora(stack="torchtune")) == TOKENS * VOCABULARY * 13 // 2


def test_a_kernel_that_writes_over_the_logits_makes_nothing_else() -> None:
    """Two bytes."""
    assert peak(lora(stack="internevo")) == TOKENS * VOCABULARY * 2


def test_a_loop_that_keeps_the_models_output_has_the_logits_beside_their_gradients() -> None:
    """NeMo AutoModel: two bytes more than others."""
    assert peak(lora(stack="automodel")) == TOKENS * VOCABULARY * 14


def test_transformers_4_widens_logits_in_their_place() -> None:
    """The fp32 logits, their shifted copy and the log-softmax, without the 16-bit logits."""
    asked = job(method="lora", stack="hf-trainer@4", precision="bf16-mixed", gradient_checkpointing=True)
    assert peak(asked) == (TOKENS * 4 + SHIFTED * 8) * VOCABULARY


def test_the_gradient_of_shifted_logits_fits_in_none_of_the_blocks_that_they_left() -> None:
    """Transformers 4.46.3's own run of Qwen2.5 0.5B, 16 x 256 tokens: 9.22 GiB allocated, 11.73 reserved.

    Blocks of fewer rows have come free when the gradient of all rows is made.
    """
    flags = {"stack": "hf-trainer@4", "versions": "transformers==4.46.3", "lora_targets": "q_proj,v_proj"}
    batch = {"model": "qwen2.5-0.5b", "gpu": "a100-80-sxm", "batch": 16, "seq": 256, "attention": "sdpa"}
    dtypes = {"load_dtype": "bf16", "precision": "bf16-mixed", "gradient_checkpointing": True}
    asked = job_by({**flags, **batch, **dtypes, "method": "lora"})
    phases = replayed(asked).phases
    assert max(each.allocated_bytes for each in phases) == pytest.approx(9.22 * GIB, rel=0.002)
    assert max(each.reserved_bytes for each in phases) == pytest.approx(11.73 * GIB, rel=0.002)


def test_a_model_that_leaves_its_logits_in_16_bits_widens_the_log_softmax() -> None:
    """Qwen 1 under autocast: the log-softmax of 2 bytes, its fp32 copy for the loss,
    and that copy's gradient.
    """
    words = 151_936
    asked = job(
        model="qwen-7b", stack="qwen-finetune", method="lora", gradient_checkpointing=True, attention="flash2"
    )
    assert asked.regime.autocast
    # Below, the gradient of the cut log-softmax, the shifted logits' and that of all: (4 + 2) and 2 bytes.
    assert peak(asked, words) == words * max(SHIFTED * (2 + 4 + 4), SHIFTED * 8 + TOKENS * 2)


def test_torch_gives_cross_entropy_to_the_autocast_of_the_cpu_only() -> None:
    """On CUDA cross entropy is a composite whose log-softmax gets its input's dtype by name;
    only ``nll_loss`` is widened.
    """
    torch = import_or_skip("torch")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert not has("aten::cross_entropy_loss", "AutocastCUDA")
    assert has("aten::log_softmax.int", "AutocastCUDA")
    assert has("aten::nll_loss", "AutocastCUDA")


def test_a_shifted_copy_lies_beside_the_fp32_one_that_it_is_made_of() -> None:
    """Transformers 4.46 to 4.48: 2 bytes of the model, 4 of the upcast, 4 of its part,
    4 of the log-softmax.
    """
    asked = lora(stack="hf-trainer@4", versions="transformers==4.47.0", load_dtype="bf16")
    assert peak(asked) == (TOKENS * 6 + SHIFTED * 8) * VOCABULARY


def test_a_loss_that_nobody_uses_keeps_its_log_softmax_beside_another_one() -> None:
    """LLaMA-Factory v1: the same, and 4 bytes of the model's own loss."""
    assert peak(lora(stack="llama-factory-v1", lora_dropout=0)) == (TOKENS * 10 + SHIFTED * 8) * VOCABULARY
    # Liger's kernel needs no log-softmax: logits, the model's copy of them, and the trainer's, shifted.
    liger = "loss_forward=compute+model_loss+float+shifted;loss_backward=compute+compute_grad"
    asked = lora(stack="llama-factory-v1", lora_dropout=0, switches=liger)
    assert peak(asked) == (TOKENS * 10 + SHIFTED * 4) * VOCABULARY


def divided_words(stack: str) -> Job:
    """Where two GPUs have the logits of half the vocabulary each."""
    return job(
        method="full",
        stack=stack,
        task="pretrain",
        gpus=4,
        tensor_parallel=2,
        sharding="fsdp",
        gradient_checkpointing=True,
        checkpoint_policy="full",
    )


def test_words_divided_over_gpus_have_four_wide_tensors_in_backward() -> None:
    """Log-softmax, labels, their sum with the softmax, and the gradient; as torch's own function has them
    (``tests/against_libraries/step_program/test_divided_words.py``).
    """
    assert peak(divided_words("torchtitan@2025"), VOCABULARY // 2) == TOKENS * VOCABULARY // 2 * 16


def test_compiled_forward_over_divided_words_makes_the_gradient_beside_its_labels() -> None:
    """16-bit logits and two wide tensors, as torch 2.13's inductor writes them."""
    assert peak(divided_words("torchtitan-compile"), VOCABULARY // 2) == TOKENS * VOCABULARY // 2 * 10
