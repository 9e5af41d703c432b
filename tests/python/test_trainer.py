"""Training: losses against scores, gradients against finite differences, steps that learn."""

import numpy as np
import pytest

import hola


def test_losses_are_scores(byte, config):
    m = hola.Model.new(config, seed=3, threads=1)
    ids = np.random.default_rng(0).integers(0, 256, 40)
    with hola.Trainer(m, max_tokens=64) as t:
        loss, targets = t.evaluate(ids)
        assert targets == 39 and abs(loss + m.score(ids).sum()) < 1e-3
        two, count = t.evaluate(ids, starts=[0, 15])
        assert count == 38 and abs(two + m.score(ids[:15]).sum() + m.score(ids[15:]).sum()) < 1e-3
        assert t.accumulate(ids, starts=np.array([0, 15])) == (two, 38)
        assert abs(two - loss) > 1e-3
        assert t.evaluate(ids, starts=range(1)) == (loss, 39)


def test_the_gradient_is_that_of_the_loss(config):
    """The loss falls by the square of the gradient's norm, to first order: SGD by an AdamW with a large eps."""
    m = hola.Model.new(config, seed=3, threads=1)
    ids = np.random.default_rng(0).integers(0, 256, 40)
    with hola.Trainer(m, max_tokens=64, eps=1e6, weight_decay=0, clip=None, beta1=1e-9, beta2=1e-9) as t:
        before, _ = t.accumulate(ids)
        norm = t.update(1e6 * 1e-5)
        after, _ = t.evaluate(ids)
    assert 0.9 < (before - after) / (1e-5 * norm**2) < 1.1


def test_weights_of_gradients(config):
    norms = []
    for weight in (1.0, 0.25):
        with hola.Trainer(hola.Model.new(config, threads=1), clip=None) as t:
            t.accumulate(range(30), weight=weight)
            norms.append(t.update(1e-3))
            assert t.update(1e-3) == 0.0  # cleared
    assert abs(norms[1] / norms[0] - 0.25) < 1e-4


def test_precisions(config):
    """BF16 and FP8 change the loss a little, in training and, for BF16, in inference."""
    ids = np.random.default_rng(0).integers(0, 256, 32)
    loss = {}
    for how in ("auto", "bf16", "fp8"):
        with hola.Trainer(hola.Model.new(config, threads=1), max_tokens=32, precision=how) as t:
            loss[how], _ = t.evaluate(ids)
    assert 0 < abs(loss["bf16"] / loss["auto"] - 1) < 0.01
    assert 0 < abs(loss["fp8"] / loss["auto"] - 1) < 0.05
    score = hola.Model.new(config, threads=1, precision="bf16").score(ids).sum()
    assert abs(loss["bf16"] + score) < abs(loss["auto"] + score)
    with pytest.raises(hola.InvalidArgument, match="precision: 'bf17' is not one of auto, bf16, fp8"):
        hola.Model.new(config, precision="bf17")
    with pytest.raises(hola.InvalidArgument, match="fp8 is of training only"):
        hola.Model.new(config, precision="fp8")
    with pytest.raises(TypeError, match="precision: a string is expected, not int"):
        hola.Trainer(hola.Model.new(config, threads=1), precision=1)


def test_masks_choose_targets(byte, config):
    m = hola.Model.new(config, seed=3, threads=1)
    ids = np.random.default_rng(0).integers(0, 256, 40)
    mask = np.arange(40) % 3 == 0
    one = m.score(ids)  # of the tokens from the second on
    with hola.Trainer(m, max_tokens=64) as t:
        loss, targets = t.evaluate(ids, mask=mask)
        assert targets == mask[1:].sum() and abs(loss + one[mask[1:]].sum()) < 1e-3
        assert abs(loss + one[mask[:-1]].sum()) > 1e-3  # one late: another loss
        assert t.accumulate(ids, mask=mask.tolist()) == t.accumulate(ids, mask=5 * mask.astype(np.int64))
        assert t.evaluate(ids, mask=[0] * 40) == (0.0, 0)
        assert t.evaluate(ids, mask=[True] * 40) == t.evaluate(ids)
        with pytest.raises(hola.InvalidArgument, match="mask: 39 flags for 40 tokens"):
            t.evaluate(ids, mask=mask[1:])
        with pytest.raises(TypeError, match="mask"):
            t.evaluate(ids, mask="x" * 40)


def test_it_learns_and_sessions_see_it(config):
    m = hola.Model.new(config, seed=3, threads=1, tokenizer="byte")
    ids = m.tokenizer.encode("to be or not to be", bos=True)
    before = m.score(ids).sum()
    s = m.session()
    old = s.feed([1])
    with hola.Trainer(m, max_tokens=64, recompute=True) as t:
        for _ in range(40):
            t.accumulate(ids, weight=1 / len(ids))
            t.update(1e-2)
    assert m.score(ids).sum() > before / 4
    s.reset()
    assert not np.array_equal(s.feed([1]), old)
    with hola.Trainer(m) as again:  # the first was closed
        again.evaluate(ids)
