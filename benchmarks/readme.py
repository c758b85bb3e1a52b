"""Writes the figures of the README from the kept results: `python -m benchmarks.readme`; `--check` only says whether they agree."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
START, END = "<!-- benchmarks codec -->\n", "<!-- /benchmarks codec -->"
Json = dict[str, Any]


def block(codec: Json, steps: Json, catchup: Json) -> str:
    """The README's part about cost, in Markdown."""
    return "\n".join([*_contest(codec), "", *_steps(codec, steps), "", *_catchup(catchup), ""])


def _origin(results: Json) -> str:
    return f"{results['cpu']}, one core, {results['kernel']}, commit {results['commit'][:7]}"


def _contest(codec: Json) -> list[str]:
    pair, memcpy = codec["pairs"][0], codec["baselines"]["memcpy_gb_s"]
    changed, limit = f"{pair['density']:.2%}", f"{pair['limit']['ratio']:.0f}x"
    return [
        f"One step at a learning rate of 1e-6 ({changed} of the bf16 values changed; entropy limit {limit}), beside the encodings",
        "that other systems send, in one run of `python -m benchmarks.codec`:",
        "",
        "| codec | sent by | times smaller | bytes per change | encode GB/s | decode GB/s |",
        "|---|---|---|---|---|---|",
        *map(_row, pair["codecs"]),
        "",
        f"GB of whole checkpoint per second, digest of every chunk included; memcpy {memcpy:.1f} GB/s ({_origin(codec)}).",
        "",
        "![times smaller against speed](benchmarks/results/codec.svg)",
    ]


def _row(codec: Json) -> str:
    bold = "**" if codec["name"] == "class-gap" else ""
    numbers = (f"{bold}{codec[key]:.{digits}f}{bold}" for key, digits in _COLUMNS)
    return f"| {bold}{codec['name']}{bold} | {codec['who']} | {' | '.join(numbers)} |"


_COLUMNS = (("ratio", 0), ("bytes_per_change", 2), ("encode_gb_s", 1), ("decode_gb_s", 1))


def _steps(codec: Json, steps: Json) -> list[str]:
    rates = ", ".join(f"{pair['codecs'][0]['ratio']:.0f}x ({pair['density']:.1%} changed)" for pair in codec["pairs"])
    real = steps["pairs"][0]
    ours = real["codecs"][0]
    return [
        f"At learning rates of 1e-6, 3e-6 and 1e-5: {rates}.",
        f"Real steps of the policy of `benchmarks.make_checkpoints` ({real['density']:.1%} changed): {ours['ratio']:.0f}x,",
        f"{ours['of_limit']:.2f} of their limit.",
    ]


def _catchup(catchup: Json) -> list[str]:
    last = catchup["gaps"][-1]
    sent, replayed = (f"{last[key] / 1e6:.0f} MB" for key in ("bytes", "every_delta_bytes"))
    return [
        f"A host that missed {last['gap']:,} versions of a {catchup['model_bytes'] / 1e6:.0f} MB model is back in {last['seconds']:.1f} s",
        f"with {sent}; every delta would be {replayed} (`python -m benchmarks.catchup`, commit {catchup['commit'][:7]}):",
        "",
        "![bytes to catch up against versions missed](benchmarks/results/catchup.svg)",
    ]


def main(*, check: Annotated[bool, typer.Option(help="change nothing; exit code 1 when they differ")] = False) -> None:
    """Put the kept results into the README."""
    results = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("codec", "rl", "catchup"))
    text = README.read_text()
    before, _, rest = text.partition(START)
    new = before + START + block(*results) + rest[rest.index(END) :]
    if check:
        raise typer.Exit(int(new != text))
    README.write_text(new)


if __name__ == "__main__":
    typer.run(main)
