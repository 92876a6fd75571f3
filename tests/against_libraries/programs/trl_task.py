"""A script of TRL as its documentation has them: ``trl_task.py TASK [lora]``.

For ``grpo`` the last argument may be JSON: of GRPOConfig, of ``prompt``, the tokens of one, and of
``reward_model``.
"""

import json
import sys

from datasets import Dataset, load_dataset
from peft import LoraConfig
from transformers import AutoTokenizer

task, adapters = sys.argv[1], sys.argv[2:] == ["lora"]
model = "Qwen/Qwen2.5-0.5B"
if task == "sft":
    from trl import SFTConfig as Config
    from trl import SFTTrainer as Trainer
elif task == "dpo":
    from trl import DPOConfig as Config
    from trl import DPOTrainer as Trainer
elif task == "grpo":
    from trl import GRPOConfig as Config
    from trl import GRPOTrainer as Trainer
elif task == "reward":
    from trl import RewardConfig as Config
    from trl import RewardTrainer as Trainer
elif task == "kto":
    try:
        from trl import KTOConfig as Config
        from trl import KTOTrainer as Trainer
    except ImportError:
        from trl.experimental.kto import KTOConfig as Config
        from trl.experimental.kto import KTOTrainer as Trainer
else:
    from trl.experimental.orpo import ORPOConfig as Config
    from trl.experimental.orpo import ORPOTrainer as Trainer
columns = {"sft": ["text"], "reward": ["chosen", "rejected"], "kto": ["prompt", "completion", "label"]}
rows = load_dataset("a-data-set-of-the-hub", split="train").select_columns(
    columns.get(task, ["prompt", "chosen", "rejected"])
)
tokenizer = AutoTokenizer.from_pretrained(model)
if task == "grpo":
    said = {"num_generations": 4, "max_completion_length": 16} | (
        json.loads(sys.argv[-1]) if sys.argv[-1][0] == "{" else {}
    )
    adapters, words = "lora" in sys.argv, rows[0]["prompt"].split()
    model, words = said.pop("model", model), (words * 100)[: said.pop("prompt", 64)]
    rows = Dataset.from_list([{"prompt": " ".join(words)}] * 256)
    numbers = lambda completions, **_: [float(number) for number in range(len(completions))]  # noqa: E731
    rewards = said.pop("reward_model", None) or numbers
    args = Config(
        **{"output_dir": "out", "per_device_train_batch_size": 4, "bf16": True, "report_to": "none"} | said
    )
    peft_config = LoraConfig(r=8, target_modules="all-linear") if adapters else None
    Trainer(model, rewards, args, rows, processing_class=tokenizer, peft_config=peft_config).train()
    sys.exit()
args = Config(output_dir="out", per_device_train_batch_size=2, max_length=512, bf16=True, report_to="none")
peft_config = LoraConfig(r=8, target_modules="all-linear") if adapters else None
if task == "orpo":
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model)
Trainer(model, args=args, train_dataset=rows, processing_class=tokenizer, peft_config=peft_config).train()
