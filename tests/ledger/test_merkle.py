"""The Merkle tree against the RFC's recursive definition, the published vectors, and pymerkle as an oracle."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from pathlib import Path

import pymerkle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymerkle.core import _inclusion_path_layout

from ledger import merkle

VECTORS = Path(__file__).parents[3] / "shared" / "reference" / "merkle"
needs_vectors = pytest.mark.skipif(not VECTORS.is_dir(), reason="the published Merkle vectors are not beside this tree")


def leaves(count: int) -> list[bytes]:
    return [merkle.leaf_hash(f"entry {index}".encode()) for index in range(count)]


def defined_root(nodes: list[bytes]) -> bytes:
    """MTH of RFC 9162 section 2.1.1, word for word."""
    if not nodes:
        return sha256(b"").digest()
    if len(nodes) == 1:
        return nodes[0]
    k = 1
    while k * 2 < len(nodes):
        k *= 2
    return sha256(b"\x01" + defined_root(nodes[:k]) + defined_root(nodes[k:])).digest()


def vectors(name: str) -> list[dict]:
    return [json.loads(line) for line in (VECTORS / name).read_text().splitlines()]


def unpacked(proof: list[str] | None) -> list[bytes]:
    return [base64.b64decode(node) for node in proof or []]


def test_known_values() -> None:
    assert merkle.leaf_hash(b"").hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert merkle.EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert [merkle.split_point(size) for size in (2, 3, 4, 5, 8, 9)] == [1, 2, 2, 4, 4, 8]


@needs_vectors
def test_published_inclusion_vectors() -> None:
    cases = vectors("inclusion.jsonl")
    assert len(cases) == 98
    for case in cases:
        accepted = merkle.verify_inclusion(
            base64.b64decode(case["leafHash"]),
            case["leafIdx"],
            case["treeSize"],
            unpacked(case["proof"]),
            base64.b64decode(case["root"]),
        )
        assert accepted is not case["wantErr"], case["case"]


@needs_vectors
def test_published_consistency_vectors() -> None:
    cases = vectors("consistency.jsonl")
    assert len(cases) == 98
    for case in cases:
        accepted = merkle.verify_consistency(
            case["size1"],
            case["size2"],
            base64.b64decode(case["root1"]),
            base64.b64decode(case["root2"]),
            unpacked(case["proof"]),
        )
        assert accepted is not case["wantErr"], case["case"]


def test_frontier_agrees_with_the_definition_at_every_size() -> None:
    nodes = leaves(130)
    frontier = merkle.Frontier()
    for size in range(131):
        assert frontier.root() == defined_root(nodes[:size])
        assert frontier.size == size
        if size < 130:
            frontier.append(nodes[size])


@pytest.mark.parametrize("first", [0, 1, 1023, 1024, 1500])
def test_extending_in_bulk_is_appending_one_by_one(first: int) -> None:
    nodes = leaves(3 * merkle.CHUNK + 17)
    bulk = merkle.Frontier()
    bulk.extend(nodes[:first])
    bulk.extend(iter(nodes[first:]))
    assert bulk.size == len(nodes)
    assert bulk.root() == defined_root(nodes)


def test_every_proof_of_every_small_tree_holds_and_no_other_place_does() -> None:
    nodes = leaves(20)
    for size in range(1, 21):
        root, proofs = merkle.inclusion_proofs(nodes, range(size), size)
        assert root == defined_root(nodes[:size])
        for index in range(size):
            accepted = [
                (place, tree)
                for tree in range(1, 22)
                for place in range(tree)
                if merkle.verify_inclusion(nodes[index], place, tree, proofs[index], root)
            ]
            # A path that the tree walks the same way fits other sizes too (RFC 9162 leaves the size to the checkpoint).
            assert (index, size) in accepted
            assert {place for place, tree in accepted if tree == size} == {index}
        for old in range(size + 1):
            proof = merkle.consistency_proof(nodes, old, size)
            old_root = defined_root(nodes[:old])
            assert merkle.verify_consistency(old, size, old_root, root, proof)
            other = defined_root([*nodes[: old - 1], nodes[-1]]) if 0 < old <= 19 else None
            if other is not None:
                assert not merkle.verify_consistency(old, size, other, root, proof)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 600), st.data())
def test_proofs_agree_with_pymerkle(size: int, data: st.DataObject) -> None:
    entries = [f"entry {index}".encode() for index in range(size)]
    tree = pymerkle.InmemoryTree(algorithm="sha256")
    for entry in entries:
        tree.append_entry(entry)
    nodes = [merkle.leaf_hash(entry) for entry in entries]
    assert tree.get_root() == merkle.root_from_leaves(nodes)

    index = data.draw(st.integers(0, size - 1))
    ours = merkle.inclusion_proof(nodes, index, size)
    assert tree.prove_inclusion(index + 1).path == [nodes[index], *ours]
    rule, _ = _inclusion_path_layout(index + 1, size)
    theirs = pymerkle.InclusionProof("sha256", True, size, index + 1, rule, [nodes[index], *ours])
    pymerkle.verify_inclusion(nodes[index], tree.get_root(), theirs, index=index + 1, size=size)

    # pymerkle lays consistency paths out in its own way, so the states on both sides are what is compared.
    old = data.draw(st.integers(1, size))
    proof = merkle.consistency_proof(nodes, old, size)
    assert merkle.verify_consistency(old, size, tree.get_root(old), tree.get_root(), proof)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 200), st.data())
def test_an_altered_proof_is_refused(size: int, data: st.DataObject) -> None:
    nodes = leaves(size)
    root = defined_root(nodes)
    index = data.draw(st.integers(0, size - 1))
    proof = merkle.inclusion_proof(nodes, index, size)
    at = data.draw(st.integers(0, len(proof) - 1))
    bit = data.draw(st.integers(0, 255))
    flipped = bytearray(proof[at])
    flipped[bit // 8] ^= 1 << bit % 8
    for wrong in (
        [*proof[:at], bytes(flipped), *proof[at + 1 :]],
        [*proof[:at], *proof[at + 1 :]],
        [*proof, proof[-1]],
        [root, *proof],
        [*proof[:at], proof[at][:-1], *proof[at + 1 :]],
    ):
        assert not merkle.verify_inclusion(nodes[index], index, size, wrong, root)


def test_what_has_no_proof_raises() -> None:
    nodes = leaves(5)
    with pytest.raises(ValueError, match="outside a tree"):
        merkle.inclusion_proof(nodes, 5, 5)
    with pytest.raises(ValueError, match="missing"):
        merkle.inclusion_proof(nodes, 1, 9)
    with pytest.raises(ValueError, match="no consistency proof"):
        merkle.consistency_proof(nodes, 4, 3)
    with pytest.raises(ValueError, match="missing"):
        merkle.consistency_proof(nodes, 3, 6)
