"""Command lines and files of Unsloth: its script ``unsloth-cli.py`` and its command ``unsloth train``."""
