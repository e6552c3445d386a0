"""Which device holds the weights, of the engine and of the trainer."""

from __future__ import annotations

import torch

from store.errors import ConfigError, first_line


def usable_device(wanted: str) -> torch.device:
    """Return the device of a ``--device``; "auto" is the GPU where there is one. Raises: ConfigError."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {wanted} cannot be used: {first_line(error)}") from error
    return device
