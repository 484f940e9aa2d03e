"""Small ONNX models, built node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

OPSET = 17


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any]) -> Any:
    """Put a model together; inputs and outputs are (name, type, shape)."""
    from onnx import helper, numpy_helper

    def value(name: str, kind: int, shape: list[Any]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        nodes,
        "small",
        [value(*entry) for entry in inputs],
        [value(*entry) for entry in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("acme", 1)]
    )
    made.ir_version = 8
    return made


def convolutional(shape: list[Any] | None = None) -> Any:
    """Conv without and with bias, each with a batch norm, pooling and a dense layer: 5 numbers."""
    from onnx import TensorProto, helper

    rng = np.random.default_rng(0)

    def normal(*extents: int) -> Any:
        return rng.standard_normal(extents).astype(np.float32)

    def norm(name: str) -> dict[str, Any]:
        return {
            f"{name}.scale": normal(8),
            f"{name}.shift": normal(8),
            f"{name}.mean": normal(8),
            f"{name}.variance": rng.uniform(0.5, 2, 8).astype(np.float32),
        }

    weights = {
        "w1": normal(8, 3, 3, 3),
        **norm("n1"),
        "w2": normal(8, 8, 3, 3) / 9,
        "b2": normal(8),
        **norm("n2"),
        "w3": normal(5, 8),
        "b3": normal(5),
    }
    node = helper.make_node
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], **pads),
        node("BatchNormalization", ["c1", *norm("n1")], ["a1"], epsilon=1e-3),
        node("Relu", ["a1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], **pads),
        node("BatchNormalization", ["c2", *norm("n2")], ["a2"]),
        node("Relu", ["a2"], ["r2"]),
        node("GlobalAveragePool", ["r2"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]
    x = ("x", TensorProto.FLOAT, shape or ["N", 3, "height", "width"])
    return model(nodes, [x], [("y", TensorProto.FLOAT, ["N", 5])], weights)


def lookup() -> Any:
    """Rows of a table of 7, for ids [batch, length], kept where a mask of the same shape is 1."""
    from onnx import TensorProto, helper

    table = np.arange(14, dtype=np.float32).reshape(7, 2)
    nodes = [
        helper.make_node("Cast", ["ids"], ["rows"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "rows"], ["found"]),
        helper.make_node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["kept", "last"], ["column"]),
        helper.make_node("Mul", ["found", "column"], ["y"]),
    ]
    shape = ["batch", "length"]
    return model(
        nodes,
        [("ids", TensorProto.INT32, shape), ("mask", TensorProto.INT64, shape)],
        [("y", TensorProto.FLOAT, [*shape, 2])],
        {"table": table, "last": np.array([-1])},
    )


def unary(operator: str, shape: list[Any], domain: str = "", **attributes: Any) -> Any:
    """One operator on one float tensor, after a Relu."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node(operator, ["r"], ["y"], domain=domain, **attributes),
    ]
    return model(nodes, [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, None)], {})


def save(made: Any, path: Path) -> Path:
    import onnx

    onnx.save_model(made, str(path))
    return path
