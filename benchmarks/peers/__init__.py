"""What ``bench_peers`` is made of: the pipeline with random weights, the peers, what a process measures, table and plots."""
