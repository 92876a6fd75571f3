"""Axolotl's files, value by value: what its source makes of a small file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputFileError, NotModelledError, PlannerError, UsageError
from planner.intake.given.config_file import with_flags
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.predicting import estimate
from tests.files import filled, read

BASE = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\n"
LORA = BASE + "adapter: lora\nlora_r: 16\n"
LLAMA = LORA.replace("Qwen/Qwen2.5-0.5B", "huggyllama/llama-7b")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("gradient_checkpointing: true\n", {"gradient_checkpointing": True, "checkpoint_reentrant": True}),
        (
            "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n",
            {"gradient_checkpointing": True, "checkpoint_reentrant": False},
        ),
        ("gradient_checkpointing: false\n", {"gradient_checkpointing": False, "checkpoint_reentrant": None}),
        (
            "gradient_checkpointing: true\nfsdp_config: {fsdp_activation_checkpointing: true}\n",
            {"gradient_checkpointing": True, "checkpoint_reentrant": False, "sharding": "fsdp1"},
        ),
        (
            "gradient_checkpointing: unsloth\n",
            {"stack": "axolotl@0.8", "offload": "activations", "checkpoint_reentrant": True},
        ),
        ("attn_implementation: flash_attention_2\n", {"attention": "flash2", "stack": "axolotl"}),
        ("attn_implementation: xformers\n", {"attention": "flash2"}),
        ("flash_attention: true\n", {"attention": "flash2", "stack": "axolotl@0.13"}),
        ("sdp_attention: true\n", {"attention": "sdpa"}),
        ("eager_attention: true\n", {"attention": "eager"}),
        ("flash_attention: true\nsdp_attention: true\n", {"attention": "flash2"}),
        # Keys that only files up to 0.8 have, mostly empty.
        ("local_rank:\n", {"stack": "axolotl@0.8", "attention": None}),
        # A key that 0.8 does not have.
        ("local_rank:\neot_tokens: [x]\n", {"stack": "axolotl"}),
        ("xformers_attention:\nflash_attention: true\n", {"stack": "axolotl@0.8", "attention": "flash2"}),
        ("is_llama_derived_model: true\n", {"stack": "axolotl@0.3", "attention": "eager"}),
        (
            "is_llama_derived_model: true\nflash_attention: true\nlocal_rank:\n",
            {"stack": "axolotl@0.3", "attention": "flash2"},
        ),
        ("optimizer: muon\n", {"optimizer": "muon"}),
        ("sample_packing: true\npad_to_sequence_len: true\n", {"padding": "packed"}),
        ("pad_to_sequence_len: true\n", {"padding": "max_length"}),
        ("reward_model: true\n", {"padding": "max_length"}),
        ("reward_model: true\npad_to_sequence_len: false\n", {"padding": None}),
        ("pretraining_dataset: a\npretraining_sample_concatenation: true\n", {"padding": "packed"}),
        ("micro_batch_size: 2\nbatch_size: 8\n", {"batch": 2, "grad_accum": 1}),
        ("micro_batch_size: 2\nbatch_size: 8\nis_llama_derived_model: true\n", {"batch": 2, "grad_accum": 4}),
        ("model_config: {output_router_logits: true}\n", {"method": "full"}),
    ],
)
def test_a_key_means_what_axolotl_makes_of_it(tmp_path: Path, text: str, values: dict[str, Any]) -> None:
    """Each value is what utils/schemas,
    utils/config and loaders/model.py of axolotl 0.19.0 make of the key.
    """
    request = read(tmp_path, BASE + text).request
    assert {name: request.get(name) for name in values} == values


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rl: bco\n", "rl: preference training (bco)"),
        (
            "rl: kto\nremove_unused_columns: false\nprecompute_ref_log_probs: true\n",
            "precompute_ref_log_probs: log-probabilities of the reference",
        ),
        ("rl: dpo\nrl_adapter_ref_model: true\n", "rl_adapter_ref_model: a reference that is another model"),
        ("rl: dpo\ndpo_use_liger_kernel: true\n", "dpo_use_liger_kernel: Liger's losses"),
        ("process_reward_model: true\nnum_labels: 3\n", "num_labels: other than two labels"),
        ("rl: ebft\nebft: {mode: strided}\n", "ebft.mode: strided completions"),
        ("rl: ebft\nebft: {mode: structured}\ntrl: {async_prefetch: true}\n", "trl.async_prefetch: gener"),
        ("plugins: [axolotl.integrations.spectrum.SpectrumPlugin]\n", "what spectrum trains"),
        ("spectrum_top_fraction: 0.5\n", "spectrum_top_fraction: what spectrum trains"),
        ("spectrum_config_path: a.yaml\n", "spectrum_config_path: unknown key"),
        (
            "adapter: lora\ndeepspeed: zero3.json\nunfrozen_parameters: [lm_head]\n",
            "unfrozen_parameters: beside adapters",
        ),
        (
            "lisa_n_layers: 4\nlisa_step_interval: 20\nadapter: lora\n",
            "lisa_n_layers: LISA beside adapter",
        ),
        ("unsloth_lora_mlp: true\n", "unsloth_lora_mlp: Unsloth's kernels"),
        ("flash_attn_cross_entropy: true\n", "flash_attn_cross_entropy: flash-attn's loss"),
        ("max_packed_sequence_len: 256\n", "packing to another length than sequence_len"),
        ("flash_attn_fuse_qkv: true\n", "flash_attn_fuse_qkv: flash-attn's fused projections"),
        ("expert_parallel_size: 2\n", "an expert-parallel degree of 2"),
        ("model_kwargs: {attn_bias: true}\n", "model_kwargs: what is handed to the loader"),
        ("model_config: {num_hidden_layers: 4}\n", "model_config.num_hidden_layers: a model that differs"),
        ("trainer_cls: mine.Trainer\n", "trainer_cls: a trainer of one's own"),
        ("merge_lora: true\n", "this file does not train"),
        ("s2_attention: true\n", "s2_attention: this attention"),
    ],
)
def test_what_is_not_read_ends_without_a_verdict(tmp_path: Path, text: str, sentence: str) -> None:
    """Exit 6 that names the key, also where --model names the shape by hand."""
    with pytest.raises(NotModelledError) as caught:
        with_flags(read(tmp_path, BASE + text), from_flags({"gpu": "4090", "model": "qwen2.5-0.5b"}))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "beside"),
    [
        ("deepspeed: deepspeed_configs/zero2.json\n", "DeepSpeed"),
        ("fsdp: [full_shard, auto_wrap]\n", "FSDP without fsdp_version 2"),
        ("fsdp_config: {reshard_after_forward: true}\n", "FSDP without fsdp_version 2"),
        ("fsdp_config: {fsdp_version: 2, reshard_after_forward: true}\n", None),
        ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n", None),
    ],
)
def test_muon_stops_beside_deepspeed_and_the_first_fsdp(
    tmp_path: Path, text: str, beside: str | None
) -> None:
    """Axolotl 0.19.0 utils/schemas/validation.py check_muon_deepspeed_fsdp."""
    text = BASE + "optimizer: muon\n" + text
    if beside is None:
        assert read(tmp_path, text).request.get("optimizer") == "muon"
        return
    with pytest.raises(UsageError, match=rf"muon with {beside}; .*refused-by-its-tool"):
        read(tmp_path, text)


@pytest.mark.parametrize("name", ["adamw_8bit", "adamw_bnb_8bit"])
def test_adamw_of_bitsandbytes_stops_under_the_second_fsdp(tmp_path: Path, name: str) -> None:
    """Axolotl 0.19.0 utils/schemas/validation.py check_fsdp2_w_8bit_optimizer."""
    text = BASE + f"optimizer: {name}\nfsdp_config: {{reshard_after_forward: true}}\n"
    assert read(tmp_path, text).request.get("optimizer") == "adamw_8bit"
    for second in (text + "fsdp_version: 2\n", text.replace("{r", "{version: 2, r")):
        with pytest.raises(UsageError, match=rf"{name} with FSDP2; .*refused-by-its-tool"):
            read(tmp_path, second)


def test_targets_are_lists_expressions_and_parameters(tmp_path: Path) -> None:
    """A text is an expression; parameters of experts stand beside modules."""
    text = BASE + "adapter: lora\nlora_target_modules: 'model.layers.[0-9]+.mlp.(up|down)_proj'\n"
    assert read(tmp_path, text).request.get("lora_targets") == (
        "regex:model.layers.[0-9]+.mlp.(up|down)_proj",
    )
    text = (
        BASE
        + "adapter: lora\nlora_target_modules: [q_proj]\nlora_target_parameters: [mlp.experts.down_proj]\n"
    )
    assert read(tmp_path, text).request.get("lora_targets") == ("q_proj", "param:mlp.experts.down_proj")


def test_keys_of_a_plugin_that_is_not_named_have_no_effect(tmp_path: Path) -> None:
    """With the plugin they count, or the plugin is refused."""
    for text, plugin in (
        ("kd_alpha: 0.9\n", "kd.KDPlugin"),
        ("diffusion: {eps: 0.001}\n", "diffusion.DiffusionPlugin"),
        ("grokfast_alpha: 0.9\n", "grokfast.GrokfastPlugin"),
    ):
        found = read(tmp_path, LORA + text)
        said = [each.text for each in found.remarks if each.origin.endswith(text.partition(":")[0])]
        assert said == [f"has no effect: plugins does not name axolotl.integrations.{plugin.split('.')[0]}"]
        assert not found.ignored
        named = LORA + text + f"plugins: [axolotl.integrations.{plugin}]\n"
        if plugin.startswith("diffusion"):
            assert "loss_weights=masked_tokens" in read(tmp_path, named).request.get("switches")
            continue
        with pytest.raises(NotModelledError, match="trains is not modelled"):
            read(tmp_path, named)
    entropy = LORA + "cut_cross_entropy: true\nbf16: true\n"
    assert read(tmp_path, entropy).request.get("loss") is None
    named = entropy + "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
    assert read(tmp_path, named).request.get("loss") == "liger"
    tracked = "plugins: [axolotl.integrations.swanlab.SwanLabPlugin]\nswanlab_project: a\n"
    assert not read(tmp_path, LORA + tracked).ignored


def test_gdpo_is_grpo(tmp_path: Path) -> None:
    """The same trainer, which normalises each reward by itself."""
    assert read(tmp_path, BASE + "rl: gdpo\n").request.get("task") == "grpo"


def test_states_and_activations_go_to_host_ram(tmp_path: Path) -> None:
    """As in Axolotl's example for gpt-oss; the GPU has less than with one of them."""
    fsdp = "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n  offload_params: true\n"
    text = BASE + "gradient_checkpointing: true\n"
    both = read(tmp_path, text + "activation_offloading: true\n" + fsdp)
    assert both.request.get("offload") == "optimizer+params+activations"
    peaks = [
        estimate(filled(config, {"gpu": "h100-sxm:2", "seq": "8192"}))
        for config in (both, read(tmp_path, text + fsdp))
    ]
    less, more = (float(each.memory.allocated_peak_bytes) for each in peaks)
    assert less < more
    less, more = (float(each.host.required_per_node_bytes) for each in peaks)
    assert less > more


