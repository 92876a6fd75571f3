"""Config files of other tools, read into the words of our own fields.
Nothing is looked up and nothing is guessed here.
"""
