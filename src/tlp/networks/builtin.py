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
    multiple
        Height and width must be multiples of it, for the image family.
    """

    name: str
    description: str
    family: Literal["image", "text"]
    input_shape: tuple[int, ...]
    factory: Factory
    vocabulary: int = 0
    longest: int = 0
    multiple: int = 1


def _pytorchcv(file: str, function: str, input_shape: tuple[int, ...]) -> Any:
    # The input's size only matters to the heads: `calibrate.fit_final_pool` and `_vgg` see to them.
    module = require(f"pytorchcv.models.{file}", "networks")
    return getattr(module, function)(pretrained=False)


def _vgg(function: str, input_shape: tuple[int, ...]) -> Any:
    """Build a VGG whose first dense layer takes the whole map of the last pooling."""
    torch = require("torch", "torch")
    model = _pytorchcv("vgg", function, input_shape)
    dense = model.output.fc1.fc
    height, width = (extent // 32 for extent in input_shape[1:])
    if (height, width) != (7, 7):
        model.output.fc1.fc = torch.nn.Linear(512 * height * width, dense.out_features)
    return model


def _image(
    name: str,
    description: str,
    file: str,
    function: str,
    input_shape: tuple[int, ...] = (3, 224, 224),
) -> Builtin:
    factory = functools.partial(_pytorchcv, file, function)
    return Builtin(name, description, "image", input_shape, factory)


# The same attention under a name for which transformers makes no masks: in an exported program they
# would be computed from positions, where PyTorch only has to be told that attention is causal.
_PLAIN_CAUSAL = "sdpa_without_masks"


def _transformer(
    config_class: str,
    model_class: str,
    output: str,
    options: dict[str, Any],
    input_shape: tuple[int, ...],
) -> Any:
    """Build a transformer from its configuration as a function of one tensor."""
    transformers = require("transformers", "networks")
    # PyTorch's fused attention is its default, and TVM's importer takes it apart.
    options = {"attn_implementation": "sdpa", **options}
    if options["attn_implementation"] == _PLAIN_CAUSAL:
        attention = require("transformers.integrations.sdpa_attention", "networks")
        transformers.AttentionInterface.register(_PLAIN_CAUSAL, attention.sdpa_attention_forward)
    config = getattr(transformers, config_class)(**options)
    if config_class == "ViTConfig":
        config.image_size = tuple(input_shape[1:])
    return _one_output(getattr(transformers, model_class)(config), output)


def _one_output(model: Any, output: str) -> Any:
    torch = require("torch", "torch")
    if hasattr(model, "pooler"):
        model.pooler = None  # its output is not used

    class OneOutput(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, values: Any) -> Any:
            return getattr(self.model(values), output)

    return OneOutput()


def _text(
    name: str,
    description: str,
    config_class: str,
    model_class: str,
    options: dict[str, Any],
    vocabulary: int,
    longest: int,
) -> Builtin:
    options = {"vocab_size": vocabulary, "max_position_embeddings": longest, **options}
    factory = functools.partial(
        _transformer, config_class, model_class, "last_hidden_state", options
    )
    return Builtin(name, description, "text", (128,), factory, vocabulary, longest)


def _bert(
    name: str, description: str, layers: int, hidden: int, heads: int, intermediate: int
) -> Builtin:
    options = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
    }
    return _text(name, description, "BertConfig", "BertModel", options, 30522, 512)


def _gpt2(name: str, description: str, layers: int, hidden: int, heads: int) -> Builtin:
    options = {
        "n_layer": layers,
        "n_embd": hidden,
        "n_head": heads,
        # A whole prompt: no tokens are generated, so there are no keys and values to keep.
        "use_cache": False,
        "attn_implementation": _PLAIN_CAUSAL,
        # The original's formula as one operator of PyTorch, not eight with a power among them.
        "activation_function": "gelu_pytorch_tanh",
    }
    return _text(name, description, "GPT2Config", "GPT2Model", options, 50257, 1024)


def _vit(
    name: str, description: str, layers: int, hidden: int, heads: int, intermediate: int
) -> Builtin:
    patch = 16
    options = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "patch_size": patch,
        "num_labels": 1000,
    }
    factory = functools.partial(
        _transformer, "ViTConfig", "ViTForImageClassification", "logits", options
    )
    return Builtin(name, description, "image", (3, 224, 224), factory, multiple=patch)


_ALL = (
    _image("resnet18", "ResNet-18, image classification", "resnet", "resnet18"),
    _image("resnet50", "ResNet-50, image classification", "resnet", "resnet50"),
    _image("resnext50", "ResNeXt-50 32x4d, image classification", "resnext", "resnext50_32x4d"),
    _image("wide_resnet50", "Wide ResNet-50-2, image classification", "wrn", "wrn50_2"),
    _image("densenet121", "DenseNet-121, image classification", "densenet", "densenet121"),
    Builtin(
        "vgg16",
        "VGG-16 without batch norm, image classification",
        "image",
        (3, 224, 224),
        functools.partial(_vgg, "vgg16"),
    ),
    _image(
        "inception_v3",
        "Inception-V3, image classification",
        "inceptionv3",
        "inceptionv3",
        (3, 299, 299),
    ),
    _image("mobilenet_v2", "MobileNet-V2, image classification", "mobilenetv2", "mobilenetv2_w1"),
    _image(
        "mobilenet_v3",
        "MobileNet-V3 Large, image classification",
        "mobilenetv3",
        "mobilenetv3_large_w1",
    ),
    _image(
        "shufflenet_v2",
        "ShuffleNet-V2 1x, image classification",
        "shufflenetv2",
        "shufflenetv2_w1",
    ),
    _image(
        "efficientnet_b0",
        "EfficientNet-B0, image classification",
        "efficientnet",
        "efficientnet_b0",
    ),
    _image("squeezenet", "SqueezeNet 1.1, image classification", "squeezenet", "squeezenet_v1_1"),
    _vit("vit_tiny", "Vision transformer, patches of 16, 12 layers of width 192", 12, 192, 3, 768),
    _bert("bert_tiny", "BERT encoder, 2 layers of width 128", 2, 128, 2, 512),
    _bert("bert_mini", "BERT encoder, 4 layers of width 256", 4, 256, 4, 1024),
    _bert("bert_base", "BERT encoder, 12 layers of width 768", 12, 768, 12, 3072),
    _gpt2("gpt2_small", "GPT-2 up to the last hidden state, 12 layers of width 768", 12, 768, 12),
)

BUILTINS: dict[str, Builtin] = {entry.name: entry for entry in _ALL}


def names() -> tuple[str, ...]:
    """Names of all built-in networks, in the order of listings."""
    return tuple(BUILTINS)
