"""Arguments of LLaVA's own script, ``llava/train/train_mem.py``, for the models of LLaVA 1.5.

Keys and defaults: haotian-liu/LLaVA c121f0432 (2024-05-12, version 1.2.2 on Transformers 4.37.2)
llava/train/train.py; what becomes of them: llava/model/llava_arch.py and
llava/model/multimodal_encoder/clip_encoder.py there.
Counted are the modules of Transformers' LLaVA, which are the same but for 64 rows of the vocabulary.
Ignored: copies of the embeddings between which images are laid, which go before the first layer.
"""

from __future__ import annotations

from pathlib import Path

from planner.catalog.models import entry_named_in, known_by_folder
from planner.configs.launchers.fsdp_keys import Beside, found_file
from planner.configs.said_by_file import Reading, Stop
from planner.configs.shared.key_tables import names_in, texts_in
from planner.configs.shared.keys import Keys
from planner.configs.shared.stock import stock_engine
from planner.configs.shared.trainer_arguments import (
    read_distribution,
    read_precision,
    read_trainer,
)
from planner.errors import show
from planner.words import words

TOOL = "LLaVA 1.2.2"
STACK = "hf-trainer@4"
_PLACE = "haotian-liu/LLaVA c121f0432 llava/train/train.py"
# Language model -> LLaVA 1.5 on it.
_MODELS = {"llama-2-7b": "llava-1.5-7b", "llama-2-13b": "llava-1.5-13b"}
_CHECKPOINTS = {"llava-v1.5-7b": "llava-1.5-7b", "llava-v1.5-13b": "llava-1.5-13b"}
_TOWER, _PROJECTOR = "clip-vit-large-patch14-336", "mlp2x_gelu"
# find_all_linear_names, which leaves out head, tower and projector.
_TARGETS = words("q_proj k_proj v_proj o_proj gate_proj up_proj down_proj")
_UNMODELLED = texts_in("llava.toml", "unmodelled")
_HARMLESS = names_in("llava.toml", "harmless")


def read_llava(keys: Keys, reading: Reading, beside: Beside) -> None:
    """Enter what a command line of the script says.

    Raises:
        NotModelledError: another tower or projector, a quantised base, or an argument of a fork.
    """
    keys.refuse_switched_on(_UNMODELLED)
    _read_parts(keys)
    _read_model(keys, reading, given="model" in beside.flags)
    _read_method(keys, reading)
    reading.take(keys, {"model_max_length": "seq"})
    reading.default("seq", 512, f"{_PLACE} TrainingArguments.model_max_length")
    reading.default("images_per_sample", 1, "the data say how many images a sample has: one is assumed")
    whose = Path(reading.script).stem
    reading.say("attention", "flash2" if whose == "train_mem" else "sdpa", f"{whose}.py of {TOOL}")
    reading.say("load_dtype", "bfloat16", keys.where("bf16"), "as the script loads it")
    read_trainer(keys, reading)
    # It hands no samples for an evaluation on.
    reading.said.pop("eval_batch", None)
    read_precision(keys, reading)
    if reading.value("precision") != "bf16-mixed":
        raise keys.not_modelled("bf16", "weights that this script loads in fp32 are not modelled; true is")
    _read_engine(keys, reading, beside)
    keys.skip(_HARMLESS)
    keys.refuse_rest("no argument of LLaVA 1.2.2: what a fork makes of it is not known")


def _read_parts(keys: Keys) -> None:
    tower = (keys.text("vision_tower") or "none").rstrip("/").rpartition("/")[2]
    if tower != _TOWER:
        raise keys.not_modelled("vision_tower", f"the tower {show(tower)} is not modelled; {_TOWER} is")
    kind = keys.text("mm_projector_type") or "linear"
    if kind != _PROJECTOR:
        raise keys.not_modelled("mm_projector_type", f"{show(kind)} is not modelled; {_PROJECTOR} is")
    aspect = keys.text("image_aspect_ratio") or "square"
    if aspect not in ("square", "pad"):
        raise keys.not_modelled("image_aspect_ratio", f"{show(aspect)} is not modelled; pad is")
    if str(keys.get("bits") or 16) != "16":
        raise keys.not_modelled("bits", "a quantised base of this script is not modelled; 16 is")
    if keys.text("lora_bias") not in (None, "none"):
        raise keys.not_modelled("lora_bias", "trained biases are not modelled")


