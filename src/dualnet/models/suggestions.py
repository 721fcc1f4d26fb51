"""Which unlabelled images would teach a closed-form head most."""

import torch
from torch import Tensor

from dualnet.nets.closed_form import ClosedForm

CHUNK = 1000  # images whose distances are computed together


@torch.no_grad()
def most_instructive(head: ClosedForm, learned: Tensor, candidates: Tensor, count: int) -> list[int]:
    """Up to `count` rows of the candidates, the most instructive first. Both are float16 [N, features].

    The most instructive image has the largest product of doubt, 1 less the margin between its two largest
    probabilities, and squared distance from the nearest image that is learned or was chosen before, in the coordinates
    in which the covariance within the classes is the identity.
    """
    whitened = head.whitened(candidates)
    doubts = doubt(head.outputs(whitened)[0])
    places, known = whitened.float(), head.whitened(learned).float()
    distances = torch.cat([torch.cdist(part, known).amin(dim=1) for part in places.split(CHUNK)])
    chosen: list[int] = []
    for _ in range(min(count, len(candidates))):
        scores = doubts * distances.square()
        scores[chosen] = -1
        chosen.append(row := int(scores.argmax()))
        distances = torch.minimum(distances, torch.cdist(places, places[row : row + 1])[:, 0])
    return chosen


def doubt(logits: Tensor) -> Tensor:
    """1 less the margin between the two largest probabilities; 1 if there is one class."""
    probabilities = logits.softmax(dim=1).topk(min(2, logits.shape[1]), dim=1).values
    return 1 - (probabilities[:, 0] - probabilities[:, -1])
