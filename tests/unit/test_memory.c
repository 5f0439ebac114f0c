/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEN = 1 << 20 };

static struct kve_memory memory;
static void init(void)
{
    cr_assert_eq(kve_memory_init(&memory, "test", "kv_cache", LEN - 1), KVB_OK);
    cr_assert_eq(kve_memory_map(&memory), KVB_OK);
}
static void cleanup(void)
{
    kve_memory_cleanup(&memory);
}
TestSuite(memory, .init = init, .fini = cleanup);

static uint64_t kernel_bytes(void)
{
    pid_t self = getpid();
    uint64_t bytes = UINT64_MAX;

    cr_assert_eq(kve_kernel_memfd_bytes(&self, 1, "kve-test-kv_cache", &bytes), KVB_OK);
    return bytes;
}

Test(memory, it_is_a_memfd_that_cannot_shrink)
{
    cr_assert_eq(memory.len, LEN);
    cr_assert_neq(fcntl(memory.fd, F_GET_SEALS) & F_SEAL_SHRINK, 0);
    cr_assert_neq(ftruncate(memory.fd, 1), 0);
}

Test(memory, what_is_mapped_after_unmapping_are_fresh_pages_at_the_same_address)
{
    unsigned char *base = memory.base;
    struct stat before, after;
    uint64_t generation = memory.generation;
    int old = dup(memory.fd);

    memset(memory.base, 0xaa, memory.len);
    kve_memory_unmap(&memory);
    cr_assert_eq(kve_memory_map(&memory), KVB_OK);
    cr_assert_eq(memory.base, base);
    cr_assert_gt(memory.generation, generation);
    cr_assert_eq(memory.base[0], 0);
    cr_assert_eq(memory.base[LEN - 1], 0);
    cr_assert_eq(fstat(old, &before), 0);
    cr_assert_eq(fstat(memory.fd, &after), 0);
    cr_assert_neq(before.st_ino, after.st_ino);
    memset(memory.base, 0xbb, memory.len);
    {
        unsigned char byte = 0;
        cr_assert_eq(pread(old, &byte, 1, 0), 1);
        cr_assert_eq(byte, 0xaa, "the old pages are not the new ones");
    }
    close(old);
}

Test(memory, unmapped_it_cannot_be_touched)
{
    int null = open("/dev/zero", O_RDWR);

    cr_assert_eq(read(null, memory.base, 1), 1);
    kve_memory_unmap(&memory);
    errno = 0;
    cr_assert_eq(read(null, memory.base, 1), -1);
    cr_assert_eq(errno, EFAULT);
    close(null);
}

Test(memory, the_kernel_counts_no_byte_of_it_once_unmapped)
{
    memset(memory.base, 1, memory.len);
    cr_assert_eq(kernel_bytes(), LEN);
    kve_memory_unmap(&memory);
    cr_assert_eq(kernel_bytes(), 0);
}

Test(memory, whoever_keeps_a_descriptor_or_a_mapping_is_counted)
{
    int copy = dup(memory.fd);
    void *map = mmap(NULL, LEN / 2, PROT_READ, MAP_SHARED, memory.fd, 0);

    cr_assert_neq(map, MAP_FAILED);
    memset(memory.base, 1, memory.len);
    kve_memory_unmap(&memory);
    cr_assert_eq(kernel_bytes(), LEN);
    close(copy);
    cr_assert_eq(kernel_bytes(), LEN / 2, "the mapping alone");
    munmap(map, LEN / 2);
    cr_assert_eq(kernel_bytes(), 0);
}

Test(memory, what_was_offloaded_comes_back)
{
    memory.base[0] = 7;
    memory.base[LEN - 1] = 8;
    cr_assert_eq(kve_memory_offload(&memory), KVB_OK);
    memory.base[0] = 9;
    cr_assert_eq(kve_memory_offload(&memory), KVB_OK, "again is as good as once");
    kve_memory_unmap(&memory);
    cr_assert_eq(kernel_bytes(), 0);
    cr_assert_eq(kve_memory_map(&memory), KVB_OK);
    cr_assert_eq(kve_memory_reload(&memory), KVB_OK);
    cr_assert_eq(memory.base[0], 9);
    cr_assert_eq(memory.base[LEN - 1], 8);
    cr_assert_lt(memory.aside_fd, 0);
}

Test(memory, renewing_keeps_the_pages_and_raises_the_generation)
{
    uint64_t generation = memory.generation;

    memory.base[5] = 5;
    kve_memory_renew(&memory);
    cr_assert_gt(memory.generation, generation);
    cr_assert_eq(memory.base[5], 5);
}

Test(memory, a_process_has_resident_memory)
{
    struct kve_kernel_memory resident;

    cr_assert_eq(kve_kernel_process_memory(getpid(), &resident), KVB_OK);
    cr_assert_gt(resident.anon, 0);
    cr_assert_eq(kve_kernel_process_memory(0x7fffffff, &resident), KVB_ERR_IO);
}
