"""The Merkle tree over events (RFC 9162): roots, compact ranges, inclusion and consistency proofs, all in one pass.

Nodes are 32 raw bytes. A leaf is SHA-256(0x00 || entry), an inner node SHA-256(0x01 || left || right), and the split of
n leaves is the largest power of two below n (section 2.1.1). Nothing here holds the whole tree: leaves come as an
iterable and are read once, from left to right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice

from ledger.canonical import LEAF_PREFIX

NODE_PREFIX = b"\x01"
HASH_BYTES = 32
EMPTY_ROOT = sha256(b"").digest()
"""The root of a tree without leaves (section 2.1.1)."""
CHUNK = 64
"""Leaves hashed together as one perfect subtree, so that the cost a leaf is little more than the hash itself."""


def leaf_hash(data: bytes) -> bytes:
    """SHA-256(0x00 || data), 32 bytes."""
    return sha256(LEAF_PREFIX + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 || left || right), 32 bytes."""
    return sha256(NODE_PREFIX + left + right).digest()


def split_point(size: int) -> int:
    """The largest power of two smaller than `size` (at least 2): where RFC 9162 parts a tree."""
    return 1 << (size - 1).bit_length() - 1


class Frontier:
    """The compact range of a growing tree: the roots of its perfect subtrees, at most one of each height.

    Laws: `root()` is the RFC 9162 root of the leaves appended so far; appending costs O(1) hashes on average and the
    state is O(log n) hashes.
    """

    def __init__(self) -> None:
        self.size = 0
        self._subtrees: list[tuple[int, bytes]] = []
        """(leaves, root), leaves strictly falling powers of two."""

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash (32 bytes)."""
        self._join(1, leaf)

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Add leaf hashes in order; the same as appending each, in less time."""
        source = iter(leaves)
        for leaf in islice(source, -self.size % CHUNK):
            self._join(1, leaf)
        while chunk := list(islice(source, CHUNK)):
            if len(chunk) == CHUNK:
                self._join(CHUNK, _perfect_root(chunk))
            else:
                for leaf in chunk:
                    self._join(1, leaf)

    def _join(self, leaves: int, root: bytes) -> None:
        self.size += leaves
        while self._subtrees and self._subtrees[-1][0] == leaves:
            _, left = self._subtrees.pop()
            root = node_hash(left, root)
            leaves *= 2
        self._subtrees.append((leaves, root))

    def root(self) -> bytes:
        """The root of the tree so far; EMPTY_ROOT without leaves."""
        if not self._subtrees:
            return EMPTY_ROOT
        root = self._subtrees[-1][1]
        for _, left in reversed(self._subtrees[:-1]):
            root = node_hash(left, root)
        return root


def _perfect_root(level: list[bytes]) -> bytes:
    """The root of a power of two of leaves."""
    while len(level) > 1:
        pairs = iter(level)
        level = [sha256(NODE_PREFIX + left + right).digest() for left, right in zip(pairs, pairs, strict=True)]
    return level[0]


def root_from_leaves(leaves: Iterable[bytes]) -> bytes:
    """The RFC 9162 root of leaf hashes."""
    frontier = Frontier()
    frontier.extend(leaves)
    return frontier.root()


def _subtree_root(leaves: Iterator[bytes], size: int) -> bytes:
    """The root of the next `size` leaves. Raises ValueError when there are fewer."""
    frontier = Frontier()
    frontier.extend(islice(leaves, size))
    if frontier.size != size:
        raise ValueError(f"the tree has fewer leaves than asked for: {size - frontier.size} are missing")
    return frontier.root()


def inclusion_proofs(
    leaves: Iterable[bytes], indices: Iterable[int], size: int
) -> tuple[bytes, dict[int, list[bytes]]]:
    """(root, index -> inclusion proof) for leaves of the tree of the first `size` leaves, in one pass over them.

    A proof lists sibling nodes from the leaf upwards (RFC 9162 section 2.1.3.1). Raises ValueError for an index outside
    the tree or when there are fewer than `size` leaves.
    """
    wanted = sorted(set(indices))
    if wanted and (wanted[0] < 0 or wanted[-1] >= size):
        raise ValueError(f"index outside a tree of {size} leaves: {wanted[0]} to {wanted[-1]}")
    proofs: dict[int, list[bytes]] = {index: [] for index in wanted}
    source = iter(leaves)
    if size == 0:
        return EMPTY_ROOT, proofs
    return _collect_inclusion(source, 0, size, wanted, proofs), proofs


