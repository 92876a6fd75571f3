"""Many cases: read from a file, put in order, run until the time is over, resumed where they stopped."""
