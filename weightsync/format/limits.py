"""Bounds on everything that is read: larger is refused before it is parsed or allocated."""

FORMAT_VERSION = 1

MAX_RECORD_BYTES = 4 << 20  # a signed record
MAX_LAYOUT_BYTES = 256 << 20  # the table of tensors, and the table of files
MAX_FILE_BYTES = 64 << 20  # one small file of a checkpoint
MAX_HEADER_BYTES = 256 << 20  # a safetensors header
MAX_DIGESTS_BYTES = 1 << 30  # leaves and sums of one version
MAX_SHARD_BYTES = 1 << 30  # an object holding frames

MAX_TENSORS = 4_000_000
MAX_NAME_BYTES = 1024
MAX_DIMENSIONS = 16
MAX_IMAGE_BYTES = 1 << 46  # 64 TiB
MAX_CHUNKS = 1 << 25  # of a layout: 64 TiB in default chunks
MAX_INTEGER = (1 << 53) - 1  # what every JSON reader holds exactly
MAX_SEQUENCE_JUMP = 1_000_000  # a move further ahead than this is not one of ours

MIN_CHUNK_LANES = 1 << 10
MAX_CHUNK_LANES = 1 << 24
DEFAULT_CHUNK_LANES = 1 << 20
