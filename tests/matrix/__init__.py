"""A short part of the suite with other versions of torch and Python; ``make test-matrix`` runs it."""
