"""What is run: real training steps in plain torch (``loop``) or by the Hugging Face Trainer (``trainer``)."""
