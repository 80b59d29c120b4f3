"""Verifies trees of proposals: one scheme a file, of which every one has a chain as its special case."""

from __future__ import annotations

from types import MappingProxyType

from cactus_decoding.verification.trees.joint import joint
from cactus_decoding.verification.trees.match import match
from cactus_decoding.verification.trees.recursive import recursive
from cactus_decoding.verification.trees.traversal import traversal
from cactus_decoding.verification.trees.walk import Scheme

TREE_SCHEMES: MappingProxyType[str, Scheme] = MappingProxyType(
    {"token": match, "joint": joint, "recursive": recursive, "traversal": traversal}
)
"""Every way to verify trees by the name of the verification: ``token`` is the one that goes with every rule."""
