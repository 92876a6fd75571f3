"""PyTorch's operators on tensors that have a size: what each allocates, saves, frees and costs."""