def test_offload_of_fsdp_is_pinned(tmp_path: Path) -> None:
    """Axolotl's own key; without it RAM is pinned."""
    text = BASE + "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n  offload_params: true\n"
    assert read(tmp_path, text).request.get("offload") == "optimizer+params"
    assert read(tmp_path, text + "  cpu_offload_pin_memory: true\n").request.get("offload")
    with pytest.raises(NotModelledError, match="not pinned"):
        read(tmp_path, text + "  cpu_offload_pin_memory: false\n")


def test_parameters_of_a_dense_model_are_refused_by_their_key(tmp_path: Path) -> None:
    """PEFT finds nothing to adapt; beside modules it only warns, whatever the dropout."""
    only = LORA + "lora_target_parameters: [mlp.experts.down_proj]\n"
    with pytest.raises(PlannerError, match=r"lora_target_parameters mlp\.experts\.down_proj"):
        filled(read(tmp_path, only), {"gpu": "a100-80-sxm"})
    beside = only + "lora_target_modules: [q_proj]\nlora_dropout: 0.05\n"
    found = filled(read(tmp_path, beside), {"gpu": "a100-80-sxm"})
    assert any("lora_target_parameters mlp.experts.down_proj" in str(each) for each in found.warnings)


def test_sequences_divided_over_gpus(tmp_path: Path) -> None:
    """The older name counts where the newer is not given; only gathered heads are read."""
    packed = BASE + "sample_packing: true\nflash_attention: true\nmicro_batch_size: 1\n"
    assert read(tmp_path, packed + "context_parallel_size: 4\n").request.get("context_parallel") == 4
    assert read(tmp_path, packed + "sequence_parallel_degree: 2\n").request.get("context_parallel") == 2
    assert read(tmp_path, packed + "context_parallel_size: 1\n").request.get("context_parallel") is None
    with pytest.raises(NotModelledError, match="batch_ring"):
        read(tmp_path, packed + "context_parallel_size: 2\nring_attn_func: batch_ring\n")
    with pytest.raises(NotModelledError, match="stride over heads of keys of 2"):
        read(tmp_path, packed + "context_parallel_size: 2\nheads_k_stride: 2\n")


