"""A host's side: follow a channel, keep a verified copy of its version, hand it on."""
