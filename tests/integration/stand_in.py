# SPDX-License-Identifier: Apache-2.0
"""`vllm serve …` and `python3 -m sglang.launch_server …` as the README writes them: what is not an option of theirs is refused,
and behind them are the servers of fake_servers.py; of a vLLM with a connector also the double of its engine (tests/vllm_double), which
runs that connector."""
import argparse
import json
import os
import subprocess
import sys
import threading
import uuid

import fake_servers

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def vllm(words):
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--enable-sleep-mode", action="store_true")
    parser.add_argument("--kv-transfer-config", type=json.loads)
    options = parser.parse_args(words)
    assert os.environ.get("VLLM_SERVER_DEV_MODE") == "1", "without it vLLM has none of these routes"
    assert options.enable_sleep_mode, "without it /sleep is a 500"
    if options.kv_transfer_config is not None:
        double(**options.kv_transfer_config)
    return fake_servers.Vllm(options.port)


def double(kv_connector, kv_connector_module_path, kv_role, kv_load_failure_policy, kv_connector_extra_config):
    assert (kv_connector, kv_connector_module_path) == ("KvplaneConnector", "kvplane.vllm")
    engine = {"block_size": 16, "blocks": 64, "weights": "v0", "policy": kv_load_failure_policy, "kv_role": kv_role, "ranks": 1,
              "engine_id": str(uuid.uuid4()), "shape": "kv_first", "memory": "memfd", "torch": False, "sleep_mode": True,
              "extra": kv_connector_extra_config}
    at = os.path.join(TESTS, "vllm_double")
    # It ends with its stdin, so with this process.
    double.process = subprocess.Popen([sys.executable, os.path.join(at, "engine.py"), json.dumps(engine)], stdin=subprocess.PIPE,
                                      stdout=subprocess.DEVNULL,
                                      env={**os.environ, "PYTHONPATH": f"{at}:{os.environ['PYTHONPATH']}"})


def sglang(words):
    parser = argparse.ArgumentParser(prog="sglang.launch_server", allow_abbrev=False)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--enable-memory-saver", action="store_true")
    options = parser.parse_args(words)
    assert options.enable_memory_saver, "without it nothing can be released"
    return fake_servers.Sglang(options.port)


def main(kind, words):
    server = {"vllm": vllm, "sglang": sglang}[kind](words)
    print(f"ready {server.url}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
