"""Memory of weights that is offloaded: a file without a name holds their content."""
