"""The codec in NumPy: it defines the bytes, and serves where no kernel could be built."""