def test_relora_is_counted_as_lora(tmp_path: Path) -> None:
    """Merging between steps takes less than a step (Axolotl refuses it on sharded weights)."""
    plain, merged = (
        read(tmp_path, BASE + "adapter: lora\nlora_r: 8\n" + more) for more in ("", "relora_steps: 150\n")
    )
    assert merged.request.get("lora_rank") == plain.request.get("lora_rank") == 8


def test_gemma_4_is_never_checkpointed_reentrantly(tmp_path: Path) -> None:
    """utils/config/__init__.py turns it off whatever the file says."""
    text = BASE.replace("Qwen/Qwen2.5-0.5B", "google/gemma-4-E2B-it") + "gradient_checkpointing: true\n"
    assert (
        read(tmp_path, text + "gradient_checkpointing_kwargs: {use_reentrant: true}\n").request.get(
            "checkpoint_reentrant"
        )
        is False
    )
    assert "ddp_finds_unused=always" in read(tmp_path, text).request.get("switches")
    said = read(tmp_path, text + "ddp_find_unused_parameters: false\n").request.get("switches")
    assert "ddp_finds_unused=never" in said


def test_what_sees_may_be_frozen(tmp_path: Path) -> None:
    """By a key, or by a pattern that reaches the language model alone, wrapped or not."""
    sees = BASE.replace("Qwen/Qwen2.5-0.5B", "google/gemma-4-E2B-it")
    names = r"model.language_model.layers.[\d]+.(_checkpoint_wrapped_module.)?(mlp|self_attn).(up|q)_proj"
    for more in ("freeze_mm_modules: true\n", f"adapter: lora\nlora_r: 8\nlora_target_modules: '{names}'\n"):
        assert read(tmp_path, sees + more).request.get("freeze") == ("vision_tower", "projector")
    # A model that only reads has nothing to freeze.
    given = with_flags(read(tmp_path, BASE + "freeze_mm_modules: true\n"), from_flags({"gpu": "4090"}))
    assert resolve(given).recipe.frozen == ()


