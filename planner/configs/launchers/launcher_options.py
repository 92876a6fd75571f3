"""Options of launchers by name.

Sources: accelerate 1.15.0 commands/launch.py; torch 2.13.0 distributed/run.py; deepspeed 0.19.8
launcher/runner.py.
"""

from __future__ import annotations


def names_of(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# Switches, which take no value; every other option of a launcher takes one.
ACCELERATE_SWITCHES = names_of(
    """
    cpu multi_gpu tpu ipex use_xpu use_deepspeed use_fsdp use_megatron_lm use_parallelism_config debug m
    module no_python quiet q same_network downcast_bf16 dynamo_use_fullgraph dynamo_use_dynamic
    dynamo_use_regional_compilation enable_cpu_affinity tpu_use_cluster no_tpu_cluster tpu_cluster
    tpu_use_sudo h help
    """
)
TORCHRUN_SWITCHES = names_of("standalone m module no_python run_path virtual_local_rank")
DEEPSPEED_SWITCHES = names_of(
    "no_python no_local_rank no_ssh no_ssh_check force_multi save_pid module bind_cores_to_cpu "
    "elastic_training"
)
DEEPSPEED_OPTIONS = names_of(
    """
    zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path
    offload_param_nvme_path gradient_accumulation_steps gradient_clipping zero3_init_flag
    zero3_save_16bit_model deepspeed_config_file deepspeed_hostfile deepspeed_exclusion_filter
    deepspeed_inclusion_filter deepspeed_multinode_launcher deepspeed_moe_layer_cls_names
    """
)
