"""Cuts a graph file into a partition set: book.h5 and part-<i>.h5."""
