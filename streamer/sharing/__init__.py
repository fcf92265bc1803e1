"""What a learner shares with the other trainers of its model, along the line (`sharing`) and in a file (`store_file`).
It knows learner, micro-batches and `cache_store`; neither of them knows it."""
