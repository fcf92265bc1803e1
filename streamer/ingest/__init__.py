"""From a source to micro-batches, and back to committed offsets.

The way of a record: `reader` polls, decodes and queues it -> `batcher` puts it into a
micro-batch -> `ingest` gives it to the trainer -> `offsets` notes how far is trained,
saved and acknowledged -> `ingest` commits that. `handover` takes partitions over and
gives them up. May import: `event`,
`dead_letters`, `sources.base`; nothing of training, checkpoints and sharing.
"""
