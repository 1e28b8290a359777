"""What a user starts: training, pretraining, evaluation of a checkpoint, and their cluster."""
