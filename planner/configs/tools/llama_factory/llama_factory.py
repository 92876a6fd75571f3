"""A training file of LLaMA-Factory (YAML or JSON).

Keys and defaults: llamafactory 0.9.5 hparams/model_args.py, finetuning_args.py, data_args.py and parser.py.
"""

from __future__ import annotations

import re
from dataclasses import replace

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading
from planner.configs.shared.checkpoints import read_checkpoint
from planner.configs.shared.frozen_layers import read_freeze
from planner.configs.shared.kernels import say_generation, say_liger
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.trainer_arguments import (
    need_precision,
    read_distribution,
    read_precision,
    read_trainer,
)
from planner.configs.tools.llama_factory import llama_factory_age
from planner.configs.tools.llama_factory.llama_factory_age import (
    BEFORE_0_7,
    GONE,
    old_length,
    read_age,
    read_old_load_dtype,
    what_trusts,
)
from planner.configs.tools.llama_factory.llama_factory_checkpointing import (
    drop_trainers_switch,
    read_depths,
    read_manner,
    read_switch,
)
from planner.configs.tools.llama_factory.llama_factory_dtype import read_fp8, read_weights_dtype
from planner.configs.tools.llama_factory.llama_factory_host_experts import read_host_experts
from planner.configs.tools.llama_factory.llama_factory_optimizers import read_own_optimizer
from planner.configs.tools.llama_factory.llama_factory_refused import (
    refuse_engine,
    refuse_keys,
    stop_at_unknown_keys,
)
from planner.configs.tools.llama_factory.llama_factory_tasks import (
    OTHER_REFERENCES,
    llama_factory_task,
    read_likelihood,
    read_ppo,
)
from planner.configs.tools.llama_factory.llama_factory_v1 import MARKS as V1
from planner.configs.tools.llama_factory.llama_factory_vision import (
    READ_TEMPLATES,
    VISION_TEMPLATES,
    read_vision,
)
from planner.domain.recipes.recipe import LINEAR_CLASSES
from planner.errors import UsageError, show

TOOL, STACK = "LLaMA-Factory 0.9.5", llama_factory_age.STACK
# Keys that no other tool has.
MARKS = frozenset(
    {"finetuning_type", "stage", "cutoff_len", "quantization_bit", "template", "lora_target", "flash_attn"}
)
_RESIZING = names_in("llama-factory.toml", "new_tokens")
_METHODS = {"lora": "lora", "oft": "lora", "full": "full", "freeze": "full"}
_TABLE = {
    "cutoff_len": "seq",
    "lora_rank": "lora_rank",
    "lora_dropout": "lora_dropout",
}
# Up to 0.7.1 eager attention was called "off"; the last three are the names that v1 takes from Transformers.
_ATTENTIONS = {
    "disabled": "eager",
    "off": "eager",
    "false": "eager",
    "sdpa": "sdpa",
    "fa2": "flash2",
    "true": "flash2",
    "fa3": "flash2",
    "eager": "eager",
    "flash_attention_2": "flash2",
}
_UNMODELLED = {**BEFORE_0_7, **texts_in("llama-factory.toml", "unmodelled")}
_HAS_EXPERTS = re.compile(r"mixtral|moe|-a\d+(?:\.\d+)?b")
# The collators of all stages but pt and ppo.
_MULTIPLE = 8
_STAGES = ("pt", "sft", "rm", "ppo", "dpo", "kto", "orpo")
# What a file asks for instead of training; each is off by default (hparams/parser.py, train/tuner.py).
_OTHER_TASKS = ("do_eval", "export_dir", "infer_backend", "task")
# A file with nothing else is one for a chat (examples/inference).
OF_CHAT = frozenset(
    {"model_name_or_path", "adapter_name_or_path", "template", "finetuning_type", "trust_remote_code"}
)


