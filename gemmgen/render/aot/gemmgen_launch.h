/* The launcher of the kernels that `gemmgen export` writes: one for all of them, over the CUDA driver API.
 *
 * A kernel NAME comes with NAME.h, which has the structure of its arguments and its functions, and NAME.c, which
 * has its facts. Compile NAME.c and gemmgen_launch.c into the program, and link libdl.
 *
 * gemmgen writes this file beside exported kernels: it is the same for all kernels of one release.
 */
#ifndef GEMMGEN_LAUNCH_H
#define GEMMGEN_LAUNCH_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Result of a function; `gemmgen_message` has the details, with names and numbers. */
typedef enum {
    GEMMGEN_OK = 0,            /* done, or launched */
    GEMMGEN_NO_DRIVER = 1,     /* libcuda.so.1 cannot be loaded, or is too old */
    GEMMGEN_DRIVER_FAILED = 2, /* a call of the driver failed */
    GEMMGEN_WRONG_CUBIN = 3,   /* the file cannot be read, or is another one */
    GEMMGEN_WRONG_DEVICE = 4,  /* the current context's GPU cannot run the kernel */
    GEMMGEN_NO_MEMORY = 5,     /* the host is out of memory */
    GEMMGEN_BAD_EXTENT = 6,    /* M, N, K or the number of groups is out of range */
    GEMMGEN_BAD_ADDRESS = 7,   /* a pointer is NULL, or an address is 0 or not aligned */
    GEMMGEN_BAD_STRIDE = 8,    /* rows overlap, or are not a multiple of 16 bytes apart */
    GEMMGEN_BAD_WORKSPACE = 9, /* the workspace is too small, or missing */
} gemmgen_status;

/* A matrix in the GPU's memory, row by row; the elements of a row are contiguous. */
typedef struct {
    CUdeviceptr address;
    int64_t row_stride; /* elements from one row to the next; any number if there is a single row */
} gemmgen_matrix;

/* Memory for partial sums that programs of one launch exchange; calls that may overlap need one each. */
typedef struct {
    CUdeviceptr address;
    size_t bytes;
    int64_t counters; /* at its start; all are 0 before a call and after it */
} gemmgen_workspace;

/* A kernel, loaded into one context. */
typedef struct gemmgen_kernel gemmgen_kernel;

/* Unload a kernel, in the context that it was loaded into; no call may be running. NULL is ignored. */
void gemmgen_unload(gemmgen_kernel *kernel);

/* Make a workspace for an M x N D of memory at a multiple of 256 bytes: set the memory to zero, on a stream, once
 * for all calls. The kernel's NAME_workspace_bytes returns the bytes that the memory must have. */
gemmgen_status gemmgen_prepare_workspace(const gemmgen_kernel *kernel, int64_t m, int64_t n, CUdeviceptr address,
                                         size_t bytes, CUstream stream, gemmgen_workspace *workspace);

/* Return the message of the last call that failed in this thread; empty if none has. */
const char *gemmgen_message(void);

/* --- Facts of a kernel, which NAME.c has. A caller needs nothing of what follows. */

typedef enum { GEMMGEN_M, GEMMGEN_N, GEMMGEN_K } gemmgen_axis;

/* Rows or columns in memory: times * the axis, in blocks of `per`, rounded up; if `of_groups`, for each group. */
typedef struct {
    gemmgen_axis axis;
    int times, per, of_groups;
} gemmgen_extent;

/* How a tensor is passed to the kernel. */
typedef enum {
    GEMMGEN_VECTOR,          /* a descriptor of one dimension */
    GEMMGEN_MATRIX,          /* a descriptor of rows and columns */
    GEMMGEN_BOX_OF_GROUP,    /* a descriptor of boxes: the rows of a group each */
    GEMMGEN_BOX_AT_ROW,      /* a descriptor of boxes of `box_rows` rows, one that begins with each row */
    GEMMGEN_BOX_BEFORE_ROW,  /* a descriptor of boxes of `box_rows` rows, one that ends before each row, and one
                              * that ends with the last row: D of groups, whose tiles end at any row */
    GEMMGEN_POINTER,         /* its address */
    GEMMGEN_PARTIAL_SUMS,    /* the address of the sums in the workspace */
    GEMMGEN_COUNTERS,        /* the address of the counters in the workspace */
} gemmgen_passing;

/* An argument of the kernel. */
typedef struct {
    const char *name; /* in messages */
    gemmgen_passing passing;
    int element_bytes;
    size_t member; /* its place in the structure of arguments */
    gemmgen_extent rows, columns; /* a vector has columns only */
    CUtensorMapDataType type;
    CUtensorMapSwizzle swizzle;
    cuuint32_t box[3]; /* the contiguous dimension first */
    int box_rows;
    int alignment;        /* of a pointer, in bytes */
    const char *pointee;  /* a pointer's elements, in words */
} gemmgen_argument;

typedef struct {
    uint64_t cubin_fnv1a; /* digest of the cubin */
    size_t cubin_bytes;
    int capability_major, capability_minor;
    const gemmgen_argument *arguments; /* in the kernel's order */
    int argument_count;
    int d; /* the place of D among them */

    int64_t max_extent;       /* TMA coordinates have 32 bits, and a tile may overhang */
    int64_t most_groups;      /* 0: the structure of arguments has no `groups` */
    int b_blocks;             /* columns of B for each column of D */
    int column_unit;          /* N is a multiple of it */
    const char *column_rule;  /* the reason, in words */
    const char *k_rule;       /* the reason why K must not be 0; NULL if D is zero then */

    int tile_m, tile_n, tile_k; /* of D by one program at a time, and of K by a step */
    int tiles_together;         /* tiles along N that are computed one after the other */
    int is_single_tile;         /* the problem must fit into one tile */
    int counts_rows_of_groups;  /* groups are ranges of the rows of D */
    int splits;                 /* programs of a tile: each multiplies a part of K */
    int is_persistent;          /* a program computes many tiles */
    int programs_per_sm;        /* of a persistent kernel, without clusters */
    int64_t most_programs;      /* 0: no limit besides the GPU's */

    size_t workspace;       /* its place in the structure of arguments; 0: none */
    int consumers;          /* counters of a tile */
    int64_t sum_bytes;      /* sums of a consumer's part of a tile */
    int sums_per_counter;   /* such sums in the workspace for each counter */

    int cluster_ctas, threads, smem_bytes;
    int is_dependent; /* may start before the previous kernel in the stream ends */
} gemmgen_facts;

/* Load a kernel from its cubin into the current context. */
gemmgen_status gemmgen_load(const gemmgen_facts *facts, const char *path, gemmgen_kernel **kernel);

/* Launch a kernel; `arguments` is the structure of its header, which begins with m, n, k and `groups`. */
gemmgen_status gemmgen_matmul(const gemmgen_facts *facts, const gemmgen_kernel *kernel, const void *arguments,
                              CUstream stream);

/* Return the bytes of a workspace for an M x N D; 0 if M or N is out of range. */
size_t gemmgen_workspace_bytes(const gemmgen_facts *facts, int64_t m, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
