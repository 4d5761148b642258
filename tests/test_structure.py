"""The sizes of files, functions and classes, and what signatures say.

CONTRIBUTING.md has the rules. A class above a limit says why in its docstring, and names the limit
or its own number: "It has more than 15 public methods: each is a message of the daemon." A reason
that is not true any more fails as well. Files, functions and signatures have no such place: those
that break a rule stand in the tables below, each with its reason.

What counts:

- A *public method* is a function of the class whose name begins with no underscore. A property is
  one: a reader has to learn it as well. Its setter is not, and inherited ones are not either.
- An *attribute* is what `__init__` sets on `self`, or a field of a dataclass or struct.
- A *parameter* is one of an `__init__` that is written out, but for `self`. The fields of a
  dataclass are attributes only: its callers name them.
- A *line* of a function is any from its `def` to its end, that of its docstring too.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("node", "protocol", "trainer")

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
CLASS_LIMITS = {"parameters": 7, "public methods": 15, "attributes": 12}

LONG_FILES: dict[str, str] = {}
"""Files above the limit, and why."""

LONG_FUNCTIONS: dict[str, str] = {
    "node/app/reporting/reporting.py:Reporter.status": "it names each field of one record",
}
"""Functions above the limit, and why."""

UNTYPED: dict[str, str] = {
    "node/network/over_libp2p/negotiation.py:Doors.offered_to": "libp2p has no type for it",
    "node/network/over_libp2p/negotiation.py:guard_selector": "libp2p has no type for it",
    "node/runs/founding/file_names.py:json_for_people": "it encodes whatever msgspec encodes",
    "node/runs/founding/file_names.py:pack": "it encodes whatever msgspec encodes",
    "node/runs/founding/file_names.py:unpack": "the kind may be a union, as msgspec takes it",
    "protocol/decoding.py:to_msgpack": "a sequence of whatever msgspec encodes",
    "trainer/inner_step/step_clock.py:Event.elapsed_time": "it has the signature of torch's event",
}
"""Public functions with `Any` or `object` in their signatures, and why."""

_STATED = re.compile(rf"\b(\d+) ({'|'.join(CLASS_LIMITS)})\b")
_NO_TYPES = {"Any", "object"}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """A module of the packages."""

    path: str
    num_lines: int
    definitions: list[tuple[str, ast.ClassDef | _Function]]
    """All classes and functions, each with `path:name`. A name that lies in another has that one's
    name in front."""


def source_of(path: str, text: str) -> Source:
    definitions = list(_inside(ast.parse(text), f"{path}:"))
    return Source(path, len(text.splitlines()), definitions)


def _inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef | _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | _Function):
            yield prefix + child.name, child
            yield from _inside(child, f"{prefix}{child.name}.")
        else:
            yield from _inside(child, prefix)


@cache
def sources() -> list[Source]:
    return [
        source_of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def problems_of_table(found: dict[str, str], table: dict[str, str], advice: str) -> list[str]:
    """What breaks a rule and is not in the table of those that may, and what needs not be there."""
    broken = [f"{key} {what}: {advice}" for key, what in found.items() if key not in table]
    return broken + [f"{key} breaks no rule: take it out" for key in table if key not in found]


# Files and functions


def long_files(modules: Iterable[Source]) -> dict[str, str]:
    long = [module for module in modules if module.num_lines > FILE_LINES_MAX]
    return {module.path: f"has {module.num_lines} lines" for module in long}


def long_functions(modules: Iterable[Source]) -> dict[str, str]:
    found = {}
    for module in modules:
        for key, node in module.definitions:
            assert node.end_lineno is not None
            num_lines = node.end_lineno - node.lineno + 1
            if isinstance(node, _Function) and num_lines > FUNCTION_LINES_MAX:
                found[key] = f"has {num_lines} lines"
    return found


def test_files_are_short() -> None:
    advice = f"above {FILE_LINES_MAX} a file is asking to be two"
    problems = problems_of_table(long_files(sources()), LONG_FILES, advice)
    assert not problems, "\n".join(problems)


def test_functions_are_short() -> None:
    advice = f"above {FUNCTION_LINES_MAX} give a part of it a name"
    problems = problems_of_table(long_functions(sources()), LONG_FUNCTIONS, advice)
    assert not problems, "\n".join(problems)


# Classes


def _is_property_setter(function: _Function) -> bool:
    decorators = [each for each in function.decorator_list if isinstance(each, ast.Attribute)]
    return any(each.attr in ("setter", "deleter") for each in decorators)


def _is_record(node: ast.ClassDef) -> bool:
    """Returns whether the fields in a class's body are those of its instances."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    bases = [ast.unparse(each) for each in node.bases]
    return any("dataclass" in each for each in decorators) or any("Struct" in b for b in bases)


