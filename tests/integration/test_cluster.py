# SPDX-License-Identifier: Apache-2.0
"""Store nodes, daemons, engines and etcd as real processes: what a person sees of a cluster."""
import contextlib
import os
import signal
import subprocess
import unittest

import harness


def nodes(daemon):
    code, answer = daemon.get("/v1/kvplane/nodes")
    return {node["name"]: node for node in answer["nodes"]} if code == 200 else {}


class Cluster(harness.Case):
    def up(self, daemon, *names):
        harness.until(f"{names} up at {daemon.name}", lambda: all(
            nodes(daemon).get(name, {}).get("state") == "up" for name in names))

    def named(self, daemon, instance):
        harness.until(f"{instance} shares", lambda: daemon.metric(
            "kvplane_instance_shared", instance=instance) == 1)

    def reads(self, daemon):
        """One that nobody has read for a second leaves: its reader must have begun."""
        harness.until("it reads", lambda: daemon.metric("kvplane_gets_total", result="ok") > 0)

    def right(self, counts):
        self.assertEqual((counts["stale"], counts["torn"], counts["errors"]), (0, 0, 0))
        return counts

    def status(self, daemon, *args):
        return subprocess.run([harness.PROGRAM, "status", "--url", daemon.tap(), *args],
                              capture_output=True, text=True, timeout=harness.DEADLINE_S)

    @staticmethod
    def lives(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def test_what_an_engine_put_the_engine_of_another_daemon_gets(self):
        etcd = self.etcd()
        stores = [self.store_node(etcd, name=f"store-{i}") for i in range(2)]
        near = self.daemon("--etcd", etcd.endpoints, "--cluster-listen", "127.0.0.1:0",
                           "--node-name", "near", name="near", socket_name="near.sock")
        far = self.cluster_daemon(etcd, name="far")
        for daemon in (near, far):
            self.up(daemon, "store-0", "store-1", "near")
        a = self.engine(near, "a", "--fingerprint")
        b = self.engine(far, "b", "--fingerprint")
        self.named(near, "a")
        self.named(far, "b")
        put = self.right(a.run(0, 60))
        got = self.right(b.run(0, 60))
        self.assertGreater(put["stored"], 0)
        self.assertGreater(got["hits"], 0)
        self.assertEqual(got["stored"], 0, "all of it was there")
        for store in stores:
            self.assertGreater(store.metric("kvplane_store_objects"), 0, "placed on each")
        self.assertGreater(near.metric("kvplane_store_objects"), 0, "and on the daemon's own share")
        objects = sum(node.metric("kvplane_store_objects") for node in [near, *stores])
        harness.until("the figures of all nodes", lambda: sum(
            node["objects"] for node in nodes(far).values()) == objects)

        shown = self.status(far).stdout
        self.assertIn("cluster: coordinator etcd, 3 of 3 nodes up", shown)
        for name in ("near", "store-0", "store-1"):
            self.assertRegex(shown, rf"(?m)^  {name} +127\.0\.0\.1:\d+ +up +tcp +64 MiB ")
        harness.until("instances of both daemons", lambda: all(
            f"  {name}" in self.status(far).stdout.split("instances")[1] for name in "ab"))
        self.assertRegex(shown, r"(?m)^  default +1 +[\d.]+ [KM]iB +\d+ +-$")
        self.assertIn('"coordinator":"etcd"', self.status(far, "--json").stdout)

        there = stores[0].metric("kvplane_store_objects")
        stored = next(event for event in stores[0].get("/v1/kvplane/events")[1]["events"]
                      if event["event"] == "stored")  # lineages are retired, too
        where = "&".join(f"{k}={stored[k]}" for k in ("tenant", "layout", "lineage", "key",
                                                         "group", "part"))
        self.assertEqual(stores[0].get(f"/v1/kvplane/objects?{where}"),
                         (200, {"exists": True, "bytes": stored["bytes"]}))
        code, found = far.get(f"/v1/kvplane/objects?{where}")
        self.assertEqual((code, found["bytes"], found["nodes_silent"]), (200, stored["bytes"], 0))
        self.assertEqual({node["node"]: node["result"] for node in found["nodes"]},
                         {"store-0": "ok", "store-1": "not_found", "near": "not_found"})
        lineage = far.instance("b")["lineage"]["id"]
        self.assertEqual(far.get(f"/v1/kvplane/objects?key={stored['key']}")[1]["lineage"], lineage)
        self.assertEqual(len(self.listed(far, 7)), objects, "a node says once what it has")
        self.assertIn({**{k: stored[k] for k in ("tenant", "layout", "lineage", "key", "group",
                                                 "part", "bytes")},
                       "pin": "none", "node": "store-0"}, self.listed(far, 1000))
        stores[1].popen.send_signal(signal.SIGSTOP)
        page = {}

        def without_one():
            page.update(far.get("/v1/kvplane/objects?namespace=default&limit=1000")[1])
            return ("store-1" in [node["node"] for node in page["silent"]] and
                    {row["node"] for row in page["objects"]} == {"near", "store-0"})
        harness.until("the others answer in time", without_one)
        code, part = far.post(f"/v1/kvplane/objects/remove?{where}&force=true")
        stores[1].popen.send_signal(signal.SIGCONT)
        self.assertEqual((code, part["nodes_silent"]), (503, 1), part)
        self.assertEqual({node["node"]: node["result"] for node in part["nodes"]}["store-0"], "ok")
        harness.until("nobody has it", lambda: far.post(
            f"/v1/kvplane/objects/remove?{where}&force=true")[0] == 404)
        self.assertEqual(stores[0].get(f"/v1/kvplane/objects?{where}")[0], 404)
        there = stores[0].metric("kvplane_store_objects")
        self.assertEqual(stores[0].ok("/v1/kvplane/objects/remove?tenant=other&pattern=*"),
                         {"status": "removed", "removed": 0, "kept": 0})
        removed = stores[0].ok("/v1/kvplane/objects/remove?tenant=default&pattern=*&force=true")
        self.assertEqual(removed, {"status": "removed", "removed": there, "kept": 0})
        self.assertEqual(stores[0].metric("kvplane_store_objects"), 0)
        self.clean(a, b, near, far, *stores)

    def listed(self, daemon, limit):
        """All objects of the default tenant, by pages of so many."""
        rows, path = [], f"/v1/kvplane/objects?namespace=default&limit={limit}"
        cursor = ""
        while cursor is not None:
            page = harness.until("each node answers in time", lambda at=path + cursor: next(
                (page for code, page in [daemon.get(at)]
                 if (code, page["nodes_silent"]) == (200, 0)), None))
            self.assertLessEqual(len(page["objects"]), limit)
            rows += page["objects"]
            cursor = page["next"] and f"&cursor={page['next']}"
        return rows

    def test_b42_a_store_that_was_killed_and_came_back_takes_puts_again(self):
        etcd = self.etcd()
        store = self.store_node(etcd)
        daemon = self.cluster_daemon(etcd)
        self.up(daemon, "store-0")
        engine = self.engine(daemon, "a", "--fingerprint")
        self.named(daemon, "a")
        self.assertGreater(self.right(engine.run(0, 20))["stored"], 0)
        harness.until("connections counted", lambda: daemon.metric(
            "kvplane_connections_total", node="store-0", transport="tcp", event="connects") >= 1)

        def detail():
            return daemon.get("/v1/kvplane/nodes/store-0")[1]
        life = detail()["incarnation"]
        self.assertEqual([(way["transport"], way["up"], way["lanes"] > 0)
                          for way in detail()["ways"]], [("tcp", True, True)])

        store.kill()
        harness.until("seen to be down", lambda: nodes(daemon)["store-0"]["state"] == "down")
        self.assertEqual([(way["up"], way["lanes"]) for way in detail()["ways"]], [(False, 0)])
        counts = self.right(engine.run(20, 10))
        self.assertEqual(counts["missed"]["timeout"], 0, "each call fails at once")
        self.assertEqual((counts["stored"], counts["hits"]), (0, 0))
        self.assertEqual(daemon.get("/livez")[0], 200)
        self.assertEqual(daemon.get("/health")[0], 200)

        port = store.url  # another port for REST, the same name for the cluster
        store = self.store_node(etcd)
        self.assertNotEqual(port, store.url)
        self.up(daemon, "store-0")
        self.assertNotEqual(detail()["incarnation"], life, "another life")
        self.assertGreater(self.right(engine.run(30, 20))["stored"], 0)
        other = self.engine(daemon, "b", "--fingerprint")
        self.named(daemon, "b")
        self.assertGreater(self.right(other.run(30, 20))["hits"], 0)
        self.clean(other, engine, daemon, store)

    def test_b42_a_store_at_the_same_address_is_reconnected_to_and_that_is_counted(self):
        etcd = self.etcd()
        port = harness.free_ports(1)[0]
        store = self.store_node(etcd, cluster_port=port)
        daemon = self.cluster_daemon(etcd)
        self.up(daemon, "store-0")
        engine = self.engine(daemon, "a", "--fingerprint")
        self.named(daemon, "a")
        store.popen.send_signal(signal.SIGSTOP)
        harness.until("silent", lambda: nodes(daemon)["store-0"]["state"] in ("down", "sick"))
        self.right(engine.run(0, 5))
        self.assertEqual(daemon.get("/livez")[0], 200)
        store.popen.send_signal(signal.SIGCONT)
        harness.until("reconnects counted", lambda: daemon.metric(
            "kvplane_connections_total", node="store-0", transport="tcp", event="connects") >= 2)
        first = iter(range(5, 200, 2))  # a sick node is tried again, by one call
        harness.until("puts work again", lambda: self.right(engine.run(next(first), 2))["stored"])
        self.up(daemon, "store-0")
        self.clean(engine, daemon, store)

    def test_a_node_that_leaves_takes_nothing_new_and_is_read_while_it_does(self):
        etcd = self.etcd()
        leaves = self.store_node(etcd, "--drain-bound", "60s", name="leaves")
        daemon = self.cluster_daemon(etcd)
        self.up(daemon, "leaves")
        a = self.engine(daemon, "a", "--fingerprint")
        b = self.engine(daemon, "b", "--fingerprint")
        self.named(daemon, "a")
        self.named(daemon, "b")
        put = self.right(a.run(0, 40))
        stays = self.store_node(etcd, name="stays")
        self.up(daemon, "stays")
        objects = leaves.metric("kvplane_store_objects")

        reading = b.command("run", first=0, count=40)
        self.reads(daemon)
        self.assertEqual(leaves.ok("/v1/kvplane/drain"), {"status": "draining"})
        with contextlib.suppress(OSError):  # on a busy machine nobody may read for a while: it has gone
            self.assertEqual(leaves.get("/livez")[0], 200)
            self.assertEqual(leaves.get("/readyz")[0], 503)
        got = self.right(b.wait(reading))
        self.assertEqual(leaves.popen.wait(harness.DEADLINE_S), 0, leaves.stderr())
        self.assertGreater(put["stored"], 0)
        self.assertGreater(objects, 0)
        self.assertGreater(got["hits"], 0)
        harness.until("gone for all", lambda: "leaves" not in nodes(daemon))
        after = self.right(a.run(40, 20))
        self.assertGreater(after["stored"], 0)
        self.assertGreater(stays.metric("kvplane_store_objects"), 0)
        self.clean(a, b, daemon, stays)

    def test_a_daemon_that_ends_lets_others_read_its_share(self):
        etcd = self.etcd()
        leaves = self.daemon("--etcd", etcd.endpoints, "--cluster-listen", "127.0.0.1:0",
                             "--node-name", "leaves", "--share-drain-bound", "60s",
                             name="leaves", socket_name="leaves.sock")
        daemon = self.cluster_daemon(etcd)
        self.up(daemon, "leaves")
        a = self.engine(leaves, "a", "--fingerprint")
        b = self.engine(daemon, "b", "--fingerprint")
        self.named(leaves, "a")
        self.named(daemon, "b")
        self.assertGreater(self.right(a.run(0, 40))["stored"], 0)
        stays = self.store_node(etcd, name="stays")
        self.up(daemon, "stays")

        reading = b.command("run", first=0, count=40)
        self.reads(daemon)
        leaves.popen.send_signal(signal.SIGTERM)
        leaves.says("the share leaves")
        with contextlib.suppress(OSError):  # on a busy machine nobody may read for a while: it has gone
            self.assertEqual(leaves.get("/readyz")[0], 503)
            self.assertEqual(leaves.get("/livez")[0], 200)
            self.assertEqual(leaves.post("/sleep")[0], 503)
        got = self.right(b.wait(reading))
        self.assertGreater(got["hits"], 0)
        self.assertEqual(leaves.popen.wait(harness.DEADLINE_S), 0, leaves.stderr())
        harness.until("gone for all", lambda: "leaves" not in nodes(daemon))
        self.assertGreater(self.right(b.run(40, 20))["stored"], 0)
        self.clean(a, b, daemon, stays)

    def test_a_second_signal_ends_the_waiting_for_others(self):
        etcd = self.etcd()
        port = harness.free_ports(1)[0]
        net = self.proxy(f"127.0.0.1:{port}")
        leaves = self.daemon("--etcd", etcd.endpoints, "--cluster-listen", f"127.0.0.1:{port}",
                             "--advertise", net.address, "--node-name", "leaves",
                             "--share-drain-bound", "1h", name="leaves", socket_name="leaves.sock")
        daemon = self.cluster_daemon(etcd)
        self.up(daemon, "leaves")
        a = self.engine(daemon, "a", "--fingerprint")
        self.named(daemon, "a")
        net.rule("there", after=20000, then="freeze")  # in the middle of a put
        a.command("run", first=0, count=40)
        harness.until("it is used", lambda: leaves.metric("kvplane_node_requests_running") > 0)
        leaves.popen.send_signal(signal.SIGTERM)
        leaves.says("the share leaves")
        self.assertIsNone(leaves.popen.poll())
        leaves.popen.send_signal(signal.SIGTERM)
        self.assertEqual(leaves.popen.wait(harness.DEADLINE_S), 0, leaves.stderr())
        for over in ("read no more", "its bound is over"):
            self.assertNotIn(over, leaves.stderr())

    def test_everything_starts_without_etcd_and_joins_when_it_comes(self):
        etcd = self.etcd()
        etcd.kill()
        store = self.store_node(etcd)
        daemon = self.cluster_daemon(etcd)
        engine = self.engine(daemon, "a", "--fingerprint")
        for process in (store, daemon):
            self.assertEqual(process.get("/livez")[0], 200)
            self.assertEqual(process.metric("kvplane_etcd_reachable"), 0)
        code, answer = store.get("/readyz")
        self.assertEqual(code, 503)
        self.assertIn("etcd has not been reached", answer["reasons"][0])
        other = self.cluster_daemon(etcd, name="other")
        far = self.engine(other, "b", "--fingerprint")
        self.right(engine.run(0, 5))
        self.assertIn("(CANNOT BE REACHED)", self.status(daemon).stdout)
        etcd.restart()
        self.up(daemon, "store-0")
        self.named(daemon, "a")
        self.named(other, "b")
        harness.until("b is known", lambda: any(
            i["instance"] == "b" and i.get("state") == "serving"
            for i in daemon.get("/v1/kvplane/cluster")[1]["instances"]))
        harness.until("ready", lambda: store.get("/readyz")[0] == 200)
        self.assertGreater(self.right(engine.run(5, 20))["stored"], 0)

        etcd.kill()
        harness.until("away", lambda: daemon.metric("kvplane_etcd_reachable") == 0)
        self.right(engine.run(25, 10))
        self.assertEqual(nodes(daemon)["store-0"]["state"], "up", "nobody is gone")
        answer = daemon.ok("/sleep?level=1")
        self.assertEqual(answer["status"], "sleeping")
        shown = {i["instance"]: i for i in daemon.get("/v1/kvplane/cluster")[1]["instances"]}
        self.assertEqual((shown["a"]["own"], shown["a"]["state"], shown["a"]["age_s"]),
                         (True, "asleep", 0))
        self.assertEqual((shown["b"]["own"], shown["b"]["state"]), (False, "serving"))
        self.assertGreater(shown["b"]["age_s"], 0)
        self.assertRegex(self.status(daemon).stdout, r"(?m)^  b +default +serving +[\d.]+ s ago ")
        self.assertEqual(daemon.ok("/wake_up")["status"], "awake")
        etcd.restart()
        self.named(daemon, "a")
        self.clean(engine, far, daemon, other, store)

    def test_an_etcd_that_is_slow_is_not_away(self):
        etcd = self.etcd()
        net = self.proxy(etcd.members[0].url.removeprefix("http://"))
        net.rule("back", delay_ms=1300)
        etcd.endpoints = f"http://{net.address}"
        daemon = self.cluster_daemon(etcd)
        engine = self.engine(daemon, "a", "--fingerprint")
        self.named(daemon, "a")
        self.assertEqual(daemon.ok("/reset_prefix_cache?reset_external=true")["external"], "done")
        self.named(daemon, "a")
        self.assertEqual(daemon.stderr().count("etcd reached"), 1)
        self.clean(engine, daemon)

    def test_a_wrong_secret_is_refused_and_the_log_says_so(self):
        def secret(name, text):
            path = os.path.join(self.directory, name)
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)
            return path
        etcd = self.etcd()
        store = self.store_node(etcd, "--secret-file", secret("right", "open sesame\n"))
        wrong = self.cluster_daemon(etcd, "--secret-file", secret("wrong", "open barley"),
                                    name="wrong")
        right = self.cluster_daemon(etcd, "--secret-file", secret("same", "open sesame"),
                                    name="right")
        self.up(right, "store-0")
        harness.until("told of", lambda: "store-0" in nodes(wrong))
        wrong.says("not the same secret")
        store.says("not the same secret")
        self.assertEqual(nodes(wrong)["store-0"]["state"], "down")
        engine = self.engine(wrong, "a", "--fingerprint")
        self.named(wrong, "a")
        counts = self.right(engine.run(0, 5))
        self.assertEqual((counts["stored"], counts["hits"]), (0, 0))
        self.assertNotIn("sesame", store.stderr() + wrong.stderr() + right.stderr())
        self.clean(engine, wrong, right, store)

    def test_a_quota_is_one_for_the_whole_cluster(self):
        etcd = self.etcd()
        stores = [self.store_node(etcd, name=f"store-{i}") for i in range(2)]
        daemon = self.cluster_daemon(etcd, "--tenants", "default=2MiB")
        self.up(daemon, "store-0", "store-1")

        def tenant():
            return daemon.get("/v1/kvplane/tenants/default")[1]
        engine = self.engine(daemon, "a", "--fingerprint")
        self.named(daemon, "a")
        harness.until("the quota is known", lambda: tenant().get("quota_bytes") == 2 << 20)
        self.right(engine.run(0, 120))
        used = harness.until("figures", lambda: tenant().get("used_bytes"))
        self.assertGreater(used, 1 << 20)
        self.assertLessEqual(used, 2 << 20)
        self.assertEqual(tenant()["nodes_silent"], 0)

        daemon.ok("/v1/kvplane/tenants/default/quota?quota_bytes=3000000")
        harness.until("another quota", lambda: tenant().get("quota_bytes") == 3000000)
        lineage = daemon.instance("a")["lineage"]["id"]
        daemon.ok("/pause?instance=a")
        left = harness.until("it has left", lambda: tenant()["left"])[0]
        self.assertEqual((left["instance"], left["id"], left["reason"]), ("a", lineage, "pause"))
        self.assertIn("weights_name", left)
        code, answer = daemon.post("/v1/kvplane/tenants/default/remove")
        self.assertEqual(code, 409)
        self.assertIn("a", answer["error"]["message"])
        self.assertEqual(tenant()["quota_bytes"], 3000000)
        self.clean(engine)
        harness.until("detached", lambda: not daemon.instance("a")["attached"])
        daemon.ok("/v1/kvplane/tenants/default/remove")
        harness.until("nothing is left of it", lambda: (
            tenant()["used_bytes"], tenant()["lineages"], tenant().get("quota_bytes")) ==
            (0, [], None))
        self.clean(daemon, *stores)

    def test_dev_cluster_starts_one_and_ends_exactly_what_it_started(self):
        def free_row():
            """A port from which on all that ./dev cluster uses are free."""
            for base in range(21000 + os.getpid() % 900 * 10, 32000, 40):
                if all(harness.claimed(port) for port in (base + ten + i for ten in (0, 10, 20, 30) for i in range(3))):
                    return base
            raise AssertionError("no free ports")
        dev = os.path.join(os.path.dirname(__file__), "..", "..", "dev")
        base = free_row()
        where = os.path.join(self.directory, "cluster")
        environment = {**os.environ, "KVPLANE_PROGRAM": os.path.abspath(harness.PROGRAM)}

        def cluster(*args):
            return subprocess.run([dev, "cluster", *args, "--dir", where], env=environment,
                                  capture_output=True, text=True, timeout=600)
        up = cluster("up", "--port", str(base), "--store-bytes", "64MiB")
        self.assertEqual(up.returncode, 0, up.stderr)
        with open(os.path.join(where, "pids"), encoding="utf-8") as lines:
            pids = [int(line.split()[0]) for line in lines]
        self.assertEqual(len(pids), 6)
        self.assertEqual(cluster("up").returncode, 1, "not twice")
        etcd = up.stdout.split("cluster up: etcd ")[1].splitlines()[0]
        daemon = self.daemon("--etcd", etcd, "--secret-file", os.path.join(where, "secret"),
                             store_bytes="0")
        self.up(daemon, "store-0", "store-1", "store-2")
        down = cluster("down")
        self.assertEqual(down.returncode, 0, down.stderr)
        self.assertFalse([pid for pid in pids if self.lives(pid)])
        self.assertFalse(os.path.exists(where))
        self.assertEqual(daemon.get("/livez")[0], 200)
        self.assertEqual(cluster("down").returncode, 1)
        self.clean(daemon)

    def test_what_cannot_be_is_said_at_start(self):
        def refused(code, words, *args):
            run = subprocess.run([harness.PROGRAM, *args], capture_output=True, text=True,
                                 timeout=harness.DEADLINE_S)
            self.assertEqual(run.returncode, code, run.stderr)
            self.assertIn(words, run.stderr)
        etcd = self.etcd()
        store = self.store_node(etcd)
        address = nodes_address = store.get("/v1/kvplane/node")[1]["address"]
        self.assertTrue(nodes_address)
        refused(1, "Address already in use", "store", "--listen", "127.0.0.1:0",
                "--cluster-listen", address)
        refused(1, "Address already in use", "store", "--listen", store.url.split("//")[1],
                "--cluster-listen", "127.0.0.1:0")
        refused(1, "/nonexistent", "store", "--listen", "127.0.0.1:0", "--cluster-listen",
                "127.0.0.1:0", "--secret-file", "/nonexistent")
        refused(1, "nr_hugepages", "store", "--listen", "127.0.0.1:0", "--cluster-listen",
                "127.0.0.1:0", "--huge-pages", "--store-bytes", "1TiB")
        for program in (["store", "--cluster-listen", "127.0.0.1:0"], ["serve"]):
            refused(1, "more memory than this machine has", *program, "--listen", "127.0.0.1:0",
                    "--store-bytes", "60TiB", "--shards", "256")
        refused(2, "one of: auto loopback", "serve", "--transport", "rdma")
        refused(2, "one of: auto rdma tcp", "store", "--transport", "nvlink")
        if not os.path.isdir("/sys/class/infiniband") or not os.listdir("/sys/class/infiniband"):
            for program in (["store", "--cluster-listen", "127.0.0.1:0"],
                            ["serve", "--etcd", etcd.endpoints, "--store-bytes", "0"]):
                refused(1, "there is no rdma here", *program, "--listen", "127.0.0.1:0",
                        "--transport", "rdma")
        refused(2, "--cluster-listen", "serve", "--etcd", etcd.endpoints)
        self.clean(store)


if __name__ == "__main__":
    unittest.main(verbosity=2)
