"""Maps: tables from each software's tensor names to ours. They know nothing of bytes."""
