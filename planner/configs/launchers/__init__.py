"""Files and lines that start a job: Accelerate, DeepSpeed, torchrun, shell."""
