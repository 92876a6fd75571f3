"""Dtypes, kernels and losses of Axolotl's files, value by value."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.anatomy.quantized_matrices import as_built
from planner.errors import REFUSED_BY_TOOL, NotModelledError, UsageError
from planner.intake.given.config_file import with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from tests.files import filled, read

BASE = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\n"


LORA = BASE + "adapter: lora\nlora_r: 16\n"


LLAMA = LORA.replace("Qwen/Qwen2.5-0.5B", "huggyllama/llama-7b")


OFF, APART, FUSED = (False, "eager"), (False, "fused_apart"), (False, "fused_dropped")


def kernels_of(folder: Path, text: str) -> tuple[bool, str]:
    """Whether the activation runs fused without adapters, and adapters do, on one card."""
    stack = filled(read(folder, text), {"gpu": "a100-80-sxm"}).stack
    return stack.fused_mlp, stack.adapter_kernels


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        ("", FUSED),
        ("lora_dropout: 0.05\n", FUSED),
        ("lora_mlp_kernel: true\n", (True, "eager")),
        ("lora_qkv_kernel: true\nlora_o_kernel: true\n", OFF),
        ("lora_mlp_kernel: true\nlora_qkv_kernel: true\nlora_o_kernel: true\n", FUSED),
        ("lora_mlp_kernel: false\n", OFF),
        ("lora_embedding_kernel: true\n", OFF),
        ("lora_embedding_kernel: false\n", OFF),
        ("load_in_8bit: true\n", OFF),
        ("trust_remote_code: true\n", OFF),
        ("fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n", OFF),
        ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n", FUSED),
        ("fsdp_config: {fsdp_version: 2, reshard_after_forward: true}\n", OFF),
        # Before 0.16 dropout kept the kernels off, and before 0.10 nothing turned them on.
        ("flash_attention: true\n", OFF),
        ("flash_attention: true\nlora_dropout: 0\n", APART),
        ("flash_attention: true\nlora_dropout: 0.05\n", OFF),
        ("flash_attention: true\nlocal_rank:\n", OFF),
        # Those of then make the product of an adapter apart.
        (
            "lora_mlp_kernel: true\nlora_qkv_kernel: true\nlora_o_kernel: true\nlocal_rank:\n",
            (False, "fused_apart"),
        ),
    ],
)
def test_adapter_kernels_are_on_where_axolotl_turns_them_on(
    tmp_path: Path, text: str, kernels: tuple[bool, str]
) -> None:
    """check_auto_enable_lora_kernels:
    all of them where none of the four keys is set and nothing speaks against it.
    """
    assert kernels_of(tmp_path, LORA + text) == kernels


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        ("", FUSED),
        ("flash_attention: true\nlora_dropout: 0.05\n", FUSED),
        ("trust_remote_code: true\n", OFF),
        ("fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n", OFF),
    ],
)
def test_what_speaks_against_kernels_holds_for_an_old_file_that_a_newer_axolotl_runs(
    tmp_path: Path, text: str, kernels: tuple[bool, str]
) -> None:
    """``qwen2/qlora-fsdp.yaml`` of 2025-03 was 20 % too high with the kernels that 0.19 leaves off there.
    Dropout does not keep them off: 0.19 runs ``mistral/lora-mps.yml`` with them, and needs 1.4 % less.
    """
    config = read(tmp_path, LORA + "local_rank:\noptimizer: adamw_torch\n" + text, stack="axolotl")
    stack = filled(config, {"gpu": "a100-80-sxm", "stack": "axolotl"}).stack
    assert (stack.fused_mlp, stack.adapter_kernels) == kernels


def test_a_full_fine_tune_has_no_adapter_kernels(tmp_path: Path) -> None:
    """There is nothing to fuse."""
    assert kernels_of(tmp_path, BASE) == OFF


def test_xformers_changes_llama_alone_in_old_versions(tmp_path: Path) -> None:
    """Up to 0.8 it patched Llama's attention; on another model it did nothing, which is said."""
    assert read(tmp_path, LLAMA + "xformers_attention: true\n").request.get("attention") == "flash2"
    config = read(tmp_path, LORA + "xformers_attention: true\n")
    assert config.request.get("attention") is None
    assert any("has no effect" in remark.text for remark in config.remarks)


