# SPDX-License-Identifier: Apache-2.0
"""`vllm serve …` and `python3 -m sglang.launch_server …` as the README writes them: what is not an option of theirs is refused,
and behind them are the servers of fake_servers.py."""
import argparse
import importlib
import json
import os
import sys
import threading

import fake_servers


def vllm(words):
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--enable-sleep-mode", action="store_true")
    parser.add_argument("--kv-transfer-config", type=json.loads)
    options = parser.parse_args(words)
    if options.kv_transfer_config is not None:
        module = importlib.import_module(options.kv_transfer_config["kv_connector_module_path"])
        assert hasattr(module, options.kv_transfer_config["kv_connector"])
    assert os.environ.get("VLLM_SERVER_DEV_MODE") == "1", "without it vLLM has none of these routes"
    assert options.enable_sleep_mode, "without it /sleep is a 500"
    return fake_servers.Vllm(options.port)


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
