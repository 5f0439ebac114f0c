# SPDX-License-Identifier: Apache-2.0
"""Memory of a KV cache that sleeps as a GPU's does: the address stays, the pages go and others come."""
import ctypes
import mmap
import os

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
SHARED, PRIVATE, FIXED, ANONYMOUS = 1, 2, 16, 32


class Memory:
    def __init__(self, length, shared):
        self.length = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        self.shared = shared
        self.fd = -1
        self.address = self._map(None)

    def _map(self, at):
        fixed = 0 if at is None else FIXED
        if self.shared:
            self.fd = os.memfd_create("vllm_kv_cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, self.length)
            address = LIBC.mmap(at, self.length, 3, SHARED | fixed, self.fd, 0)
        else:
            address = LIBC.mmap(at, self.length, 3, PRIVATE | ANONYMOUS | fixed, -1, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap")
        return address

    def unmap(self):
        """Touching it is an error from now on."""
        LIBC.mmap(self.address, self.length, 0, PRIVATE | ANONYMOUS | FIXED, -1, 0)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def map(self):
        """Other pages, with something in them that no model has computed."""
        self._map(self.address)
        ctypes.memset(self.address, 0xEE, self.length)

    def view(self):
        return memoryview((ctypes.c_char * self.length).from_address(self.address)).cast("B")


class Storage:
    def __init__(self, address, length):
        self._address, self._length = address, length

    def data_ptr(self):
        return self._address

    def nbytes(self):
        return self._length


class PlainTensor:
    """As much of torch.Tensor as a connector asks, where there is no torch."""

    def __init__(self, memory, offset, shape, width=1):
        self._memory, self._offset, self.shape, self._width = memory, offset, shape, width

    def stride(self):
        steps, step = [], 1
        for n in reversed(self.shape):
            steps.insert(0, step)
            step *= n
        return tuple(steps)

    def element_size(self):
        return self._width

    def data_ptr(self):
        return self._memory.address + self._offset

    def untyped_storage(self):
        return Storage(self._memory.address, self._memory.length)


def torch_tensor(memory, offset, shape):
    import torch
    length = 1
    for n in shape:
        length *= n
    whole = torch.frombuffer((ctypes.c_ubyte * memory.length).from_address(memory.address), dtype=torch.uint8)
    return whole[offset:offset + length].view(*shape)