@pytest.mark.parametrize("model", ["huggyllama/llama-7b", "Salesforce/xgen-7b-8k-base"])
@pytest.mark.parametrize("key", ["attn_implementation: xformers\n", "xformers_attention: true\n"])
def test_a_llama_is_told_by_its_config_too(tmp_path: Path, model: str, key: str) -> None:
    """Axolotl since 0.9 stops at xFormers of such a model, whichever key asks for it."""
    text = f"base_model: {model}\nsequence_len: 512\n{key}"
    with pytest.raises(UsageError, match="Axolotl's own code for xFormers and a Llama"):
        read(tmp_path, text, stack="axolotl")
    packed = read(tmp_path, text + "sample_packing: true\n", stack="axolotl")
    assert packed.request.get("attention") == "flash2"
    older = f"base_model: {model}\nsequence_len: 512\nxformers_attention: true\n"
    assert read(tmp_path, older, stack="axolotl@0.8").request.get("attention") == "flash2"


def test_xformers_on_llama_needs_packing(tmp_path: Path) -> None:
    """Axolotl 0.19.0's own attention for Llama asks for what Transformers no longer has: the tool stops."""
    text = LLAMA + "attn_implementation: xformers\n"
    with pytest.raises(UsageError, match=r"sample_packing: true run \[refused-by-its-tool\]"):
        read(tmp_path, text)
    assert read(tmp_path, text + "sample_packing: true\n").request.get("attention") == "flash2"


def test_of_attention_said_twice_the_new_key_counts(tmp_path: Path) -> None:
    """As in Axolotl 0.12 to 0.16, whose examples for gpt-oss say both."""
    config = read(tmp_path, BASE + "flash_attention: true\nattn_implementation: sdpa\n")
    assert config.request.get("attention") == "sdpa"
    assert any("later ones refuse both" in remark.text for remark in config.remarks)


def test_a_scaled_softmax_is_flexattention(tmp_path: Path) -> None:
    """It runs inside that kernel, and Axolotl refuses it with any other."""
    text = BASE + "scaling_softmax: true\nscaling_softmax_factor: 0.5\n"
    assert read(tmp_path, text + "flex_attention: true\n").request.get("attention") == "flex"
    with pytest.raises(UsageError, match="refused-by-its-tool"):
        read(tmp_path, text + "flash_attention: true\n")


def test_hybrid_attention_masks_the_wide_heads(tmp_path: Path) -> None:
    """FlashAttention for the narrow heads, which is the default beside it and its only other kernel."""
    text = BASE + "gemma4_hybrid_attn_impl: true\n"
    for attention in ("", "attn_implementation: flash_attention_2\n"):
        config = read(tmp_path, text + attention)
        assert config.request.get("attention") == "flash2"
        assert "masks_wide_heads=true" in (config.request.get("switches") or ())
    with pytest.raises(UsageError, match="refused-by-its-tool"):
        read(tmp_path, text + "attn_implementation: sdpa\n")


LIGER = "plugins: [axolotl.integrations.liger.LigerPlugin]\n"


def test_eaft_weighs_by_entropies_of_logits(tmp_path: Path) -> None:
    """Liger's loss, which makes no logits, gives way to it."""
    text = LIGER + "liger_fused_linear_cross_entropy: true\nuse_eaft: true\neaft_k: 20\n"
    config = read(tmp_path, BASE + text)
    assert "loss_weights=entropy_of_rows" in (config.request.get("switches") or ())
    assert config.request.get("loss") is None


