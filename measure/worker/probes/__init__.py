"""What is read while a step runs: device memory, device time, host memory of the process itself."""
