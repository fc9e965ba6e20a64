"""Content is laid against its source tensor by tensor: what agrees, what differs, and what has nothing to be laid against."""

import hashlib
import json
from collections.abc import Iterator

import pytest
import torch

from realizer import content
from realizer.adapter import COMPUTED, Layout, TensorPlace
from realizer.content import lay_together, resident_digests
from realizer.memory import MemoryRange, allocate


def place(name: str, offset: int, size: int, *sources: str, derived: bool = False) -> TensorPlace:
    return TensorPlace(name, "U8", (size,), offset, sources, derived)


LAYOUT = Layout(
    "test",
    (
        place("a", 0, 100, "key.a"),
        place("b", 128, 3000, "key.b"),
        place("c", 3136, 64, "key.c", derived=True),
        place("empty", 3200, 0, "key.empty"),
        place("d", 3200, 7, "key.d"),
    ),
)


@pytest.fixture
def memory() -> Iterator[MemoryRange]:
    made = allocate("shared-memory", LAYOUT.length, owner="test")
    values = torch.arange(LAYOUT.length, dtype=torch.int64).remainder(251).to(torch.uint8)
    made.tensor(torch.uint8, (LAYOUT.length,)).copy_(values)
    yield made
    made.free()


def digest(memory: MemoryRange, name: str) -> str:
    part = next(found for found in LAYOUT.places if found.name == name)
    with memory.view() as view:
        return "sha256:" + hashlib.sha256(view[part.offset : part.offset + part.bytes]).hexdigest()


def sources(memory: MemoryRange) -> tuple[dict[str, str], dict[str, str]]:
    read = {part.sources[0]: digest(memory, part.name) for part in LAYOUT.places if not part.derived}
    return read, {"c": digest(memory, "c")}


@pytest.mark.parametrize("window", [16, 256, 1 << 20])
def test_every_place_is_digested_whatever_the_window(
    memory: MemoryRange, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "WINDOW", window)
    expected = {part.name: digest(memory, part.name) for part in LAYOUT.places}
    assert resident_digests(LAYOUT, memory, 2) == expected


def test_content_that_agrees_has_one_digest_on_both_sides(memory: MemoryRange) -> None:
    found = lay_together(LAYOUT, memory, *sources(memory))
    assert found.source_digest.observed
    assert found.source_digest.value == found.resident_digest.value
    assert found.differing == ()
    rows = json.loads(found.rows)
    assert [row["name"] for row in rows] == ["a", "b", "c", "empty", "d"]
    assert all(row["source_digest"] == row["resident_digest"] for row in rows)
    assert rows[1] == {
        "name": "b",
        "dtype": "U8",
        "shape": [3000],
        "bytes": 3000,
        "offset": 128,
        "device": "host",
        "source_digest": digest(memory, "b"),
        "resident_digest": digest(memory, "b"),
        "why": "copied from the checkpoint",
    }


@pytest.mark.parametrize(("offset", "name"), [(0, "a"), (3127, "b"), (3140, "c"), (3206, "d")])
def test_one_flipped_bit_is_found_in_its_tensor(memory: MemoryRange, offset: int, name: str) -> None:
    read, derived = sources(memory)
    memory.tensor(torch.uint8, (LAYOUT.length,))[offset] ^= 1
    found = lay_together(LAYOUT, memory, read, derived)
    assert found.differing == (name,)
    assert found.source_digest.observed
    assert found.source_digest.value != found.resident_digest.value


def test_a_flip_between_tensors_is_nobodys_content(memory: MemoryRange) -> None:
    read, derived = sources(memory)
    memory.tensor(torch.uint8, (LAYOUT.length,))[110] ^= 1
    assert lay_together(LAYOUT, memory, read, derived).differing == ()


def test_tensors_in_each_others_places_differ(memory: MemoryRange) -> None:
    read, derived = sources(memory)
    read["key.a"], read["key.d"] = read["key.d"], read["key.a"]
    assert lay_together(LAYOUT, memory, read, derived).differing == ("a", "d")


@pytest.mark.parametrize(
    ("lost", "why"),
    [("key.b", "b: its bytes were not digested"), ("c", "c: the adapter recomputes it not")],
)
def test_what_has_no_source_digest_is_unavailable_and_says_why(memory: MemoryRange, lost: str, why: str) -> None:
    read, derived = sources(memory)
    read.pop(lost, None)
    derived.pop(lost, None)
    found = lay_together(LAYOUT, memory, read, derived)
    assert found.source_digest.status == "unavailable"
    assert "1 of 5" in str(found.source_digest.detail)
    assert why in str(found.source_digest.detail)
    assert found.resident_digest.observed


def test_computed_tensors_are_said_to_be_the_adapters_word(memory: MemoryRange) -> None:
    found = lay_together(LAYOUT, memory, *sources(memory))
    assert found.source_digest.detail == "1 of 5 tensors are computed: their digests are the adapter's word"
    (computed,) = [row for row in json.loads(found.rows) if row["why"] == COMPUTED]
    assert computed["name"] == "c"
    copied = Layout("test", tuple(place for place in LAYOUT.places if not place.derived))
    assert lay_together(copied, memory, *sources(memory)).source_digest.detail is None


def test_a_joined_place_that_is_not_cut_has_no_source_digest(memory: MemoryRange) -> None:
    joined = Layout("test", (place("ab", 0, 3128, "key.a", "key.b"),))
    found = lay_together(joined, memory, {"key.a": "x", "key.b": "y"}, {})
    assert "made of 2 checkpoint tensors" in str(found.source_digest.detail)