@pytest.mark.parametrize(
    ("text", "loss", "switches"),
    [
        (
            LIGER
            + "liger_fused_linear_cross_entropy: true\nliger_rms_norm: true\nliger_glu_activation: true\n",
            "liger",
            ("fused_norm=true", "fused_mlp=true", "adapter_kernels=eager"),
        ),
        (
            "liger_fused_linear_cross_entropy: true\nliger_rms_norm: true\n",
            None,
            ("adapter_kernels=eager",),
        ),
        (
            LIGER + "liger_cross_entropy: true\n",
            None,
            ("loss_forward=compute+float", "loss_backward=float", "adapter_kernels=eager"),
        ),
        (
            "chunked_cross_entropy: true\n",
            None,
            ("loss_forward=compute", "loss_backward=compute+compute_grad", "adapter_kernels=eager"),
        ),
    ],
)
def test_keys_of_liger_act_through_its_plugin_alone(
    tmp_path: Path, text: str, loss: str | None, switches: tuple[str, ...]
) -> None:
    """integrations/liger/args.py reads them only where plugins names it; else that is said."""
    config = read(tmp_path, BASE + "attn_implementation: flash_attention_2\n" + text)
    assert (config.request.get("loss"), config.request.get("switches")) == (loss, switches)
    assert any("has no effect" in remark.text for remark in config.remarks) == (
        "liger" in text and "plugins" not in text
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BASE, True),
        (BASE + "attn_implementation: sdpa\n", True),
        (BASE + "attn_implementation: flash_attention_2\n", False),
        (
            BASE.replace("Qwen/Qwen2.5-0.5B", "huggyllama/llama-7b")
            + "local_rank:\nxformers_attention: true\n",
            True,
        ),
        (
            BASE.replace("Qwen/Qwen2.5-0.5B", "huggyllama/llama-7b") + "local_rank:\nflash_attention: true\n",
            False,
        ),
        (BASE + "attn_implementation: xformers\n", False),
        (BASE + "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n", False),
        (LORA, False),
        # Neither end is known by name: BTLM is passed over, MPT and GPT-NeoX (in 2023) have other names.
        (BASE.replace("Qwen/Qwen2.5-0.5B", "cerebras/btlm-3b-8k-base") + "trust_remote_code: true\n", False),
        (BASE.replace("Qwen/Qwen2.5-0.5B", "mosaicml/mpt-7b") + "trust_remote_code: true\n", False),
        (BASE.replace("Qwen/Qwen2.5-0.5B", "EleutherAI/pythia-1.4b") + "wandb_run_id:\n", False),
        (BASE.replace("Qwen/Qwen2.5-0.5B", "EleutherAI/pythia-1.4b") + "local_rank:\n", True),
    ],
)
def test_a_full_fine_tune_keeps_its_embeddings_in_fp32(tmp_path: Path, text: str, said: bool) -> None:
    """They go back to 16 bits for FlashAttention, adapters and FSDP only (loaders/model.py)."""
    assert ("widens_ends=true" in (read(tmp_path, text).request.get("switches") or ())) == said


QLORA = "sequence_len: 512\nadapter: qlora\nload_in_4bit: true\nbase_model: "


INT8 = QLORA.replace("qlora", "lora").replace("4bit", "8bit")


@pytest.mark.parametrize(
    ("text", "storage"),
    [
        ("ai21labs/Jamba-v0.1\n", "fp32"),
        ("Qwen/Qwen1.5-MoE-A2.7B\n", "fp32"),
        ("Qwen/Qwen1.5-MoE-A2.7B\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n", "bf16"),
        ("Qwen/Qwen1.5-7B\n", "bf16"),
    ],
)
def test_some_mixtures_store_four_bits_as_fp32_where_nothing_divides_them(
    tmp_path: Path, text: str, storage: str
) -> None:
    """loaders/model.py _set_quantization_config asks for the architecture."""
    assert read(tmp_path, QLORA + text).request.get("quant_storage") == storage


def test_jamba_in_eight_bits_keeps_mamba_layers_whole_which_is_refused(tmp_path: Path) -> None:
    """llm_int8_skip_modules is mamba."""
    with pytest.raises(NotModelledError, match="Mamba layers in 16 bits"):
        read(tmp_path, INT8 + "ai21labs/Jamba-v0.1\n")


def test_kernels_that_axolotl_refuses_for_lfm2_are_remarked_on(tmp_path: Path) -> None:
    """loaders/model.py _check_model_requirements ends where causal-conv1d is there."""
    config = read(tmp_path, BASE.replace("Qwen/Qwen2.5-0.5B", "LiquidAI/LFM2-2.6B"))
    assert any("causal-conv1d" in remark.text for remark in config.remarks)
    assert not any("causal-conv1d" in remark.text for remark in read(tmp_path, BASE).remarks)


@pytest.mark.parametrize(
    ("model", "attention"), [("tiiuae/falcon-7b", "sdpa"), ("mistralai/Mistral-7B-v0.1", "eager")]
)
def test_falcon_called_torchs_attention_before_transformers_had_it(
    tmp_path: Path, model: str, attention: str
) -> None:
    """transformers 4.35.2 models/falcon/modeling_falcon.py."""
    assert read(tmp_path, INT8 + f"{model}\nwandb_run_id:\n").request.get("attention") == attention


