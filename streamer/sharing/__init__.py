"""What a learner exchanges with the other trainers of its model."""
