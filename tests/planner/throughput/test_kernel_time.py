"""Time by kind of kernel and by rank: joined LoRA kernels, masked attention, old cards, odd vocabularies,
the slowest GPU.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.anatomy.natural_lengths import longest_sample
from planner.catalog.stacks import load_stack
from planner.domain.recipes.recipe import Recipe
from planner.domain.recipes.sharding import ZERO3
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.ops.work import FusedAttention, Product
from planner.throughput.communication import (
    gathered_bytes,
)
from planner.throughput.kernel_time import (
    attention_rate,
    attention_seconds,
    mean_keys,
    newton_schulz_flop,
    optimizer_seconds,
    orthogonalized_params,
    product_seconds,
    update_launch_seconds,
    walk_seconds,
)
from planner.throughput.step_time import predict_time
from planner.throughput.terms import pass_seconds
from planner.throughput.time_inputs import TimedJob, job_of
from planner.throughput.tokens import MicroStep, micro_step, slowest_rank
from tests.jobs import resolved
from tests.planner.throughput.jobs import job

PRIORS = Coefficients()
LORA = {"model": "llama-2-7b", "method": "lora", "gpu": "a100-80-sxm", "seq": "1024", "batch": "4"}
NATURAL = {**LORA, "padding": "longest", "tokens_per_sample": "300"}


def scenario(base: dict[str, str], **changes: str) -> Scenario:
    """A scenario from flags; what would be refused is let pass."""
    return resolved({**base, **changes}, force=True)


def seconds(held: TimedJob, term: str) -> float:
    """One term of a training micro-step."""
    return float(pass_seconds(held, "training")[term])


def with_kernels(kind: str) -> TimedJob:
    """A LoRA job whose stack has adapter kernels of this kind."""
    plain = scenario(LORA)
    return job(replace(plain, stack=replace(plain.stack, adapter_kernels=kind)))


class TestAdapterKernels:
    """LoRA costs traffic of its own, less where its operators are joined."""

    def test_the_more_is_joined_the_less_it_costs(self) -> None:
        """Fused below compiled below separate operators, in seconds and in operators."""
        kinds = ("fused", "fused_apart", "compiled", "eager")
        fused, apart, compiled, eager = (with_kernels(kind) for kind in kinds)
        assert seconds(fused, "adapters") < seconds(apart, "adapters") < seconds(eager, "adapters")
        assert (
            seconds(fused, "adapters")
            < 0.8 * seconds(compiled, "adapters")
            < 0.8 * seconds(eager, "adapters")
        )
        assert seconds(compiled, "launches") < seconds(eager, "launches")

    def test_stacks_with_kernels_of_their_own(self) -> None:
        """Unsloth and Axolotl bring them, compiled recipes get them, PEFT under the Trainer has none."""
        kinds = {
            name: scenario(LORA, stack=name).stack.adapter_kernels
            for name in ("unsloth", "axolotl", "torchtune-compile", "trl")
        }
        assert kinds == {
            "unsloth": "fused",
            "axolotl": "fused_dropped",
            "torchtune-compile": "compiled",
            "trl": "eager",
        }


def test_attention_reaches_its_share_of_the_peak_at_any_length() -> None:
    """Between 0.50 at 2,048 and 0.58 at 8,192 tokens on A100; left-out sources are predicted as well by one
    number.
    """

    def share(tokens: int) -> float:
        held = job(scenario({**LORA, "padding": "packed", "batch": "1", "seq": str(tokens)}))
        flop = 4 * 4096 * 32 * tokens * (tokens + 1) / 2 * (1 + 2.5 + held.passes - 1)
        return flop / seconds(held, "attention") / held.rates.peak_flop_per_s

    for tokens in (512, 4096, 65536):
        assert share(tokens) == pytest.approx(PRIORS.attention_efficiency)


def test_a_kernel_has_a_time_of_its_own_beside_its_bytes() -> None:
    """Half the tokens take more than half of the time, by a few microseconds for each kernel;
    what checkpointing runs in Python launches nothing.
    """
    long, short = (job(scenario({**LORA, "padding": "packed", "seq": each})) for each in ("4096", "2048"))
    apart = 2 * seconds(short, "elementwise") - seconds(long, "elementwise")
    bare = job_of(short.scenario, replace(PRIORS, kernel_s=0.5e-6))
    assert bare is not None
    starts = (seconds(short, "elementwise") - seconds(bare, "elementwise")) * 2.5 / 2
    assert apart == pytest.approx(starts, rel=0.02)
    assert 0 < starts < pass_seconds(short, "training")["launches"] * PRIORS.kernel_s


def test_chunks_of_a_delta_rule_take_what_was_measured() -> None:
    """96 heads of 128 features on 8,192 tokens: 1.20 ms forward and 4.18 backward on a B200, 3.20 forward on
    an H20 (pytorch/helion examples/linear/BENCHMARKS.md, MoonshotAI/FlashKDA BENCHMARK_H20.md).

    Their bytes, about 4 KB for each head and token forward, take 0.5 and 0.9 ms of it.
    """
    macs = 8192 * 96 * (64 * (3 * 128 + 2 * 128) + 3 * 128 * 128)
    for gpu, forward_s in (("b200", 1.20e-3 - 0.5e-3), ("h20", 3.20e-3 - 0.9e-3)):
        held = job(scenario(LORA, gpu=gpu))
        found = product_seconds(held, Product("bf16", chunked=True), macs, held.values)
        assert found == pytest.approx(forward_s, rel=0.55)
        assert found > 1.5 * product_seconds(held, Product("bf16"), macs, held.values)


class TestMaskedAttention:
    """A mask takes torch's attention away from its fastest kernel."""

    def test_padding_costs_the_square_at_the_rate_of_the_kernel_that_takes_masks(self) -> None:
        """Twice the triangle's work, at the efficiency of the first FlashAttention instead of the second."""
        padded = job(scenario({**LORA, "padding": "max_length", "tokens_per_sample": "700"}))
        full = job(scenario({**LORA, "padding": "packed"}))
        slower = 2 * 1024 / 1025 * PRIORS.attention_efficiency / PRIORS.attention_efficiency_flash1
        assert seconds(padded, "attention") / seconds(full, "attention") == pytest.approx(slower, rel=0.003)

    @pytest.mark.parametrize(
        ("gpu", "forward", "backward"), [("h200-sxm", 131, 42), ("b200", 172, 51), ("h20", 62, 27)]
    )
    def test_wide_heads_take_what_was_measured(self, gpu: str, forward: float, backward: float) -> None:
        """TFLOP/s of torch's memory-efficient kernel, heads of 512 features, 8,192 tokens, causal, bf16
        (xlite-dev/ffpa-attn bench/README.md at 92e1d3b).
        """
        asked = job(scenario(LORA, gpu=gpu))
        kind = FusedAttention("efficient", (512, 512), "triangle")
        assert attention_rate(asked, kind) / 1e12 == pytest.approx(forward, rel=0.3)
        assert attention_rate(asked, replace(kind, backward=True)) / 1e12 == pytest.approx(backward, rel=0.08)

    def test_a_window_of_wide_heads_takes_what_was_measured(self) -> None:
        """A layer of Gemma 4 with a mask, 16 heads of 256 features on 8,192 tokens of an H200: 72 ms forward
        and backward (verl-project/verl#7131), before cuDNN is asked first.
        """
        flags = {**LORA, "seq": "8192", "batch": "1", "padding": "packed", "versions": "torch==2.10.0"}
        asked = job(scenario(flags, gpu="h200-sxm"))
        kind = FusedAttention("efficient", (256, 256), "square")
        passes = ((kind, 2), (replace(kind, backward=True), 5))
        found = sum(
            attention_seconds(asked, one, products * 16 * 256, asked.values) for one, products in passes
        )
        assert found == pytest.approx(0.072, rel=0.05)

    @pytest.mark.parametrize(
        ("gpu", "widths", "takes"),
        [
            ("h100-sxm", (256, 256), True),
            ("b200", (128, 128), True),
            ("b200", (192, 128), True),
            ("b200", (256, 256), False),
            ("h100-sxm", (512, 512), False),
        ],
    )
    def test_cudnn_takes_heads_up_to_a_width(self, gpu: str, widths: tuple[int, int], takes: bool) -> None:
        """The wider ones fall to the kernel that takes masks, or to FlashAttention."""
        asked = job(scenario(LORA, gpu=gpu, attention="sdpa"))
        for kernel in ("flash", "efficient"):
            rate = attention_rate(asked, FusedAttention(kernel, widths, "triangle"))
            assert (rate == asked.rates.cudnn_attention_flop_per_s) == takes

    def test_volta_has_no_flash_attention_2(self) -> None:
        """The same share of the peak as with a mask, whatever the stack's generation."""
        old = job(scenario(LORA, gpu="v100-32-sxm2", precision="fp16-mixed"))
        assert old.rates.attention_flop_per_s == old.rates.masked_attention_flop_per_s


