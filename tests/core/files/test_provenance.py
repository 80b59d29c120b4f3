"""What made a result: complete, and plain JSON."""

from __future__ import annotations

import json

from cactus_decoding.core.files.provenance import commit, provenance


def test_provenance():
    record = provenance({"seed": 1})
    assert set(record) == {"arguments", "commit", "versions", "machine", "date"}
    assert json.loads(json.dumps(record)) == record
    assert commit() is None or len(commit().removesuffix("-dirty")) == 40
