# SPDX-License-Identifier: Apache-2.0
"""Trainers that speak through the HTTP clients people have: node's fetch (tests/npm/fetch.mjs) and Python's urllib."""
import json
import unittest
import urllib.error
import urllib.request

import harness


class Clients(harness.Case):
    def test_fetch(self):
        daemon = self.daemon()
        self.engine(daemon, "engine-0")
        busy = self.daemon(name="busy", socket_name="busy.sock")
        self.engine(busy, "engine-0", "--misbehave", "pause-never", name="never")
        harness.node(self, "fetch.mjs", harness.API, daemon.url, busy.url)

    def test_urllib(self):
        daemon = self.daemon()
        engine = self.engine(daemon, "engine-0")

        def ask(path, body=None, method=None):
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(daemon.url + path, data, method=method,
                                             headers={"Content-Type": "application/json"} if data else {})
            with urllib.request.urlopen(request, timeout=harness.DEADLINE_S) as answer:
                return json.load(answer)

        for step in range(3):
            self.assertEqual(ask("/health"), {"status": "ok"})
            self.assertEqual(ask("/pause", {"mode": "abort"})["status"], "paused")
            self.assertEqual(ask("/sleep?level=2", {})["level"], 2)
            self.assertTrue(ask("/is_sleeping")["is_sleeping"])
            ask("/wake_up?tags=weights", method="POST")
            ask("/collective_rpc", {"method": "reload_weights"})
            ask("/wake_up", {"tags": ["kv_cache"]})
            ask("/reset_prefix_cache?reset_external=true", {})
            ask("/update_weight_version", {"new_version": f"step-{step}"})
            ask("/resume", {})
            self.assertEqual(ask("/weight_info")["weight_version"], f"step-{step}")
            counts = engine.run(0, 8)
            self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0), counts)
        for path, body, status in (("/nowhere", None, 404), ("/sleep", None, 405), ("/sleep?level=7", {}, 400)):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                ask(path, body)
            with refused.exception as answer:
                self.assertEqual((answer.code, json.load(answer)["error"]["code"]), (status, status))
        after = ask("/v1/kvplane/events")["next"]
        request = urllib.request.Request(f"{daemon.url}/v1/kvplane/events",
                                         headers={"Accept": "text/event-stream", "Last-Event-ID": str(after)})
        with urllib.request.urlopen(request, timeout=harness.DEADLINE_S) as stream:
            daemon.ok("/pause")
            for line in stream:
                if line.startswith(b"data:") and json.loads(line[5:])["kind"] == "pause":
                    break
        daemon.ok("/resume")
        self.clean(engine, daemon)


if __name__ == "__main__":
    unittest.main()