def _read_model(keys: Keys, reading: Reading, *, given: bool) -> None:
    """``given``: a flag says the model.

    Raises:
        NotModelledError: a language model of which there is no LLaVA 1.5.
    """
    name, where = (keys.text("model_name_or_path") or "").rstrip("/"), keys.where("model_name_or_path")
    entry = entry_named_in(name)
    text = entry.id if entry is not None else known_by_folder(name) or ""
    found = _MODELS.get(text) or _CHECKPOINTS.get(name.rpartition("/")[2], "")
    sentence = f"{where}: this script trains LLaVA: say --model {' or '.join(_MODELS.values())}"
    reading.stops.append(Stop(lambda model: model.id not in _MODELS.values(), sentence, by_tool=False))
    if given:
        return
    if not found:
        known = "vicuna-7b-v1.5 and vicuna-13b-v1.5 are"
        raise keys.not_modelled("model_name_or_path", f"LLaVA on {show(name)} is not modelled; {known}")
    reading.say("model", found, where, f"{show(name)} with {_TOWER} and {_PROJECTOR}")
    reading.remark(where, f"counted as {found}, as Transformers has it")


def _read_method(keys: Keys, reading: Reading) -> None:
    """The tower never learns; the projector does, alone where ``tune_mm_mlp_adapter`` says so, unless it is
    kept as it is.
    """
    tuned, adapts = bool(keys.flag("tune_mm_mlp_adapter")), bool(keys.flag("lora_enable"))
    kept = bool(keys.flag("freeze_mm_mlp_adapter"))
    if tuned and (adapts or kept):
        other = "lora_enable" if adapts else "freeze_mm_mlp_adapter"
        raise keys.not_modelled(other, "it is not modelled beside tune_mm_mlp_adapter")
    place = next((each for each in ("tune_mm_mlp_adapter", "lora_enable") if keys.flag(each)), "vision_tower")
    frozen = ["vision_tower"]
    frozen += ["language_model"] if tuned else ["projector"] if adapts or kept else []
    reading.say("freeze", tuple(frozen), keys.where(place))
    reading.say("method", "lora" if adapts else "full", keys.where(place))
    if not adapts:
        keys.skip(("lora_r", "lora_dropout"))
        return
    reading.take(keys, {"lora_r": "lora_rank", "lora_dropout": "lora_dropout"})
    reading.default("lora_rank", 64, f"{_PLACE} TrainingArguments.lora_r")
    reading.default("lora_dropout", 0.05, f"{_PLACE} TrainingArguments.lora_dropout")
    reading.default("lora_targets", _TARGETS, f"{_PLACE} find_all_linear_names")
    if not kept:
        text = (
            "beside adapters the projector learns, too, which is not counted: up to 0.1 GiB, and 13 MiB for "
            "each sample of the micro-batch"
        )
        reading.remark(keys.where("lora_enable"), text)


def _read_engine(keys: Keys, reading: Reading, beside: Beside) -> None:
    """DeepSpeed by the file that is named; those that the repository has are known."""
    named = Path(str(keys.get("deepspeed") or ""))
    stock = stock_engine(named.stem, "llava") if named.parts[-2:-1] == ("scripts",) else None
    if found_file(named, keys.path) is not None:
        stock = None
    if stock is not None and beside.deepspeed is None:
        reading.remark(keys.where("deepspeed"), f"{show(str(named))} is not here: taken as that of {TOOL}")
    read_distribution(keys, reading, beside, stock)
