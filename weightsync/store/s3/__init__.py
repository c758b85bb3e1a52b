"""`s3://`: any S3-compatible endpoint, by botocore, the core of boto3. The only place that imports either.

    client     one client, tuned, with renewal of expired credentials; every request goes through it
    errors     what an answer means for the caller
    download   ranges in parallel into the final buffer, broken bodies resumed
    upload     one PUT or a parallel multipart, checksums, conditions
    objects    `S3Store`, the `ObjectStore`

Conditions (`If-None-Match: *`, `If-Match`) go with the single PUT and with CompleteMultipartUpload. Servers differ in the latter (some
ignore it there), so an object above `upload.SINGLE_BYTES` must have a key that is named by its content or belongs to one writer.
"""

from weightsync.store.s3.objects import S3Store

__all__ = ["S3Store"]
