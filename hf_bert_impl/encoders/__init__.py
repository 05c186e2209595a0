"""Any encoder of transformers without padding: one forward, one attention, and a probe."""
