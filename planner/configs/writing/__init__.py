"""The way back: settings of ours as keys of a tool's file, and files with such keys set."""
