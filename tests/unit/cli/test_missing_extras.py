"""A command whose library is not installed names the extra that brings it; what is no extra's stays a fault of ours."""

import pytest

from mcprl import cli


@pytest.mark.parametrize(("library", "extra"), [("duckdb", "dashboard"), ("torch", "torch"), ("pandas", "market")])
def test_a_missing_library_is_named_with_the_extra_that_brings_it(library, extra, monkeypatch, capsys):
    def command() -> None:
        raise ModuleNotFoundError(f"No module named {library!r}", name=f"{library}.part")

    monkeypatch.setattr(cli, "app", command)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"needs {library}, which is not installed" in said
    assert f"pip install 'mcprl[{extra}]'" in said


def test_a_module_that_no_extra_brings_is_not_explained_away(monkeypatch):
    def command() -> None:
        raise ModuleNotFoundError("No module named 'mcprl.nothing'", name="mcprl.nothing")

    monkeypatch.setattr(cli, "app", command)
    with pytest.raises(ModuleNotFoundError):
        cli.main()
