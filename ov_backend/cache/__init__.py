"""Stores of graphs and blobs on disk, and of compiled graphs in memory."""
