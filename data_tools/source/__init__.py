"""Reads source files: a spec says which columns of which files become nodes, edges, times and features."""
