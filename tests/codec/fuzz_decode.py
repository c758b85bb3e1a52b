"""Throws damaged and invented frames at the decoders for a while; any crash, hang or disagreement with the reference ends it.

    python -m tests.codec.fuzz_decode --seconds 60 [--seed 1] [--level avx2] [--no-compare]

With the sanitizers (a build outside the tree; the kernel found first on the path is used):

    cmake -S . -B /tmp/sanitized -G Ninja -DWEIGHTSYNC_SANITIZE=ON -DPython_EXECUTABLE=$(which python) && cmake --build /tmp/sanitized
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
        python -m tests.codec.fuzz_decode --kernel /tmp/sanitized --seconds 300
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import numpy as np

from tests.codec.chunks import ALL, changed, heavy_tail, near_one_exponent, noise, specials, steps


def main():
    options = _options()
    if options.kernel:
        _load(options.kernel)
    from weightsync.clock import SYSTEM
    from weightsync.codec import kernel
    from weightsync.codec.reference import transforms as reference

    if options.level:
        kernel.use_level(options.level)
    rng = np.random.default_rng(options.seed)
    end, runs, accepted = SYSTEM.monotonic_s() + options.seconds, 0, 0
    while SYSTEM.monotonic_s() < end:
        dtype, old, frame = _sample(kernel, rng)
        for _ in range(200):
            damaged = _damage(frame, rng)
            mine = _outcome(kernel.decode_classgap, dtype, damaged, old)
            if not options.no_compare and mine != _outcome(reference.decode_classgap, dtype, damaged, old):
                raise SystemExit(f"kernel and reference disagree: {dtype.name}, base {old.tobytes().hex()}, frame {damaged.hex()}")
            blind = _outcome(kernel.decode_differences, dtype, damaged, len(old))
            runs, accepted = runs + 2, accepted + (mine != "refused") + (blind != "refused")
    sys.stdout.write(f"{kernel.level()}: {runs} frames, {accepted} accepted, no complaint\n")


def _options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--level")
    parser.add_argument("--kernel", type=Path, help="directory with another build of _kernel")
    parser.add_argument("--no-compare", action="store_true")
    return parser.parse_args()


def _load(directory):
    (path,) = directory.glob("_kernel*.so")
    spec = importlib.util.spec_from_file_location("weightsync.codec._kernel", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def _sample(kernel, rng):
    """A type, a base and a frame that fits it."""
    dtype = ALL[rng.integers(len(ALL))]
    lanes = int(rng.choice([1, 3, 64, 65, 200, 700]))
    old = (noise, near_one_exponent, specials)[rng.integers(3)](dtype, lanes, rng)
    change = (steps, heavy_tail)[rng.integers(2)]
    new = changed(old, rng.choice([0.02, 0.1, 0.3]), lambda part: change(dtype, part, rng), rng)
    frame = kernel.encode_classgap(dtype, old, new, 0, int(rng.integers(17)))[0]
    return dtype, old, frame or bytes([2, rng.integers(16), *rng.integers(0, 256, 20)])


def _damage(frame, rng):
    damaged = bytearray(frame)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(min(len(damaged), 60)))
        what = rng.integers(5)
        if what == 0:
            damaged[at] ^= 1 << rng.integers(8)
        elif what == 1:
            damaged[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif what == 2:
            del damaged[at : at + int(rng.integers(1, 4))]
        elif what == 3:
            damaged[at:at] = bytes(rng.integers(0, 256, rng.integers(1, 4), dtype=np.uint8))
        else:
            damaged[at] = rng.integers(256)
        if not damaged:
            return b"\2"
    return bytes(damaged)


def _outcome(decode, *arguments):
    try:
        return [part.tolist() for part in decode(*arguments)]
    except ValueError:
        return "refused"


if __name__ == "__main__":
    main()
