"""Trainers in lockstep: W processes that train one model, the same one that a single
process would train.

Belongs here: the collectives and who computes what (`group`), what a rank does otherwise
than a trainer alone, part by part (`ingest`, `learner`, `pipeline`, `checkpoint`,
`publishing`, `sharing`), and `launch`, which has torch's launcher start the processes.
May import: `pipeline` and rooms below it; only `build` and `cli` import this room, and
torch.distributed is loaded only where there is a group.
"""
