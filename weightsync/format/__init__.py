"""The store format: pure functions from bytes to verified values and back. `proto/FORMAT.md` is the specification."""