def read_llama_factory(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a file of LLaMA-Factory says.

    Raises:
        UsageError: a value that cannot be used, or a file that does not train.
        NotModelledError: something that no formula covers.
    """
    _refuse_other_kinds(keys)
    keys.refuse_switched_on(_UNMODELLED)
    stage = _stage(keys)
    task = llama_factory_task(keys, stage)
    if task is not None or stage == "pt":
        reading.say("task", task or "pretrain", keys.where("stage"))
    _refuse_without_training(keys)
    old = read_age(keys, reading, beside.stack)
    refuse_keys(keys, reading, stage)
    reading.take(keys, _TABLE)
    _read_length(keys, reading, old=old)
    _read_method(keys, reading)
    if stage == "ppo":
        read_ppo(keys, reading, old=old)
    read_vision(keys, reading, keys.text("template"))
    if "model" not in reading.needs and reading.value("model") is None:
        trusts = what_trusts(keys, reading)
        read_checkpoint(keys, "model_name_or_path", reading, trusts=trusts)
    keys.skip(("model_name_or_path",))
    read_switch(keys, reading)
    _read_attention(keys, reading)
    _read_packing(keys, reading, stage)
    _read_padded_length(keys, reading, stage)
    if keys.flag("enable_liger_kernel"):
        say_liger(reading, keys.where("enable_liger_kernel"))
        if task is not None:
            # model/model_utils/liger_kernel.py: require_logits leaves the fused loss out.
            reading.said.pop("loss")
    _read_own_losses(keys, reading, stage)
    _read_v1_kernels(keys, reading)
    _remark(keys, reading)
    read_own_optimizer(keys, reading)
    # llamafactory 0.9.5 train/sft/workflow.py run_sft.
    read_trainer(keys, reading, evaluates_behind=True)
    _refuse_written_evaluation(keys, reading)
    drop_trainers_switch(keys, reading)
    _read_engine(keys, reading, beside, stage, old=old)
    keys.skip((*names_in("llama-factory.toml", "harmless"), *GONE))
    stop_at_unknown_keys(keys, reading)


def _read_engine(keys: Keys, reading: Reading, beside: Beside, stage: str, *, old: bool) -> None:
    """How state is spread, and what depends on it."""
    read_distribution(keys, reading, beside)
    refuse_engine(keys, reading, stage)
    read_weights_dtype(keys, reading, stage)
    read_manner(keys, reading)
    read_host_experts(keys, reading, old=old)
    read_depths(keys, reading, old=old)
    if old:
        read_old_load_dtype(keys, reading)


def _refuse_written_evaluation(keys: Keys, reading: Reading) -> None:
    """``predict_with_generate`` takes no loss in evaluation (train/sft/trainer.py prediction_step)."""
    if keys.flag("predict_with_generate") and reading.value("eval_batch") is not None:
        why = "an evaluation that generates text is not modelled; false answers for the rest of the job"
        raise keys.not_modelled("predict_with_generate", why)


def _read_length(keys: Keys, reading: Reading, *, old: bool) -> None:
    length = old_length(keys, reading) if old else 2048
    if length is not None:
        reading.default("seq", length, "llamafactory 0.9.5 hparams/data_args.py: cutoff_len")
    elif reading.value("seq") is None:
        reading.needs["seq"] = (
            f"{keys.path}: cutoff_len is 1,024 up to LLaMA-Factory 0.8 and 2,048 since: say --seq"
        )


def _read_padded_length(keys: Keys, reading: Reading, stage: str) -> None:
    """How long the longest row of a batch is: a whole multiple of eight (train/sft/workflow.py, and those of
    dpo, kto and rm, the same since 0.7.1).

    Pre-training pads to no multiple, and packing that a file asks for takes one token off since 0.9.3
    (hparams/data_args.py ``__post_init__``, before parser.py turns it on by itself), which the rows of stage
    sft get back (data/processor/supervised.py).
    """
    said = reading.said.get("seq")
    # What is no count is refused where it is parsed.
    if said is None or stage == "ppo" or not isinstance(said.value, int):
        return
    if stage != "pt":
        length, why = -(-said.value // _MULTIPLE) * _MULTIPLE, f"padded to a whole multiple of {_MULTIPLE}"
    elif keys.flag("packing") and reading.value("stack") == STACK:
        length, why = said.value - 1, "less one token, as LLaMA-Factory packs"
    else:
        return
    if 0 < length != said.value:
        reading.said["seq"] = replace(said, value=length, note=f"{said.value}, {why}")


def _refuse_other_kinds(keys: Keys) -> None:
    """Files that LLaMA-Factory reads in another way: those of models that see, and of its v1 (by --tool)."""
    for name in sorted(V1):
        if keys.has(name) and not keys.has("model_name_or_path"):
            raise UsageError(f"{keys.where(name)}: a key of LLaMA-Factory v1: say --tool llama-factory-v1")
    template = keys.text("template")
    if template in VISION_TEMPLATES - READ_TEMPLATES:
        raise keys.not_modelled(
            "template", f"'{template}' is for a model that sees or hears, which is not modelled"
        )


def _stage(keys: Keys) -> str:
    stage = keys.text("stage") or "sft"
    if stage not in _STAGES:
        # train/tuner.py run_exp: Unknown task; so in every version from 0.6 to ff6d4d12e of 2026-08.
        text = f"LLaMA-Factory has no stage '{show(stage)}', and stops; it has {', '.join(_STAGES[:-1])}"
        raise keys.stops("stage", f"{text}")
    return stage


def _refuse_without_training(keys: Keys) -> None:
    """Training runs only where ``do_train`` is true (train/sft/workflow.py);
    a file of another task leaves it out.
    """
    trains = keys.flag("do_train")
    other = [name for name in _OTHER_TASKS if not trains and keys.get(name) not in (None, False)]
    if other:
        raise keys.trains_nothing(other[0], "this file does not train, because do_train is not true")
    if keys.has_only(OF_CHAT):
        raise keys.not_modelled("do_train", "nothing of a training is in this file; one is predicted")


def _read_attention(keys: Keys, reading: Reading) -> None:
    """``flash_attn``; Gemma 2 and gpt-oss have kernels of LLaMA-Factory's own choice.

    Source: llamafactory 0.9.5 model/model_utils/attention.py:31-60.
    """
    said = keys.get("flash_attn")
    name = str("auto" if said is None else said).lower()
    model = str(keys.get("model_name_or_path") or "").lower()
    if name not in ("auto", *_ATTENTIONS):
        raise keys.wrong("flash_attn", "auto, disabled, sdpa, fa2 or fa3", said)
    if "gpt-oss" in model:
        # Its kernel comes from the Hub, whatever the file says.
        reading.say("attention", "flash2", keys.where("model_name_or_path"))
        text = "LLaMA-Factory trains gpt-oss with vLLM's FlashAttention 3, counted as 2: memory is the same"
        reading.remark(keys.where("model_name_or_path"), text)
        return
    if "gemma-2-" in model and name == "auto":
        choice = (
            "LLaMA-Factory trains Gemma 2 with FlashAttention 2 where that is installed, else with "
            "eager attention"
        )
        sentence = f"{keys.path}: {choice}: say --attention flash2 or eager"
        reading.needs["attention"] = sentence
        reading.either["attention"] = (sentence, ("eager", "flash2"))
    elif name != "auto":
        reading.say("attention", _ATTENTIONS[name], keys.where("flash_attn"))
    say_generation(name, reading, keys.where("flash_attn"))


def _read_v1_kernels(keys: Keys, reading: Reading) -> None:
    """Kernels for Ascend's cards alone (ff6d4d12e of 2026-08 v1/plugins/model_plugins/kernels/interface.py
    ``_AUTO_KERNELS``).

    0.9.5 takes all that are registered,
    so that experts of some models get a Triton kernel on NVIDIA cards, too.
    """
    if not keys.flag("use_v1_kernels"):
        return
    text = "has no effect on NVIDIA cards"
    if _HAS_EXPERTS.search(str(keys.get("model_name_or_path") or "").lower()):
        text += (
            " since 2026-07; before, 0.9.5 included, experts of Mixtral, Qwen3 and Qwen3.5 get a "
            "Triton kernel, not counted"
        )
    reading.remark(keys.where("use_v1_kernels"), text)


def _read_own_losses(keys: Keys, reading: Reading, stage: str) -> None:
    """What LLaMA-Factory's trainer of a stage makes of the logits by itself."""
    _read_loss_weights(keys, reading)
    if keys.flag("use_asft_loss") and stage == "sft":
        _read_divergence(keys, reading)
    read_likelihood(keys, reading, stage)


