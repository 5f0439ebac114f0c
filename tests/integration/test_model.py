# SPDX-License-Identifier: Apache-2.0
"""Engines that compute: a transformer whose KV lies in the registered regions. Nothing is compared
with a pattern here: what is stale or torn shows as other tokens than those of an engine that has
never been without its memory, and never got a block from the store."""
import random
import unittest

import harness

SHARE = "--fingerprint", "--store-tp=2"


def prompts(seed, n, length):
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(length)] for _ in range(n)]


def tokens(done):
    return [output["tokens"] for output in done["outputs"]]


def hashes(done):
    return [output["blocks"] for output in done["outputs"]]


def total(done, where):
    return sum(output[f"{where}_blocks"] for output in done["outputs"])


class Model(harness.Case):
    def model(self, daemon, instance, *args, **kw):
        return self.engine(daemon, instance, "--model", *args, **kw)

    def test_engines_split_otherwise_generate_alike_from_each_others_blocks(self):
        daemon = self.daemon()
        alone = self.model(daemon, "alone", "--tenant=other")
        a = self.model(daemon, "a", "--tp=2", *SHARE)
        b = self.model(daemon, "b", *SHARE)
        self.named(daemon, "a", "b")
        asked = prompts(1, 6, 96)
        want = alone.generate(asked, 40)
        put = a.generate(asked, 40)
        self.assertEqual(tokens(put), tokens(want))
        self.assertEqual(total(put, "computed"), 36)
        got = b.generate(asked, 40)
        self.assertEqual(tokens(got), tokens(want))
        self.assertEqual((total(got, "store"), total(got, "computed")), (30, 6))
        self.assertEqual(hashes(got), hashes(put))
        self.clean(a, b, alone, daemon)


if __name__ == "__main__":
    unittest.main()
