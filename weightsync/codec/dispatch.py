"""Chooses who computes: the C++ kernel at the best level of this processor, or the NumPy reference.

`WEIGHTSYNC_KERNEL` = auto (default), avx512, avx2, portable or reference. All of them write the same frames.
"""

import importlib
import os
import warnings
from functools import cache
from typing import cast

from weightsync.codec.reference import transforms as reference
from weightsync.codec.transforms import Transforms
from weightsync.errors import Invalid, Unsupported

LEVELS = ("avx512", "avx2", "portable")
_VARIABLE = "WEIGHTSYNC_KERNEL"


@cache
def transforms() -> Transforms:
    """The module that computes, by the environment of this process."""
    wanted = os.environ.get(_VARIABLE, "auto")
    if wanted not in ("auto", "reference", *LEVELS):
        raise Invalid(f"{_VARIABLE}={wanted!r} is not known", remedy=f"use auto, reference or one of {', '.join(LEVELS)}")
    if wanted == "reference":
        return reference
    try:
        kernel = importlib.import_module("weightsync.codec.kernel")
    except ImportError as error:
        return _without_kernel(wanted, error)
    if wanted != "auto":
        kernel.use_level(wanted)
    return cast("Transforms", kernel)


def _without_kernel(wanted: str, error: ImportError) -> Transforms:
    if wanted != "auto":
        raise Unsupported(f"{_VARIABLE}={wanted} needs the compiled kernel: {error}", remedy="install with a C++ compiler") from error
    warnings.warn(
        f"weightsync runs without its compiled kernel, 20 to 100 times slower ({error}); "
        f"reinstall where a C++ compiler is found, or set {_VARIABLE}=reference to silence this",
        RuntimeWarning,
        stacklevel=2,
    )
    return reference