def slowest(recipe: Recipe, *, sorts_lengths: bool = False) -> MicroStep:
    """The slowest of eight GPUs."""
    stack = replace(load_stack("hf-trainer"), sorts_lengths=sorts_lengths)
    return slowest_rank(micro_step(recipe, PRIORS, stack), recipe, PRIORS, 8, stack)


class TestSlowestRank:
    """A job runs at the pace of the GPU that has the longest samples."""

    def test_micro_steps_that_meet_wait_for_the_longest_of_all_samples(self) -> None:
        """ZeRO-3 over 8 GPUs with batch 4: the longest of 32 samples,
        while tokens are counted by the mean.
        """
        alone, together = scenario(NATURAL), scenario(NATURAL, sharding="zero3", gpus="8")
        paced, mean = job(together).micro, job(together).mean_micro
        variation = PRIORS.length_variation
        longest = longest_sample(together.recipe.batch, 32, variation, drops_long=False)
        assert paced.length == pytest.approx(float(longest.tokens))
        assert mean == job(alone).micro
        answer = predict_time(together, PRIORS)
        assert answer is not None
        assert answer.tokens_per_s == pytest.approx(8 * mean.real / answer.step_s)

    def test_accumulation_averages_the_excess_out_under_ddp(self) -> None:
        """Sixteen micro-steps before DDP meets leave a quarter of the excess;
        ZeRO-3 meets in each and keeps all of it.
        """
        once, many = (
            scenario(NATURAL, sharding="ddp", gpus="8", grad_accum=count).recipe for count in ("1", "16")
        )
        own = micro_step(once, PRIORS, load_stack("hf-trainer")).length
        excess = slowest(once).length - own
        assert slowest(many).length - own == pytest.approx(excess / 4)
        meets = replace(many, sharding=ZERO3)
        assert slowest(meets).length - own == pytest.approx(excess)

    def test_equal_lengths_and_sorted_ones_wait_for_nobody(self) -> None:
        """Packed samples are alike, and a sampler that sorts by length gives all GPUs like ones."""
        packed = scenario({**LORA, "padding": "packed"}, sharding="ddp", gpus="8").recipe
        assert slowest(packed) == micro_step(packed, PRIORS, load_stack("hf-trainer"))
        natural = scenario(NATURAL, sharding="ddp", gpus="8").recipe
        sorting = replace(load_stack("hf-trainer"), sorts_lengths=True)
        assert slowest(natural, sorts_lengths=True) == micro_step(natural, PRIORS, sorting)


