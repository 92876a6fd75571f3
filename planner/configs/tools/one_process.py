"""What becomes of several GPUs where one process is started, without a launcher that gives it a rank.

Sources: transformers 5.23 trainer.py ``__init__`` (``is_model_parallel``) and _wrap_model (nn.DataParallel);
trl 0.26.2 and 1.16.0 trainer/utils.py create_model_from_path (``auto``), 1.16.0 experimental/orpo and cpo
likewise; llamafactory 0.8.2 and 0.9.5 hparams/parser.py (``NOT_DISTRIBUTED``), not 0.8.1; axolotl 0.19.0
utils/config/__init__.py choose_device; accelerate 1.15.0 utils/launch.py
prepare_simple_launcher_cmd_env (``gpu_ids``).
"""

from __future__ import annotations

from planner.configs.said_by_file import Alone, Reading
from planner.configs.tools.llama_factory.llama_factory_age import is_run_by_0_7

_RANKS = "start a process for each GPU with accelerate launch or torchrun"
COPIES = (
    "the Trainer copies the model to every GPU that its one process sees (nn.DataParallel), and that is not "
    f"modelled: {_RANKS}"
)
"""Why a Trainer in one process with several GPUs is not counted."""
_STOPS = (
    "LLaMA-Factory stops where one process sees several GPUs (0.8.0 and 0.8.1 copy the model to each, which "
    f"is not modelled): {_RANKS}"
)
UNREAD = f"what Unsloth makes of several GPUs in one process is not modelled: {_RANKS}, or give one GPU"
"""Why Unsloth in one process with several GPUs is not counted."""
_SPREAD_BY_4 = (
    f"how Transformers 4 spreads layers over the GPUs of one process is not modelled: {_RANKS}, or give one"
)
_SPREADS = {
    "trl": "trl 1.16.0 trainer/utils.py create_model_from_path: auto in one process",
    "axolotl": "axolotl 0.19.0 utils/config/__init__.py choose_device: auto in one process",
}
"""Stack -> what spreads the layers of its models, unless something says otherwise."""


def say_one_process(reading: Reading) -> None:
    """Enter that one process spreads the layers over its GPUs, or that it takes one alone, and why."""
    place, sees = reading.one_process
    if not place or "device_map" in reading.said or reading.sharding.communicates or reading.alone:
        return
    stack, tool = str(reading.value("stack")), reading.tool_name
    if stack in _SPREADS and tool != "peft-sft":
        reading.default("device_map", "auto", _SPREADS[stack])
    elif tool in ("unsloth", "unsloth-cli"):
        reading.alone = Alone(place, sees=sees, unread=UNREAD)
    elif tool == "qlora":
        reading.alone = Alone(place, sees=sees, unread=_SPREAD_BY_4)
    elif tool in ("trl", "peft-sft", "transformers", "lmflow", "llava") or is_run_by_0_7(reading):
        reading.alone = Alone(place, sees=sees, unread=COPIES)
    elif tool == "llama-factory" and sees != 1:
        reading.alone = Alone(place, _STOPS)
    if sees and reading.alone is None:
        reading.alone = Alone(place, sees=sees)