def _attributes(node: ast.ClassDef) -> set[str]:
    names = set()
    if _is_record(node):
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        fields = [each for each in fields if "ClassVar" not in ast.unparse(each.annotation)]
        names |= {ast.unparse(each.target) for each in fields}
    for function in _methods(node, "__init__"):
        names |= {
            each.attr
            for each in ast.walk(function)
            if isinstance(each, ast.Attribute)
            and isinstance(each.ctx, ast.Store)
            and isinstance(each.value, ast.Name)
            and each.value.id == "self"
        }
    return names


def _methods(node: ast.ClassDef, name: str = "") -> list[_Function]:
    functions = [each for each in node.body if isinstance(each, _Function)]
    return [each for each in functions if not name or each.name == name]


def sizes_of(node: ast.ClassDef) -> dict[str, int]:
    """The numbers that have limits, by the names of `CLASS_LIMITS`."""
    public = {each.name for each in _methods(node) if not each.name.startswith("_")}
    made = [each.args for each in _methods(node, "__init__")]
    parameters = [len(each.posonlyargs + each.args + each.kwonlyargs) - 1 for each in made]
    return {
        "parameters": max(parameters, default=0),
        "public methods": len(public),
        "attributes": len(_attributes(node)),
    }


def _stated(node: ast.ClassDef) -> list[tuple[int, str]]:
    """The numbers in a docstring and of what they are."""
    text = " ".join((ast.get_docstring(node) or "").split())
    return [(int(number), kind) for number, kind in _STATED.findall(text)]


def problems_of_classes(modules: Iterable[Source]) -> list[str]:
    problems = []
    for module in modules:
        for key, node in module.definitions:
            if not isinstance(node, ast.ClassDef):
                continue
            sizes, stated = sizes_of(node), _stated(node)
            for kind, limit in CLASS_LIMITS.items():
                num = sizes[kind]
                said = {number for number, what in stated if what == kind}
                if num > limit and not said:
                    problems.append(
                        f"{key} has {num} {kind}: above {limit} make it smaller, or say why in its "
                        f'docstring ("It has more than {limit} {kind}: ...")'
                    )
                if said - ({num, limit} if num > limit else {num}):
                    problems.append(f"{key} has {num} {kind}, and its docstring says {said}")
    return problems


def test_classes_are_small_or_say_why_not() -> None:
    problems = problems_of_classes(sources())
    assert not problems, "\n".join(problems)


# Signatures


def _annotations(function: _Function) -> Iterator[ast.expr]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    rest = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    annotations = [each.annotation for each in (*named, *rest)]
    yield from filter(None, [*annotations, function.returns])


def has_no_type(annotation: ast.AST) -> bool:
    """Returns whether an annotation leaves open what a value is.

    Three forms do not, for the type checker then demands nothing that is missing: a JSON object
    (`dict[str, Any]`: what is in it is known when it is checked), what a callback returns, if
    nobody reads it (`Callable[[int], object]`), and a context whose value nobody takes.
    """
    if isinstance(annotation, ast.Subscript):
        name, inner = ast.unparse(annotation.value), annotation.slice
        elements = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if name in ("dict", "Mapping") and ast.unparse(elements[0]) == "str":
            elements = [each for each in elements if ast.unparse(each) not in _NO_TYPES]
        elif name in ("Callable", "AbstractContextManager"):
            elements = [each for each in elements if ast.unparse(each) != "object"]
        return any(map(has_no_type, elements))
    if isinstance(annotation, ast.Name):
        return annotation.id in _NO_TYPES
    return any(map(has_no_type, ast.iter_child_nodes(annotation)))


