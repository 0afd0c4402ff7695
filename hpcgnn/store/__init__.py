"""What a rank holds: files, the book of owners, its partition, node memory."""
