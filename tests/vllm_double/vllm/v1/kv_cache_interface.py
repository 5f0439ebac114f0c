# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass


@dataclass
class FullAttentionSpec:
    block_size: int
    num_kv_heads: int = 1
    head_size: int = 32
    dtype: str = "uint8"
    page_size_bytes: int = 0
