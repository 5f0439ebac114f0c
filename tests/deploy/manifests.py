# SPDX-License-Identifier: Apache-2.0
"""What kustomize makes of deploy/kubernetes: valid, safe by the Pod Security level `restricted`, and true to the program.

usage: manifests.py OVERLAY FILE…   (FILE: the output of `kubectl kustomize`; - : stdin)
"""
import json
import pathlib
import re
import sys

import jsonschema
import yaml

import program

HERE = pathlib.Path(__file__).parent
# Secrets are the cluster's, never of this repository: what they must hold.
SECRETS = {"kvplane-tokens": {"tokens"}, "kvplane-secret": {"secret"},
           "kvplane-etcd": {"ca.crt", "tls.crt", "tls.key", "password"}}
# What an overlay may do that `restricted` forbids.
MAY = {"rdma": {"root", "IPC_LOCK"}}
# The end of a process beside its drain: answers that are owed, and etcd (server/http/http.h, server/storage.c). The daemon's
# bound for transfers of engines runs beside share-drain-bound.
STOP_S = {"serve": (("share-drain-bound", "15s"), 8), "store": (("drain-bound", "0s"), 8)}


class Check:
    def __init__(self, overlay, objects):
        self.overlay = overlay
        self.may = MAY.get(overlay, set())
        self.objects = objects
        self.where = ""
        self.bad = []

    def want(self, truth, text):
        if not truth:
            self.bad.append(f"{self.overlay}: {self.where}: {text}")
        return truth

    def of_kind(self, kind):
        return [thing for thing in self.objects if thing["kind"] == kind]

    # ---- objects ----

    def schema(self):
        definitions = json.loads((HERE / "kubernetes-schema.json").read_text(encoding="utf-8"))
        for thing in self.objects:
            kind = thing.get("kind", "")
            self.where = f"{kind}/{thing.get('metadata', {}).get('name')}"
            if self.want("apiVersion" in definitions["definitions"].get(kind, {}).get("properties", {}),
                         "not a kind that is used here (RBAC-free, and no Secrets)"):
                validator = jsonschema.Draft7Validator({**definitions, "$ref": f"#/definitions/{kind}"})
                for error in validator.iter_errors(thing):
                    self.want(False, f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}")
        return not self.bad

    def names(self):
        seen = [(thing["kind"], thing["metadata"]["name"]) for thing in self.objects]
        self.where = "names"
        self.want(len(seen) == len(set(seen)), "an object twice")
        for thing in self.objects:
            self.where = f"{thing['kind']}/{thing['metadata']['name']}"
            labels = thing["metadata"].get("labels", {})
            self.want(thing["kind"] == "ConfigMap" or labels.get("app.kubernetes.io/part-of") == "kvplane",
                      "no label app.kubernetes.io/part-of: kvplane")

    def selects(self, selector, what):
        """The pods of exactly one set are meant."""
        hit = [s for s in self.of_kind("StatefulSet")
               if selector.items() <= s["spec"]["template"]["metadata"]["labels"].items()]
        self.want(selector and len(hit) == 1, f"{what}: selects the pods of {len(hit)} sets")
        return hit[0] if len(hit) == 1 else None

    def services(self):
        for service in self.of_kind("Service"):
            self.where = f"Service/{service['metadata']['name']}"
            chosen = self.selects(service["spec"]["selector"], "selector")
            ports = {p["name"]: p["containerPort"] for c in containers(chosen) for p in c.get("ports", [])} if chosen else {}
            for port in service["spec"]["ports"]:
                self.want(port["targetPort"] in ports, f"targetPort {port['targetPort']}: no such port there")
                self.want(ports.get(port["targetPort"]) == port["port"], f"port {port['port']} is not the container's")
        for budget in self.of_kind("PodDisruptionBudget"):
            self.where = f"PodDisruptionBudget/{budget['metadata']['name']}"
            self.selects(budget["spec"]["selector"]["matchLabels"], "selector")
            self.want(budget["spec"].get("maxUnavailable") == 1, "one at a time")

    def policies(self):
        for policy in self.of_kind("NetworkPolicy"):
            self.where = f"NetworkPolicy/{policy['metadata']['name']}"
            spec = policy["spec"]
            chosen = self.selects(spec["podSelector"].get("matchLabels", {}), "podSelector")
            if not chosen:
                continue
            ports = {p["containerPort"] for c in containers(chosen) for p in c.get("ports", [])}
            admitted = set()
            for rule in spec.get("ingress", []):
                self.want(rule.get("from") and all(f.get("podSelector", {}).get("matchLabels") for f in rule["from"]),
                          "a rule that admits everybody")
                self.want(rule.get("ports"), "a rule for every port")
                admitted |= {p["port"] for p in rule.get("ports", [])}
            self.want(admitted == ports, f"admits to ports {sorted(admitted)}, the containers have {sorted(ports)}")
            self.want("Ingress" in spec["policyTypes"], "does not keep anybody out")
            if "Egress" in spec["policyTypes"]:
                out = {p["port"] for rule in spec.get("egress", []) for p in rule.get("ports", [])}
                self.want({53, 2379} <= out, "etcd or names cannot be reached")
        guarded = {p["spec"]["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/name")
                   for p in self.of_kind("NetworkPolicy")}
        for thing in self.of_kind("StatefulSet"):
            self.where = f"StatefulSet/{thing['metadata']['name']}"
            self.want(thing["metadata"]["name"] in guarded, "no NetworkPolicy")

    # ---- pods ----

    def sets(self):
        for thing in self.of_kind("StatefulSet"):
            self.where = f"StatefulSet/{thing['metadata']['name']}"
            spec = thing["spec"]
            labels = spec["template"]["metadata"]["labels"]
            self.want(spec["selector"]["matchLabels"].items() <= labels.items(), "selects other pods than it makes")
            self.want(spec["serviceName"] in {s["metadata"]["name"] for s in self.of_kind("Service")}, "no such Service")
            self.pod(spec["template"]["spec"])
            if thing["metadata"]["name"] == "kvplane-store":
                self.spread(spec["template"]["spec"], labels)
                self.want("kvplane-store" in {b["metadata"]["name"] for b in self.of_kind("PodDisruptionBudget")},
                          "no PodDisruptionBudget")

    def spread(self, pod, labels):
        terms = pod.get("affinity", {}).get("podAntiAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])
        self.want(any(term["topologyKey"] == "kubernetes.io/hostname"
                      and term["labelSelector"]["matchLabels"].items() <= labels.items() for term in terms),
                  "two store nodes may be on one host")
        self.want(pod.get("topologySpreadConstraints"), "not spread over zones")

    def pod(self, pod):
        self.want(pod.get("automountServiceAccountToken") is False, "automountServiceAccountToken: false is missing")
        self.want(pod.get("enableServiceLinks") is False, "Services would put KVPLANE_… into the environment: "
                                                          "enableServiceLinks: false is missing")
        self.want("serviceAccountName" not in pod, "a service account: nothing here calls the API server")
        self.want(not (pod.get("hostNetwork") or pod.get("hostPID") or pod.get("hostIPC")
                       or pod.get("shareProcessNamespace")), "shares a namespace")
        volumes = {v["name"]: v for v in pod.get("volumes", [])}
        for volume in volumes.values():
            self.volume(volume)
        mounted = set()
        set_where = self.where
        for container in containers({"spec": {"template": {"spec": pod}}}):
            self.where = f"{set_where}/{container['name']}"
            self.container(container, pod)
            for mount in container.get("volumeMounts", []):
                self.want(mount["name"] in volumes, f"volumeMount {mount['name']}: no such volume")
                mounted.add(mount["name"])
        self.where = set_where
        self.want(mounted == set(volumes), f"volumes that nobody mounts: {set(volumes) - mounted}")
        self.socket(pod)

    def volume(self, volume):
        if "configMap" in volume:
            self.want(volume["configMap"]["name"] in {c["metadata"]["name"] for c in self.of_kind("ConfigMap")},
                      f"volume {volume['name']}: no such ConfigMap")
        elif "secret" in volume:
            self.want(volume["secret"]["secretName"] in SECRETS, f"volume {volume['name']}: a Secret that is not documented")
            self.want(volume["secret"].get("defaultMode") == 0o440, f"volume {volume['name']}: mode 0440")
        else:
            self.want("emptyDir" in volume and "sizeLimit" in volume["emptyDir"], f"volume {volume['name']}: neither a "
                      "ConfigMap, a Secret nor an emptyDir with a limit")

    def container(self, container, pod):
        self.want(container["image"] == f"kvplane:{program.version()}", f"image {container['image']}: not the version here")
        security = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        root = security.get("runAsUser", 0) == 0 or security.get("runAsNonRoot") is not True
        self.want(not root or "root" in self.may, "runs as root")
        self.want(security.get("seccompProfile", {}).get("type") == "RuntimeDefault", "no seccomp profile")
        self.want(security.get("allowPrivilegeEscalation") is False, "allowPrivilegeEscalation")
        self.want(security.get("readOnlyRootFilesystem") is True, "readOnlyRootFilesystem")
        self.want(security.get("privileged") is not True, "privileged")
        capabilities = security.get("capabilities", {})
        self.want(capabilities.get("drop") == ["ALL"], "capabilities are not dropped")
        self.want(set(capabilities.get("add", [])) <= self.may, f"capabilities {capabilities.get('add')}")
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        self.want("cpu" in requests and "memory" in requests and "memory" in limits, "resources: requests or limits")
        self.want(requests.get("memory") == limits.get("memory"), "memory beyond what is requested can be taken away")
        for name, value in limits.items():
            self.want("/" not in name and not name.startswith("hugepages-") or requests.get(name) == value,
                      f"{name}: its request must be its limit")
        self.variables(container)
        if "startupProbe" in container and command_of(container) == "engine":
            self.probe(container["startupProbe"], "startup", {8100: "rest"}, "serve", "/startupz")
        if command_of(container) in program.PROGRAMS:
            self.settings(container, pod)
            self.probes(container)

    def variables(self, container):
        known = set()
        for variable in container.get("env", []):
            for name in re.findall(r"\$\((\w+)\)", str(variable.get("value", ""))):
                self.want(name in known, f"{variable['name']}: $({name}) is not set before it")
            known.add(variable["name"])
            source = variable.get("valueFrom", {}).get("configMapKeyRef")
            if source:
                maps = {c["metadata"]["name"]: c.get("data", {}) for c in self.of_kind("ConfigMap")}
                self.want(source["key"] in maps.get(source["name"], {}), f"{variable['name']}: not in that ConfigMap")
        for argument in container.get("args", []):
            for name in re.findall(r"\$\((\w+)\)", argument):
                self.want(name in known, f"{argument}: $({name}) is not set")

    # ---- true to the program ----

    def settings(self, container, pod):
        """Each key is one of the program's, each file is in a volume, and there is room for the store."""
        command = command_of(container)
        known = program.keys(command)
        values = {key: default for key, (_, default) in known.items()}
        given = self.config(container, pod)
        for variable in container.get("env", []):
            if variable["name"].startswith("KVPLANE_"):
                given[variable["name"][8:].lower().replace("_", "-")] = variable.get("value", "from a ConfigMap")
        for argument in container["args"][1:]:
            key, _, value = argument.removeprefix("--").partition("=")
            if key != "config":
                given[key] = value
        for key, value in given.items():
            if self.want(key in known, f"{key}: not a key of kvplane {command}"):
                values[key] = json.dumps(value) if isinstance(value, bool) else str(value)
        self.want(values["insecure"] == "false", "insecure")
        self.want(values["token-file"] or values["listen"].startswith("127."), "no tokens")
        files = mounted_files(container, pod)
        for key, value in values.items():
            if key.endswith("-file") and value:
                self.want(value in files, f"{key}: {value} is in no mounted Secret")
        self.room(container, values)
        bounds, rest = STOP_S[command]
        needed = max(program.seconds(values.get(bound, bound)) for bound in bounds) + rest
        self.want(pod.get("terminationGracePeriodSeconds", 30) > needed,
                  f"terminationGracePeriodSeconds: its end takes up to {needed:g} s")

    def config(self, container, pod):
        """The file that --config names."""
        path = next((a.partition("=")[2] for a in container["args"] if a.startswith("--config=")), None)
        maps = {c["metadata"]["name"]: c.get("data", {}) for c in self.of_kind("ConfigMap")}
        for mount in container.get("volumeMounts", []):
            volume = next((v for v in pod["volumes"] if v["name"] == mount["name"]), {})
            for name, text in maps.get(volume.get("configMap", {}).get("name"), {}).items():
                if path == f"{mount['mountPath']}/{name}":
                    return json.loads(text)
        self.want(path is None, f"{path}: in no mounted ConfigMap")
        return {}

    def room(self, container, values):
        limits = container["resources"]["limits"]
        share = program.amount(values["store-bytes"])
        huge = values.get("huge-pages") == "true"
        self.want(huge == ("hugepages-2Mi" in limits), "huge pages: the key huge-pages and the limit hugepages-2Mi "
                                                       "belong together")
        if huge:
            self.want(program.amount(limits.get("hugepages-2Mi", "0")) >= share, "hugepages-2Mi: less than store-bytes")
        else:
            self.want(program.amount(limits["memory"]) >= share * 1.2 + 2**28,
                      "memory: store-bytes, a fifth of it for the index, and 256Mi do not fit")

    def probes(self, container):
        command = command_of(container)
        ports = {p["name"]: p["name"] for p in container.get("ports", [])}
        # A sidecar that is started first cannot wait for the engine; sleeping is healthy, not ready.
        paths = {"startup": "/livez", "liveness": "/livez", "readiness": "/health" if command == "serve" else "/readyz"}
        for kind, path in paths.items():
            if self.want(f"{kind}Probe" in container, f"no {kind} probe"):
                self.probe(container[f"{kind}Probe"], kind, ports, command, path)
        if container.get("restartPolicy"):
            self.want(container["restartPolicy"] == "Always", "an init container that ends")

    def probe(self, probe, kind, ports, command, path):
        get = probe.get("httpGet", {})
        self.want(get.get("path") in program.probes(command), f"{kind} probe: {get.get('path')} is no probe of kvplane {command}")
        self.want(get.get("path") == path, f"{kind} probe: {path} is meant")
        self.want(get.get("port") in ports, f"{kind} probe: no port {get.get('port')}")

    def socket(self, pod):
        """Engine and daemon meet at one socket, in one volume, and nobody else is there."""
        places = {}
        for container in containers({"spec": {"template": {"spec": pod}}}):
            where = {m["mountPath"]: m["name"] for m in container.get("volumeMounts", [])}
            path = None
            if command_of(container) == "serve":
                path = self.config(container, pod).get("engine-socket")
            elif command_of(container) == "engine":
                path = next((a.partition("=")[2] for a in container["args"] if a.startswith("--socket=")), None)
            if path:
                directory, _, name = path.rpartition("/")
                places[container["name"]] = (where.get(directory), name)
        if places:
            self.want(len(places) == 2 and len(set(places.values())) == 1 and None not in dict(places.values()),
                      f"the engine socket is not one file for both: {places}")


def containers(thing):
    pod = thing["spec"]["template"]["spec"]
    return pod.get("initContainers", []) + pod.get("containers", [])


def command_of(container):
    return (container.get("args") or [""])[0]


def mounted_files(container, pod):
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod.get("volumes", []) if "secret" in v}
    return {f"{m['mountPath']}/{key}" for m in container.get("volumeMounts", []) if m["name"] in secrets
            for key in SECRETS.get(secrets[m["name"]], ())}


def main():
    overlay, files = sys.argv[1], sys.argv[2:]
    objects = []
    for name in files:
        text = sys.stdin.read() if name == "-" else pathlib.Path(name).read_text(encoding="utf-8")
        objects += [thing for thing in yaml.safe_load_all(text) if thing]
    check = Check(overlay, objects)
    if check.schema():  # else nothing can be relied on
        for look in (check.names, check.services, check.policies, check.sets):
            look()
    for line in check.bad:
        print(line)
    return 1 if check.bad or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