def test_a_sample_alone_has_a_mask_where_its_length_is_rounded_up() -> None:
    """Then torch computes the whole square of the scores, of more heads, and no causal half of them.

    LoRA of Qwen3-8B on samples of up to 25,070 tokens, each alone and padded to a multiple of eight, lasts
    1 h 24 min (``appworld_sft``): 1 h 26 min with a mask, 1 h 01 min without.
    """
    alone = {**NATURAL, "batch": "1", "seq": "16384", "tokens_per_sample": "4096", "stack": "hf-loop"}
    plain, rounded = scenario(alone), scenario(alone, switches="rounds_lengths=true")
    assert (job(plain).micro.has_mask, job(rounded).micro.has_mask) == (False, True)
    assert seconds(job(rounded), "attention") > 2 * seconds(job(plain), "attention")
    full = scenario({**alone, "tokens_per_sample": "16384"}, switches="rounds_lengths=true")
    assert not job(full).micro.has_mask


def test_an_odd_vocabulary_doubles_the_head() -> None:
    """Rows of 50,257 16-bit logits are not aligned to 16 bytes; of 50,264 they are;
    in fp32 there are no tensor cores to feed.
    """

    def matmul(vocab_size: int, precision: str = "bf16-mixed") -> float:
        gpt2 = scenario({**LORA, "model": "gpt2", "method": "full"}, precision=precision)
        model, head = gpt2.model, replace(gpt2.model.head, out_features=vocab_size)
        return seconds(job(replace(gpt2, model=replace(model, vocab_size=vocab_size, head=head))), "matmul")

    rest, shared = matmul(8), 50257 / 50264
    assert (matmul(50257) - rest) / (matmul(50264) - rest) == pytest.approx(2 * shared, rel=0.05)
    assert matmul(50257, "fp32") == pytest.approx(matmul(50264, "fp32"), rel=0.001)


