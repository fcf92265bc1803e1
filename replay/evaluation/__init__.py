"""Methods compared on logs: offline as in the paper, and prequential on the production line."""
