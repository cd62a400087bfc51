/* Calls the launcher of h100_bf16 in every wrong way, and prints what it says to each. */
#include "h100_bf16.h"

#include <dlfcn.h>
#include <stdio.h>

enum { M = 128, N = 256, K = 64 };

static void say(const char *what, gemmgen_status status)
{
    printf("%s: %d %s\n", what, (int)status, status == GEMMGEN_OK ? "" : gemmgen_message());
}

int main(int count, char **words)
{
    gemmgen_kernel *kernel, *other;
    if (count != 2)
        return 2;
    say("no file", h100_bf16_load("absent.cubin", &kernel));
    say("another file", h100_bf16_load(words[0], &kernel));
    const gemmgen_status loaded = h100_bf16_load(words[1], &kernel);
    say("load", loaded);
    say("no path", h100_bf16_load(NULL, &other));
    say("no place for the kernel", h100_bf16_load(words[1], NULL));
    if (loaded != GEMMGEN_OK)
        return kernel != NULL;
    const h100_bf16_arguments right = {
        .m = M, .n = N, .k = K, .a = {1 << 20, K}, .b = {2 << 20, K}, .d = {3 << 20, N}};
#define WRONG(member, value) \
    do { \
        h100_bf16_arguments wrong = right; \
        wrong.member = value; \
        say(#member " = " #value, h100_bf16_matmul(kernel, &wrong, NULL)); \
    } while (0)
    WRONG(m, M);
    WRONG(m, -1);
    WRONG(m, INT64_C(1) << 31);
    WRONG(n, INT64_C(2147483393));
    WRONG(k, -7);
    WRONG(n, N - 4);
    WRONG(m, 0);
    WRONG(n, 0);
    WRONG(a.address, 0);
    WRONG(a.address, 8);
    WRONG(b.row_stride, K - 8);
    WRONG(b.row_stride, K + 4);
    WRONG(d.row_stride, N + 1);
    WRONG(d.address, 0);
    WRONG(d.row_stride, INT64_C(-256));
    WRONG(b.address, 0);
    say("no kernel", h100_bf16_matmul(NULL, &right, NULL));
    say("a kernel that was not loaded", h100_bf16_matmul(other, &right, NULL));
    say("no arguments", h100_bf16_matmul(kernel, NULL, NULL));
    say("no stream, which is the default one", h100_bf16_matmul(kernel, &right, NULL));
    h100_bf16_arguments row = right;
    row.m = 1;
    row.a.row_stride = row.d.row_stride = 0; /* of a single row, anything */
    say("one row", h100_bf16_matmul(kernel, &row, NULL));
    gemmgen_unload(kernel);
    gemmgen_unload(NULL);
    return 0;
}
