"""Coupled: the target draws its token by itself, and a proposal is kept if it is that token."""

from __future__ import annotations

from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.types import ROOT, Visit
from cactus_decoding.core.verification.tree import Judge, TokenSource, Tree, Walk, recovery_weights


def coupled(tree: Tree, judge: Judge, chance: TokenSource) -> Walk:
    r"""Walk from the text along the proposals that are the tokens drawn from h, as far as there are some.

    With shared noise (`SharedNoise`) the draft proposes what the same noise makes of its own row, and with lossless
    verification the text is that of plain sampling with the seed: it depends on no proposal. With independent numbers
    it is matching of two draws. Either way each token has the distribution h of the rule.

    Sources: Daliri et al. (arXiv 2408.07978).
    """
    path: list[int] = []
    visits: list[Visit] = []
    node = ROOT
    while (position := tree.at(node)) is not None:
        decision, beside = judge(position), chance.again()
        if isinstance(decision.rule, Lossless):
            token = lossless = chance.token(position.row.probs, position.row)
        else:
            token = chance.token(recovery_weights(position.relaxed_row(decision.rule), position.target.probs))
            lossless = beside.token(position.row.probs, position.row)
        child = position.child_with(token, other_than=ROOT)
        if child is None:
            visits.append(Visit(tree.rows, position.nodes[position.drafted], decision, accepted=False))
            return Walk(path, token, visits)
        visits.append(Visit(tree.rows, child, decision, accepted=True, relaxed=token != lossless))
        tree.leave(node)
        node = child
        path.append(node)
    return Walk(path, tree.draw_after(node, chance), visits)
