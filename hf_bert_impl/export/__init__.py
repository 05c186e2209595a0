"""Export of models as ONNX, OpenVINO and torch.export files, checked against the model."""
