"""The pictures of the lessons, so that the cells show ideas instead of axes."""
