"""Which of the stored images without a label would teach most."""

from dualnet.models.model import Model
from dualnet.serve.journal import Journal
from dualnet.serve.kept_features import KeptFeatures

MAX_CANDIDATES = 1000  # the newest


class Suggestions:
    def __init__(self, journal: Journal) -> None:
        self.journal, self.features = journal, KeptFeatures(journal)

    def choose(self, model: Model, count: int) -> list[str] | None:
        """Their ids, the most instructive first. None: call it again, as for `KeptFeatures`."""
        model.check_suggests()
        candidates = self.journal.unlabelled(MAX_CANDIDATES)
        features = self.features.of(model, candidates)
        if features is None:
            return None
        ids = {digest: id for id, digest in candidates.values()}
        by_digest = {candidates[number][1]: row for number, row in features.items()}
        return [ids[digest] for digest in model.most_instructive(by_digest, count)]
