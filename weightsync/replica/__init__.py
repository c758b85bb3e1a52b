"""A verified copy of a version on this host: the image, its journal, the way to another version, and back to files."""
