"""Public reports about compilers of PyTorch, each as a small program of this project's own, and what it must do here."""
