"""Calls of libraries by their names: what they leave as it is, and the names of their arguments."""

from __future__ import annotations

import re
from typing import Any

from planner.configs.programs.values import Library, is_known
from planner.words import words

_REPORTS = words("wandb mlflow swanlab trackio comet_ml neptune clearml aim")
HARMLESS_CALL = re.compile(
    r"(?:DataCollator\w*|\w*Collator|\w*Callback|print|len|type|isinstance|hasattr|getattr|id|str|repr"
    r"|callable|for_training|for_inference|summary|watch)$"
)
"""What takes a model or a trainer and leaves it as it is."""
HANDS_ON = re.compile(r"train_on_responses_only$")
"""What hands its first argument on, with other labels."""
HARMLESS_METHODS = frozenset(
    words(
        """
        print_trainable_parameters train eval enable_input_require_grads get_memory_footprint
        num_parameters named_parameters parameters named_modules modules state_dict add_callback
        save_model save_state save_pretrained save_pretrained_merged save_pretrained_gguf push_to_hub
        push_to_hub_merged push_to_hub_gguf log_metrics save_metrics evaluate config_class tie_weights
        is_world_process_zero is_local_process_zero get_nb_trainable_parameters create_model_card
        accelerator_config is_parallelizable get_train_dataloader get_eval_dataloader
        """
    )
)
"""Methods of models and trainers that leave them as they are."""
READS_SETTINGS = words(
    """
    main_process_first get_process_log_level get_warmup_steps to_dict to_json_string to_sanitized_dict
    """
)
"""Methods of settings that leave them as they are."""
NOT_COUNTED = {
    "resize_token_embeddings": "counted with the vocabulary of the checkpoint",
    "generate": "what is generated here is not counted",
}
"""Methods of a model that change no settings of a step, with what is told of them."""
HARMLESS_ATTRIBUTES = words("is_parallelizable model_parallel warnings_issued")
"""Of a model: what a Trainer takes for one over several GPUs, whatever it is, and what it was warned of."""
TELLS = words(
    """
    device dtype config generation_config name_or_path hf_device_map state tokenizer processing_class
    train_dataset eval_dataset
    """
)
"""Parts of a model or a trainer that tell of it, and through which nothing of a step is changed."""
DTYPES = {
    **{name: name for name in ("bfloat16", "float16", "float32", "uint8")},
    "half": "float16",
    "float": "float32",
}
"""Dtypes of torch that a program may name."""
ARGUMENTS = {
    "from_pretrained": ("model_name",),
    "get_peft_model": ("model", "peft_config"),
    "Trainer": ("model", "args", "data_collator", "train_dataset", "eval_dataset"),
    "SFTTrainer": ("model", "args"),
    "DPOTrainer": ("model", "ref_model", "args"),
    "KTOTrainer": ("model", "ref_model", "args"),
    "GRPOTrainer": ("model", "reward_funcs", "args"),
    "Config": ("output_dir",),
    "Arguments": ("output_dir",),
    "prepares": ("model", "use_gradient_checkpointing", "gradient_checkpointing_kwargs"),
    "adapted": ("model", "r", "target_modules", "lora_alpha", "lora_dropout", "bias"),
    "loads_adapters": ("model", "model_id", "adapter_name", "is_trainable"),
}
"""Names of arguments that are given by their place."""
OF_ADAPTERS = "adapter_config.json"
"""What a folder of adapters says of them."""
BESIDE_ADAPTERS = words(
    """
    auto_mapping base_model_name_or_path peft_version revision megatron_core qalora_group_size arrow_config
    """
)
"""What it says that moves no memory."""


def is_report(called: Any) -> bool:
    """Whether it is of a package that notes what happens."""
    return isinstance(called, Library) and called.name.partition(".")[0] in _REPORTS


def is_harmless_call(name: str) -> bool:
    """Whether what has this name looks at a model or a trainer, and leaves it as it is."""
    return name in HARMLESS_METHODS or HARMLESS_CALL.search(name) is not None


def is_dtype(value: Any) -> bool:
    """Whether it is the name of a dtype."""
    return is_known(value) and value in DTYPES.values()
