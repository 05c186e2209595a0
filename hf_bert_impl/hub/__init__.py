"""Publishing a model on the hub, with code and card, after a check that it loads elsewhere."""
