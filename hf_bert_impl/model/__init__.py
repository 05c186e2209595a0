"""The model: everything that a push to the hub uploads, importable file by file."""
