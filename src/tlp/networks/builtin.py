"""The networks that can be tuned by name, built with random weights and no download."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tlp.processes import require

Factory = Callable[[tuple[int, ...]], Any]


@dataclass(frozen=True)
class Builtin:
    """A network known by name.

    Parameters
    ----------
    name
        What the user types.
    description
        One line for listings.
    family
        ``image`` takes float images (channels, height, width); ``text`` takes token ids (length,).
    input_shape
        Default shape of one input, without the batch.
    factory
        Takes the input shape without the batch and returns the ``torch.nn.Module``.
    vocabulary
        Number of token ids, for the text family.
    longest
        Largest sequence length, for the text family.
    """

    name: str
    description: str
    family: Literal["image", "text"]
    input_shape: tuple[int, ...]
    factory: Factory
    vocabulary: int = 0
    longest: int = 0


def _pytorchcv(file: str, function: str, input_shape: tuple[int, ...]) -> Any:
    module = require(f"pytorchcv.models.{file}", "networks")
    return getattr(module, function)(pretrained=False, in_size=tuple(input_shape[1:]))


def _image(
    name: str,
    description: str,
    file: str,
    function: str,
    input_shape: tuple[int, ...] = (3, 224, 224),
) -> Builtin:
    factory = functools.partial(_pytorchcv, file, function)
    return Builtin(name, description, "image", input_shape, factory)


def _transformer(
    config_class: str, model_class: str, options: dict[str, Any], input_shape: tuple[int, ...]
) -> Any:
    transformers = require("transformers", "networks")
    # PyTorch's fused attention is its default, and TVM's importer takes it apart.
    config = getattr(transformers, config_class)(**options, attn_implementation="sdpa")
    return _tokens_to_states(getattr(transformers, model_class)(config))


def _tokens_to_states(model: Any) -> Any:
    """Wrap an encoder into a function of token ids alone, int64 [batch, length]."""
    torch = require("torch", "torch")
    if hasattr(model, "pooler"):
        model.pooler = None  # its output is not used

    class LastHiddenState(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids).last_hidden_state

    return LastHiddenState()


def _bert(
    name: str, description: str, layers: int, hidden: int, heads: int, intermediate: int
) -> Builtin:
    vocabulary, longest = 30522, 512
    options = {
        "vocab_size": vocabulary,
        "max_position_embeddings": longest,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
    }
    factory = functools.partial(_transformer, "BertConfig", "BertModel", options)
    return Builtin(name, description, "text", (128,), factory, vocabulary, longest)


_ALL = (
    _image("resnet18", "ResNet-18, image classification", "resnet", "resnet18"),
    _image("resnet50", "ResNet-50, image classification", "resnet", "resnet50"),
    _image("mobilenet_v2", "MobileNet-V2, image classification", "mobilenetv2", "mobilenetv2_w1"),
    _image("squeezenet", "SqueezeNet 1.1, image classification", "squeezenet", "squeezenet_v1_1"),
    _bert("bert_tiny", "BERT encoder, 2 layers of width 128", 2, 128, 2, 512),
    _bert("bert_base", "BERT encoder, 12 layers of width 768", 12, 768, 12, 3072),
)

BUILTINS: dict[str, Builtin] = {entry.name: entry for entry in _ALL}


def names() -> tuple[str, ...]:
    """Names of all built-in networks, in the order of listings."""
    return tuple(BUILTINS)
