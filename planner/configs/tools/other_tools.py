"""Files of programs that are not read here, told by keys that only their files have."""

from __future__ import annotations

from planner.configs.yaml_or_json import Document
from planner.errors import NotModelledError
from planner.words import words

# Program -> its own keys.  One is enough: none is a key of a tool that is read.
_MARKS = {
    # huggingface/transformers examples/pytorch/language-modeling/run_clm_no_trainer.py: a loop of its own;
    # open-instruct's files have none of these.
    "a script of Transformers without a Trainer": frozenset({"no_keep_linebreaks", "num_warmup_steps"}),
    # OptimalScale/LMFlow f3597dba src/lmflow/args.py: DPO, RAFT and what they run behind each other.
    "LMFlow's aligners": frozenset(
        words(
            """
            do_dpo_align reference_model_name_or_path reward_model_args_path output_reward_path
            num_raft_iteration sampling_paired_method accelerate_config_file
            """
        )
    ),
    # hiyouga/LLaMA-Factory ff6d4d12e hparams/megatron_bridge_args.py (USE_MEGATRON_BRIDGE=1).
    "Megatron-Bridge under LLaMA-Factory": frozenset(
        {"use_packed_sequences", "export_hf_on_finish", "megatron_pretrained_checkpoint"}
    ),
    # megatron-core 0.16.1 model_parallel_config.py, transformer/transformer_config.py and
    # distributed/distributed_data_parallel_config.py; also what LLaMA-Factory hands to mcore_adapter
    # (examples/megatron; alibaba/ROLL mcore_adapter/src/mcore_adapter/training_args.py), and to Megatron
    # Bridge (ff6d4d12e of 2026-08 hparams/megatron_bridge_args.py).
    "Megatron": frozenset(
        words(
            """
            tensor_model_parallel_size pipeline_model_parallel_size virtual_pipeline_model_parallel_size
            expert_model_parallel_size use_distributed_optimizer recompute_granularity recompute_method
            recompute_num_layers moe_grouped_gemm moe_token_dispatcher_type overlap_grad_reduce
            overlap_param_gather bias_activation_fusion apply_rope_fusion masked_softmax_fusion
            cross_entropy_loss_fusion account_for_embedding_in_pipeline_split
            account_for_loss_in_pipeline_split pipeline_model_parallel_layout expert_tensor_parallel_size
            recompute_modules moe_layer_recompute moe_expert_capacity_factor moe_pad_expert_input_to_capacity
            moe_token_drop_policy moe_shared_expert_overlap moe_enable_routing_replay mtp_num_layers
            calculate_per_token_loss transformer_impl cuda_graph_impl distrib_optim_fully_reshardable
            optimizer_cpu_offload optimizer_offload_fraction delay_grad_reduce
            """
        )
    ),
    # mosaicml/llm-foundry at 8c8dd48 llmfoundry/utils/config_utils.py TrainConfig.
    "LLM Foundry": frozenset({"device_train_microbatch_size", "icl_tasks"}),
    # OpenRLHF before its options had groups (v0.9 openrlhf/cli), and 3c3be623 of 2026.
    "OpenRLHF": frozenset({"micro_train_batch_size", "micro_rollout_batch_size", "ds.zero_stage"}),
    # verl 0.9.1 trainer/config/ppo_trainer.yaml;
    # files of its supervised trainer have no key that only they have.
    "verl": frozenset({"actor_rollout_ref"}),
}
BRIDGE = (
    "recipes of Megatron-Bridge are Python, which is not run here, so the model and its degrees are not "
    "known: say all of it by flags, with --stack megatron for ms-swift's way (plan --help)"
)
"""Why what changes such a recipe is refused (NVIDIA-NeMo/Megatron-Bridge 067f987d recipes)."""
_OF_PROGRAM = dict.fromkeys(("ms-swift-megatron", "llama-factory-mca"), "Megatron")
"""Tool that is read -> program whose keys it has."""


def refuse_other_tools(document: Document, tool: str | None) -> None:
    """Refuse a file of a program that is not read; ``tool``: the one that is asked for, or told for sure.

    Raises:
        NotModelledError: names the program and the key that tells it.
    """
    for program, marks in _MARKS.items():
        if program == _OF_PROGRAM.get(tool or ""):
            continue
        if found := sorted(marks & document.table.keys()):
            raise _refusal(document, program, found[0])
    train, model = document.table.get("train"), document.table.get("model")
    # NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/training/config.py TrainingConfig.
    if isinstance(train, dict) and "train_iters" in train:
        raise NotModelledError(f"{document.path}:train: {BRIDGE}")
    # oumi-ai/oumi src/oumi/core/configs/params/model_params.py.
    if isinstance(model, dict) and "model_name" in model:
        raise _refusal(document, "Oumi", "model.model_name")


def _refusal(document: Document, program: str, key: str) -> NotModelledError:
    advice = "whatever --tool says; say the job by flags"
    if program == "Megatron":
        advice = (
            "but with the command that starts them, which is ms-swift's megatron or USE_MCA=1 "
            "llamafactory-cli; else say the job by flags, with --stack megatron"
        )
    return NotModelledError(
        f"{document.path}:{key}: a key of {program}: such files are not read, {advice} (plan --help)"
    )
