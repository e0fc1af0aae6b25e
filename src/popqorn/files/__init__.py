"""Models in files: our own (safetensors), ONNX, programs of torch.export. No file executes code."""
