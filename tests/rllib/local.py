"""The learner of this process, through RLlib's public way."""


def local_learner(algorithm):
    """Of an algorithm with num_learners=0."""
    (result,) = algorithm.learner_group.foreach_learner(lambda learner: learner)
    return result.get()
