"""Files of programs that are not read here, told by keys that only their files have."""

from __future__ import annotations

from planner.configs.yaml_or_json import Document
from planner.errors import NotModelledError

# Program -> its own keys.  One is enough: none of them is a key of a tool that is read.
_MARKS = {
    # huggingface/transformers examples/pytorch/language-modeling/run_clm_no_trainer.py: a loop of its own;
    # open-instruct's files have none of these.
    "a script of Transformers without a Trainer": frozenset({"no_keep_linebreaks", "num_warmup_steps"}),
    # OptimalScale/LMFlow src/lmflow/args.py.
    "LMFlow": frozenset(
        {
            "do_dpo_align",
            "reference_model_name_or_path",
            "disable_group_texts",
            "group_texts_batch_size",
            "use_lisa",
            "lisa_activated_layers",
            "truncate_to_model_max_length",
        }
    ),
    # megatron-core 0.16.1 model_parallel_config.py, transformer/transformer_config.py and
    # distributed/distributed_data_parallel_config.py; also what LLaMA-Factory hands to mcore_adapter
    # (examples/megatron).
    "Megatron": frozenset(
        {
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "virtual_pipeline_model_parallel_size",
            "expert_model_parallel_size",
            "use_distributed_optimizer",
            "recompute_granularity",
            "recompute_method",
            "recompute_num_layers",
            "moe_grouped_gemm",
            "moe_token_dispatcher_type",
            "overlap_grad_reduce",
            "overlap_param_gather",
            "bias_activation_fusion",
            "apply_rope_fusion",
        }
    ),
    # mosaicml/llm-foundry at 8c8dd48 llmfoundry/utils/config_utils.py TrainConfig.
    "LLM Foundry": frozenset({"device_train_microbatch_size", "icl_tasks"}),
    # modelscope/ms-swift at 4.x swift/arguments/{base_args,tuner_args}.py.
    "ms-swift": frozenset({"tuner_type", "train_type", "model_author", "freeze_vit", "freeze_aligner"}),
    # NVIDIA-NeMo/Automodel nemo_automodel/recipes/llm/train_ft.py.
    "NeMo AutoModel": frozenset({"step_scheduler", "dist_env"}),
    # verl 0.9.1 trainer/config/ppo_trainer.yaml;
    # files of its supervised trainer have no key that only they have.
    "verl": frozenset({"actor_rollout_ref"}),
}


def refuse_other_tools(document: Document) -> None:
    """Refuse a file of a program that is not read.

    Raises:
        NotModelledError: names the program and the key that tells it.
    """
    for program, marks in _MARKS.items():
        if found := sorted(marks & document.table.keys()):
            raise _refusal(document, program, found[0])
    model = document.table.get("model")
    # oumi-ai/oumi src/oumi/core/configs/params/model_params.py.
    if isinstance(model, dict) and "model_name" in model:
        raise _refusal(document, "Oumi", "model.model_name")


def _refusal(document: Document, program: str, key: str) -> NotModelledError:
    return NotModelledError(
        f"{document.path}:{key}: a key of {program}: such files are not read; say the job by flags "
        "(plan --help)"
    )
