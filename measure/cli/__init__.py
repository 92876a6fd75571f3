"""The command ``measure``: one thin file per command, registered in ``app.py``."""
