# SPDX-License-Identifier: Apache-2.0
"""What an operator sees of it: metrics that are well-formed and true, a log in which one operation is one story, and the
whole state on SIGUSR1."""
import json
import re
import shutil
import signal
import subprocess
import unittest

import harness

SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\]|\\["\\n])*",?)*)\})? (\S+)')


class Exposition(dict):
    """Family -> {labels as text: value}; fails where the text breaks the format or the rules of naming."""

    def __init__(self, text):
        super().__init__()
        self.types, helped, seen = {}, set(), set()
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                assert name not in helped, f"{name} twice"
                helped.add(name)
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                self.types[name] = kind
                assert kind != "counter" or name.endswith("_total"), name
            else:
                match = SAMPLE.fullmatch(line)
                assert match, line
                name, labels, value = match.groups()
                assert (name, labels) not in seen, f"twice: {line}"
                seen.add((name, labels))
                family = name if name in self.types else re.sub(r"_(bucket|sum|count)$", "", name)
                assert family in self.types and family in helped, line
                self.setdefault(name, {})[labels or ""] = float(value)
        for name, kind in self.types.items():
            if kind == "histogram":
                self._ascends(name)

    def _ascends(self, name):
        last = {}
        for labels, value in self.get(name + "_bucket", {}).items():
            rest, bound = re.fullmatch(r'(.*?),?le="([^"]*)"', labels).groups()
            assert value >= last.get(rest, 0), f"{name}: {labels}"
            last[rest] = value
            if bound == "+Inf":
                assert value == self[name + "_count"][rest], f"{name}: {labels}"

    def sum(self, name, **labels):
        return sum(value for of, value in self.get(name, {}).items()
                   if all(f'{k}="{v}"' in of for k, v in labels.items()))


