"""Match: judge one child of a node, and go on where the recovered token is another: for every rule."""

from __future__ import annotations

import torch

from cactus_decoding.rules.emitted import EmittedRows
from cactus_decoding.types import ROOT
from cactus_decoding.verification.plain import residual
from cactus_decoding.verification.trees.tree import Tree
from cactus_decoding.verification.trees.walk import Chance, Judge, Trial, Walk, ratio


def match(tree: Tree, judge: Judge, chance: Chance) -> Walk:
    r"""Walk from the text towards a leaf.

    With p' the law of a node's drafted child n, that is the draft's row without the fixed children, the rule accepts n
    as on a chain whose draft has the row p': with u uniform in [0, 1), when :math:`u\,p'(n) < h(n)`. After a rejection
    the token is drawn in proportion to :math:`(s q - p')_+`, and if it is another child of the node, the walk goes on
    behind that. So each token has the law that the rule emits for the draft row p', whatever else is proposed.

    Where h does not depend on n, a node's children are kept with probability :math:`h(S) + \sum_{x \notin S}
    \min(h(x), p'(x))`, S the fixed ones: the most for such children (Hu et al., arXiv 2502.18779, for h = q).

    Args:
        tree: the proposal and the target's rows.
        judge: the rule at each node.
        chance: a number for the test of each node, and one for each token that is drawn.

    Example:
        >>> from cactus_decoding.rules import Lossless
        >>> from cactus_decoding.types import Proposal, StepRows, TreeRows
        >>> from cactus_decoding.verification.trees.tree import ProposedTree
        >>> from cactus_decoding.verification.trees.walk import Judgement, RandomNumbers
        >>> proposal = Proposal([1, 0], None, [-1, -1], [False, False])  # two tokens, either of which may follow
        >>> rows = TreeRows(torch.zeros(3, 2), [5, 1, 0], proposal, *[lambda logits, _: logits.softmax(-1)] * 2)
        >>> tree = ProposedTree(rows)
        >>> numbers = RandomNumbers(torch.tensor([0.9, 0.0, 0.3, 0.7, 0.0]).double(), 2)
        >>> walk = match(tree, lambda node: Judgement(Lossless()), numbers)
        >>> walk.path, walk.next_token  # token 1 is rejected, and token 0 is drawn, which is the other one
        ([1], 1)
    """
    path: list[int] = []
    trials: list[Trial] = []
    node = ROOT
    while (children := tree.children(node)) is not None:
        target, judgement, drafted = tree.target(node), judge(node), children.drafted
        law, candidate = children.law(drafted), children.token_ids[drafted]
        child, p = children.nodes[drafted], law[candidate]
        losslessly = chance.below(child, ratio(target[candidate], p))
        recovery = None
        if not (losslessly and judgement.never_stricter_than_lossless):
            rule = judgement.rule if judgement.relaxed is None else EmittedRows(judgement.relaxed)
            given = None if drafted < children.num_fixed else law.probs
            relaxed_prob, scale = rule.judge(target.probs, given, torch.tensor([candidate]))
            if not chance.below(child, ratio(relaxed_prob.item(), p)):
                recovery = residual(rule.recovery_target(target.probs).double(), law.probs, scale[0])
        if recovery is None:
            trials.append(Trial(node, child, accepted=True, relaxed=not losslessly))
        else:
            token = chance.token(recovery)
            matched = children.other_than(drafted, token)
            trials.append(Trial(node, child, accepted=False, matched=matched))
            if matched is None:
                return Walk(path, token, trials)
            child = matched
        path.append(child)
        node = child
    return Walk(path, chance.token(tree.target(node).weights), trials)