def test_products_in_8_bits_run_at_the_rate_of_8_bits() -> None:
    """Those of the layers, not that of the head; FSDP2 then sends half of the bytes."""
    flags = {"model": "llama-3.1-8b", "method": "full", "gpu": "h100-sxm:8", "stack": "torchtitan-compile"}
    flags |= {"seq": "8192", "batch": "1", "gradient_checkpointing": "false"}
    wide, narrow = (job(scenario(flags, fp8=fp8)) for fp8 in ("none", "tensorwise-gathered"))
    # Measured on the card: less than twice as fast, as the sheet has it.
    times = narrow.rates.fp8_flop_per_s / narrow.rates.matmul_flop_per_s
    assert 1.5 < times < 2
    head = 3 * 2 * 8192 * 4096 * 128256 / wide.rates.matmul_flop_per_s
    in_16, in_8 = (pass_seconds(each, "training")["matmul"] for each in (wide, narrow))
    assert in_8 - head == pytest.approx((in_16 - head) / times, rel=0.05)
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert gathered_bytes(wide) - gathered_bytes(narrow) == pytest.approx(2 * layers * 7 / 8)


def test_muon_leaves_experts_in_one_tensor_to_adamw() -> None:
    """Granite 3.0 1B-A400M: 24 layers of 1,024 features with 16 heads, 8 of keys, and 32 experts of 512.

    LLaMA-Factory's Muon steps tensors of two dimensions: attention and router; adapters of the experts have
    32 times the rank.
    """
    held = scenario({**LORA, "model": "granite-3.0-1b-a400m"})
    square, keys, router = (1024, 1024), (512, 1024), (32, 1024)
    matrices = [square, square, keys, keys, router]
    assert orthogonalized_params(held.model, held.stack) == 24 * sum(
        rows * columns for rows, columns in matrices
    )
    assert newton_schulz_flop(held.model, held.stack) == 24 * sum(iterated_flop(*sides) for sides in matrices)


def iterated_flop(rows: int, columns: int) -> int:
    """FLOP of five iterations over a matrix: twice with its longer side, once of squares."""
    shorter, longer = sorted((rows, columns))
    return 5 * 2 * (2 * longer * shorter**2 + shorter**3)


def test_muon_steps_one_adapter_of_all_experts() -> None:
    """Each factor of an adapter of 32 experts in one tensor has 32 ranks, as PEFT's ParamWrapper makes it."""
    flags = {**LORA, "model": "granite-3.0-1b-a400m", "stack": "axolotl", "lora_rank": "4"}
    held = scenario(flags, lora_targets="param:mlp.experts.down_proj")
    found = newton_schulz_flop(held.model, held.stack, held.recipe.adapter)
    assert found == 24 * (iterated_flop(4 * 32, 512) + iterated_flop(4 * 32, 1024))


def test_window_counts_the_band() -> None:
    """Five tokens with a window of three meet 1, 2, 3, 3 and 3 keys."""
    kind = FusedAttention("flash", (1, 1), "band", 3)
    assert mean_keys(kind, 5) == pytest.approx((1 + 2 + 3 + 3 + 3) / 5)
    assert mean_keys(kind, 2) == pytest.approx((1 + 2) / 2)


def test_a_trainer_walks_through_all_modules() -> None:
    """One operator's time for each module that a pass calls: 12 in each of 28 layers, and 4 around them.
    A loop of one's own hands the optimizer its parameters.
    """
    said = {"model": "qwen2.5-1.5b", "method": "full", "gpu": "h100-sxm", "seq": "512"}
    held = job(scenario(said))
    assert held.called_modules == pytest.approx(28 * 12 + 4, abs=1)
    assert walk_seconds(held) == held.called_modules * held.coefficients.launch_s
    assert walk_seconds(job(scenario(said, stack="hf-loop"))) == 0


def test_optimizers_that_step_tensor_by_tensor_wait_for_the_host() -> None:
    """Adafactor of Transformers takes nine operators' time for each tensor, fused AdamW one."""
    said = {"model": "qwen2.5-0.5b", "method": "full", "gpu": "h100-sxm", "seq": "512"}
    sums, fused = (job(scenario(said, optimizer=name)) for name in ("adafactor", "adamw_torch_fused"))
    issue = sums.trained_tensors * sums.coefficients.launch_s
    assert update_launch_seconds(sums) == pytest.approx(9 * issue)
    assert update_launch_seconds(sums) > optimizer_seconds(sums)
    assert update_launch_seconds(fused) == pytest.approx(issue)
