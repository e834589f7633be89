"""What ``torch.compile`` needs: its backend, options, and how each of its graphs is answered."""
