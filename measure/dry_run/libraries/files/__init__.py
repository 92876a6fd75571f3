"""What a program reads and writes: repositories, checkpoints, tokenizers, processors."""
