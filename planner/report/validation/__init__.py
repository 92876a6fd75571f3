"""The answer of ``plan validate`` and ``plan calibrate``."""
