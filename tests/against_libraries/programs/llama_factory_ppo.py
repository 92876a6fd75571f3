"""PPO of LLaMA-Factory 0.9.2: ``llama_factory_ppo.py write`` lays files in this folder; else they are run.

Its environment: torch 2.13.0, transformers 4.49.0, trl 0.9.6, peft 0.12.0, accelerate 1.2.1, datasets 3.2.0,
huggingface_hub 0.29.3, pyarrow 18.1.0, llamafactory 0.9.2 (DISABLE_VERSION_CHECK=1).  A huggingface_hub from
0.30 on copies the collator, and the model with it.
"""

import json
import sys
from pathlib import Path

MODEL = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
    "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
TRAIN = """model_name_or_path: model
reward_model: reward
stage: ppo
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: rows
dataset_dir: data
template: qwen
cutoff_len: 1024
overwrite_cache: true
output_dir: out
logging_steps: 1
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
bf16: true
max_new_tokens: 16
"""


def write() -> None:
    """A model of the shape of Qwen2.5 0.5B without weights, words, the reward model's adapter, and rows."""
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    for name in ("model", "reward", "data"):
        Path(name).mkdir(exist_ok=True)
    Path("model/config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    save_file({"unused": torch.zeros(1)}, "model/model.safetensors", metadata={"format": "pt"})
    words = {"<unk>": 0, "<|im_end|>": 1, "<pad>": 2} | {
        f"w{number}": number + 3 for number in range(150_000)
    }
    tokens = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"unk_token": "<unk>", "eos_token": "<|im_end|>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokens, **marks).save_pretrained("model")
    parts = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"))
        adapted = get_peft_model(model, LoraConfig(r=8, target_modules=parts, task_type="CAUSAL_LM"))
    shapes = {name.replace(".default", ""): value.shape for name, value in adapted.state_dict().items()}
    adapter = {name: torch.zeros(shape) for name, shape in shapes.items() if "lora_" in name}
    save_file(adapter, "reward/adapter_model.safetensors")
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 8,
        "target_modules": parts,
        "inference_mode": True,
    }
    Path("reward/adapter_config.json").write_text(json.dumps(said), encoding="utf-8")
    head = {"v_head.summary.weight": torch.zeros(1, 896), "v_head.summary.bias": torch.zeros(1)}
    save_file(head, "reward/value_head.safetensors")
    prompts = [" ".join(f"w{(7 * row + word) % 1000}" for word in range(1400)) for row in range(256)]
    rows = [json.dumps({"prompt": prompt, "completion": "w1"}) for prompt in prompts]
    Path("data/rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    table = {"rows": {"file_name": "rows.jsonl", "columns": {"prompt": "prompt", "response": "completion"}}}
    Path("data/dataset_info.json").write_text(json.dumps(table), encoding="utf-8")
    Path("ppo.yaml").write_text(TRAIN, encoding="utf-8")


def run() -> None:
    """As ``llamafactory-cli train ppo.yaml``, without labels that this Transformers gives as ``None``."""
    from llamafactory.train.ppo import workflow

    class Collator(workflow.MultiModalDataCollatorForSeq2Seq):  # type: ignore[misc]
        def __call__(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            made = super().__call__(*args, **kwargs)
            for name in [name for name, value in made.items() if value is None]:
                made.pop(name)
            return made

    workflow.MultiModalDataCollatorForSeq2Seq = Collator
    from llamafactory.train.tuner import run_exp

    sys.argv = ["train", "ppo.yaml"]
    run_exp()


if sys.argv[1:] == ["write"]:
    write()
else:
    run()
