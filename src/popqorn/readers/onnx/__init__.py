"""Networks in ONNX files."""

from popqorn.readers.onnx.network import OnnxNetwork, read_onnx
from popqorn.readers.onnx.operators import names

__all__ = ["OnnxNetwork", "names", "read_onnx"]
