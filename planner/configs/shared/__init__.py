"""What the readers of several tools share: keys of the Trainer, defaults, ages of files."""
