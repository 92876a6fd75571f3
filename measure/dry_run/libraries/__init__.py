"""What single libraries need before they run on the pretended card,
each applied when the program imports the library.
"""
