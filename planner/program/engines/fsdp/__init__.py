"""FSDP1, FSDP2 and FSDP2 beside a pipeline."""
