"""JSON values checked against type annotations, at the border between files and dataclasses."""

import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from epcx.errors import InputError, nearest

MAX_INT = 2**63 - 1
NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
    tuple: "a list",
}


def from_json(value: Any, kind: Any, complaint: str, name: str = "") -> Any:
    """`value` as a `kind`: a scalar, tuple, `Literal`, union or dataclass of such.

    Lists become tuples and objects become dataclasses; kinds that JSON cannot express are passed
    through. What does not fit raises an `InputError`: the complaint, and the name of the value.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return from_json(value, parts[0], complaint, name)
    if origin in (Union, UnionType):
        for part in parts:
            if fits(value, part):
                return from_json(value, part, complaint, name)
    elif fits(value, kind):
        if origin is tuple:
            return tuple(
                from_json(item, part, complaint, f"{name}[{number}]")
                for number, (item, part) in enumerate(
                    zip(value, item_kinds(parts, len(value)), strict=True)
                )
            )
        if is_dataclass(kind):
            return dataclass_from_json(value, kind, complaint, name)
        return value
    raise InputError(f"{complaint}: {name or 'it'} is {reprlib.repr(value)}, not {describe(kind)}")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind, whatever the parts that it consists of."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is tuple:
        return isinstance(value, list | tuple) and len(item_kinds(parts, len(value))) == len(value)
    if is_dataclass(kind):
        return isinstance(value, Mapping)
    if kind is int or (kind is float and type(value) is int):
        return type(value) is int and abs(value) <= MAX_INT
    return type(value) is kind if kind in NAMES else True


def item_kinds(parts: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    """Those of the items of a tuple that has any number of them, or as many as it has kinds."""
    return parts[:1] * number if parts[1:] == (...,) else parts


def dataclass_from_json(value: Mapping[str, Any], kind: Any, complaint: str, name: str) -> Any:
    """Fields that are missing have their defaults."""
    found = fields_from_json(value, kind, complaint, name)
    within = f" in {name}" if name else ""
    for field in fields(kind):
        missing = field.init and field.name not in found
        if missing and field.default is field.default_factory is MISSING:
            raise InputError(f"{complaint}: there is no {field.name!r}{within}")
    return kind(**found)


def fields_from_json(
    value: Mapping[str, Any], kind: Any, complaint: str, name: str = ""
) -> dict[str, Any]:
    """Values of some fields of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    known = [field.name for field in fields(kind) if field.init]
    within = f" in {name}" if name else ""
    for key in value:
        if key not in known:
            meant = nearest(key, known)
            raise InputError(f"{complaint}: {reprlib.repr(key)}{within} is unknown{meant}")
    path = f"{name}." if name else ""
    return {key: from_json(item, hints[key], complaint, path + key) for key, item in value.items()}


def describe(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (Union, UnionType):
        return " or ".join(map(describe, parts))
    return NAMES.get(origin or kind, "an object")
