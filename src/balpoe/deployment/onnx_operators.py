"""The operators that files of ours are made of: a graph with any other is refused before anything of it is run.

They are those of all networks here, of routers, of scikit-learn's classifier and of timm's families, and their near
relatives. So there is nothing that loops, draws numbers, keeps sequences, reads text or decodes images.
"""

from typing import Any

__all__ = ["OPERATORS", "foreign_operator"]

OPERATORS = frozenset(
    (
        "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
        "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
        "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mish", "Mul", "Neg", "Not", "Or",
        "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid",
        "Sign", "Softplus", "Sqrt", "Sub", "Tanh", "Where",
        "Conv", "Einsum", "Gemm", "MatMul",
        "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool",
        "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare",
        "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LogSoftmax",
        "Softmax",
        "Concat", "Constant", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Pad",
        "Reshape", "Resize", "Shape", "Size", "Slice",
        "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
        "CumSum", "TopK",
        "DequantizeLinear", "QuantizeLinear",
    )
)  # fmt: skip
"""Their names in the ONNX standard."""
LONGEST = 60  # characters of a name that a stranger made up


def foreign_operator(graph: Any) -> str | None:
    """Return the name of an operator that no file of ours has, or None if there is none.

    Args:
        graph: ONNX graph.

    >>> from onnx import helper
    >>> foreign_operator(helper.make_graph([helper.make_node("Unique", ["x"], ["y"])], "graph", [], []))
    'Unique'
    """
    for node in graph.node:
        if node.domain not in ("", "ai.onnx"):
            return f"{node.domain}.{node.op_type}"[:LONGEST]
        if node.op_type not in OPERATORS:
            return str(node.op_type)[:LONGEST]
        if node.op_type == "Einsum" and len(node.input) > 2:  # what it holds on its way has no bounds then
            return f"Einsum of {len(node.input)} factors"
    return None