def test_a_gptq_base_is_one_that_is_known_or_one_that_asks(tmp_path: Path) -> None:
    """``gptq: true`` says the method; the catalog knows the base of Axolotl's example."""
    known = read(tmp_path, LORA.replace("Qwen/Qwen2.5-0.5B", "TheBloke/Llama-2-7B-GPTQ") + "gptq: true\n")
    assert (known.request.get("quantization"), known.needs) == ("gptq-int4", {})
    local = read(tmp_path, LORA + "gptq: true\ngptq_disable_exllama: true\n")
    with pytest.raises(
        UsageError, match="gptq: the base is quantised by GPTQ: say --quantization gptq-int4 or gptq-int8"
    ):
        with_flags(local, from_flags({"gpu": "4090"}))


def test_what_the_catalog_knows_of_a_checkpoint_wins(tmp_path: Path) -> None:
    """The 405B of Axolotl's example is stored in nf4, doubly quantised, as bf16."""
    four = LORA.replace("adapter: lora", "adapter: qlora\nload_in_4bit: true")
    config = read(
        tmp_path, four.replace("Qwen/Qwen2.5-0.5B", "hugging-quants/Meta-Llama-3.1-405B-BNB-NF4-BF16")
    )
    said = tuple(config.request.get(name) for name in ("quantization", "double_quant", "quant_storage"))
    assert said == ("nf4", True, "bf16")


