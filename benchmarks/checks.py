"""The bounds that weightsync promises for its codec, held against one results file."""

from typing import Any

Json = dict[str, Any]

LIMIT_FACTOR = 1.05
LIMIT_BYTES_PER_CHUNK = 32
MEMCPY_SHARE = 0.23
XOR_RATIO_FACTOR = 2.8
XOR_ENCODE_FACTOR = 2.2
XOR_DECODE_FACTOR = 2.5
MAX_OF_RAW = 1.01
MAX_TIME_OF_FULL = 1.2
SMALL_TENSOR_US = 50.0
ONE_STEP_DENSITY = (0.008, 0.016)  # of bf16 at lr 1e-6, for which speeds are promised


def checks(results: Json) -> list[Json]:
    """Each promise with the measured value, its bound and whether it holds."""
    found: list[Json] = []
    memcpy = results["baselines"]["memcpy_gb_s"]
    for pair in results["pairs"]:
        found += _pair(pair, memcpy)
    for row in results["densities"]:
        what = f"at {row['density']:.2%}"
        found.append(_most(f"{what}, of the raw size", row["of_raw"], MAX_OF_RAW))
        found.append(_most(f"{what}, CPU time of a full publish", row["publish_time_of_full"], MAX_TIME_OF_FULL))
    if small := results["small_tensors"]:
        found.append(_most("encode of a small tensor, us", small["encode_us"], SMALL_TENSOR_US))
        found.append(_most("decode of a small tensor, us", small["decode_us"], SMALL_TENSOR_US))
    return found


def _pair(pair: Json, memcpy: float) -> list[Json]:
    by_name = {codec["name"]: codec for codec in pair["codecs"]}
    ours, xor = by_name["class-gap"], by_name["XOR, zstd-1"]
    allowed = LIMIT_FACTOR * pair["limit"]["nbytes"] + LIMIT_BYTES_PER_CHUNK * pair["chunks"]
    found = [_most(f"{pair['pair']}: frames over the limit (with {LIMIT_BYTES_PER_CHUNK} bytes a chunk)", ours["nbytes"] / allowed, 1.0)]
    low, high = ONE_STEP_DENSITY
    if low < pair["density"] < high:
        name = pair["pair"]
        found.append(_least(f"{name}: smaller than XOR", xor["nbytes"] / ours["nbytes"], XOR_RATIO_FACTOR))
        found.append(_least(f"{name}: encode, of memcpy", ours["encode_gb_s"] / memcpy, MEMCPY_SHARE))
        found.append(_least(f"{name}: decode, of memcpy", ours["decode_gb_s"] / memcpy, MEMCPY_SHARE))
        found.append(_least(f"{name}: encode, times XOR", ours["encode_gb_s"] / xor["encode_gb_s"], XOR_ENCODE_FACTOR))
        found.append(_least(f"{name}: decode, times XOR", ours["decode_gb_s"] / xor["decode_gb_s"], XOR_DECODE_FACTOR))
    return found


def _most(what: str, value: float, bound: float) -> Json:
    return {"what": what, "value": value, "bound": bound, "holds": value <= bound}


def _least(what: str, value: float, bound: float) -> Json:
    return {"what": what, "value": value, "bound": bound, "holds": value >= bound}
