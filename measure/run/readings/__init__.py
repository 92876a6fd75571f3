"""What the parent reads of the machine: memory of the host, NVML, the environment."""