@pytest.mark.parametrize(
    ("name", "said"), [("Qwen2.5-0.5B-GPTQ", "gptq-int4"), ("Qwen2.5-0.5B-bnb-4bit", "nf4")]
)
def test_a_quantised_checkpoint_asks_for_its_quantisation(tmp_path: Path, name: str, said: str) -> None:
    """Its name says how it is stored; a 4-bit one that the file loads in 4 bits is nothing new."""
    config = read(tmp_path, LORA.replace("Qwen2.5-0.5B", name))
    with pytest.raises(UsageError, match=f"say --quantization {said}"):
        with_flags(config, from_flags({"gpu": "4090", "model": "qwen2.5-0.5b"}))
    four = LORA.replace("adapter: lora", "adapter: qlora\nload_in_4bit: true").replace(
        "Qwen2.5-0.5B", "Qwen2.5-0.5B-bnb-4bit"
    )
    assert read(tmp_path, four).needs == {}


@pytest.mark.parametrize("name", ["MixFormerSequentialForCausalLM", "MambaLMHeadModel"])
def test_model_code_of_its_own_is_not_modelled(tmp_path: Path, name: str) -> None:
    """Its attention and loss are not those of the model in Transformers (2023-11 models/phi uses flash-attn
    unasked).
    """
    with pytest.raises(NotModelledError, match="model_type"):
        read(tmp_path, BASE + f"wandb_run_id:\nmodel_type: {name}\n")
    assert read(tmp_path, BASE + "model_type: LlamaForCausalLM\n").request.get("method") == "full"


def test_mamba_does_not_import_beside_transformers_5(tmp_path: Path) -> None:
    """Its package imports a class that is gone; files of old versions are not modelled."""
    with pytest.raises(UsageError, match="does not import"):
        read(tmp_path, BASE + "model_type: MambaLMHeadModel\n")


EXPERTS = "plugins: [axolotl.integrations.expert_parallel.ExpertParallelPlugin]\nexpert_parallel_size: 4\n"
REPLICAS = "dp_replicate_size: 2\ndp_shard_size: 4\ntensor_parallel_size: 2\n"