@pytest.mark.parametrize(
    ("text", "attention"),
    [("", "flash2"), ("eager_attention: true\n", "eager"), ("attn_implementation: sdpa\n", "sdpa")],
)
def test_the_first_qwen_brings_its_attention_along(tmp_path: Path, text: str, attention: str) -> None:
    """Its own code takes flash-attn, which Axolotl installs, where nothing is said."""
    assert read(tmp_path, INT8 + "Qwen/Qwen-7B\n" + text).request.get("attention") == attention


def test_what_axolotl_does_to_llama_alone_has_no_effect_on_stablelm(tmp_path: Path) -> None:
    """The example files of StableLM 2 have the keys."""
    text = (
        BASE.replace("Qwen/Qwen2.5-0.5B", "stabilityai/stablelm-2-1_6b")
        + "flash_attn_rms_norm: true\nflash_attn_fuse_mlp: true\n"
    )
    config = read(tmp_path, text)
    assert sum("Axolotl does this to Llama alone" in remark.text for remark in config.remarks) == 2
    config = read(tmp_path, text + "is_llama_derived_model: true\n")
    assert sum("counted as the plain" in remark.text for remark in config.remarks) == 2


def test_better_transformer_is_torchs_attention_for_gpt_neox(tmp_path: Path) -> None:
    """Other families are refused."""
    config = read(
        tmp_path, BASE.replace("Qwen/Qwen2.5-0.5B", "EleutherAI/pythia-12b-deduped") + "flash_optimum: true\n"
    )
    assert config.request.get("attention") == "sdpa"
    with pytest.raises(NotModelledError, match="GPT-NeoX and Pythia only"):
        read(tmp_path, BASE + "flash_optimum: true\n")


@pytest.mark.parametrize("optimizer", ["adamw_bnb_8bit", "paged_adamw_8bit"])
def test_an_8_bit_optimizer_in_host_ram_is_refused_by_the_tool(tmp_path: Path, optimizer: str) -> None:
    """Axolotl's own validator stops FSDP1 with offload;
    bitsandbytes of that time stops under ZeRO, where nothing swaps the optimizer.
    """
    text = BASE + f"optimizer: {optimizer}\nlocal_rank:\nbf16: true\n"
    with pytest.raises(UsageError, match=REFUSED_BY_TOOL):
        read(tmp_path, text + "fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_offload_params: true}\n")
    zero = tmp_path / "zero.json"
    zero_3 = '"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}'
    table = '"bf16": {"enabled": true}, ' + zero_3
    zero.write_text('{"zero_force_ds_cpu_optimizer": false, ' + table + "}", encoding="utf-8")
    file = read(tmp_path, text + "deepspeed: zero.json\n")
    with pytest.raises(UsageError, match=REFUSED_BY_TOOL):
        filled(file, {"gpu": "a100-80-sxm:8"})
    zero.write_text("{" + table + "}", encoding="utf-8")
    assert read(tmp_path, text + "deepspeed: zero.json\n").request.get("optimizer") == "adamw_torch"


@pytest.mark.parametrize("kind", ["", "adapter: lora\n"])
def test_weights_that_zero3_divides_before_it_knows_their_dtype_stay_in_fp32(
    tmp_path: Path, kind: str
) -> None:
    """A dry run of Axolotl 0.19 with its zero3.json (full, 24B, eight H100) has 5.5 GiB more for each card.
    Packed weights are not divided while they load, and files of 2023 load whole models.
    """
    text = BASE + kind + "bf16: auto\ndeepspeed: zero.json\n"
    zero = tmp_path / "zero.json"
    stage_3 = '"zero_optimization": {"stage": 3}'
    for said in ('"bf16": {"enabled": "auto"}, ', ""):
        zero.write_text("{" + said + stage_3 + "}", encoding="utf-8")
        assert "zero3_divides_fp32=true" in read(tmp_path, text).request.get("switches")
        packed = read(tmp_path, BASE + "adapter: qlora\nload_in_4bit: true\ndeepspeed: zero.json\n")
        assert packed.request.get("sharding") == "zero3"
        assert read(tmp_path, text.replace("bf16: auto", "bf16: false")).request.get("precision") == "fp32"
    zero.write_text('{"bf16": {"enabled": true}, ' + stage_3 + "}", encoding="utf-8")
    assert "zero3_divides_fp32=true" not in (read(tmp_path, text).request.get("switches") or ())
    zero.write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    assert read(tmp_path, text).request.get("sharding") == "zero2"


