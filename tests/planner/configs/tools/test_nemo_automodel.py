"""Recipes of NeMo AutoModel: what a key means there, what is refused, and bytes beside its own dry run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import NotModelledError, UsageError
from planner.intake.given.config_file import with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.predicting import estimate
from planner.units import GIB
from tests.files import read as read_file
from tests.files import reading_of as read

CLASS = "_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained"
LOSS = "loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy}\n"
ADAM = "optimizer: {_target_: torch.optim.Adam, lr: 1.0e-5}\n"
LORA = "peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, dim: 8, target_modules: '*_proj'}\n"
CHECKPOINTS = "distributed: {strategy: fsdp2, activation_checkpointing: true}\n"


def model(name: str, more: str = "") -> str:
    """The table of a checkpoint in bf16."""
    return f"model: {{{CLASS}, pretrained_model_name_or_path: {name}, torch_dtype: bf16{more}}}\n"


def rows(length: int = 1024) -> str:
    """Rows of one length, as its benchmarks have them."""
    return f"dataset: {{_target_: a.MockIterableDataset, seq_len: {length}}}\n"


def steps(total: int) -> str:
    """So many samples a step, two at a time on each GPU."""
    return f"step_scheduler: {{global_batch_size: {total}, local_batch_size: 2}}\n"


BASE = steps(4) + rows() + LOSS + ADAM
LLAMA_1B, LLAMA_8B, QWEN_7B = "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B"


@pytest.mark.parametrize(
    ("text", "gpu", "allocated", "reserved"),
    [
        (model(LLAMA_1B) + BASE, "h100-sxm", 15.50, 15.59),
        (model(LLAMA_1B) + BASE + CHECKPOINTS, "h100-sxm", 13.18, 15.47),
        (model(LLAMA_1B) + BASE + LORA, "h100-sxm", 8.65, 9.77),
        (model(QWEN_7B) + steps(8) + rows() + LOSS + ADAM, "h200-sxm:2", 66.83, 84.15),
        (model(LLAMA_8B) + steps(8) + rows() + LOSS + ADAM + LORA, "h100-sxm:2", 23.70, 27.13),
        (model(LLAMA_8B) + steps(8) + rows(2048) + LOSS + ADAM + CHECKPOINTS, "h100-sxm:4", 24.53, 37.13),
    ],
)
def test_bytes_beside_the_dry_run(
    tmp_path: Path, text: str, gpu: str, allocated: float, reserved: float
) -> None:
    """GiB of ``measure trace`` of its own recipe, as one rank of so many.

    nemo-automodel 0.5.0 (36044ad3d), torch 2.13, Transformers 5.12.1; LoRA on one card with 5.23.
    In the place of the compiled norm stands torch's fused one, which keeps the same tensors.
    """
    request = with_flags(read_file(tmp_path, text), from_flags({"gpu": gpu}))
    memory = estimate(resolve(request)).memory
    assert float(memory.allocated_peak_bytes) / GIB == pytest.approx(allocated, rel=0.005)
    assert float(memory.reserved_peak_bytes) / GIB == pytest.approx(reserved, rel=0.02)


QWEN_06B, GRANITE = "Qwen/Qwen3-0.6B", "ibm-granite/granite-3.3-2b-instruct"
EAGER = ", attn_implementation: eager"
ALL = LORA.replace("target_modules: '*_proj'", "match_all_linear: true")
ONE = "step_scheduler: {global_batch_size: 8, local_batch_size: 1}\n" + LOSS + ADAM


@pytest.mark.parametrize(
    ("text", "allocated", "reserved"),
    [
        (model(LLAMA_1B) + ONE + rows(), 5.15, 10.31),
        (model(LLAMA_1B) + ONE + rows() + LORA, 4.57, 6.16),
        (model(LLAMA_1B, ", force_hf: true") + ONE + rows() + CHECKPOINTS, 4.33, 9.05),
        (model(QWEN_06B) + ONE + rows(), 5.05, 7.18),
        (model("Qwen/Qwen3-8B") + steps(16) + LOSS + ADAM + rows(4096) + CHECKPOINTS, 33.95, 40.76),
        (model(GRANITE) + ONE + rows(), 7.14, 9.48),
        (model(GRANITE) + ONE + rows() + ALL, 5.65, 6.50),
        (model("CohereForAI/c4ai-command-r7b-12-2024") + ONE + rows(), 19.72, 43.48),
        (model("microsoft/phi-2") + ONE + rows(), 7.63, 10.52),
        (model("allenai/OLMo-2-0425-1B-Instruct") + ONE + rows(), 5.74, 10.18),
        (model("google/gemma-3-270m", EAGER) + ONE + rows(), 5.78, 7.85),
        (model("google/gemma-7b", EAGER) + ONE + rows(), 23.46, 41.84),
        (
            model("zai-org/glm-4-9b-chat-hf") + steps(16) + LOSS + ADAM + rows(2048) + CHECKPOINTS + LORA,
            14.39,
            17.93,
        ),
    ],
)
def test_tied_heads_and_classes_of_transformers(
    tmp_path: Path, text: str, allocated: float, reserved: float
) -> None:
    """GiB of the same dry run, as one of eight, beside Transformers 5.23 and without liger-kernel.

    It had Phi-2 without its dropout.
    """
    request = with_flags(read_file(tmp_path, text), from_flags({"gpu": "h100-sxm:8"}))
    scenario = resolve(request)
    memory = estimate(replace(scenario, model=scenario.model.without_dropout)).memory
    assert float(memory.allocated_peak_bytes) / GIB == pytest.approx(allocated, rel=0.005)
    assert float(memory.reserved_peak_bytes) / GIB == pytest.approx(reserved, rel=0.02)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (model("bigcode/starcoder2-7b") + BASE, "layers of .*starcoder2-7b.* are not modelled"),
        (model(LLAMA_8B, ", backend: {attn: te}") + BASE, "attn: te is not modelled; sdpa is"),
        (model(LLAMA_8B, ", backend: {rms_norm: quack}") + BASE, "torch and torch_fp32 are"),
        (model(LLAMA_8B, ", backend: {te_fp8: {recipe: mxfp8}}") + BASE, "fp8"),
        (model(LLAMA_8B, ", backend: {tiles: 2}") + BASE, "was not read"),
        (model(LLAMA_8B, ", force_hf: true, backend: {attn: sdpa}") + BASE, "AutoModel's own"),
        (model("microsoft/phi-2", ", backend: {attn: sdpa}") + BASE, "AutoModel's own"),
        (model(LLAMA_8B) + BASE + "recipe: KnowledgeDistillationRecipe\n", "KnowledgeDistillationRecipe"),
        (model(LLAMA_8B, ", attn_implementation: flex_attention") + BASE, "sdpa is"),
        (model("microsoft/phi-2", ", attn_implementation: te") + BASE, "sdpa is"),
        (model(LLAMA_8B) + BASE + "packed_sequence: {packed_sequence_size: 4096}\n", "Transformer Engine"),
        (model(LLAMA_8B) + BASE + "distributed: {tp_size: 2}\n", "a tensor-parallel degree of 2"),
        (model(LLAMA_8B) + BASE + "distributed: {strategy: megatron_fsdp}\n", "fsdp2 is"),
        (model(LLAMA_8B) + BASE + "distributed: {_target_: a.FSDP2Manager}\n", "AutoModel before 0.3"),
        (model(LLAMA_8B) + BASE + "distributed: {activation_checkpointing: selective}\n", "true is"),
        (model(LLAMA_8B) + BASE.replace("masked_ce.Masked", "te_parallel_ce.TEParallel"), "the loss"),
        (model(LLAMA_8B) + BASE.replace("torch.optim.Adam", "flashoptim.FlashAdamW"), "optimizer"),
        (model(LLAMA_8B) + BASE + LORA + "quantization: {load_in_4bit: true}\n", "a packed base"),
        (model(LLAMA_8B) + BASE + "compile: {enabled: true}\n", "compiled models"),
        (model(LLAMA_8B) + BASE + LORA.replace("dim: 8", "use_dora: true"), "DoRA"),
        (model(LLAMA_8B).replace("bf16", "float32") + BASE, "weights in float32"),
        (model(LLAMA_8B) + BASE + "moe_capacity: 2\n", "unknown key"),
        (model(LLAMA_8B, ", rope_theta: 7") + BASE, "changed values"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    """Each by a sentence of its own."""
    with pytest.raises(NotModelledError, match=sentence):
        read(tmp_path, text)


def test_rows_of_unknown_length_ask_for_one(tmp_path: Path) -> None:
    """Its data sets cut nothing unless ``seq_length`` says so."""
    found = read(tmp_path, model(LLAMA_8B) + steps(8) + LOSS + ADAM + "dataset: {_target_: a.SQuAD}\n")
    assert "say --seq" in found.needs["seq"]
    assert found.value("padding") == "longest"
    assert found.total_batch is not None
    assert found.total_batch[0] == 8


HIDDEN = ", output_hidden_states: true"
FUSED = BASE.replace("masked_ce.Masked", "linear_ce.FusedLinear")


def test_the_fused_loss_is_cut_cross_entropy_over_all_hidden_states(tmp_path: Path) -> None:
    """Its kernel is that of Axolotl's plugin; the model returns what each layer takes beside it."""
    found = read(tmp_path, model(LLAMA_8B, HIDDEN) + FUSED)
    assert found.value("loss") == "liger"
    assert {name: value for name, (value, _) in found.switches.items()} == {
        "cut_cross_entropy": "true",
        "keeps_hidden_states": "true",
    }


