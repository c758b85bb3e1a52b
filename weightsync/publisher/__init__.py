"""The trainer's side: read weights, diff them against what was published last, encode, upload, commit."""
