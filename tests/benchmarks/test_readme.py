"""The README's figures are those of the kept results."""

import pytest
import typer

from benchmarks import readme


def test_the_readme_agrees_with_the_kept_results():
    with pytest.raises(typer.Exit) as end:
        readme.main(check=True)
    assert end.value.exit_code == 0, "run: python -m benchmarks.readme"