def untyped(modules: Iterable[Source]) -> dict[str, str]:
    """Functions that other modules may call: no part of their name begins with an underscore. So
    the special methods, which have the signatures of Python, are not among them."""
    return {
        key: "has Any or object in its signature"
        for module in modules
        for key, node in module.definitions
        if isinstance(node, _Function)
        and not any(part.startswith("_") for part in key.rpartition(":")[2].split("."))
        and any(map(has_no_type, _annotations(node)))
    }


def test_signatures_have_types() -> None:
    advice = "name the type, with a type variable or a Protocol where there are several"
    problems = problems_of_table(untyped(sources()), UNTYPED, advice)
    assert not problems, "\n".join(problems)


# The rules themselves


def planted(text: str) -> list[Source]:
    return [source_of("planted.py", text)]


def class_of(docstring: str, num_methods: int = 16, num_attributes: int = 13) -> list[Source]:
    lines = [
        f'''class Planted:
    """{docstring}"""

    def __init__(self, a, b, c, d, e, f, *, g, h) -> None:'''
    ]
    lines += [f"        self.attribute_{n} = {n}" for n in range(num_attributes)]
    lines += [f"    def method_{n}(self) -> None: ..." for n in range(num_methods - 1)]
    lines += ["    @property", "    def last(self) -> int: ...", "    @last.setter"]
    lines += ["    def last(self, value: int) -> None: ...", "    def _own(self) -> None: ..."]
    return planted("\n".join(lines))


def test_a_class_above_the_limits_is_found() -> None:
    problems = problems_of_classes(class_of("A class."))
    assert [problem.partition(":")[2].partition(":")[0] for problem in problems] == [
        "Planted has 8 parameters",
        "Planted has 16 public methods",
        "Planted has 13 attributes",
    ]


def test_a_class_may_say_why_it_is_above_the_limits() -> None:
    why = "It has 8 parameters, more than 15 public methods\n    and 12 attributes: it has reasons."
    assert not problems_of_classes(class_of(why))


def test_a_reason_has_to_be_true() -> None:
    why = "It has 8 parameters, and more than 15 public methods and 12 attributes."
    problems = problems_of_classes(class_of(why, num_methods=14, num_attributes=14))
    assert problems == ["planted.py:Planted has 14 public methods, and its docstring says {15}"]


def test_fields_of_a_dataclass_are_attributes() -> None:
    fields = "\n".join(f"    field_{n}: int" for n in range(13))
    record = planted(
        f"@dataclass(frozen=True)\nclass Planted:\n    LEAST: ClassVar[int] = 1\n{fields}"
    )
    [problem] = problems_of_classes(record)
    assert "has 13 attributes" in problem


def test_long_files_and_functions_are_found() -> None:
    body = "    pass\n" * FUNCTION_LINES_MAX
    inner = f"class Planted:\n    def method(self) -> None:\n{body.replace('pass', '    pass')}"
    long = planted(f"def short() -> None:\n{body[9:]}\n{inner}" + "\n" * FILE_LINES_MAX)
    assert long_functions(long) == {"planted.py:Planted.method": "has 61 lines"}
    assert list(long_files(long)) == ["planted.py"]


def test_signatures_without_types_are_found() -> None:
    lines = [
        "def planted(a: Any) -> None: ...",
        "def returned() -> object: ...",
        "def within(a: list[dict[int, Any]]) -> None: ...",
        "def called(a: Callable[[Any], None]) -> None: ...",
        "class Planted:\n    def rest(self, *a: object) -> None: ...",
        "def json(a: dict[str, Any], b: Mapping[str, object]) -> list[dict[str, Any]]: ...",
        "def callback(a: Callable[[int], object]) -> AbstractContextManager[object]: ...",
        "def _own(a: Any) -> Any: ...",
        "class Other:\n    def __eq__(self, other: object) -> bool: ...",
        "class _Own:\n    def method(self, a: Any) -> None: ...",
    ]
    names = [key.rpartition(":")[2] for key in untyped(planted("\n".join(lines)))]
    assert names == ["planted", "returned", "within", "called", "Planted.rest"]


def test_an_entry_of_a_table_that_is_not_needed_is_found() -> None:
    found, table = {"a": "has 61 lines", "b": "has 62 lines"}, {"b": "why", "c": "why"}
    assert problems_of_table(found, table, "shorten it") == [
        "a has 61 lines: shorten it",
        "c breaks no rule: take it out",
    ]
