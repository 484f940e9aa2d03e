"""Making a network with random weights behave like a trained one where it matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PASSES = 2
_IMAGES = 4


def calibrate(
    module: torch.nn.Module, input_shape: tuple[int, ...], generator: torch.Generator
) -> None:
    """Give a network's activations the spread that training would, from random images.

    With initial weights and statistics activations vanish or explode along a deep network, its
    output hardly depends on the input, and comparing outputs proves nothing. Batch norms get
    their statistics from the data; a network without them has its convolutions scaled instead.
    """
    import torch

    images = [
        torch.randn((_IMAGES, *input_shape), generator=generator, dtype=torch.float32)
        for _ in range(_PASSES)
    ]
    norms = [
        part
        for part in module.modules()
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.track_running_stats
    ]
    with torch.no_grad():
        if norms:
            _collect_statistics(module, norms, images)
        else:
            _scale_convolutions(module, images[0])


def _collect_statistics(
    module: torch.nn.Module, norms: list[Any], images: list[torch.Tensor]
) -> None:
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average
    module.train()
    for batch in images:
        module(batch)
    module.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _scale_convolutions(module: torch.nn.Module, images: torch.Tensor) -> None:
    """Scale and shift each convolution, first to last, so that its channels have mean 0, sd 1."""
    import torch

    def normalise(
        convolution: torch.nn.Conv2d, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor:
        biased = convolution.bias is not None
        mean = output.mean(dim=(0, 2, 3)) * biased
        spread = output.std(dim=(0, 2, 3)).clamp_min(1e-6)
        convolution.weight.div_(spread[:, None, None, None])
        if biased:
            convolution.bias.sub_(mean).div_(spread)
        return (output - mean[:, None, None]) / spread[:, None, None]

    handles = [
        part.register_forward_hook(normalise)
        for part in module.modules()
        if isinstance(part, torch.nn.Conv2d)
    ]
    try:
        module(images)
    finally:
        for handle in handles:
            handle.remove()


def fit_final_pool(module: torch.nn.Module, example: torch.Tensor) -> None:
    """Let a final average pooling of fixed size cover the whole map that ``example`` gives it."""
    import torch

    handles = [
        part.register_forward_pre_hook(_cover_input)
        for name, part in module.named_modules()
        if name.endswith("final_pool") and isinstance(part, torch.nn.AvgPool2d)
    ]
    try:
        with torch.no_grad():
            module(example)
    finally:
        for handle in handles:
            handle.remove()


def _cover_input(pool: torch.nn.AvgPool2d, inputs: tuple[torch.Tensor, ...]) -> None:
    height, width = inputs[0].shape[-2:]
    pool.kernel_size = height if height == width else (height, width)
