"""What the notebooks share: settings, data and figures, and a file a historical system."""