def test_the_fused_loss_asks_for_hidden_states(tmp_path: Path) -> None:
    """AutoModel stops at the first step without them."""
    with pytest.raises(UsageError, match="output_hidden_states"):
        read(tmp_path, model(LLAMA_8B) + FUSED)


def test_adapters_on_all_linears_leave_the_head_out_of_the_fused_loss(tmp_path: Path) -> None:
    """Which reads its weight alone, so that its adapter gets no gradient."""
    whole, fused = (read(tmp_path, model(LLAMA_8B, HIDDEN) + base + ALL) for base in (BASE, FUSED))
    assert "lm_head" not in str(whole.value("lora_targets"))
    assert "lm_head" in str(fused.value("lora_targets"))
    assert any("adapter of the head" in remark.text for remark in fused.remarks)
    assert peak(tmp_path, model(LLAMA_8B, HIDDEN) + FUSED + ALL) > 0


def peak(folder: Path, text: str, switches: str | None = None) -> float:
    """Bytes allocated at most, on one card."""
    given = from_flags({"gpu": "h100-sxm", "switches": switches})
    return float(estimate(resolve(with_flags(read_file(folder, text), given))).memory.allocated_peak_bytes)


def test_dropout_behind_adapters_keeps_a_mask_of_what_they_add(tmp_path: Path) -> None:
    """9.34 GiB of the same dry run, as one card, of which 8.65 are there without dropout."""
    dropped = LORA.replace("dim: 8", "dim: 8, dropout: 0.1")
    assert peak(tmp_path, model(LLAMA_1B) + BASE + dropped) / GIB == pytest.approx(9.34, rel=0.005)


