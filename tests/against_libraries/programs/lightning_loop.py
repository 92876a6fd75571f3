"""A training script with Lightning, whose Trainer owns the loop: ``lightning_loop.py MODEL``."""

import sys
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

BATCH, SEQ = 2, 512


class Tuned(lightning.LightningModule):
    """A language model with its optimizer and schedule."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16)
        self.model.config.use_cache = False

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        """Loss of one batch (rows, tokens)."""
        del number
        loss: torch.Tensor = self.model(input_ids=batch, labels=batch).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW that warms up over ten steps."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        warming = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 10, 1.0))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warming, "interval": "step"}}


rows: Any = torch.randint(0, 500, (32, SEQ))
trainer = lightning.Trainer(devices=1, precision="bf16-true", max_epochs=1, accumulate_grad_batches=2,
    gradient_clip_val=1.0, log_every_n_steps=1)  # fmt: skip
trainer.fit(Tuned(sys.argv[1]), DataLoader(rows, batch_size=BATCH))
