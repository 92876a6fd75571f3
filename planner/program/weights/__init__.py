"""Products with a matrix, however it is stored or adapted: quantised weights, LoRA and its kin."""
