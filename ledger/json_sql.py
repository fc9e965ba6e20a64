"""How each backend reads a place in an event's body: the expressions that the views are made of."""

from __future__ import annotations

from typing import Protocol


class Json(Protocol):
    """How a backend reads a place in an event's body. `path` is dotted; `e` is the alias of the `events` row."""

    def envelope_number(self, e: str, key: str) -> str: ...
    def text(self, e: str, path: str) -> str: ...
    def number(self, e: str, path: str) -> str: ...
    def document(self, e: str, path: str) -> str: ...
    def unpack(self, e: str, path: str) -> str: ...
    def unpacked_number(self, e: str, path: str, below: str) -> str: ...
    def strings(self, e: str, path: str) -> str: ...
    def each_string(self, e: str, path: str) -> tuple[str, str]: ...
    def total(self, e: str, path: str, suffix: str) -> str: ...
    def objects(self, e: str, path: str, first: str, second: str) -> str: ...
    def tensors(self, blob: str) -> tuple[str, str]: ...
    def is_tensor(self) -> str: ...
    def element_text(self, element: str, key: str) -> str: ...
    def element_number(self, element: str, key: str) -> str: ...
    def element_document(self, element: str, key: str) -> str: ...


class SqliteJson:
    """SQLite's JSON functions over the envelope's text.

    Rows of an array come from `json_each(envelope -> path)`: `->` takes it out of the envelope as SQLite has parsed it
    already, while `json_each(envelope, path)` would parse all of it again.
    """

    def envelope_number(self, e: str, key: str) -> str:
        return f"json_extract({e}.envelope, '$.{key}')"

    def text(self, e: str, path: str) -> str:
        return f"json_extract({e}.envelope, '$.body.{path}')"

    number = text

    def document(self, e: str, path: str) -> str:
        """The JSON text of an object or array."""
        return f"json_extract({e}.envelope, '$.body.{path}')"

    def unpack(self, e: str, path: str) -> str:
        """A join that takes an object out of the body once, for views that read many of its keys."""
        return ""

    def unpacked_number(self, e: str, path: str, below: str) -> str:
        """A number in the object that `unpack` took out."""
        return self.number(e, f"{path}.{below}")

    def strings(self, e: str, path: str) -> str:
        """An array of strings as one text, in order."""
        return f"(SELECT group_concat(value, ', ') FROM json_each({e}.envelope -> '$.body.{path}'))"

    def each_string(self, e: str, path: str) -> tuple[str, str]:
        """A row source with one row per string of an array, and the expression for the string."""
        return f"json_each({e}.envelope -> '$.body.{path}') AS item", "item.value"

    def total(self, e: str, path: str, suffix: str) -> str:
        """The sum of the measurements whose key ends so; NULL where there is none or where one of them is unknown."""
        value = "json_extract(value, '$.value')"
        return (
            f"(SELECT CASE WHEN count(*) = count({value}) THEN sum({value}) END"
            f" FROM json_each({e}.envelope -> '$.body.{path}') WHERE key LIKE '%{suffix}')"
        )

    def objects(self, e: str, path: str, first: str, second: str) -> str:
        """An array of objects as one text `first@second, ...`."""
        return (
            f"(SELECT group_concat(json_extract(value, '$.{first}') || '@' || json_extract(value, '$.{second}'), ', ')"
            f" FROM json_each({e}.envelope -> '$.body.{path}'))"
        )

    def tensors(self, blob: str) -> tuple[str, str]:
        """A row source over a blob that holds an array of objects, and its element."""
        # A BLOB would be read as JSONB: the cast makes it text. Bytes that are no JSON give no rows.
        data = f"CAST({blob}.data AS TEXT)"
        return f"json_each(CASE WHEN json_valid({data}) THEN {data} ELSE '[]' END) AS tensor", "tensor.value"

    def is_tensor(self) -> str:
        """The condition that a row of `tensors` is an object in an array."""
        return "typeof(tensor.key) = 'integer' AND tensor.type = 'object'"

    def element_text(self, element: str, key: str) -> str:
        # Text is no JSON to json_extract, and would be an error before the condition on the row is looked at.
        return f"CASE tensor.type WHEN 'object' THEN json_extract({element}, '$.{key}') END"

    element_number = element_text

    element_document = element_text


class PostgresJson:
    """PostgreSQL's jsonb operators over the generated `document` column."""

    @staticmethod
    def _path(path: str) -> str:
        return "'{body," + path.replace(".", ",") + "}'"

    def envelope_number(self, e: str, key: str) -> str:
        return f"ledger_number({e}.document -> '{key}')"

    def text(self, e: str, path: str) -> str:
        return f"{e}.document #>> {self._path(path)}"

    def number(self, e: str, path: str) -> str:
        return f"ledger_number({e}.document #> {self._path(path)})"

    def document(self, e: str, path: str) -> str:
        return f"({e}.document #> {self._path(path)})::text"

    def unpack(self, e: str, path: str) -> str:
        # OFFSET 0 keeps the planner from putting the whole expression back into every column.
        return f"\nCROSS JOIN LATERAL (SELECT {e}.document #> {self._path(path)} AS unpacked OFFSET 0) AS {e}_{path}"

    def unpacked_number(self, e: str, path: str, below: str) -> str:
        return f"ledger_number({e}_{path}.unpacked #> '{{{below.replace('.', ',')}}}')"

    def _array(self, e: str, path: str) -> str:
        at = f"{e}.document #> {self._path(path)}"
        return f"CASE WHEN jsonb_typeof({at}) = 'array' THEN {at} ELSE '[]' END"

    def strings(self, e: str, path: str) -> str:
        return (
            "(SELECT string_agg(item.value, ', ' ORDER BY item.ordinality)"
            f" FROM jsonb_array_elements_text({self._array(e, path)}) WITH ORDINALITY AS item)"
        )

    def each_string(self, e: str, path: str) -> tuple[str, str]:
        return f"LATERAL jsonb_array_elements_text({self._array(e, path)}) AS item", "item.value"

    def total(self, e: str, path: str, suffix: str) -> str:
        at = f"{e}.document #> {self._path(path)}"
        return (
            "(SELECT CASE WHEN count(*) = count(ledger_number(item.value -> 'value'))"
            " THEN sum(ledger_number(item.value -> 'value')) END"
            f" FROM jsonb_each(CASE WHEN jsonb_typeof({at}) = 'object' THEN {at} ELSE '{{}}' END) AS item"
            f" WHERE item.key LIKE '%{suffix}')"
        )

    def objects(self, e: str, path: str, first: str, second: str) -> str:
        return (
            f"(SELECT string_agg((item.value ->> '{first}') || '@' || (item.value ->> '{second}'), ', '"
            f" ORDER BY item.ordinality)"
            f" FROM jsonb_array_elements({self._array(e, path)}) WITH ORDINALITY AS item)"
        )

    def tensors(self, blob: str) -> tuple[str, str]:
        return f"LATERAL jsonb_array_elements(ledger_array({blob}.data)) AS tensor", "tensor.value"

    def is_tensor(self) -> str:
        return "jsonb_typeof(tensor.value) = 'object'"

    def element_text(self, element: str, key: str) -> str:
        return f"{element} ->> '{key}'"

    def element_number(self, element: str, key: str) -> str:
        return f"ledger_number({element} -> '{key}')"

    def element_document(self, element: str, key: str) -> str:
        # jsonb puts a blank after each comma; the event's own text has none.
        return f"replace(({element} -> '{key}')::text, ' ', '')"
