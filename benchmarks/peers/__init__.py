"""The parts of ``bench_peers``: the pipeline with random weights, the peers, their processes, table and plots."""
