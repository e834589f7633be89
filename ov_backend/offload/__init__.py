"""Memory of weights that is given back to the system: a file without a name holds their content."""
