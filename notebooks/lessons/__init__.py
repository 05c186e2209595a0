"""Code of several lessons: settings, data, figures, and one file per historical system."""
