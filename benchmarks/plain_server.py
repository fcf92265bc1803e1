"""The alternative of `serve.py`: what one writes first, a FastAPI handler
around an exact index of faiss.

    python benchmarks/plain_server.py VECTORS.npy PORT
"""

from __future__ import annotations

import sys
from typing import Any

import faiss
import numpy as np
import uvicorn
from fastapi import FastAPI


def main(path: str, port: int) -> None:
    """Serve the nearest items of a user's vector; a user's is that of some item."""
    faiss.omp_set_num_threads(1)
    vectors = np.load(path)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    app = FastAPI()

    @app.get("/users/{user}/recommendations")
    def recommend(user: int, k: int = 10) -> dict[str, Any]:
        scores, items = index.search(vectors[user % len(vectors)][None], k)
        found = zip(items[0].tolist(), scores[0].tolist(), strict=True)
        return {"items": [{"item": str(item), "score": score} for item, score in found]}

    @app.get("/healthz")
    def alive() -> dict[str, bool]:
        return {"ok": True}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