@pytest.mark.parametrize(
    ("text", "count", "degrees"),
    [
        (EXPERTS, 4, "expert_parallel_size is 4"),
        (EXPERTS + "dp_shard_size: 2\n", 8, "expert_parallel_size x dp_shard_size is 8"),
        (REPLICAS, 16, "tensor_parallel_size x dp_replicate_size x dp_shard_size is 16"),
    ],
)
def test_degrees_that_need_so_many_gpus(tmp_path: Path, text: str, count: int, degrees: str) -> None:
    """Axolotl stops on another number; on the right one what it does is not modelled."""
    config = read(tmp_path, BASE + text)
    with pytest.raises(UsageError, match=f"{degrees}.*say --gpu X:{count}"):
        with_flags(config, from_flags({"gpu": "h100-sxm:2"}))
    with pytest.raises(NotModelledError, match="only 1 is"):
        with_flags(config, from_flags({"gpu": f"h100-sxm:{count}"}))


def test_the_plugin_for_experts_does_nothing_at_one(tmp_path: Path) -> None:
    """It asks for more than one before it does anything."""
    config = read(tmp_path, BASE + EXPERTS.replace("4", "1"))
    assert config.alone is None


def test_workers_of_ray_are_said_not_to_be_the_number_of_gpus(tmp_path: Path) -> None:
    """Sharding over 4 of 8 GPUs needs more on each, so the reader must know which number is counted."""
    config = read(tmp_path, BASE + "use_ray: true\nray_num_workers: 4\n")
    assert any(remark.origin.endswith("ray_num_workers") for remark in config.remarks)


def test_packing_of_2023_to_the_length_of_samples_is_packing(tmp_path: Path) -> None:
    """A longer one is cut to it; a shorter one is refused.  Packs are of one length, padded or not."""
    config = read(tmp_path, BASE + "max_packed_sequence_len: 1024\npad_to_sequence_len: true\n")
    assert config.request.get("padding") == "packed"
    assert config.request.get("stack") == "axolotl@0.3"


def test_fp8_is_read(tmp_path: Path) -> None:
    """Scaled by whole tensors, as torchao does by itself; FSDP2 alone gathers in 8 bits."""
    text = BASE + "bf16: auto\nfp8: true\nfp8_enable_fsdp_float8_all_gather: true\n"
    assert filled(read(tmp_path, text), {"gpu": "h100-sxm"}).recipe.numerics.fp8 == ("tensorwise")
    fsdp = "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n"
    job = filled(read(tmp_path, text + fsdp), {"gpu": "h100-sxm:2"})
    assert job.recipe.numerics.fp8 == "tensorwise-gathered"
    with pytest.raises(NotModelledError, match="recipe of one's own"):
        read(tmp_path, text + "fp8_config: {recipe: rowwise}\n")


@pytest.mark.parametrize(
    "text",
    ["gradient_checkpointing: offload\n", "gradient_checkpointing: true\nactivation_offloading: true\n"],
)
def test_offloaded_activations_are_checkpoints_of_torch(tmp_path: Path, text: str) -> None:
    """Adapters keep the checkpoints that the loader switches on; up to 0.8 the first was its own way."""
    said = read(tmp_path, BASE + text).request
    assert said.get("gradient_checkpointing") is True
    assert said.get("offload") == "activations"
    assert said.get("checkpoint_reentrant") is False
    lora = read(tmp_path, LORA + text).request
    assert lora.get("offload") == "activations"
    assert lora.get("checkpoint_reentrant") is True


def test_packed_experts_are_unpacked_where_the_file_says_so(tmp_path: Path) -> None:
    """As examples for gpt-oss do; without it Transformers does not train over them."""
    text = LORA + "model_quantization_config: Mxfp4Config\n"
    with pytest.raises(NotModelledError, match="dequantize: true"):
        read(tmp_path, text)
    whole = read(tmp_path, text + "model_quantization_config_kwargs: {dequantize: true}\n")
    assert whole.request.get("quantization") == "none"


