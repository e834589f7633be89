"""The stores of graphs and blobs on disk, and the store of compiled graphs in memory."""