def test_hidden_states_that_are_returned_live_through_backward(tmp_path: Path) -> None:
    """Beside adapters nothing grows as layers go back: what is held is what the last norm and layer leave."""
    text = model(LLAMA_8B, HIDDEN) + FUSED + LORA
    between = peak(tmp_path, text) - peak(tmp_path, text, "keeps_hidden_states=false")
    assert between in {n * 2 * 1024 * 4096 * 2 for n in (1, 2, 3)}


def test_a_benchmark_and_backends_of_torch_change_nothing(tmp_path: Path) -> None:
    """Its loop is the same step, and dense classes read the norm and the rotary kernel of a backend alone."""
    plain = read(tmp_path, model(LLAMA_8B) + BASE)
    backend = ", backend: {_target_: a.BackendConfig, attn: sdpa, rms_norm: torch_fp32, rope_fusion: true}"
    bench = "recipe: BenchmarkingRecipeForNextTokenPrediction\nbenchmark: {warmup_steps: 2}\n"
    other = read(tmp_path, model(LLAMA_8B, backend) + BASE + bench)
    assert {name: said.value for name, said in other.said.items()} == {
        name: said.value for name, said in plain.said.items()
    }
    assert other.switches == plain.switches


def test_a_class_of_distribution_is_dropped_where_the_file_names_its_recipe(tmp_path: Path) -> None:
    """Files name one since 0.4, in which ``strategy`` alone is read."""
    given = "distributed: {_target_: a.FSDP2Manager, tp_size: 1}\n"
    found = read(
        tmp_path, model(LLAMA_8B) + BASE + given + "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
    )
    assert found.several is not None
    assert found.several[0] == "fsdp"
    assert any("has no effect" in remark.text for remark in found.remarks)


