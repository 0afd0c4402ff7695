"""Which part every node goes to: METIS, ParMETIS, streaming, hotness, or an assignment from elsewhere."""
