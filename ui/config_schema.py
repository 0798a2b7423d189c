"""Look-ups in the JSON Schema of a job description: defaults, help texts, kinds.

Knows pydantic's way of writing JSON Schema (`$ref`, `oneOf` with a discriminator). Does not know any field by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ConfigSchema:
    """Paths are dotted and start below `config`: `training.max_steps`, `sampling.phi_start`.

    Where a section is a union, `kind` picks its member; without it the first member that has the field is taken.
    """

    def __init__(self, json_schema: Mapping[str, Any]) -> None:
        self._root = json_schema

    def default(self, path: str, *, kind: str | None = None) -> Any:
        """The field's default; None if it has none or does not exist."""
        return (self._field(path, kind) or {}).get("default")

    def help(self, path: str, *, kind: str | None = None) -> str:
        """The field's description, without the marks that tell the method's authors from ours."""
        return str((self._field(path, kind) or {}).get("description", "")).replace("[ours] ", "")

    def has(self, path: str, *, kind: str | None = None) -> bool:
        return self._field(path, kind) is not None

    def fit(self, path: str, value: Any, *, kind: str | None = None) -> Any:
        """A form control's `value` as the field wants it: 8 for 8.0, and an empty text for none."""
        wanted = (self._field(path, kind) or {}).get("type")
        if wanted == "integer" and isinstance(value, float) and value.is_integer():
            return int(value)
        return "" if wanted == "string" and value is None else value

    def choices(self, path: str) -> list[str]:
        """The values that a field may have; none where it is open."""
        return list((self._field(path, None) or {}).get("enum", ()))

    def kinds(self, section: str) -> dict[str, str]:
        """kind -> its one-line description, for a union section or a list of unions (`losses`)."""
        described = {}
        for member in self._members(section):
            kind = member["properties"]["kind"]["const"]
            described[kind] = str(member.get("description", "")).split("\n")[0]
        return described

    def _field(self, path: str, kind: str | None) -> Mapping[str, Any] | None:
        section, _, field = path.partition(".")
        if not field:
            found: Mapping[str, Any] | None = self._root["properties"].get(section)
            return found
        for member in self._members(section):
            fields = member.get("properties", {})
            of_kind = fields.get("kind", {}).get("const")
            if field in fields and (kind is None or of_kind in (None, kind)):
                return self._resolve(fields[field])
        return None

    def _members(self, section: str) -> list[Mapping[str, Any]]:
        node = self._resolve(self._root["properties"].get(section, {}))
        node = self._resolve(node.get("items", node))
        return [self._resolve(member) for member in node.get("oneOf", [node])]

    def _resolve(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        reference = node.get("$ref")
        if reference is None:
            return node
        target: Mapping[str, Any] = self._root["$defs"][reference.rsplit("/", 1)[-1]]
        return {**target, **{key: value for key, value in node.items() if key != "$ref"}}