def _read_loss_weights(keys: Keys, reading: Reading) -> None:
    """Losses that weigh each token; they need logits,
    which Liger's fused loss does not make (train/sft/trainer.py).
    """
    for name, weights in (("use_dft_loss", "probability"), ("use_eaft_loss", "entropy")):
        if keys.flag(name):
            reading.switch("loss_weights", weights, keys.where(name))
            reading.said.pop("loss", None)
            return


def _read_divergence(keys: Keys, reading: Reading) -> None:
    """``use_asft_loss``: a second model runs first, and its logits are compared with.

    Source: llamafactory 0.9.5 train/sft/trainer.py compute_loss, train/trainer_utils.py create_ref_model,
    asft_loss_func.
    """
    keys.refuse_switched_on(OTHER_REFERENCES)
    if keys.flag("enable_liger_kernel"):
        why = "Liger's fused loss leaves no logits to compare, so LLaMA-Factory drops this loss in silence"
        raise keys.not_modelled("use_asft_loss", f"{why}: leave enable_liger_kernel out")
    for other in ("use_dft_loss", "use_eaft_loss"):
        if keys.flag(other):
            raise keys.not_modelled("use_asft_loss", f"beside {other} it is not what LLaMA-Factory computes")
    if reading.value("method") == "lora":
        why = "LLaMA-Factory makes no second model for adapters, so the first step fails"
        raise keys.not_modelled("use_asft_loss", f"{why}: say finetuning_type: full")
    reading.switch("loss_weights", "divergence", keys.where("use_asft_loss"))


