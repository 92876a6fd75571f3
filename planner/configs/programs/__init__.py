"""Training programs in Python, read without running them: what they hand to the libraries that train."""
