"""Static graphs, typed or not: trained by sampled mini-batches, or whole, by halo exchange."""