@pytest.mark.parametrize(
    ("text", "precision", "stored"),
    [
        ("", None, None),
        ("bf16: auto\n", None, None),
        ("bf16: true\n", "bf16-mixed", "bf16"),
        ("bf16:\n", "fp32", "fp32"),
        ("bf16: false\nfp16: false\n", "fp32", "fp32"),
        ("fp16: true\n", "fp16-mixed", "fp16"),
        ("bf16: auto\nfp16: true\n", "fp16-mixed", "fp16"),
        ("bf16:\nfp16:\nfloat16: true\n", "fp16", "fp16"),
        # Beside bf16 that is on by itself these change nothing.
        ("float16: true\n", None, None),
        ("float32: true\n", None, None),
        ("bf16: false\nbfloat16: true\n", "bf16-mixed", "bf16"),
        # Up to 0.8 ``auto`` won over fp16, and the trainer did not ask for bfloat16.
        ("fp16: true\nlocal_rank:\n", None, None),
        ("bf16: false\nbfloat16: true\nlocal_rank:\n", "bf16", "bf16"),
        ("bf16: full\n", "bf16", "bf16"),
        # In 2023 the key had no default.
        ("wandb_run_id:\n", "fp32", "fp32"),
        ("fp16: true\nwandb_run_id:\n", "fp16-mixed", "fp16"),
    ],
)
def test_the_precision_is_that_of_resolve_dtype(
    tmp_path: Path, text: str, precision: str | None, stored: str | None
) -> None:
    """As validate_config and resolve_dtype of Axolotl 0.19.0 answer these files on a card with bf16."""
    request = read(tmp_path, BASE + text).request
    assert (request.get("precision"), request.get("load_dtype")) == (precision, stored)


def test_full_is_a_word_of_2023(tmp_path: Path) -> None:
    """The schema of today knows auto, true and false."""
    with pytest.raises(UsageError, match=REFUSED_BY_TOOL):
        read(tmp_path, BASE + "bf16: full\neot_tokens: [x]\n")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("rl: kto\n", "rl: Axolotl refuses kto"),
        ("rl: kto\nremove_unused_columns: true\n", "rl: Axolotl refuses kto"),
        ("rl: kto\nremove_unused_columns: false\n", ""),
        ("rl: kto\nlocal_rank:\n", ""),
        ("rl: kto\nremove_unused_columns: false\neval_sample_packing: true\n", "eval_sample_packing: "),
        ("rl: dpo\neval_sample_packing: true\n", ""),
        ("rl: dpo\nsample_packing: true\n", "sample_packing: Axolotl packs no samples"),
        ("rl: dpo\nsample_packing: true\nlocal_rank:\n", "sample_packing: Axolotl packs no samples"),
        ("rl: simpo\n", "rl: Axolotl has no default for simpo_gamma"),
        ("rl: simpo\nlocal_rank:\n", "rl: Axolotl has no default for simpo_gamma"),
        ("rl: simpo\nsimpo_gamma: 1.0\n", ""),
    ],
)
def test_preferences_are_refused_as_axolotl_refuses_them(tmp_path: Path, text: str, place: str) -> None:
    """Its validators of 0.19.0; the key of KTO is asked for since 2025-03, after 0.4 to 0.8 began."""
    if not place:
        assert read(tmp_path, LORA + text).request.get("task") in ("kto", "dpo", "simpo")
        return
    with pytest.raises(UsageError) as found:
        read(tmp_path, LORA + text)
    assert place in str(found.value)
    assert REFUSED_BY_TOOL in str(found.value)


@pytest.mark.parametrize(
    ("text", "stack", "stops"),
    [
        ("", None, True),
        ("lora_qkv_kernel: false\nlora_o_kernel: false\n", None, False),
        ("local_rank:\n", None, False),
        ("local_rank:\n", "axolotl", True),
        ("rl: orpo\n", None, False),
    ],
)
@pytest.mark.parametrize("model", ["microsoft/Phi-3-mini-4k-instruct", "tiiuae/falcon-7b"])
def test_fused_kernels_stop_at_attention_of_another_shape(
    tmp_path: Path, model: str, text: str, stack: str | None, stops: bool
) -> None:
    """The tool's own dry run ends so for phi3, falcon, olmo2, gpt_neox, stablelm and olmo: "Original QKV code
    not found".  Older files than 0.10 turn no kernel on, unless they are run by the version of today.
    """
    flags = {"gpu": "a100-80-sxm"} | ({"stack": stack} if stack else {})
    file = read(tmp_path, LORA.replace("Qwen/Qwen2.5-0.5B", model) + text, stack=stack or "")
    given = with_flags(file, from_flags(flags))
    if not stops:
        assert resolve(given).stack.adapter_kernels == "eager"
        return
    with pytest.raises(UsageError, match=r"stop at this model's attention; .*lora_o_kernel: false") as found:
        resolve(given)
    first = str(found.value).split("[")[0]
    assert len(first.split()) <= 25
    assert "phi-3-mini-4k" in str(found.value) or "falcon-7b" in str(found.value)