def _collect_inclusion(
    source: Iterator[bytes], start: int, size: int, wanted: list[int], proofs: dict[int, list[bytes]]
) -> bytes:
    if not wanted or size == 1:
        return _subtree_root(source, size)
    middle = start + split_point(size)
    in_left = [index for index in wanted if index < middle]
    in_right = [index for index in wanted if index >= middle]
    left = _collect_inclusion(source, start, middle - start, in_left, proofs)
    right = _collect_inclusion(source, middle, start + size - middle, in_right, proofs)
    for index in in_left:
        proofs[index].append(right)
    for index in in_right:
        proofs[index].append(left)
    return node_hash(left, right)


def inclusion_proof(leaves: Iterable[bytes], index: int, size: int) -> list[bytes]:
    """The inclusion proof of leaf `index` in the tree of the first `size` leaves (see `inclusion_proofs`)."""
    _, proofs = inclusion_proofs(leaves, [index], size)
    return proofs[index]


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether `proof` shows `leaf` at `index` in the tree of `size` leaves with `root` (RFC 9162 section 2.1.3.2)."""
    if not 0 <= index < size or not _are_hashes([leaf, root, *proof]):
        return False
    position, last, node = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if position & 1 or position == last:
            node = node_hash(sibling, node)
            while not position & 1 and position:
                position >>= 1
                last >>= 1
        else:
            node = node_hash(node, sibling)
        position >>= 1
        last >>= 1
    return last == 0 and node == root


def consistency_proof(leaves: Iterable[bytes], old: int, new: int) -> list[bytes]:
    """The proof that the tree of the first `old` leaves is a prefix of the tree of the first `new` (section 2.1.4.1).

    Empty when the sizes are equal or `old` is 0. Raises ValueError when `old > new` or leaves are missing.
    """
    if not 0 <= old <= new:
        raise ValueError(f"no consistency proof from {old} to {new} leaves")
    if old in (0, new):
        return []
    proof, _ = _collect_consistency(iter(leaves), old, new, whole=True)
    return proof


def _collect_consistency(source: Iterator[bytes], old: int, new: int, *, whole: bool) -> tuple[list[bytes], bytes]:
    """(SUBPROOF(old, leaves[:new], whole), root of leaves[:new])."""
    if old == new:
        root = _subtree_root(source, new)
        return ([] if whole else [root]), root
    middle = split_point(new)
    if old <= middle:
        proof, left = _collect_consistency(source, old, middle, whole=whole)
        right = _subtree_root(source, new - middle)
        return [*proof, right], node_hash(left, right)
    left = _subtree_root(source, middle)
    proof, right = _collect_consistency(source, old - middle, new - middle, whole=False)
    return [*proof, left], node_hash(left, right)


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether `proof` shows that the tree (`old`, `old_root`) is a prefix of (`new`, `new_root`) (section 2.1.4.2).

    Equal sizes need equal roots and an empty proof; from an empty tree, its root and an empty proof.
    """
    if not 0 <= old <= new:
        return False
    if old == new:
        return not proof and old_root == new_root and (old > 0 or old_root == EMPTY_ROOT)
    if not _are_hashes([old_root, new_root, *proof]):
        return False
    if old == 0:
        return not proof and old_root == EMPTY_ROOT
    nodes = list(proof)
    if old & (old - 1) == 0:
        nodes.insert(0, old_root)
    if not nodes:
        return False
    position, last = old - 1, new - 1
    while position & 1:
        position >>= 1
        last >>= 1
    old_node = new_node = nodes[0]
    for sibling in nodes[1:]:
        if last == 0:
            return False
        if position & 1 or position == last:
            old_node = node_hash(sibling, old_node)
            new_node = node_hash(sibling, new_node)
            while not position & 1 and position:
                position >>= 1
                last >>= 1
        else:
            new_node = node_hash(new_node, sibling)
        position >>= 1
        last >>= 1
    return last == 0 and old_node == old_root and new_node == new_root


def _are_hashes(nodes: Sequence[bytes]) -> bool:
    return all(len(node) == HASH_BYTES for node in nodes)
