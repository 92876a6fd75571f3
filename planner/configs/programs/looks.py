"""Names of calls and attributes that leave what trains as it is, and of calls that do not."""

from __future__ import annotations

import ast
import re
from typing import Any

from planner.configs.programs.values import Library
from planner.words import words

# What changes the code, the dtype or the card under a model that it is not given, or puts another on it.
_CHANGES = re.compile(
    r"(?!\w*[Dd]ispatch)(?:\w*[Pp]atch\w*|\w*[Mm]onkey\w*|replace_\w*(?:attn|attention|forward)\w*"
    r"|apply_liger\w*|set_default_(?:dtype|tensor_type)"
    r"|set_per_process_memory_fraction|autocast|pipeline|LLM|exec|eval"
    r"|enable_(?:flash|mem_efficient)_sdp|sdpa?_kernel|use_deterministic_algorithms|enable_full_determinism)$"
)
# The argument with which these leave things as they are.
_AS_IT_IS = {
    "enable_flash_sdp": True,
    "enable_mem_efficient_sdp": True,
    "use_deterministic_algorithms": False,
}
# What takes a model or a trainer and leaves it as it is.
_HARMLESS_CALL = re.compile(
    r"DataCollator\w*|\w*Collator|\w*Callback|\w*print|len|type|isinstance|hasattr|getattr|id|str|repr"
    r"|callable|for_training|for_inference|\w*summary|watch"
)
HARMLESS_METHODS = frozenset(
    words(
        """
        print_trainable_parameters train eval enable_input_require_grads get_memory_footprint
        num_parameters named_parameters parameters named_modules modules state_dict add_callback
        save_model save_state save_pretrained save_pretrained_merged save_pretrained_gguf push_to_hub
        push_to_hub_merged push_to_hub_gguf log_metrics save_metrics evaluate config_class tie_weights
        is_world_process_zero is_local_process_zero get_nb_trainable_parameters create_model_card
        accelerator_config is_parallelizable get_train_dataloader get_eval_dataloader set_state_dict_type
        """
    )
)
READS_SETTINGS = words(
    """
    main_process_first get_process_log_level get_warmup_steps to_dict to_json_string to_sanitized_dict
    """
)
GIVES_PARTS = words("parameters named_parameters modules named_modules")
"""Methods of a model that give its parts."""
HANDS_PARTS_ON = words("list tuple iter next reversed filter enumerate sorted dict")
"""Functions of Python that give some of what they get."""
HARMLESS_ATTRIBUTES = words("is_parallelizable model_parallel warnings_issued")
"""Of a model: what a Trainer takes for one over several GPUs, whatever it is, and what it was warned of."""
# Parts of a model or a trainer that tell of it, and through which nothing of a step is changed.
TELLS = words(
    """
    device dtype config generation_config name_or_path hf_device_map state tokenizer processing_class
    train_dataset eval_dataset
    """
)
# More methods and functions that only look at a model, or at a table.
READS = frozenset(
    words(
        """
        numel nelement size element_size format sum items keys values int round sorted set list append any
        all startswith endswith lower split join dim get info debug warning max min enumerate range zip
        get_input_embeddings get_output_embeddings mean device_count generate
        """
    )
)
_TELLS_OF_SETTINGS = re.compile("log|save|dump|write")
_HARMLESS_CONFIG = words("use_cache pretraining_tp pad_token_id eos_token_id bos_token_id label2id id2label")
_OF_TOKENIZER = words(
    "pad_token eos_token bos_token unk_token padding_side truncation_side chat_template model_max_length"
)
_REPORTS = words("wandb mlflow swanlab trackio comet_ml neptune clearml aim")
NOT_COUNTED = {
    "resize_token_embeddings": "counted with the vocabulary of the checkpoint",
    "generate": "what is generated here is not counted",
}
"""Methods of a model that change no settings of a step, with what is told of them."""


def changes(name: str, values: list[Any]) -> bool:
    """Whether a call of this name changes what a model does that it is not given."""
    return bool(_CHANGES.match(name)) and values != [_AS_IT_IS.get(name, ...)]


def is_harmless_call(name: str) -> bool:
    """Whether what has this name looks at a model or a trainer, and leaves it as it is."""
    return name in HARMLESS_METHODS or _HARMLESS_CALL.fullmatch(name) is not None


def is_told(name: str) -> bool:
    """Whether it only tells of settings, or keeps them."""
    return only_reads(name) or _TELLS_OF_SETTINGS.match(name) is not None


def only_reads(name: str) -> bool:
    """Whether it does so with parts of a model, too."""
    return name in READS or is_harmless_call(name)


def is_harmless_setting(name: str) -> bool:
    """Whether a value of a model's config says nothing of a training step."""
    return name in _HARMLESS_CONFIG


def is_harmless(target: ast.Attribute) -> bool:
    """Whether an attribute says nothing of a training step: what is generated, labels, special tokens."""
    named = is_harmless_setting(target.attr) or target.attr in _OF_TOKENIZER
    return named or "generation_config" in ast.unparse(target)


def is_report(called: Any) -> bool:
    """Whether it is of a package that notes what happens: nothing of a step changes by it."""
    return isinstance(called, Library) and called.name.partition(".")[0] in _REPORTS
