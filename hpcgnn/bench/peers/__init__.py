"""Models of other systems, with the weights of ours, on the same batches."""
