"""LLaMA-Factory's files, value by value: what its source makes of a small file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.configs.launchers.fsdp_keys import Beside
from planner.errors import InputFileError, NotModelledError, UsageError
from planner.intake.given.config_file import read_config_file, with_flags
from planner.intake.given.request import from_flags
from tests.files import filled, read, written

BASE = "model_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: lora\ntemplate: qwen\nbf16: true\n"
FULL = BASE.replace("lora", "full")
OLD = "llama-factory@0.8"


def recipe_of(folder: Path, text: str) -> Any:
    """The recipe of a file on one card, with what the stack adds."""
    return filled(read(folder, text), {"gpu": "a100-80-sxm"}).recipe


@pytest.mark.parametrize(
    ("text", "values"),
    [
        # What nothing is said about.
        (
            "",
            {
                "stack": "llama-factory",
                "seq": 2048,
                "method": "lora",
                "batch": 8,
                "grad_accum": 1,
                "epochs": 3,
                "padding": None,
            },
        ),
        ("flash_attn: auto\n", {"attention": None}),
        ("flash_attn: fa2\n", {"attention": "flash2"}),
        ("flash_attn: fa3\n", {"attention": "flash2"}),
        ("flash_attn: flash_attention_2\n", {"attention": "flash2"}),
        ("flash_attn: true\n", {"attention": "flash2"}),
        ("flash_attn: sdpa\n", {"attention": "sdpa"}),
        ("flash_attn: disabled\n", {"attention": "eager"}),
        # YAML reads off as false; it is what 0.7 called eager attention.
        ("flash_attn: off\n", {"attention": "eager"}),
        ("packing: true\n", {"padding": "packed"}),
        ("neat_packing: true\n", {"padding": "packed"}),
        ("stage: pt\n", {"padding": "packed", "seq": 2048}),
        ("stage: pt\npacking: true\n", {"padding": "packed", "seq": 2047}),
        ("stage: pt\npacking: false\n", {"padding": None, "seq": 2048}),
        # Rows are padded to a whole multiple of eight.
        ("cutoff_len: 1001\n", {"seq": 1008}),
        ("cutoff_len: 1001\npacking: true\n", {"seq": 1008}),
        ("cutoff_len: 1001\nstage: dpo\n", {"seq": 1008}),
        ("cutoff_len: 1001\nstage: pt\npacking: false\n", {"seq": 1001}),
        ("quantization_bit: 4\n", {"quantization": "nf4", "double_quant": True, "quant_storage": "bf16"}),
        ("quantization_bit: 4\ndouble_quantization: false\n", {"quantization": "nf4", "double_quant": False}),
        (
            "quantization_bit: 4\nquantization_method: BNB\n",
            {"quantization": "nf4", "stack": "llama-factory"},
        ),
        ("quantization_bit: 8\n", {"quantization": "int8", "double_quant": None, "quant_storage": None}),
        ("use_reentrant_gc: false\n", {"checkpoint_reentrant": False}),
        ("disable_gradient_checkpointing: true\n", {"gradient_checkpointing": False}),
        (
            "enable_liger_kernel: true\n",
            {"loss": "liger", "switches": ("fused_norm=liger", "fused_mlp=liger")},
        ),
        ("optim: adamw_torch\n", {"optimizer": "adamw_torch"}),
        ("loraplus_lr_ratio: 16\npissa_init: true\n", {"method": "lora", "optimizer": None}),
        (
            "lora_target: q_proj,v_proj\nlora_rank: 64\n",
            {"lora_targets": ("q_proj", "v_proj"), "lora_rank": 64},
        ),
        (
            "lora_target: all\nadditional_target: embed_tokens\n",
            {"lora_targets": ("linear-classes",), "modules_to_save": ("embed_tokens",)},
        ),
    ],
)
def test_a_key_means_what_llama_factory_makes_of_it(
    tmp_path: Path, text: str, values: dict[str, Any]
) -> None:
    """Each value is what hparams/*.py, parser.py and model_utils of llamafactory 0.9.5 make of the key."""
    request = read(tmp_path, BASE + text).request
    assert {name: request.get(name) for name in values} == values


def test_the_newest_defaults_are_those_of_0_9_5(tmp_path: Path) -> None:
    """Checkpointing on and reentrant, fused AdamW, rank 8 on all linear layers, the loss of Transformers."""
    recipe = recipe_of(tmp_path, BASE)
    assert (recipe.gradient_checkpointing, recipe.checkpoint_reentrant, recipe.optimizer) == (
        True,
        True,
        "adamw_torch_fused",
    )
    assert (recipe.adapter.rank, recipe.adapter.targets, recipe.attention, recipe.loss) == (
        8,
        ("all-linear",),
        "sdpa",
        "hf",
    )


@pytest.mark.parametrize(
    ("sign", "old"),
    [
        ("evaluation_strategy: steps\n", True),
        ("new_special_tokens: <a>\n", True),
        ("quantization_method: bitsandbytes\n", True),
        ("overwrite_cache: true\n", True),
        # As in the examples of 0.9.2.
        ("overwrite_cache: true\ndataloader_num_workers: 4\nsave_only_model: false\n", True),
        ("overwrite_cache: true\nreport_to: none\n", False),
        ("eval_strategy: steps\noverwrite_output_dir: true\n", False),
    ],
)
def test_keys_of_an_old_file_take_the_stack_of_then(tmp_path: Path, sign: str, old: bool) -> None:
    """Up to 0.9.2 the optimizer was AdamW by foreach whatever the version of torch;
    the remark says which key tells the age.
    """
    text = BASE + "cutoff_len: 1024\n" + sign
    config = read(tmp_path, text)
    assert config.request.get("stack") == (OLD if old else "llama-factory")
    assert any("LLaMA-Factory 0.7 to 0.9.2" in remark.text for remark in config.remarks) == old
    assert recipe_of(tmp_path, text).optimizer == ("adamw_torch" if old else "adamw_torch_fused")


@pytest.mark.parametrize(
    ("sign", "stack"),
    [
        ("trust_remote_code: true\n", "llama-factory@0.9"),
        ("use_reentrant_gc: true\n", "llama-factory@0.9"),
        ("", OLD),
        # What 0.9.2 had dropped, and what the newest versions of Transformers that it allows no longer have.
        ("trust_remote_code: true\nimage_resolution: 512\n", OLD),
        ("trust_remote_code: true\nevaluation_strategy: steps\n", OLD),
    ],
)
def test_a_key_that_came_with_0_9_2_is_not_for_older_software(tmp_path: Path, sign: str, stack: str) -> None:
    """0.9.1 stops at such a key; it ran on Transformers up to 4.46, 0.9.2 on 4.49 and later."""
    assert (
        read(tmp_path, BASE + "overwrite_cache: true\ncutoff_len: 512\n" + sign).request.get("stack") == stack
    )


@pytest.mark.parametrize(
    ("model", "extra", "stack"),
    [
        ("Qwen/Qwen3-8B", "", "llama-factory"),
        ("/data/models/Qwen3-8B", "", "llama-factory"),
        ("Qwen/Qwen2.5-7B", "", OLD),
        # Its code came with the checkpoint before Transformers had it.
        ("deepseek-ai/DeepSeek-V2-Lite", "", OLD),
        # 0.9.5 stops at this key, so the file is of a fork.
        ("Qwen/Qwen3-8B", "image_resolution: 512\n", OLD),
    ],
)
def test_a_model_that_came_later_outweighs_what_old_files_usually_say(
    tmp_path: Path, model: str, extra: str, stack: str
) -> None:
    """People copy an old example for a new model, which 0.9.2's Transformers, up to 4.49, does not have."""
    text = BASE.replace("Qwen/Qwen2.5-0.5B", model) + "overwrite_cache: true\ncutoff_len: 512\n" + extra
    assert read(tmp_path, text).request.get("stack") == stack


def test_the_default_length_is_known_where_the_age_is(tmp_path: Path) -> None:
    """2,048 tokens in 0.9.2."""
    text = BASE + "overwrite_cache: true\ntrust_remote_code: true\n"
    assert read(tmp_path, text).request.get("seq") == 2048


@pytest.mark.parametrize(
    ("template", "method", "stack"),
    [("qwen", "qlora", OLD), ("qwen3_5_nothink", "lora", "llama-factory")],
)
def test_a_template_that_came_later_outweighs_signs_of_age(
    tmp_path: Path, template: str, method: str, stack: str
) -> None:
    """0.9.5 calls it bnb and quantises nothing under the older name: its own run of Qwen3 0.6B allocated
    as much as without quantization_bit.
    """
    text = BASE.replace("qwen\n", f"{template}\n") + "cutoff_len: 512\nquantization_bit: 4\n"
    config = read(tmp_path, text + "quantization_method: bitsandbytes\noverwrite_cache: true\n")
    assert config.request.get("stack") == stack
    assert (config.request.get("quantization") is None) == (method == "lora")
    assert any("quantises nothing" in remark.text for remark in config.remarks) == (method == "lora")


def test_the_newest_version_runs_an_old_file_as_it_is_asked_for(tmp_path: Path) -> None:
    """Its own run of ``train_qlora/llama3_lora_sft_otfq.yaml`` of 2025-03 allocated twice what the file's age
    says, as it quantises nothing; it loads weights as the checkpoint has them.
    """
    path = tmp_path / "train.yaml"
    text = BASE + "cutoff_len: 512\nbf16: true\nquantization_bit: 4\nquantization_method: bitsandbytes\n"
    path.write_text(text, encoding="utf-8")
    of_then, of_today = (
        read_config_file(path, None, Beside(stack=stack)).request for stack in ("", "llama-factory")
    )
    assert (of_then.get("quantization"), of_then.get("load_dtype")) == ("nf4", "bf16")
    assert (of_today.get("quantization"), of_today.get("load_dtype")) == (None, None)


@pytest.mark.parametrize(("script", "length"), [("src/train_bash.py", 1024), ("src/train.py", 2048)])
def test_the_script_of_0_7_tells_its_age(tmp_path: Path, script: str, length: int) -> None:
    """Its length is that of 0.7, whatever the keys say; later scripts tell nothing."""
    path = written(tmp_path, BASE)
    config = read_config_file(path, None, Beside(script=script))
    assert config.request.get("seq") == length
    assert config.request.get("stack") == (OLD if length == 1024 else "llama-factory")


def test_added_tokens_are_no_placeholders(tmp_path: Path) -> None:
    """They have the looks of one."""
    config = read(tmp_path, BASE + "cutoff_len: 512\nnew_special_tokens: <IMG>,</IMG>\n")
    assert config.request.get("modules_to_save") == ("embed_tokens", "lm_head")


def test_no_blocks_in_each_matrix_is_what_oft_is_by_default(tmp_path: Path) -> None:
    """``oft_rank: 0`` leaves the size of a block to oft_block_size; a number is refused."""
    text = BASE.replace("lora", "oft") + "oft_block_size: 16\n"
    assert read(tmp_path, text + "oft_rank: 0\n").request.get("oft_block_size") == 16
    with pytest.raises(NotModelledError, match="oft_rank"):
        read(tmp_path, text + "oft_rank: 4\n")


def test_a_file_between_two_versions_has_the_length_of_the_newer(tmp_path: Path) -> None:
    """The checkout before 0.9.2 still had the first key: 2,048 tokens as in 0.9.1."""
    text = BASE + "train_mm_proj_only: false\nimage_max_pixels: 262144\n"
    assert (read(tmp_path, text).request.get("stack"), read(tmp_path, text).request.get("seq")) == (OLD, 2048)


def test_an_old_file_without_a_length_has_two_defaults_and_asks(tmp_path: Path) -> None:
    """1,024 tokens up to 0.8 and 2,048 since."""
    config = read(tmp_path, BASE + "evaluation_strategy: steps\n")
    with pytest.raises(UsageError, match="say --seq"):
        with_flags(config, from_flags({"gpu": "4090"}))


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("overwrite_cache: true\n", "bf16"),
        ("overwrite_cache: true\ndeepspeed: ds.json\n", "fp32"),
        ("evaluation_strategy: steps\ndeepspeed: ds.json\n", "bf16"),
        ("overwrite_cache: true\ndeepspeed: ds.json\nquantization_bit: 4\n", "bf16"),
        ("deepspeed: ds.json\n", None),
    ],
)
def test_old_files_load_in_the_compute_dtype_or_in_fp32_under_zero3(
    tmp_path: Path, text: str, dtype: str | None
) -> None:
    """llamafactory 0.8.3 model/patcher.py:98-102 and 0.7.1 patcher.py:72;
    newer ones load as the checkpoint is.
    """
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}', encoding="utf-8"
    )
    assert read(tmp_path, BASE + "cutoff_len: 1024\n" + text).request.get("load_dtype") == dtype


@pytest.mark.parametrize(("version", "reentrant"), [(2, False), (1, None)])
def test_fsdp2_turns_reentrant_checkpointing_off(
    tmp_path: Path, version: int, reentrant: bool | None
) -> None:
    """model/model_utils/checkpointing.py does so whatever the file says."""
    text = f"distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {{fsdp_version: {version}}}\n"
    (tmp_path / "fsdp.yaml").write_text(text, encoding="utf-8")
    config = read(tmp_path, BASE, accelerate=tmp_path / "fsdp.yaml")
    assert config.request.get("checkpoint_reentrant") is reentrant
    config = read(tmp_path, BASE + "use_reentrant_gc: true\n", accelerate=tmp_path / "fsdp.yaml")
    assert config.request.get("checkpoint_reentrant") is (version == 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BASE + "tensor_model_parallel_size: 1\n", "use_distributed_optimizer: an optimizer"),
        (BASE + "moe_grouped_gemm: true\n", "moe_grouped_gemm: a key of Megatron"),
        (BASE.replace("qwen\n", "kimi_vl\n"), "template: 'kimi_vl' is for a model that sees or hears"),
        (BASE.replace("Qwen2.5-0.5B", "Qwen2.5-0.5B-Instruct-HQQ"), "is quantised already (HQQ)"),
        (BASE + "stage: dpo\npref_loss: bco\n", "pref_loss: the loss 'bco'"),
        (BASE + "stage: dpo\nref_model: a/b\n", "ref_model: a reference that is another model"),
        (BASE + "sft_packing: true\n", "sft_packing: a key of LLaMA-Factory before 0.7"),
        (BASE + "max_source_length: 1024\n", "max_source_length: a key of LLaMA-Factory before 0.7"),
        (
            BASE + "stage: ppo\noverwrite_cache: true\nreward_model_type: full\n",
            "reward_model_type: a reward model of type full",
        ),
        (BASE + "do_predict: true\n", "this file does not train"),
        (BASE + "do_train: false\n", "this file does not train"),
        (BASE + "do_eval: true\n", "do_eval: this file does not train"),
        (BASE + "export_dir: merged\n", "export_dir: this file does not train"),
        (BASE + "infer_backend: vllm\n", "infer_backend: this file does not train"),
        ("model_name_or_path: gpt2\nfinetuning_type: lora\ntemplate: x\n", "nothing of a training is in"),
        (BASE.replace("lora", "full") + "use_badam: true\nbadam_mode: ratio\n", "badam_mode: 'ratio'"),
        (
            BASE.replace("lora", "full") + "use_apollo: true\napollo_target: self_attn\n",
            "apollo_target: projecting the gradients of some",
        ),
        (BASE.replace("lora", "full") + "use_apollo: true\napollo_proj: svd\n", "apollo_proj: 'svd'"),
    ],
)
def test_what_is_not_read_ends_without_a_verdict(tmp_path: Path, text: str, sentence: str) -> None:
    """Exit 6 that names the key, also where --model names the shape by hand."""
    with pytest.raises(NotModelledError) as caught:
        with_flags(read(tmp_path, text), from_flags({"gpu": "4090", "model": "qwen2.5-0.5b"}))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stage: grpo\n", "LLaMA-Factory has no stage 'grpo', and stops; it has pt, sft"),
        ("lora_layers: 8\n", "lora_layers: unknown key"),
        (
            "enable_gradient_checkpointing: true\n",
            "is gradient_checkpointing meant?; LLaMA-Factory stops at it",
        ),
    ],
)
def test_what_its_own_parser_refuses_is_said_to_be(tmp_path: Path, text: str, sentence: str) -> None:
    """A key that turns something off is not proposed for one that turns it on."""
    with pytest.raises(UsageError) as caught:
        read(tmp_path, BASE + text)
    assert sentence in str(caught.value)
    assert str(caught.value).endswith("[refused-by-its-tool]")


def test_a_task_beside_training_trains(tmp_path: Path) -> None:
    """An evaluation behind training is counted with its own batch; a text model in a template that can see
    is text.
    """
    request = read(tmp_path, BASE + "do_train: true\ndo_eval: true\ninfer_backend: huggingface\n").request
    assert (request.get("method"), request.get("eval_batch")) == ("lora", 8)
    assert read(tmp_path, BASE + "do_train: true\n").request.get("eval_batch") is None
    # A folder that only a merge would write.
    assert (
        read(tmp_path, BASE + "do_train: true\nexport_dir: ${OUT}/merged\n").request.get("method") == "lora"
    )
    text_only = BASE.replace("Qwen/Qwen2.5-0.5B", "google/gemma-3-1b-it").replace(
        "template: qwen", "template: gemma3"
    )
    assert read(tmp_path, text_only).request.get("model") == "google/gemma-3-1b-it"


def test_a_checkpoint_that_the_catalog_knows_is_read_as_it_is_stored(tmp_path: Path) -> None:
    """The checkpoint's quantisation wins over that of the file, and --model does not change it."""
    text = BASE.replace("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B-Instruct-AWQ") + "quantization_bit: 4\n"
    request = with_flags(read(tmp_path, text), from_flags({"gpu": "4090", "model": "qwen2.5-0.5b"}))
    said = tuple(request.get(name) for name in ("quantization", "double_quant", "quant_storage"))
    assert said == ("awq-int4", None, None)


@pytest.mark.parametrize(("name", "said"), [
    ("GPTQ", "gptq-int4 or gptq-int8"), ("GPTQ-Int4", "gptq-int4 or gptq-int8"), ("AWQ", "awq-int4"),
    ("AQLM-2Bit-1x16", "aqlm"),
])  # fmt: skip
def test_a_packed_checkpoint_that_nothing_knows_asks_how_it_is_stored(
    tmp_path: Path, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name says no groups, and --model by hand does not make it a plain one."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    config = read(tmp_path, BASE.replace("Qwen2.5-0.5B", f"Qwen3-0.6B-{name}") + "quantization_bit: 4\n")
    flags = {"gpu": "4090", "model": "qwen2.5-0.5b"}
    with pytest.raises(UsageError, match=f"quantised already: say --quantization {said}"):
        with_flags(config, from_flags(flags))
    kind = said.partition(" ")[0]
    request = with_flags(config, from_flags(flags | {"quantization": kind}))
    assert (request.get("quantization"), request.get("quant_storage")) == (kind, None)


def test_gemma_2_asks_which_attention_is_installed(tmp_path: Path) -> None:
    """model/model_utils/attention.py takes FlashAttention 2 where it is installed,
    else eager attention, never sdpa; a check tries both.
    """
    text = BASE.replace("Qwen/Qwen2.5-0.5B", "google/gemma-2-2b")
    with pytest.raises(UsageError, match="say --attention flash2 or eager"):
        with_flags(read(tmp_path, text), from_flags({"gpu": "4090"}))
    assert read(tmp_path, text).either["attention"][1] == ("eager", "flash2")
    assert read(tmp_path, text + "flash_attn: disabled\n").request.get("attention") == "eager"


def test_an_unknown_attention_is_refused(tmp_path: Path) -> None:
    """As its parser refuses it."""
    with pytest.raises(InputFileError, match="flash_attn' must be auto, disabled, sdpa, fa2 or fa3"):
        read(tmp_path, BASE + "flash_attn: fa9\n")


def test_a_loss_that_compares_logits(tmp_path: Path) -> None:
    """A second model runs in each micro-step; other stages do not read the key."""
    config = read(tmp_path, FULL + "use_asft_loss: true\n")
    recipe = filled(config, {"gpu": "a100-80-sxm"}).recipe
    assert recipe.has_reference_model
    assert recipe.compares_logits
    other = read(tmp_path, FULL + "use_asft_loss: true\nstage: pt\n")
    assert "loss_weights=divergence" not in (other.request.get("switches") or ())


def test_losses_that_weigh_tokens_and_kernels_of_v1(tmp_path: Path) -> None:
    """The former need logits, which Liger's loss does not make; the latter are for Ascend's cards."""
    config = read(tmp_path, BASE + "use_eaft_loss: true\nenable_liger_kernel: true\nuse_v1_kernels: true\n")
    assert "loss_weights=entropy" in config.request.get("switches")
    assert config.request.get("loss") is None
    assert any(remark.origin.endswith("use_v1_kernels") for remark in config.remarks)


@pytest.mark.parametrize(("backend", "flag"), [("torchao", "rowwise"), ("te", "te-delayed")])
def test_fp8_has_no_effect_with_transformers_5(tmp_path: Path, backend: str, flag: str) -> None:
    """A remark with the flag that counts it: the patch of Accelerate waits for a call without handlers."""
    found = read(tmp_path, BASE + f"fp8: true\nfp8_backend: {backend}\n")
    said = "; ".join(each.text for each in found.remarks)
    assert "has no effect with Transformers 5" in said
    assert f"--fp8 {flag}" in said
    assert found.request.get("fp8") is None


def test_mixture_of_depths_of_later_transformers(tmp_path: Path) -> None:
    """It runs beside Transformers 4.42 and older only: of a later age its tool refuses it."""
    with pytest.raises(UsageError, match=r"beside Transformers 5.*refused-by-its-tool"):
        read(tmp_path, BASE + "mixture_of_depths: convert\n")
    llama = BASE.replace("Qwen/Qwen2.5-0.5B", "meta-llama/Meta-Llama-3-8B") + "overwrite_cache: true\n"
    with pytest.raises(UsageError, match=r"Transformers 4\.43.*refused-by-its-tool"):
        read(tmp_path, llama + "mixture_of_depths: convert\n")
    assert read(tmp_path, BASE + "mixture_of_depths: null\n").request.get("method") == "lora"


def test_mixture_of_depths_has_the_memory_of_whole_layers(tmp_path: Path) -> None:
    """Where each layer is run again by itself; other jobs of that age are not modelled."""
    llama = FULL.replace("Qwen/Qwen2.5-0.5B", "meta-llama/Meta-Llama-3-8B") + "evaluation_strategy: steps\n"
    found = read(tmp_path, llama + "mixture_of_depths: convert\n")
    assert any(each.origin.endswith("mixture_of_depths") for each in found.remarks)
    without = read(tmp_path, llama)
    assert found.request.values.keys() == without.request.values.keys()
    for text in (
        llama + "mixture_of_depths: load\n",
        llama + "mixture_of_depths: convert\ndisable_gradient_checkpointing: true\n",
        llama + "mixture_of_depths: convert\nuse_reentrant_gc: false\n",
        llama.replace(": full", ": lora") + "mixture_of_depths: convert\n",
        llama.replace(": full", ": freeze") + "mixture_of_depths: convert\n",
    ):
        with pytest.raises(NotModelledError, match="mixture of depths is modelled"):
            read(tmp_path, text)


@pytest.mark.parametrize("line", ["resize_vocab: true", "add_tokens: <a>,<b>", "new_special_tokens: <a>"])
def test_adapters_beside_a_resized_vocabulary_train_table_and_head(tmp_path: Path, line: str) -> None:
    """``_setup_lora_tuning`` fills ``additional_target``, unless the file does."""
    found = read(tmp_path, f"{BASE}{line}\n")
    assert found.request.get("modules_to_save") == ("embed_tokens", "lm_head")
    found = read(tmp_path, f"{BASE}{line}\nadditional_target: lm_head\n")
    assert found.request.get("modules_to_save") == ("lm_head",)
    assert read(tmp_path, f"{FULL}{line}\n").request.get("modules_to_save") is None
    assert read(tmp_path, f"{BASE}resize_vocab: false\n").request.get("modules_to_save") is None


def test_neat_packing_hands_a_mask_to_fused_attention(tmp_path: Path) -> None:
    """Squares of the length, in the compute dtype."""
    found = read(tmp_path, BASE + "neat_packing: true\n")
    assert found.request.get("switches") == ("sdpa_mask=given",)
    assert read(tmp_path, BASE + "packing: true\n").request.get("switches") is None


def test_unsloths_checkpointing_keeps_inputs_of_layers_in_host_ram(tmp_path: Path) -> None:
    """It runs as the reentrant kind, under FSDP2 too, and not where checkpointing is off."""
    names = ("offload", "checkpoint_reentrant")
    found = read(tmp_path, BASE + "use_unsloth_gc: true\nuse_reentrant_gc: false\n").request
    assert [found.get(name) for name in names] == ["activations", True]
    found = read(tmp_path, BASE + "use_unsloth_gc: true\nfsdp: full_shard\n").request
    assert [found.get(name) for name in (*names, "sharding")] == ["activations", True, "fsdp"]
    off = "disable_gradient_checkpointing: true\n"
    assert read(tmp_path, f"{BASE}use_unsloth_gc: true\n{off}").request.get("offload") is None
    with pytest.raises(NotModelledError, match="use_unsloth_gc"):
        read(tmp_path, BASE + "use_unsloth_gc: true\nfsdp: full_shard offload\n")
    with_it, without = (recipe_of(tmp_path, BASE + line) for line in ("use_unsloth_gc: true\n", ""))
    assert (with_it.offload, without.offload) == ("activations", "none")


@pytest.mark.parametrize("said", ["", "flash_attn: disabled\n"])
def test_gpt_oss_gets_a_kernel_from_the_hub(tmp_path: Path, said: str) -> None:
    """Whatever the file says of attention (llamafactory 0.9.5 model/model_utils/attention.py)."""
    config = read(tmp_path, BASE.replace("Qwen/Qwen2.5-0.5B", "openai/gpt-oss-20b") + said)
    assert config.request.get("attention") == "flash2"
    assert any("FlashAttention 3" in remark.text for remark in config.remarks)


def test_leaves_of_a_deepspeed_file_are_not_taken_for_all(tmp_path: Path) -> None:
    """model/model_utils/moe.py add_z3_leaf_module names classes whatever DeepSpeed's file says of its own."""
    table = '{"zero_optimization": {"stage": 3, "leaf_module": {"classes": []}}, "bf16": {"enabled": "auto"}}'
    (tmp_path / "ds.json").write_text(table, encoding="utf-8")
    with pytest.raises(NotModelledError, match="names itself are not modelled"):
        read(tmp_path, FULL + "deepspeed: ds.json\n")
    table = table.replace('"leaf_module": {"classes": []}', '"overlap_comm": true')
    (tmp_path / "ds.json").write_text(table, encoding="utf-8")
    assert read(tmp_path, FULL + "deepspeed: ds.json\n").request.get("sharding") == "zero3"