def _remark(keys: Keys, reading: Reading) -> None:
    for name, text in (
        *((name, "the vocabulary is counted as published") for name in _RESIZING),
        (
            "adapter_name_or_path",
            "an adapter is trained as lora_rank and lora_target say, whatever it was made with",
        ),
        ("enable_torch_profiler", "what the profiler holds is not counted"),
        ("ray_num_workers", "the number of GPUs is that of --gpu, not that of Ray's workers"),
        ("moe_aux_loss_coef", "the routers' loss is not counted"),
    ):
        if keys.get(name) not in (None, False):
            reading.remark(keys.where(name), text)
    read_fp8(keys, reading)


def _read_method(keys: Keys, reading: Reading) -> None:
    kind = keys.text("finetuning_type")
    if kind not in (None, *_METHODS):
        raise keys.not_modelled(
            "finetuning_type", f"'{show(kind)}' is not modelled; {', '.join(_METHODS)} are"
        )
    if kind is not None:
        reading.say("method", _METHODS[kind], keys.where("finetuning_type"))
    if kind == "freeze":
        read_freeze(keys, reading)
    elif keys.flag("use_llama_pro"):
        raise keys.not_modelled("use_llama_pro", "adapters on some layers only are not modelled")
    reading.default("method", "lora", "llamafactory 0.9.5 hparams/finetuning_args.py: finetuning_type")
    _read_numerics(keys, reading)
    if reading.value("method") == "full":
        # What a file says of adapters has no effect then.
        keys.skip(("lora_target", "additional_target", "lora_rank", "lora_dropout", "use_dora"))
        for name in ("lora_rank", "lora_dropout"):
            reading.said.pop(name, None)
        return
    _read_adapters(keys, reading)


def _read_adapters(keys: Keys, reading: Reading) -> None:
    rotates = keys.text("finetuning_type") == "oft"
    if rotates:
        _read_rotations(keys, reading)
    targets = keys.names("lora_target")
    if targets:
        named = (LINEAR_CLASSES,) if targets == ("all",) else targets
        reading.say("lora_targets", named, keys.where("lora_target"))
    if not rotates and keys.flag("use_dora"):
        reading.say("dora", True, keys.where("use_dora"))
    extra = keys.names("additional_target")
    resized = next((name for name in _RESIZING if keys.get(name) not in (None, False)), None)
    if extra:
        reading.say("modules_to_save", extra, keys.where("additional_target"))
    elif resized is not None:
        # model/adapter.py _setup_lora_tuning, in 0.7.1 and 0.8.3 as well.
        note = "LLaMA-Factory trains the token table and the head of a vocabulary that it resizes"
        reading.say("modules_to_save", ("embed_tokens", "lm_head"), keys.where(resized), note)


