"""What other engines' acceptance code emits, against draws by its own steps."""

from __future__ import annotations

import numpy as np
import pytest

from studies.conformance.published_acceptance import likeliest, relaxed, sglang, sglang_drawn, strict, tensorrt

TARGET, DRAFT = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.05, 0.65])


def test_what_is_lossless_is_the_target_and_what_is_not_is_another():
    lossless = sglang(TARGET, [3, 0]), sglang_drawn(TARGET, DRAFT), tensorrt(TARGET, DRAFT), strict(TARGET, DRAFT)
    for emitted, _ in lossless:
        np.testing.assert_allclose(emitted, TARGET, atol=1e-12)
    assert tensorrt(TARGET, DRAFT)[1] == pytest.approx(np.minimum(TARGET, DRAFT).sum(), abs=1e-12)
    changed = sglang_drawn(TARGET, DRAFT, single=0.2), sglang(TARGET, [0, 0]), tensorrt(TARGET, DRAFT, 1.0)
    for emitted, _ in changed:
        assert emitted.sum() == pytest.approx(1, abs=1e-12)
        assert np.abs(emitted - TARGET).sum() > 0.05


def test_thresholds_by_hand():
    emitted, accepted = sglang(TARGET, [2, 0], accumulated=0.75)
    assert accepted == pytest.approx(0.65 / 0.75)
    np.testing.assert_allclose(
        emitted, [0.5 / 0.75, 0.1 / 0.75 * 0.3 / 0.35, 0.2, 0.1 / 0.75 * 0.05 / 0.35], atol=1e-12
    )
    emitted, accepted = sglang(TARGET, [2, 1], single=0.3)
    assert accepted == 1
    np.testing.assert_allclose(emitted, [0, 0.85, 0.15, 0], atol=1e-12)
    kept = DRAFT * (TARGET / DRAFT >= 0.5)
    np.testing.assert_allclose(
        tensorrt(TARGET, DRAFT, 0.5)[0], kept + 0.65 * np.array([0.4, 0.1, 0.1, 0]) / 0.6, atol=1e-12
    )


def test_relaxed_acceptance_by_hand():
    np.testing.assert_allclose(relaxed(TARGET, DRAFT, 10, 0.0)[0], likeliest(TARGET), atol=1e-12)
    np.testing.assert_allclose(relaxed(TARGET, DRAFT, 1, 0.5)[0], likeliest(TARGET), atol=1e-12)
    emitted, accepted = relaxed(TARGET, DRAFT, 3, 0.36)
    assert accepted == pytest.approx(0.35)
    np.testing.assert_allclose(emitted, [0.75, 0.2, 0.05, 0], atol=1e-12)
    np.testing.assert_allclose(relaxed(TARGET, DRAFT, 2, 0.4)[0], [0.8, 0.2, 0, 0], atol=1e-12)
