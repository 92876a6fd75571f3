"""In which dtype a file of LLaMA-Factory computes that says neither bf16 nor fp16, and fp8.

Source: llamafactory 0.9.5 model/loader.py load_model (``torch_dtype`` auto), model/adapter.py init_adapter,
which makes trained weights fp32, model/patcher.py patch_config and extras/misc.py infer_optim_dtype.
"""

from __future__ import annotations

from planner.configs.said_by_file import Reading
from planner.configs.shared.keys import Keys
from planner.configs.tools.llama_factory.llama_factory_vision import VISION_TEMPLATES

_STAGES = ("pt", "sft", "dpo")
_PLACE = "llamafactory 0.9.5 model/adapter.py init_adapter"


def read_weights_dtype(keys: Keys, reading: Reading, stage: str) -> None:
    """Enter it where whole weights lie on each GPU: fp32 where all are trained, with LoRA the checkpoint's.

    Adapters are fp32, and PEFT computes them so and hands on the base's dtype (peft 0.18
    tuners/lora/layer.py).  A model that sees, another way of training and an engine are still asked about,
    and so is a file that may not train, which leaves do_train out.  One that prepares data trains behind it
    since 0.9.2 (data/loader.py get_dataset).
    """
    if "precision" not in reading.needs or reading.value("stack") != "llama-factory":
        return
    if not keys.flag("do_train"):
        return
    if keys.has("tokenized_path"):
        text = "counted as training, which follows where the data have to be prepared first"
        reading.remark(keys.where("tokenized_path"), text)
    if reading.sharding.engine == "deepspeed":
        reading.needs["precision"] = (
            f"{keys.path}: neither bf16 nor fp16 is true, and in which dtype DeepSpeed then computes is not "
            "modelled: say bf16: true, or --precision bf16-mixed"
        )
    kind = keys.text("finetuning_type") or "lora"
    sees = (keys.text("template") or "") in VISION_TEMPLATES
    if reading.sharding.engine != "native" or sees or stage not in _STAGES:
        return
    if kind == "full" and stage != "dpo":
        del reading.needs["precision"]
        reading.default("precision", "fp32", f"{_PLACE}: neither bf16 nor fp16 is true")
        reading.default("load_dtype", "checkpoint", "llamafactory 0.9.5 model/loader.py load_model")
    elif kind == "lora":
        del reading.needs["precision"]
        reading.in_weights_dtype = f"{_PLACE}: neither bf16 nor fp16 is true"


def read_fp8(keys: Keys, reading: Reading) -> None:
    """``fp8``: an environment variable that Transformers 5 does not ask, as it hands Accelerate its own
    precision.  For Transformer Engine Accelerate is patched, where it gets no handlers: Transformers 5 always
    gives it some.

    Source: llamafactory 0.9.5 train/fp8_utils.py configure_fp8_environment, train/sft/trainer.py;
    transformers 5.6.0 trainer.py _build_accelerator_args (``mixed_precision``, ``kwargs_handlers``),
    training_args.py; accelerate 1.15 state.py AcceleratorState.
    """
    if not keys.flag("fp8"):
        return
    engine = keys.text("fp8_backend") == "te"
    name, flag = ("Transformer Engine", "te-delayed") if engine else ("torchao", "rowwise")
    reading.remark(
        keys.where("fp8"),
        "has no effect with Transformers 5, which hands Accelerate its own precision and handlers; with "
        f"Transformers 4 {name} computes in fp8, which --fp8 {flag} counts",
    )
