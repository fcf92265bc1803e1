"""Trainers in lockstep: W processes that train one model, the same one that a single
process would train.

Belongs here: who computes what (`parts`), the collectives (`group`), and starting the
processes (`launcher`). May import: `errors`, `settings` and `model.jit`;
torch.distributed is loaded only where there is a group.
"""
