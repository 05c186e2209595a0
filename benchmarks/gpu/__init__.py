"""The CUDA path proved and measured by one command: `make gpu`."""
