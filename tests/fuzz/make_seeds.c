/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_seeds FOLDER: writes the seeds of fuzz_link and fuzz_frame below it. Run by hand when the
 * link changes. */
#include "link_reencode.h"

#include "base/frame.h"

#include <stdio.h>
#include <stdlib.h>

static void write_seed(const char *folder, const char *target, int number, const uint8_t *data,
                       size_t len)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/seed-%02d", folder, target, number);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, len, file) != len || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
        return 2;
    }
    for (enum link_codec codec = 0; codec < LINK_CODECS; codec++) {
        struct kvb_writer out;
        kvb_writer_init(&out, 4096);
        kvb_put_u8(&out, (uint8_t)codec);
        link_sample(codec, &out);
        write_seed(argv[1], "fuzz_link", codec, out.data, out.len);
        kvb_writer_cleanup(&out);
    }
    static const struct kvb_frame frames[] = {{1, 0, 1, 0}, {6, KVB_FRAME_REPLY, 77, 4096}};
    for (int i = 0; i < 2; i++) {
        uint8_t header[KVB_FRAME_HEADER_LEN];
        kvb_frame_pack(&frames[i], header);
        write_seed(argv[1], "fuzz_frame", i, header, sizeof header);
    }
    return 0;
}
