"""Files from outside: the one place that opens them, takes their formats apart, and writes whole files."""
