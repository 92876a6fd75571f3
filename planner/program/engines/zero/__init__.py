"""DeepSpeed without and with ZeRO, and the ZeRO-1 and 2 of Colossal-AI."""
