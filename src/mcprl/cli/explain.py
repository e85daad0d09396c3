"""`mcprl explain`: what an error means, where it comes from and how it is mended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mcprl.errors.pages import ErrorPage

__all__ = ["command"]


def command(
    code: Annotated[
        str | None, typer.Argument(metavar="[CODE]", help="Code of an error, such as E-TOOL-003.", show_default=False)
    ] = None,
) -> None:
    """Print what an error means, whose fault it is, its usual causes and how to mend it. Without a code: all codes."""
    from rich.console import Console

    from mcprl.errors import UnknownKeyError
    from mcprl.errors.pages import find_page, nearest_codes

    console = Console(highlight=False)
    if code is None:
        _print_all(console)
        return
    page = find_page(code)
    if page is None:
        nearest = nearest_codes(code)
        hint = f"; the nearest are {', '.join(nearest)}" if nearest else ""
        raise UnknownKeyError(f"no error has the code {code!r}{hint}", fix="see all with `mcprl explain`")
    _print_page(console, page)


def _print_all(console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from mcprl.errors.pages import GROUPS, error_pages

    for group, title in GROUPS.items():
        console.print(Text(title, style="bold"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="cyan")
        table.add_column(overflow="fold")
        for page in error_pages().values():
            if page.group == group:
                table.add_row(f"  {page.code}", Text(page.meaning))
        console.print(table)
        console.print()
    console.print("mcprl explain CODE prints the causes of one, and how to mend it.")


def _print_page(console: Console, page: ErrorPage) -> None:
    """The page with its texts indented under their titles; no wider than is comfortable to read."""
    from rich.table import Table
    from rich.text import Text

    from mcprl.errors.pages import FAULTS

    width = min(console.width, 100)

    def say(title: str, *texts: str, mark: str = "") -> None:
        console.print(Text(f"\n{title}", style="bold"))
        indented = Table.grid(padding=(0, 1, 0, 0))
        for text in texts:
            indented.add_row(mark, Text(text))
        console.print(indented, width=width)

    console.print(Text.assemble((page.code, "bold cyan"), "  ", (page.name, "dim")))
    console.print(Text(page.meaning), width=width)
    say("Whose fault", FAULTS[page.fault], mark=" ")
    say("Usual causes", *page.causes, mark=" •")
    say("How to mend it", page.fix, mark=" ")
    say("As it appears", f"mcprl: {page.example}", mark=" ")
