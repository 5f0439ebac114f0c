#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rounds of chaos and of rehearsals over one cluster, some of whose processes live through all of them, and whether anything of
those grows: ./dev soak --minutes N [--seed S].
"""
import json
import os
import subprocess
import sys
import tempfile
import time

import faults
from chaos import Chaos, options, percentile, play
from stage import Broken, harness

ROUND_S = 40  # of chaos, between two rests
REHEARSE_S = 600
# Drift is what a process has more at rest after each round: the median of the slopes between all pairs of its samples (Theil and
# Sen: up to a quarter of the samples may be anything, a late close or a lane that is open just then, without moving it), times the
# rounds. It is a failure if it is more than both that share of the first sample and that much: what is bounded (an arena, a
# step's first failure, a table that doubles) rises and stays, so that half of the pairs soon have no slope; what is lost in each
# round, be it one descriptor, does not.
ALLOWED = {"rss_kib": (0.1, 4096), "heap_bytes": (0.1, 1 << 19), "fds": (0, 4), "maps": (0.05, 8), "threads": (0, 0.9),
           "series": (0.5, 100), "lineages": (0, 4), "probe_ms": (4, 50), "lag_s": (4, 0.5)}
ROUNDS_MIN = 5  # to tell a slope
# Every process of a cluster keeps a copy of what etcd has: among it each retirement, for hours, so that who was away still hears it
# (800 keys a round). So many bytes each are not counted, of its heap and of its memory.
KEY_BYTES = 320


def drift(values):
    """What the values rise by over all of them."""
    slopes = sorted((values[j] - values[i]) / (j - i) for i in range(len(values)) for j in range(i + 1, len(values)))
    return slopes[len(slopes) // 2] * (len(values) - 1) if slopes else 0.0


class Soak(Chaos):
    def __init__(self, args, directory):
        super().__init__(args, directory)
        self.samples = []  # of each round: process -> figure -> value
        self.lags = {}
        self.rehearsed = self.keys = 0
        self.struck = 0

    def more(self):
        return f" rounds={len(self.samples)} rehearsals={self.rehearsed}"

    def scrape(self, slot):
        """Figures of its own, and the average lag of its loops since it was asked last."""
        code, text = slot.process.get("/metrics")
        if code != 200:
            raise Broken(f"{slot.name}: /metrics: {code}")
        rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        total = [sum(float(value) for name, value in rows if name.startswith(f"kvplane_loop_lag_seconds_{part}"))
                 for part in ("sum", "count")]
        before, self.lags[slot] = self.lags.get(slot, (0, 0)), total
        return {"series": len(rows), "heap_bytes": float(dict(rows)["kvplane_heap_bytes"]) - KEY_BYTES * self.keys,
                "lag_s": (total[0] - before[0]) / max(1, total[1] - before[1])}

    def probe(self, slot):
        took_ms = []
        for _ in range(40):
            began = time.monotonic()
            code, answer = slot.process.get("/livez")
            if code != 200:
                raise Broken(f"{slot.name}: /livez at rest: {code} {answer}")
            took_ms.append((time.monotonic() - began) * 1000)
        return percentile(took_ms, 0.9)

    def rest(self):
        """Until names that nobody has any more are forgotten, and what closes late is closed; then all figures."""
        time.sleep(8)
        code, answer = faults.ask_etcd(self.stage.members[0], "/v3/kv/range", {
            "key": "AA==", "range_end": "AA==", "count_only": True})
        if code != 200:
            raise Broken(f"etcd at rest: {code} {answer}")
        self.keys = int(answer.get("count", 0))
        sample = {}
        for slot in self.stage.spared:
            sample[slot.name] = slot.figures()
            if slot.role != "engine":
                sample[slot.name].update(self.scrape(slot), probe_ms=self.probe(slot))
                sample[slot.name]["rss_kib"] -= KEY_BYTES * self.keys // 1024
            if slot.role == "daemon":
                tenants = slot.process.every("/v1/kvplane/tenants", "tenants")
                sample[slot.name]["lineages"] = sum(len(tenant["lineages"]) for tenant in tenants)
        self.samples.append(sample)
        with open(os.path.join(self.directory, "samples.jsonl"), "a", encoding="utf-8") as out:
            out.write(json.dumps(sample) + "\n")

    def rehearse(self):
        run = subprocess.run([harness.PROGRAM, "rehearse", "--steps", "4", "--requests", "200", "--seed",
                              str(self.seed % 100000 + len(self.samples))], capture_output=True, text=True, timeout=REHEARSE_S,
                             check=False)
        if run.returncode != 0:
            raise Broken(f"a rehearsal: {run.stdout[-2000:]}{run.stderr[-2000:]}")
        self.rehearsed += 1

    def judge_drift(self):
        wrong = []
        for name in self.samples[0]:
            for figure, (share, least) in ALLOWED.items():
                values = [sample[name][figure] for sample in self.samples if figure in sample[name]]
                if not values:
                    continue
                rise = drift(values)
                self.story(f"{name} {figure}: {values[0]:.6g} … {values[-1]:.6g}, drift {rise:.6g}")
                if rise > least and rise > share * values[0]:
                    wrong.append(f"{name} {figure}: {' '.join(f'{value:.6g}' for value in values)}")
        if wrong:
            raise Broken("drift: " + "; ".join(wrong))

    def run(self):
        self.set_up()
        self.warm_up()
        stage = self.stage
        stage.spared = (*stage.stores[:1], *stage.daemons, *stage.engines[:2])
        end = self.began + self.seconds
        self.say(f"soak: seed {self.seed}, rounds of {ROUND_S} s, logs in {self.directory}")
        while len(self.samples) < ROUNDS_MIN or time.monotonic() < end:
            self.strike(self.seed + len(self.samples), ROUND_S)
            self.struck += ROUND_S / self.seconds
            self.mended()
            self.judge_words()
            self.rehearse()
            self.rest()
            first, last = self.samples[0], self.samples[-1]
            self.story(f"etcd has {self.keys} keys")
            self.say(f"round {len(self.samples)}: {sum(self.faults.values())} faults; " + ", ".join(
                f"{name} {first[name]['rss_kib']} → {row['rss_kib']} KiB, {row['fds']} fds" for name, row in last.items()))
        self.judge_drift()
        self.farewell()


def main():
    args = options("soak", __doc__)
    return play("soak", Soak(args, tempfile.mkdtemp(prefix="kvplane-soak-")), args)


if __name__ == "__main__":
    sys.exit(main())
