"""Models for other runtimes: ONNX, OpenVINO and torch.export files, checked against the model.

Nothing is imported here, so that `hf-bert --help` needs neither torch nor a runtime. `exporting`
has `export_model`; `measuring.beside` times its files.
"""
