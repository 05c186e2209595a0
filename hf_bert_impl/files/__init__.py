"""Files on the disk: text that is read, and output that appears whole. No model is needed here."""