def test_a_checkpoint_in_fp8_is_unpacked_where_the_file_says_so(tmp_path: Path) -> None:
    """Transformers 5.16 does not train over it on a card that has fp8."""
    text, card = LORA.replace("Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-8B-FP8"), from_flags({"gpu": "h100-sxm"})
    with pytest.raises(UsageError, match="fp8-not-trained"):
        resolve(with_flags(read(tmp_path, text), card))
    text += "model_quantization_config: FineGrainedFP8Config\n"
    whole = read(tmp_path, text + "model_quantization_config_kwargs: {dequantize: true}\n")
    assert resolve(with_flags(whole, card)).recipe.numerics.quantization == "none"


def test_tf32_may_be_left_to_axolotl(tmp_path: Path) -> None:
    """0.19.0 writes its default so (utils/schemas/config.py)."""
    assert read(tmp_path, BASE + "tf32: auto\n").request == read(tmp_path, BASE).request


@pytest.mark.parametrize(("flag", "stack"), [("flash_attention: true\n", "axolotl@0.13"), ("", "axolotl")])
def test_fsdp2_is_told_apart_from_that_before_2025_09(tmp_path: Path, flag: str, stack: str) -> None:
    """Accelerate 1.11 asks it not to reduce gradients; a job with one micro-batch has nothing to wait."""
    fsdp = "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n"
    for steps in (1, 2):
        config = read(tmp_path, BASE + fsdp + flag + f"gradient_accumulation_steps: {steps}\n")
        scenario = filled(config, {"gpu": "a100-80-sxm:8"})
        assert scenario.stack.id == stack
        assert scenario.recipe.sharding.reduces_last_only(scenario.stack.fsdp_no_sync) == (stack == "axolotl")
        remarked = any("fsdp_no_sync=both" in remark.text for remark in config.remarks)
        assert remarked == (steps > 1 and stack != "axolotl")


@pytest.mark.parametrize("steps", ["auto", "{a: 1}"])
def test_micro_batches_under_fsdp2_that_are_no_number_are_refused(tmp_path: Path, steps: str) -> None:
    """By the name of the key."""
    fsdp = "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n"
    with pytest.raises(InputFileError, match="accumulation_steps: grad_accum must be a whole number"):
        read(tmp_path, BASE + fsdp + f"gradient_accumulation_steps: {steps}\n")


def test_every_micro_batch_may_reduce_gradients(tmp_path: Path) -> None:
    """Trainer of Transformers 5 asks for ``sync_each_batch``; that of 4 does not."""
    each = BASE + "accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}}\n"
    assert "fsdp_no_sync=neither" in read(tmp_path, each).request.get("switches")
    for text in (BASE + "accelerator_config: {even_batches: true}\n", each + "xformers_attention:\n"):
        assert "fsdp_no_sync=neither" not in (read(tmp_path, text).request.get("switches") or ())


SHARDS = BASE + "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\ndp_shard_size: 2\n"


def test_gpus_beyond_the_shards_hold_copies(tmp_path: Path) -> None:
    """As many copies as there are groups; a flag says another way, and other numbers end the job."""
    config = read(tmp_path, SHARDS)
    two, eight = (with_flags(config, from_flags({"gpu": f"h100-sxm:{count}"})) for count in (2, 8))
    assert (two.get("sharding"), two.get("replicas")) == ("fsdp", None)
    assert (eight.get("sharding"), eight.get("replicas")) == ("hsdp", 4)
    said = with_flags(config, from_flags({"gpu": "h100-sxm:8", "sharding": "zero3"}))
    assert said.get("replicas") is None
    with pytest.raises(UsageError, match=r"dp_shard_size.*ask for 2 GPUs, or a multiple, and the job has 3"):
        with_flags(config, from_flags({"gpu": "h100-sxm:3"}))
    whole = read(tmp_path, SHARDS.replace("reshard_after_forward: true", "reshard_after_forward: false"))
    with pytest.raises(NotModelledError, match="copies beside sharding fsdp-grad-op"):
        with_flags(whole, from_flags({"gpu": "h100-sxm:8"}))
