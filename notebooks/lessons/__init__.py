"""What the notebooks share: settings, data and figures, and one file per historical system."""
