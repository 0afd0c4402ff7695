"""What is learned, whatever the kind of graph: scores, losses, and metrics over whole splits."""
