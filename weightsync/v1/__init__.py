"""Messages generated from proto/weightsync/v1 by `make proto`; do not edit."""
