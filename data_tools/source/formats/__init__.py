"""Readers of file formats: text, parquet, npz, npy, mat, RDF, and the folders of DGL and OGB."""
