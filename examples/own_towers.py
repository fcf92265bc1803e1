"""Train towers of your own with cache-augmented importance resampling: any torch modules, any device.

    python examples/own_towers.py

People buy from a few aisles; the towers find out which, from (person, product) pairs that come in small batches.
"""

import torch

from streamer import OccurrenceCache, StreamingPopularity, xir_loss

PEOPLE, PRODUCTS, AISLES = 200, 400, 8
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

people = torch.nn.Embedding(PEOPLE, 32).to(device)
products = torch.nn.Sequential(
    torch.nn.Embedding(PRODUCTS, 32), torch.nn.Linear(32, 32)
).to(device)
optimizer = torch.optim.Adam([*people.parameters(), *products.parameters()], lr=0.02)
popularity = StreamingPopularity()
cache = OccurrenceCache(size=256)


def next_batch(size: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Who bought what: a person's aisle is their number modulo 8, and some products sell better than others."""
    person = torch.randint(0, PEOPLE, (size,), device=device)
    place = torch.distributions.Geometric(0.1).sample((size,)).long().to(device) % (
        PRODUCTS // AISLES
    )
    return person, place * AISLES + person % AISLES


for step in range(301):
    person, product = next_batch()
    popularity.observe(product)
    loss, draws = xir_loss(
        people(person),
        products(product),
        product,
        popularity.log_share(product),
        cache.sample(products),
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    cache.update(draws)
    if step % 100 == 0:
        best = (
            people.weight @ products(torch.arange(PRODUCTS, device=device)).T
        ).argmax(1)
        right = (
            (best % AISLES == torch.arange(PEOPLE, device=device) % AISLES)
            .float()
            .mean()
        )
        print(
            f"step {step}: loss {loss.item():.3f}, best product is of the right aisle for {right:.0%} of the people"
        )
