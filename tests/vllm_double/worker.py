# SPDX-License-Identifier: Apache-2.0
"""A worker process of the engine double: the cache's memory, the model, the connector in its worker role."""
import logging
import os
import pickle
import sys
from multiprocessing.connection import Connection

import memory as memories
import model

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.outputs import KVConnectorOutput


class Worker:
    def __init__(self, config, kv_cache_config, options):
        self.config, self.blocks = config, kv_cache_config.num_blocks
        self.size = options["block_size"]
        self.weights = options["weights"]
        self.first = options["shape"] == "kv_first"
        self.asleep = set()
        self.requests = {}  # id -> (tokens, block table)
        self.memory = {}
        self.layers = {}
        for group in kv_cache_config.kv_cache_groups:
            for name in group.layer_names:
                # Two layers of one memory, as the allocator may have it; each of its own, else.
                own = memories.Memory(self.blocks * 2 * self.size * model.ROW, options["memory"] == "memfd")
                self.memory[name] = own
                shape = (2, self.blocks, self.size, model.ROW) if self.first else (self.blocks, 2, self.size, model.ROW)
                self.layers[name] = memories.torch_tensor(own, 0, shape) if options["torch"] else memories.PlainTensor(own, 0, shape)
        from kvplane.vllm import KvplaneConnector
        self.connector = KvplaneConnector(config, KVConnectorRole.WORKER, kv_cache_config)
        if options["sleep_mode"] and not KvplaneConnector.supports_sleep_mode(config):
            raise RuntimeError("KvplaneConnector does not support sleep mode")
        self.connector.register_kv_caches(self.layers)
        self.names = [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]

    def handshake(self):
        return self.connector.get_handshake_metadata()

    def _row(self, name, part, block, slot):
        plane = part * self.blocks + block if self.first else block * 2 + part
        at = (plane * self.size + slot) * model.ROW
        return slice(at, at + model.ROW)

    def _compute(self, tokens, table, first, count):
        """Rows of tokens [first, first + count), each from the one before as it lies in the cache."""
        rows = []
        for at in range(first, first + count):
            rows = []
            for layer, name in enumerate(self.names):
                view = self.views[name]
                for part in range(2):
                    before = bytes(view[self._row(name, part, table[(at - 1) // self.size], (at - 1) % self.size)]) if at else b""
                    made = model.row(self.weights, layer, part, before, tokens[at])
                    view[self._row(name, part, table[at // self.size], at % self.size)] = made
                    rows.append(made)
        return rows

    def execute_model(self, output):
        self.connector.handle_preemptions(output.kv_connector_metadata)
        for req_id in output.finished_req_ids:
            self.requests.pop(req_id, None)
        for new in output.scheduled_new_reqs:
            self.requests[new.req_id] = (list(new.prompt_token_ids), [list(ids) for ids in new.block_ids])
        cached = output.scheduled_cached_reqs
        for at, req_id in enumerate(cached.req_ids):
            tokens, table = self.requests[req_id]
            if req_id in cached.resumed_req_ids:
                table[:] = [list(ids) for ids in cached.new_block_ids[at]]
            elif cached.new_block_ids[at] is not None:
                for mine, more in zip(table, cached.new_block_ids[at]):
                    mine.extend(more)
            if req_id in cached.all_token_ids:
                tokens[:] = cached.all_token_ids[req_id]
        self.connector.bind_connector_metadata(output.kv_connector_metadata)
        sampled = {}
        self.views = {} if self.asleep else {name: one.view() for name, one in self.memory.items()}
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        starts.update(zip(cached.req_ids, cached.num_computed_tokens))
        for req_id, count in output.num_scheduled_tokens.items():
            assert not self.asleep, "scheduled onto memory that is not mapped"
            tokens, table = self.requests[req_id]
            rows = self._compute(tokens, table[0], starts[req_id], count)
            if starts[req_id] + count == len(tokens):
                sampled[req_id] = model.sample(rows)
                tokens.append(sampled[req_id])
        self.connector.start_load_kv(None)
        self.connector.wait_for_save()
        told = KVConnectorOutput()
        results = self.connector.get_transfer_results(output.finished_req_ids)
        told.finished_sending, told.finished_recving = results.finished_sending, results.finished_recving
        told.failed_recving = results.failed_recving
        told.invalid_block_ids = self.connector.get_block_ids_with_load_errors()
        told.kv_connector_stats = self.connector.get_kv_connector_stats()
        told.kv_connector_worker_meta = self.connector.build_connector_worker_meta()
        self.connector.clear_connector_metadata()
        return sampled, told

    def sleep(self, tags):
        """Hooks, then unmapping: what raises here has unmapped nothing."""
        if "kv_cache" in tags and "kv_cache" not in self.asleep:
            self.connector.release_kv_caches()
            for one in self.memory.values():
                one.unmap()
        self.asleep |= set(tags)

    def wake(self, tags):
        if "kv_cache" in tags and "kv_cache" in self.asleep:
            for one in self.memory.values():
                one.map()
        self.asleep -= set(tags)
        if "kv_cache" not in self.asleep:  # after every wake
            self.connector.restore_kv_caches()

    def call(self, name, *args):
        return getattr(self.connector, name)(*args)

    def set_weights(self, weights):
        self.weights = weights

    def shutdown(self):
        self.connector.shutdown()


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    pipe = Connection(int(sys.argv[1]))
    worker = Worker(*pickle.loads(pipe.recv_bytes()))
    pipe.send((True, None))
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            os._exit(1)  # the engine is gone
        try:
            pipe.send((True, getattr(worker, name)(*args)))
        except Exception as error:  # pylint: disable=broad-exception-caught
            import traceback
            traceback.print_exc()
            pipe.send((False, f"{type(error).__name__}: {error}"))
        if name == "shutdown":
            return


if __name__ == "__main__":
    main()
