# SPDX-License-Identifier: Apache-2.0
"""A double of what vLLM gives a KV connector, written from facts (docs/vllm-facts.md). No vLLM code is in here."""
__version__ = "0+double"
