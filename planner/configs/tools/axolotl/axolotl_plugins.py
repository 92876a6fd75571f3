"""Plugins of Axolotl's files, and the keys that only a plugin reads.

Source: axolotl 067b021c8 (2026-07-24) integrations/*/args.py.  A plugin's keys join the schema where
``plugins`` names it (integrations/config.py merge_input_args); elsewhere validation drops them.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.configs.tools.axolotl.axolotl_age import Age
from planner.configs.tools.axolotl.axolotl_kernels import read_kernels
from planner.configs.tools.axolotl.axolotl_pruning import read_pruning
from planner.errors import show

_OWN = "axolotl.integrations."
# Liger, diffusion and expert parallelism are read elsewhere; the others evaluate or track.
_HARMLESS = ("liger", "cut_cross_entropy", "diffusion", "expert_parallel", "lm_eval", "swanlab")
# Keys of Liger's are read with the loss; those that are refused whatever the plugins stand in ``axolotl.py``.
_KEYS = {
    "cut_cross_entropy": "cut_cross_entropy",
    "diffusion": "diffusion",
    "expert_parallel": """
        expert_parallel_backend expert_parallel_num_nvl_bytes expert_parallel_num_rdma_bytes
        expert_parallel_token_capacity expert_parallel_fallback_on_unsupported
    """,
    "grokfast": "grokfast_alpha grokfast_lamb",
    "hatchery": "hatchery",
    "kd": """
        kd_ce_alpha kd_alpha kd_temperature kd_beta kd_normalize_topk kd_online_server_base_url kd_online_topk
        kd_online_server kd_online_timeout kd_temperature_min
    """,
    "kernels": """
        expert_backend nonexpert_quantization moe_grouped_backend moe_dequant_chunk_size moe_bnb_fast
        use_scattermoe use_sonicmoe use_dsv4_kernels use_glm_dsa_kernels dsv4_fp8_nonexpert_mode
        dsv4_fp8_lora_kernel dsv4_shared_mlp_lora_kernel dsv4_bf16_all dsv4_fp4_grouped_mode
        gemma4_fp8_nonexpert gemma4_nf4_nonexpert nvfp4_merge_aware nvfp4_merge_aware_start_step
    """,
    "llm_compressor": "llmcompressor",
    "lm_eval": "lm_eval_tasks lm_eval_batch_size lm_eval_post_train lm_eval_model",
    "mora": "mora",
    "nemo_gym": """
        nemo_gym_dir nemo_gym_auto_clone nemo_gym_config_paths nemo_gym_head_port nemo_gym_server_timeout
        nemo_gym_verify_timeout nemo_gym_run_timeout nemo_gym_datasets nemo_gym_auto_start nemo_gym_model_name
        nemo_gym_multi_turn nemo_gym_max_turns
    """,
    "swanlab": """
        use_swanlab swanlab_project swanlab_experiment_name swanlab_description swanlab_mode swanlab_workspace
        swanlab_api_key swanlab_log_model swanlab_web_host swanlab_api_host swanlab_lark_webhook_url
        swanlab_lark_secret swanlab_log_completions swanlab_completion_log_interval
        swanlab_completion_max_buffer
    """,
}


def read_plugins(keys: Keys, reading: Reading, *, age: Age) -> None:
    """Enter what plugins change: the loss, and kernels of experts.

    Raises:
        NotModelledError: one of Axolotl's own that trains otherwise (Spectrum, distillation,
            GrokFast, which keeps old gradients...), or one of others' making, which may change anything.
    """
    named = [_name(keys, plugin) for plugin in keys.names("plugins")]
    for name in named:
        if name == "cut_cross_entropy" and keys.flag("cut_cross_entropy") is not False:
            reading.say("loss", "liger", keys.where("plugins"), "of which a switch makes cut cross entropy")
            reading.switch("cut_cross_entropy", True, keys.where("plugins"))
        elif name == "kernels":
            read_kernels(keys, reading)
        elif name == "llm_compressor" and age.today:
            read_pruning(keys, reading)
        elif name not in _HARMLESS:
            raise keys.not_modelled("plugins", f"what {show(name)} trains is not modelled")
    for plugin, names in _KEYS.items():
        _read_keys(keys, reading, tuple(names.split()), "" if plugin in named else plugin)


def _name(keys: Keys, plugin: str) -> str:
    """Folder of one of Axolotl's own.

    Raises:
        NotModelledError: one of others' making.
    """
    name = plugin.removeprefix(_OWN).partition(".")[0] if plugin.startswith(_OWN) else ""
    if not name:
        raise keys.not_modelled(
            "plugins", f"{show(plugin)} is not known; take it out if it changes nothing of the training"
        )
    return name


def _read_keys(keys: Keys, reading: Reading, names: tuple[str, ...], missing: str) -> None:
    """Keys of one plugin; ``missing``: its name where ``plugins`` leaves it out."""
    on = [name for name in names if keys.get(name)]
    if on and missing:
        reading.remark(keys.where(on[0]), f"has no effect: plugins does not name {_OWN}{missing}")
    keys.skip(names)