def test_eager_attention_of_own_classes_is_that_of_transformers(tmp_path: Path) -> None:
    """They import the function."""
    assert read(tmp_path, model(LLAMA_8B, EAGER) + BASE).value("attention") == "eager"


CHAT = "dataset: {_target_: a.ChatDataset, seq_length: 2000"
MULTIPLE = "dataloader: {collate_fn: {_target_: a.default_collater, pad_seq_len_divisible: %d}}\n"


@pytest.mark.parametrize("truncation", ["", ", truncation: false", ", truncation: do_not_truncate"])
def test_a_length_without_truncation_cuts_nothing(tmp_path: Path, truncation: str) -> None:
    """The tokenizer passes longer samples on."""
    found = read(tmp_path, model(LLAMA_8B) + steps(8) + LOSS + ADAM + CHAT + truncation + "}\n")
    assert "without truncation" in found.needs["seq"]
    assert found.value("seq") is None


@pytest.mark.parametrize(
    ("multiple", "seq", "padding"), [(16, 2000, "longest"), (64, 2048, "longest"), (2048, 2048, "max_length")]
)
def test_batches_are_made_multiples(tmp_path: Path, multiple: int, seq: int, padding: str) -> None:
    """Of the collate function; a multiple as long as the samples makes all batches that long."""
    text = model(LLAMA_8B) + steps(8) + LOSS + ADAM + CHAT + ", truncation: true}\n" + MULTIPLE % multiple
    found = read(tmp_path, text)
    assert (found.value("seq"), found.value("padding")) == (seq, padding)


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("Qwen/Qwen3-30B-A3B", "--model qwen3-30b-a3b --stack torchtitan@2025 --expert-parallel N"),
        ("mistralai/Mixtral-8x7B-v0.1", "by flags"),
    ],
)
def test_mixtures_are_refused_with_a_way_out(tmp_path: Path, name: str, way_out: str) -> None:
    """Torchtitan divides its own in the same way, where it has such a model."""
    with pytest.raises(NotModelledError, match=way_out):
        read(tmp_path, model(name) + BASE + "distributed: {strategy: fsdp2, ep_size: 8}\n")


def test_sizes_of_loaders(tmp_path: Path) -> None:
    """A loader of training has no other size than the scheduler says; that of evaluation may."""
    base = model(LLAMA_1B) + BASE
    with pytest.raises(NotModelledError, match="batches of another size than step_scheduler"):
        read(tmp_path, base + "dataloader: {batch_size: 4}\n")
    assert read(tmp_path, base + "dataloader: {batch_size: 2}\n").value("eval_batch") is None
    text = base + "validation_dataset: {_target_: a.B}\nvalidation_dataloader: {batch_size: 32}\n"
    assert read(tmp_path, text).value("eval_batch") == 32
    longer = text.replace("a.B", "a.B, seq_length: 2048")
    assert read(tmp_path, longer).value("eval_batch") == 64


def test_answers_between_steps(tmp_path: Path) -> None:
    """FSDP2 leaves them out unless it is told to make them."""
    text = model(LLAMA_1B) + BASE + "tool_call_eval: {_target_: a.B, run_on_fsdp2: true}\n"
    with pytest.raises(NotModelledError, match="answers that the model makes"):
        read(tmp_path, text)
    assert not read(tmp_path, text.replace("true", "false")).ignored