def test_nemotron_h_in_four_bits_leaves_its_fused_kernel_out(tmp_path: Path) -> None:
    """As Axolotl 0.19 does; where the fused kernel gets packed weights it fails."""
    lora = LORA.replace("Qwen/Qwen2.5-0.5B", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    four = lora.replace("adapter: lora", "adapter: qlora") + (
        "load_in_4bit: true\nlora_target_modules: [q_proj]\nlora_mlp_kernel: false\nlora_qkv_kernel: "
        "false\nlora_o_kernel: false\n"
    )
    flags = {"gpu": "h200-sxm", "seq": "512"}
    assert filled(read(tmp_path, four), flags).stack.scan_apart == "nemotron_h"
    with pytest.raises(UsageError, match="reads the weight of out_proj"):
        filled(read(tmp_path, four), {**flags, "switches": "scan_apart=none"})


@pytest.mark.parametrize(
    ("model", "key", "scaling"),
    [
        ("Qwen/Qwen3-8B", "", "cast"),
        ("Qwen/Qwen3-8B", "fused_attn_kernel: true\n", "turned"),
        ("google/gemma-3-1b-it", "fused_attn_kernel: true\n", "one_plus"),
        ("google/gemma-4-31B", "", "turned"),
    ],
)
def test_norms_of_heads_in_one_kernel_with_positions(
    tmp_path: Path, model: str, key: str, scaling: str
) -> None:
    """Of some models where the file says so, of Gemma 4 always."""
    config = read(tmp_path, LORA.replace("Qwen/Qwen2.5-0.5B", model) + key + "attn_implementation: sdpa\n")
    scenario = filled(config, {"gpu": "h200-sxm"})
    norms = [
        norm
        for group in as_built(scenario.model, scenario.stack).groups
        for norm in group.block.norms
        if norm.on == "heads" and norm.weight
    ]
    assert {norm.scaling for norm in norms} == {scaling}


def test_tiles_stop_under_fsdp2(tmp_path: Path) -> None:
    """The weights of a layer are freed before its attention goes back; elsewhere tiles are not modelled."""
    tiled = BASE + "tiled_mlp: true\n"
    for second in (
        "fsdp_version: 2\nfsdp_config: {offload_params: false}\n",
        "fsdp_config: {fsdp_version: 2, offload_params: false}\n",
    ):
        with pytest.raises(UsageError, match="before its attention"):
            read(tmp_path, tiled + second)
    for more in ("", "fsdp_config: {fsdp_offload_params: false}\n"):
        with pytest.raises(
            NotModelledError, match="tiled_mlp: a part in tiles is not modelled: leave it out"
        ):
            read(tmp_path, tiled + more)


@pytest.mark.parametrize(
    "bits", ["adapter: qlora\nload_in_4bit: true\n", "adapter: lora\nload_in_8bit: true\n"]
)
def test_preferences_over_a_packed_base_stop_under_fsdp2(tmp_path: Path, bits: str) -> None:
    """Axolotl 0.19.0 utils/schemas/validation.py check_fsdp2_base_model_quant_rl."""
    second = BASE + bits + "fsdp_config: {fsdp_version: 2, reshard_after_forward: true}\n"
    assert read(tmp_path, second).request.get("sharding") == "fsdp"
    with pytest.raises(UsageError, match="under FSDP2 with rl: dpo"):
        read(tmp_path, second + "rl: dpo\n")


def test_one_loss_takes_the_place_of_the_models(tmp_path: Path) -> None:
    """Axolotl 0.19.0 utils/schemas/validation.py check_cross_entropy_conflicts."""
    cut = BASE + "cut_cross_entropy: true\nplugins: [axolotl.integrations.cut_cross_entropy.Plugin]\n"
    assert "cut_cross_entropy=true" in read(tmp_path, cut).request.get("switches")
    with pytest.raises(UsageError, match="beside liger_fused_linear_cross_entropy; leave one out"):
        read(tmp_path, cut + "liger_fused_linear_cross_entropy: true\n")
