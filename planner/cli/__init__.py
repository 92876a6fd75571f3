"""The command ``plan``: one thin file per command."""