class Observe(harness.Case):
    def scrape(self, server):
        """By our own reader, and by Prometheus's where it is."""
        code, text = server.get("/metrics")
        self.assertEqual(code, 200, text)
        if shutil.which("promtool"):
            run = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True,
                                 timeout=harness.DEADLINE_S, check=False)
            self.assertEqual((run.returncode, run.stdout + run.stderr), (0, ""))
        return Exposition(text)

    def shows(self, server, what, condition):
        """The first scrape of which that is so."""
        def look():
            seen = self.scrape(server)
            return seen if condition(seen) else None
        return harness.until(what, look)

    def latest(self, daemon):
        """The operation that was asked for last, which has ended."""
        return daemon.get("/v1/kvplane/operations")[1]["operations"][0]

    def story(self, *processes, op):
        """The lines of one operation, process by process."""
        return [[line for line in process.stderr().splitlines() if f" op={op} " in line] for process in processes]

    def test_values_change_as_they_must(self):
        daemon = self.daemon()
        idle = self.scrape(daemon)
        self.assertEqual(idle.sum("kvplane_build_info"), 1)
        self.assertEqual(idle.sum("kvplane_sessions"), 0)
        self.assertGreater(idle.sum("process_open_fds"), 5)
        self.assertGreater(idle.sum("process_resident_memory_bytes"), 1e6)
        engine = self.engine(daemon, "a", "--fingerprint")
        self.named(daemon, "a")
        put = engine.run(0, 20)
        self.assertGreater(put["stored"], 0)
        after = self.shows(daemon, "puts are counted", lambda m: m.sum(
            "kvplane_transfers_total", direction="put", transport="loopback", result="ok") > 0)
        self.assertEqual(after.sum("kvplane_transfer_bytes_count", direction="put"),
                         after.sum("kvplane_transfers_total", direction="put", result="ok"))
        self.assertEqual(after.sum("kvplane_transfer_bytes_sum", direction="put"),
                         after.sum("kvplane_put_bytes_total"))
        self.assertEqual(after.sum("kvplane_puts_total", result="ok"), after.sum("kvplane_store_puts_total", result="ok"))
        self.assertGreater(after.sum("kvplane_lookup_blocks_total", result="absent"), 0)
        self.assertEqual(after.sum("kvplane_instance_scheduler_state", instance="a", state="running"), 1)
        self.assertEqual(after.sum("kvplane_instance_scheduler_state", instance="a"), 1, "one state at a time")
        self.shows(daemon, "nothing is left in the queues", lambda m: not any(m.sum(name, instance="a") for name in (
            "kvplane_tasks_queued", "kvplane_tasks_running", "kvplane_task_oldest_age_seconds")))

        daemon.ok("/sleep?level=2")
        asleep = self.shows(daemon, "sleep is seen", lambda m: m.sum(
            "kvplane_instance_tag_state", instance="a", tag="kv_cache", state="discarded") == 1 and m.sum(
            "kvplane_operations_total", operation="sleep", outcome="ok") == 1)
        self.assertEqual(asleep.sum("kvplane_instance_tag_state", instance="a", tag="weights", state="discarded"), 1)
        self.assertEqual(asleep.sum("kvplane_instance_tag_state", instance="a", state="resident"), 0)
        self.assertEqual(asleep.sum("kvplane_instance_scheduler_state", instance="a", state="paused"), 1)
        self.assertEqual(asleep.sum("kvplane_lineages_left_total", reason="sleep"), 1)
        for step in ("pause", "leave", "reset_local", "drain", "unregister", "release"):
            self.assertEqual(asleep.sum("kvplane_operation_step_seconds_count", operation="sleep", step=step),
                             2 if step == "drain" else 1, step)
        self.assertEqual(asleep.sum("kvplane_operation_step_failures_total"), 0)
        self.assertEqual(asleep.sum("kvplane_region_pinned_bytes", instance="a"), 0)
        self.shows(daemon, "the call is audited", lambda m: m.sum(
            "kvplane_audited_calls_total", operation="sleep", outcome="ok") == 1)
        daemon.ok("/wake_up")

        engine.kill()
        self.shows(daemon, "what is gone takes its series along", lambda m: (
            m.sum("kvplane_instance_up", instance="a") == 0
            and not any('instance="a"' in labels for name in (
                "kvplane_regions", "kvplane_region_pinned_bytes", "kvplane_tasks_queued", "kvplane_task_oldest_age_seconds")
                for labels in m.get(name, {}))))
        self.assertEqual(daemon.post("/sleep?level=1")[0], 409)
        self.shows(daemon, "and so is the one refused", lambda m: m.sum(
            "kvplane_audited_calls_total", operation="sleep", outcome="refused") == 1)
        self.clean(daemon)

    def test_vllms_names_say_the_same(self):
        daemon = self.daemon("--metrics-compat")
        engine = self.engine(daemon, "a", "--fingerprint")
        self.named(daemon, "a")
        self.assertGreater(engine.run(0, 20)["stored"], 0)

        def state(**of):
            return lambda m: all(m.sum("vllm:engine_sleep_state", engine="a", sleep_state=word) == value
                                 for word, value in of.items())

        def scrape():
            return Exposition(daemon.get("/metrics")[1])  # its colons are none that promtool likes
        harness.until("awake", lambda: state(awake=1, weights_offloaded=0, discard_all=0)(scrape()))
        seen = scrape()
        for ours, theirs, labels in (("kvplane_lookup_blocks_total", "vllm:external_prefix_cache_queries_total", {}),
                                     ("kvplane_puts_total", "vllm:mooncake_store_operation_keys_total",
                                      {"operation": "save_put"}),
                                     ("kvplane_put_bytes_total", "vllm:mooncake_store_operation_bytes_total",
                                      {"operation": "save_put"}),
                                     ("kvplane_put_seconds_count", "vllm:mooncake_store_operation_time_seconds_count",
                                      {"operation": "save_put"}),
                                     ("kvplane_store_objects", "master_key_count", {})):
            self.assertGreater(seen.sum(ours), 0, ours)
            self.assertEqual(seen.sum(ours), seen.sum(theirs, **labels), theirs)
        for level, asleep in ((1, {"awake": 0, "weights_offloaded": 1}), (2, {"awake": 0, "discard_all": 1})):
            daemon.ok(f"/sleep?level={level}")
            harness.until(f"asleep at {level}", lambda asleep=asleep: state(**asleep)(scrape()))
        self.assertEqual(scrape().sum("vllm:engine_sleep_component_state", engine="a"), 0)
        daemon.ok("/wake_up")
        harness.until("awake again", lambda: state(awake=1, weights_offloaded=0, discard_all=0)(scrape()))
        harness.until("operations are counted", lambda: all(scrape().sum(
            "vllm:rl_sleep_mode_operations_total", operation=name, status="success") == n
            for name, n in (("sleep", 2), ("wake", 1))))
        self.assertEqual(scrape().sum("vllm:rl_sleep_mode_operations_total", status="error"), 0)
        self.assertEqual(scrape().sum("vllm:sleep_mode_operation_duration_seconds_count", operation="sleep"), 2)
        self.clean(engine, daemon)

    def test_one_operation_over_a_cluster_is_one_story(self):
        etcd = self.etcd()
        store = self.store_node(etcd, "--dump-dir", self.directory)
        daemon = self.cluster_daemon(etcd, "--dump-dir", self.directory)
        harness.until("the node is up", lambda: daemon.metric("kvplane_node_up", node="store-0") == 1)
        engine = self.engine(daemon, "a", "--fingerprint")
        self.named(daemon, "a")
        self.assertGreater(engine.run(0, 20)["stored"], 0)
        self.shows(daemon, "by tcp", lambda m: m.sum("kvplane_transfers_total", direction="put", transport="tcp") > 0)
        self.shows(store, "the node has them", lambda m: m.sum("kvplane_store_puts_total", result="ok") > 0)

        daemon.ok("/sleep?level=1")
        op = self.latest(daemon)["id"]
        log = daemon.says(f" op={op} instance=a msg=\"operation ended\"")
        lines, engines = self.story(daemon, engine, op=op)
        steps = [re.search(r"step=(\S+) status=(\S+) took_ms=[\d.e-]+$", line).groups() for line in lines
                 if "operation step" in line]
        self.assertEqual([name for name, _ in steps],
                         ["pause", "drain", "leave", "reset_local", "drain", "unregister", "offload", "release"], log)
        self.assertEqual({status for _, status in steps}, {"ok"})
        self.assertIn("operation started", lines[0])
        self.assertRegex(lines[-1], r'msg="operation ended" operation=sleep status=ok took_ms=')
        self.assertEqual(len({re.search(r" req=(\S+)", line)[1] for line in lines}), 1, "of one request")
        self.assertEqual([re.search(r"call=(\S+)", line)[1] for line in engines],
                         ["pause", "reset_local", "release", "release"])
        code, shown = daemon.get(f"/v1/kvplane/operations/{op}")
        self.assertEqual((code, shown["id"], shown["request_id"]),
                         (200, op, re.search(r" req=(\S+)", lines[0])[1]))
        daemon.ok("/wake_up")

        daemon.ok("/reset_prefix_cache?reset_external=true")
        op = self.latest(daemon)["id"]
        daemon.says(f" op={op} instance=a msg=\"operation ended\"")
        lines, = self.story(daemon, op=op)
        self.assertTrue([line for line in lines if 'msg="retirement at the coordinator" status=ok' in line], lines)
        self.assertRegex(lines[-1], 'msg="operation ended" operation=reset_prefix_cache status=ok')

        for server, lists in ((daemon, {"instances": "instances", "regions": "regions", "queues": "queues", "operations": "operations",
                                        "nodes": "nodes", "tenants": "tenants"}), (store, {"events": "events"})):
            server.popen.send_signal(signal.SIGUSR1)
            log = server.says('msg="the state is written"')
            path = re.search(r'msg="the state is written" path=(\S+)', log)[1]
            with open(path, encoding="utf-8") as file:
                state = json.load(file)
            for name, key in lists.items():
                self.assertTrue(state[name][key], f"{server.name}: {name}: {state[name]}")
            self.assertEqual(state["pid"], server.pid)
            self.assertEqual(state["config"]["dump-dir"], self.directory)
            self.assertTrue([line for line in state["metrics"] if line.startswith("kvplane_build_info")])
        server.popen.send_signal(signal.SIGUSR1)
        server.says('msg="the state is written"', times=2)

        store.kill()
        self.shows(daemon, "the node is missed", lambda m: m.sum("kvplane_node_up", node="store-0") == 0)
        self.clean(engine, daemon)


if __name__ == "__main__":
    unittest.main()
