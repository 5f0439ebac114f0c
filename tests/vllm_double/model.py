# SPDX-License-Identifier: Apache-2.0
"""
A model whose keys and values are a function of the tokens before and of its weights, and nothing else: each row is a
hash of the row before it, which it reads from the cache. Whoever gives it a block of other weights, or a torn one, changes
every token after it.
"""
import hashlib

ROW = 32  # bytes of a token's key, or value, in one layer
LAYERS = 2
VOCABULARY = 50000


def row(weights, layer, part, before, token):
    text = f"{weights}/{layer}/{part}/{token}".encode()
    return hashlib.blake2b(before + text, digest_size=ROW).digest()


def sample(rows):
    return int.from_bytes(hashlib.blake2b(b"".join(rows), digest_size=8).digest(), "big") % VOCABULARY


def control(weights, tokens, count):
    """What a run without any cache puts out."""
    rows = {(layer, part): b"" for layer in range(LAYERS) for part in range(2)}
    out = []
    for token in tokens:
        rows = {(layer, part): row(weights, layer, part, before, token) for (layer, part), before in rows.items()}
    while len(out) < count:
        out.append(sample(rows[key] for key in sorted(rows)))
        rows = {(layer, part): row(weights, layer, part, before, out[-1]) for (layer, part), before in rows.items()}
    return out
