"""Each difference between a traced step on the CPU and the same step on CUDA."""
