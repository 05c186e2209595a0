"""What runs no more where an environment variable takes instructions from a processor."""

import os

#: Why OpenVINO is not tested, or None. Its own oneDNN obeys the variable of torch's. Lowered, it
#: finds no product for some shapes, and crashes at others.
WHY_NO_OPENVINO = (
    "OpenVINO fails at some shapes where ONEDNN_MAX_CPU_ISA is set"
    if os.environ.get("ONEDNN_MAX_CPU_ISA")
    else None
)
