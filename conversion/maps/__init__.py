"""Tables of each software's tensor names and ours, independent of file formats."""
