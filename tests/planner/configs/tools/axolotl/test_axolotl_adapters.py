"""What an Axolotl file trains, over which base."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import REFUSED_BY_TOOL, InputFileError, NotModelledError, PlannerError, UsageError
from tests.files import read

BASE = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nlora_r: 16\n"
FOUR_BITS = BASE + "adapter: qlora\nload_in_4bit: true\nbnb_config_kwargs:\n"
FOUR_BITS_OF_LORA = BASE + "adapter: lora\nload_in_4bit: true\n"
OLD = "local_rank:\n"
EXPERTS = "quantize_moe_experts: true\n"


@pytest.mark.parametrize(
    ("text", "quantization", "doubly"),
    [
        (BASE + "adapter: lora\n", None, None),
        (BASE + "adapter: lora\nload_in_8bit: true\n", "int8", None),
        (BASE + "adapter: lora\nload_in_8bit: true\nload_in_4bit: true\n", "int8", None),
        (BASE + "adapter: qlora\nload_in_4bit: true\n", "nf4", True),
        (FOUR_BITS + "  bnb_4bit_quant_type: fp4\n", "fp4", True),
        (FOUR_BITS + "  bnb_4bit_use_double_quant: false\n  llm_int8_threshold: 6.0\n", "nf4", False),
        (FOUR_BITS.replace("qlora", "lora") + "  bnb_4bit_quant_type: nf4\n" + OLD, "fp4", None),
        (FOUR_BITS_OF_LORA + OLD, "fp4", None),
        (FOUR_BITS_OF_LORA, "fp4", None),
    ],
)
def test_the_base_of_adapters(
    tmp_path: Path, text: str, quantization: str | None, doubly: bool | None
) -> None:
    """Axolotl's own settings are for its two words alone; up to 0.12 Transformers had the others."""
    request = read(tmp_path, text).request
    assert (request.get("quantization"), request.get("double_quant")) == (quantization, doubly)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            FOUR_BITS_OF_LORA + "attn_implementation: sdpa\n",
            UsageError,
            "or --stack axolotl@0.8 for 0.4 to 0.12 " + REFUSED_BY_TOOL.join("[]"),
        ),
        (BASE + "adapter: qlora\n", UsageError, "load_in_4bit is not true"),
        (FOUR_BITS_OF_LORA + "wandb_run_id:\n", NotModelledError, "as Axolotl of 2023 reads it"),
        (BASE + "load_in_4bit: true\n", UsageError, "through adapters only"),
        (FOUR_BITS + "  bnb_4bit_quant_type: int8\n", InputFileError, "nf4 or fp4"),
        (FOUR_BITS + "  llm_int8_skip_modules: [q_proj]\n", NotModelledError, "llm_int8_skip_modules"),
        (BASE + "adapter: lora\n" + EXPERTS, UsageError, "load_in_4bit or load_in_8bit"),
        (EXPERTS + "lora_target_linear: true\n" + FOUR_BITS, UsageError, "beside lora_target_linear"),
        (EXPERTS + FOUR_BITS + "  bnb_4bit_use_double_quant: false\n", NotModelledError, "scales of experts"),
    ],
)
def test_a_base_that_is_not_trained_so_is_refused(
    tmp_path: Path, text: str, error: type[PlannerError], message: str
) -> None:
    """Since 0.13 a base in 4 bits beside ``adapter: lora`` stops with an error, as the tool's own dry run
    does: its kernels multiply bf16 with matrices that stay in fp32.
    """
    with pytest.raises(error) as found:
        read(tmp_path, text)
    assert message in str(found.value)


def test_words_of_transformers_that_axolotl_drops_change_nothing(tmp_path: Path) -> None:
    """They are no keys of its schema; the answer says so."""
    config = read(tmp_path, BASE + "adapter: lora\nbnb_4bit_quant_type: fp4\ntorch_dtype: float32\n")
    assert (config.request.get("quantization"), config.request.get("load_dtype")) == (None, None)
    assert sum("no key of Axolotl" in remark.text for remark in config.remarks) == 2


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("", True),
        ("lora_o_kernel: true\n", True),
        ("lora_mlp_kernel: false\n", False),
        ("lora_embedding_kernel: true\n", False),
        ("load_in_8bit: true\n", False),
        (OLD, False),
    ],
)
@pytest.mark.parametrize("head", ["reward_model: true\n", "process_reward_model: true\n"])
def test_fused_kernels_stop_at_heads_of_rewards(tmp_path: Path, head: str, text: str, stops: bool) -> None:
    """PEFT wraps such a model as another than a causal one,
    which the tool's own dry run ends at with a TypeError.
    """
    if not stops:
        assert read(tmp_path, BASE + "adapter: lora\n" + head + text).request.get("method") == "lora"
        return
    with pytest.raises(UsageError, match=r"say lora_mlp_kernel: false \[refused-by-its-tool\]"):
        read(tmp_path, BASE + "adapter: lora\n" + head + text)


@pytest.mark.parametrize(
    "bits", ["adapter: qlora\nload_in_4bit: true\n", "adapter: lora\nload_in_8bit: true\n"]
)
def test_experts_are_packed_as_they_are_loaded(tmp_path: Path, bits: str) -> None:
    """The loader then takes no piece for all of the model before."""
    switches = read(tmp_path, BASE + bits + EXPERTS).request.get("switches")
    assert {"quantizes_experts=held", "loader_reserves=nothing"} <= set(switches)
    assert "quantizes_experts=held" not in (read(tmp_path, BASE + bits).request.get("switches") or ())


def test_fused_kernels_stop_over_eight_bits(tmp_path: Path) -> None:
    """As Axolotl's own check of the file does; without them the base is int8."""
    eight = BASE + "adapter: lora\nload_in_8bit: true\n"
    with pytest.raises(UsageError, match=r"lora_qkv_kernel.*over 8 bits.*refused-by-its-tool"):
        read(tmp_path, eight + "lora_qkv_kernel: true\n")
    assert read(tmp_path, eight).request.get("quantization") == "int8"
