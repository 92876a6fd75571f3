"""What judges this repository's own tables: aims, stored errors, generated tables and pictures.
Not part of the wheel.
"""
