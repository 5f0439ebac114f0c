# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass


@dataclass
class BlockStored:
    block_hashes: list
    parent_block_hash: object
    token_ids: list
    block_size: int
    lora_id: object
    medium: object
    lora_name: object


@dataclass
class AllBlocksCleared:
    pass
