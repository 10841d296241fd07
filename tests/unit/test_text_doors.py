"""Text that others wrote is printed by one module and shown by one label; files are read in one encoding.

Each rule is a function from a parsed file to the lines that break it, with a sample that does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mosaic

SOURCE = Path(mosaic.__file__).parents[1]
CLICK_OUTPUT = {"echo", "echo_via_pager", "secho", "style", "confirm", "prompt", "progressbar", "pause", "edit"}
RICH_MARKUP = {"from_markup", "from_ansi"}
HTML_METHODS = {"setHtml", "insertHtml", "appendHtml", "setTextFormat", "setMarkdown", "setWhatsThis"}
QT_DIALOGS = {"about", "critical", "information", "question", "warning"}
HTML_WIDGETS = {"QLabel", "QErrorMessage", "QWhatsThis", "QTextBrowser", "QTextDocument"}
PYQTGRAPH_HTML = {"TextItem", "LabelItem", "LegendItem", "PlotWidget", "PlotItem", "setLabel", "addLegend"}

Rule = Callable[[ast.AST], bool]


def name_of(node: ast.expr) -> str:
    """`echo` of `echo`, `click.echo` and `context().echo`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def owner_of(node: ast.expr) -> str:
    return name_of(node.value) if isinstance(node, ast.Attribute) else ""


def keywords(call: ast.Call) -> dict[str | None, ast.expr]:
    return {word.arg: word.value for word in call.keywords}


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def imports(node: ast.AST, module: str, names: set[str]) -> bool:
    is_from = isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == module
    return is_from and any(alias.name in names for alias in node.names)  # type: ignore[attr-defined]


def prints_itself(node: ast.AST) -> bool:
    """Prints past `cli/output.py`."""
    if imports(node, "click", CLICK_OUTPUT) or imports(node, "rich", {"print"}):
        return True
    if not isinstance(node, ast.Call):
        return False
    name, owner = name_of(node.func), owner_of(node.func)
    return (
        (owner == "click" and name in CLICK_OUTPUT)
        or (isinstance(node.func, ast.Name) and name in ("print", "Console"))
        or (name in ("write", "writelines") and owner in ("stdout", "stderr"))
        or name in RICH_MARKUP
        or is_true(keywords(node).get("markup"))
    )


def lets_markup_in(node: ast.AST) -> bool:
    """A column of rich's progress bars takes `[red]` for a style, unless it is told otherwise."""
    return isinstance(node, ast.Call) and name_of(node.func) == "TextColumn" and "markup" not in keywords(node)


def shows_html(node: ast.AST) -> bool:
    """Makes a label that may take its text for HTML, or text that is HTML."""
    if isinstance(node, ast.ClassDef):
        return any(name_of(base) in HTML_WIDGETS for base in node.bases)
    if not isinstance(node, ast.Call):
        return False
    name, owner = name_of(node.func), owner_of(node.func)
    return (
        name in HTML_METHODS | HTML_WIDGETS or (owner == "QMessageBox" and name in QT_DIALOGS) or name in PYQTGRAPH_HTML
    )


def has_no_encoding(node: ast.AST) -> bool:
    """Reads or writes text in the encoding of the user's locale."""
    if not isinstance(node, ast.Call) or "encoding" in keywords(node):
        return False
    name, owner = name_of(node.func), owner_of(node.func)
    if (owner, name) in (("", "open"), ("io", "open"), ("os", "fdopen")):
        mode = keywords(node).get("mode", node.args[1] if len(node.args) > 1 else ast.Constant("r"))
        return isinstance(mode, ast.Constant) and "b" not in str(mode.value)
    is_method = isinstance(node.func, ast.Attribute)
    return (is_method and name in ("read_text", "write_text", "TextIOWrapper")) or is_true(keywords(node).get("text"))


def broken_lines(tree: ast.AST, rule: Rule) -> Iterator[int]:
    yield from (node.lineno for node in ast.walk(tree) if rule(node))  # type: ignore[attr-defined]


RULES: list[tuple[Rule, str, set[str]]] = [
    (prints_itself, "cli", {"output.py", "terminal.py"}),
    (lets_markup_in, "", set()),
    (shows_html, "window", {"labels.py", "window_help.py", "dialogs.py"}),
    (has_no_encoding, "", set()),
]
"""A rule, the package or the face of features where it holds, and the files that it does not hold for: the doors, and
the window's help pages."""


@pytest.mark.parametrize(("rule", "face", "exempt"), RULES, ids=[rule.__name__ for rule, _, _ in RULES])
def test_the_source_keeps_the_rule(rule: Rule, face: str, exempt: set[str]) -> None:
    files = [
        path
        for path in sorted((SOURCE / "mosaic" if face else SOURCE).rglob("*.py"))
        if path.name not in exempt
        and "_pb2" not in path.name
        and (path.parent.name == face or path.name.startswith(face))
    ]
    assert files
    found = [
        f"{path}:{line}" for path in files for line in broken_lines(ast.parse(path.read_text(encoding="utf-8")), rule)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("rule", "sample"),
    [
        (prints_itself, "click.echo(view.notes)"),
        (prints_itself, "from click import secho"),
        (prints_itself, "print(name)"),
        (prints_itself, "sys.stdout.write(name)"),
        (prints_itself, "Console(stderr=True)"),
        (prints_itself, "Text.from_markup(name)"),
        (prints_itself, "screen.print(name, markup=True)"),
        (lets_markup_in, "TextColumn('{task.description}')"),
        (shows_html, "label = QLabel(view.run_name)"),
        (shows_html, "class Title(QLabel): ..."),
        (shows_html, "QMessageBox.warning(window, title, text)"),
        (shows_html, "label.setTextFormat(Qt.TextFormat.RichText)"),
        (shows_html, "pg.TextItem(tag)"),
        (shows_html, "axis.setLabel(tag)"),
        (has_no_encoding, "path.read_text()"),
        (has_no_encoding, "path.write_text(text)"),
        (has_no_encoding, "open(path)"),
        (has_no_encoding, "open(path, 'w')"),
        (has_no_encoding, "subprocess.run(command, text=True)"),
    ],
)
def test_a_rule_can_be_broken(rule: Rule, sample: str) -> None:
    assert list(broken_lines(ast.parse(sample), rule)) == [1]


def test_every_table_for_a_spreadsheet_has_cells_that_are_no_formulas() -> None:
    writers = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    writers = [text for text in writers if "csv.writer" in text or "def to_tsv" in text]
    assert len(writers) >= 3
    assert all("csv_text" in text for text in writers)
