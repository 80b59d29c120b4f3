"""Coupled: the target draws its token by itself, and a proposal is kept if it is that token."""

from __future__ import annotations

from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.types import ROOT
from cactus_decoding.core.verification.tree import RuleAt, TokenSource, Tree, Trial, Walk, recovery_weights


def coupled(tree: Tree, judge: RuleAt, chance: TokenSource) -> Walk:
    r"""Walk from the text along the proposals that are the tokens drawn from h, as far as there are some.

    With shared noise (`SharedNoise`) the draft proposes what the same noise makes of its own row, and with lossless
    verification the text is that of plain sampling with the seed: it depends on no proposal. With independent numbers
    it is matching of two draws. Either way each token has the distribution h of the rule.

    Sources: Daliri et al. (arXiv 2408.07978).
    """
    path: list[int] = []
    trials: list[Trial] = []
    node = ROOT
    while (position := tree.at(node)) is not None:
        rule, beside = judge(position), chance.again()
        if isinstance(rule, Lossless):
            token = lossless = chance.token(position.row.probs, position.row)
        else:
            token = chance.token(recovery_weights(position.relaxed_row(rule), position.target.probs))
            lossless = beside.token(position.row.probs, position.row)
        child = position.child_with(token, other_than=ROOT)
        if child is None:
            trials.append(Trial(node, position.nodes[position.drafted], accepted=False))
            return Walk(path, token, trials)
        trials.append(Trial(node, child, accepted=True, relaxed=token != lossless))
        tree.leave(node)
        node = child
        path.append(node)
    return Walk(path, tree.draw_after(node, chance), trials)
