"""Who may import whom, and how large things may grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("targets", "plugins", "calibrate", "export", "runtime")
MAY_IMPORT = {
    "targets": {"targets"},
    "plugins": {"plugins", "targets"},
    "calibrate": {"calibrate", "plugins", "targets"},
    "export": {"export", "plugins", "targets"},
    "runtime": {"runtime", "plugins", "targets"},
}
TOP_LEVEL = {
    *LAYERS,
    "tests",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "Makefile",
    "constraints.txt",
    "docs",
    ".dev",
    ".ci",
    ".gitignore",
}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 40

FILES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]
NATIVE = [path for pattern in ("*.cc", "*.h") for path in sorted((ROOT / "plugins").rglob(pattern))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import"
            yield str(node.module)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    for module in imports(path):
        top, _, rest = module.partition(".")
        assert top not in LAYERS, f"bare import of {module}: write kvedge.{module}"
        if top == "kvedge":
            assert rest.split(".")[0] in MAY_IMPORT[layer], f"{layer} imports {module}"


@pytest.mark.parametrize("path", [p for p in FILES if p.is_relative_to(ROOT / "targets")], ids=name_of)
def test_targets_need_the_standard_library_only(path: Path) -> None:
    allowed = sys.stdlib_module_names | {"kvedge"}
    lazily = {"gguf"}  # read only when a .gguf file is named
    foreign = {module.split(".")[0] for module in imports(path)} - allowed - lazily
    assert not foreign


@pytest.mark.parametrize("path", [p for p in (ROOT / "tests").rglob("*.py")], ids=name_of)
def test_tests_import_the_package(path: Path) -> None:
    assert not [module for module in imports(path) if module.split(".")[0] in LAYERS]


def test_the_runtime_is_light() -> None:
    """Importing all of the runtime loads no torch, transformers or onnx."""
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES]
    runtime = [f"kvedge.{name}" for name in modules if name.startswith("runtime.") and not name.endswith("__init__")]
    heavy = "{'torch', 'transformers', 'onnx', 'onnx_ir', 'onnxscript', 'optimum'}"
    code = f"import sys, {', '.join(runtime)}; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("path", [*FILES, *NATIVE, *(ROOT / "tests").rglob("*.py")], ids=name_of)
def test_files_are_small(path: Path) -> None:
    assert path.read_text().count("\n") <= MAX_FILE_LINES


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function; of a Triton kernel those of its body, as its parameters are a table of their own."""
    is_kernel = any(ast.unparse(decorator) == "triton.jit" for decorator in function.decorator_list)
    first = function.body[1 if ast.get_docstring(function) else 0] if is_kernel else function
    assert function.end_lineno is not None
    return function.end_lineno - first.lineno + 1


@pytest.mark.parametrize("path", [*FILES, *(ROOT / "tests").rglob("*.py")], ids=name_of)
def test_functions_are_small(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = lines_of(node)
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


def test_the_top_level_is_fixed() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout: the list of files is not to be had")
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} <= TOP_LEVEL
