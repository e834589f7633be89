"""The model in the archive; TorchServe expects one class in this file."""

import torch


class Small(torch.nn.Module):
    """Takes f32 [batch, 8], returns f32 [batch, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers."""
        return self.second(torch.nn.functional.gelu(self.first(x)))
