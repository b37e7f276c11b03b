"""Tasks from public data sets: images, and tables of many small groups."""