def _read_rotations(keys: Keys, reading: Reading) -> None:
    """OFT, which has the targets of LoRA (model/adapter.py _setup_lora_tuning);
    what else a file says of LoRA has no effect.
    """
    if keys.is_on("oft_rank"):
        raise keys.not_modelled(
            "oft_rank", "so many blocks in each matrix are not modelled; oft_block_size is"
        )
    reading.take(keys, {"oft_block_size": "oft_block_size"})
    reading.default("oft_block_size", 32, "llamafactory 0.9.5 hparams/finetuning_args.py: oft_block_size")
    if keys.get("oft_target") not in (None, "all"):
        reading.remark(
            keys.where("oft_target"), "has no effect: LLaMA-Factory takes the targets of OFT from lora_target"
        )
    keys.skip(("oft_target", "use_dora", "lora_rank", "lora_dropout"))
    for name in ("lora_rank", "lora_dropout"):
        reading.said.pop(name, None)


def _read_numerics(keys: Keys, reading: Reading) -> None:
    """Precision, and the base's quantisation.  ``pure_bf16``: no fp32 weights; with bf16, autocast too."""
    read_precision(keys, reading)
    if keys.flag("pure_bf16"):
        reading.switch("trainable_fp32", False, keys.where("pure_bf16"))
        if not keys.flag("bf16"):
            reading.said.pop("precision", None)
            reading.say("precision", "bf16", keys.where("pure_bf16"))
    if reading.value("precision") is None:
        need_precision(reading)
    bits = keys.count("quantization_bit")
    if keys.flag("upcast_layernorm"):
        if bits is None:
            raise keys.not_modelled(
                "upcast_layernorm", "norms in fp32 over a base in 16 bits are not modelled"
            )
        reading.switch("kbit_upcast", "norms", keys.where("upcast_layernorm"))
    maker = keys.text("quantization_method") or "bnb"
    if bits is not None and maker.lower() not in ("bnb", "bitsandbytes"):
        raise keys.not_modelled(
            "quantization_method", f"quantisation by {show(maker)} is not modelled; bnb is"
        )
    if bits is not None and maker == "bitsandbytes" and reading.value("stack") == STACK:
        # model/model_utils/quantization.py _configure_quantization: no branch is for this name.
        text = "a name of 0.9.2 and before: LLaMA-Factory 0.9.5 quantises nothing; it says bnb"
        reading.remark(keys.where("quantization_method"), text)
        bits = None
    _read_bits(keys, reading, bits)


def _read_bits(keys: Keys, reading: Reading, bits: int | None) -> None:
    """Quantisation, whose bytes are stored in the compute dtype (model/model_utils/quantization.py)."""
    kind, double = keys.text("quantization_type") or "nf4", keys.flag("double_quantization")
    if bits is None:
        return
    if bits not in (4, 8):
        raise keys.wrong("quantization_bit", "4 or 8", bits)
    reading.say("quantization", kind if bits == 4 else "int8", keys.where("quantization_bit"))
    if bits == 8:
        return
    if double is not None:
        reading.say("double_quant", double, keys.where("double_quantization"))
    reading.default("double_quant", True, "llamafactory 0.9.5 hparams/model_args.py: double_quantization")
    precision = reading.value("precision")
    if precision is not None:
        note = (
            "llamafactory 0.9.5 model/model_utils/quantization.py: bnb_4bit_quant_storage is the "
            "compute dtype"
        )
        reading.default("quant_storage", str(precision).removesuffix("-mixed"), note)


def _read_packing(keys: Keys, reading: Reading, stage: str) -> None:
    packing, neat = keys.flag("packing"), keys.flag("neat_packing")
    if neat:
        where = keys.where("neat_packing")
        reading.say("padding", "packed", where)
        # data/collator.py: a mask of four dimensions where the kernel is not FlashAttention 2.
        reading.switch("sdpa_mask", "given", where)
    elif packing:
        reading.say("padding", "packed", keys.where("packing"))
    elif packing is None and stage == "pt":
        reading.default("padding", "packed", "llamafactory 0.9.5 hparams/parser.py: pre-training packs")
