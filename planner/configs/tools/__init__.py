"""One reader for the files of each training tool."""
