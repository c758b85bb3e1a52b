"""Messages generated from proto/weightsync/rl/v1 by `make proto`; do not edit."""
