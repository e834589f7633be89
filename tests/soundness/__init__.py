"""Proofs by trying: mutations of what a forward reads, and random graphs; ``make soundness`` runs them at length."""
