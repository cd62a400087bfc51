/* Checks arguments, describes tensors to TMA and launches a kernel, by the facts of the kernel.
 *
 * gemmgen writes this file beside exported kernels: it is the same for all kernels of one release.
 */
#include "gemmgen_launch.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_ARGUMENTS = 16,
    MOST_PARAMETERS = 7 * MOST_ARGUMENTS + 2,
    TMA_BYTES = 16,        /* addresses and strides of descriptors are multiples of it */
    WORKSPACE_BYTES = 256, /* likewise the address of a workspace, and of the sums in it */
};

typedef gemmgen_status Status;
typedef gemmgen_argument Argument;
typedef gemmgen_facts Facts;

/* The driver's functions, found when a kernel is loaded: the program links on a machine without a GPU. */
typedef struct {
    CUresult (*get_error_string)(CUresult, const char **);
    CUresult (*driver_get_version)(int *);
    CUresult (*ctx_get_device)(CUdevice *);
    CUresult (*device_get_attribute)(int *, CUdevice_attribute, CUdevice);
    CUresult (*module_load_data)(CUmodule *, const void *);
    CUresult (*module_unload)(CUmodule);
    CUresult (*module_get_function)(CUfunction *, CUmodule, const char *);
    CUresult (*func_set_attribute)(CUfunction, CUfunction_attribute, int);
    CUresult (*func_set_cache_config)(CUfunction, CUfunc_cache);
    CUresult (*tensor_map_encode_tiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                        const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                        const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                        CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    CUresult (*launch_kernel_ex)(const CUlaunchConfig *, CUfunction, void **, void **);
    CUresult (*memset_d8_async)(CUdeviceptr, unsigned char, size_t, CUstream);
    CUresult (*memset_d2d8_async)(CUdeviceptr, size_t, unsigned char, size_t, size_t, CUstream);
} Driver;

struct gemmgen_kernel {
    const Facts *facts;
    Driver driver;
    int driver_version;
    CUmodule module;
    CUfunction function;
    int64_t sm_count;
};

/* The extents of a call. */
typedef struct {
    int64_t m, n, k, groups;
} Shape;

#ifdef __cplusplus /* the file may also be compiled as C++ */
static thread_local char message[256];
#else
static _Thread_local char message[256];
#endif

const char *gemmgen_message(void)
{
    return message;
}

/* Keep a message, and return the status. */
__attribute__((format(printf, 2, 3))) static Status fail(Status status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    return status;
}

static Status driver_failed(const Driver *driver, const char *call, CUresult result)
{
    const char *text = NULL;
    if (driver->get_error_string(result, &text) != CUDA_SUCCESS || text == NULL)
        text = "an error that it has no text for";
    return fail(GEMMGEN_DRIVER_FAILED, "%s: the driver reports %d, %s", call, (int)result, text);
}

/* --- Loading */

/* Return the machine code of a kernel, to be freed; NULL if the file does not hold it. */
static void *read_cubin(const Facts *facts, const char *path)
{
    FILE *file = fopen(path, "rb");
    unsigned char *cubin = (unsigned char *)malloc(facts->cubin_bytes + 1);
    const size_t found = file && cubin ? fread(cubin, 1, facts->cubin_bytes + 1, file) : 0;
    uint64_t digest = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < found; i++)
        digest = (digest ^ cubin[i]) * UINT64_C(1099511628211);
    if (file)
        fclose(file);
    if (found == facts->cubin_bytes && digest == facts->cubin_fnv1a)
        return cubin;
    free(cubin);
    return NULL;
}

static Status find_driver(Driver *driver)
{
    const struct {
        const char *name;
        void *place;
    } functions[] = {
        {"cuGetErrorString", &driver->get_error_string},
        {"cuDriverGetVersion", &driver->driver_get_version},
        {"cuCtxGetDevice", &driver->ctx_get_device},
        {"cuDeviceGetAttribute", &driver->device_get_attribute},
        {"cuModuleLoadData", &driver->module_load_data},
        {"cuModuleUnload", &driver->module_unload},
        {"cuModuleGetFunction", &driver->module_get_function},
        {"cuFuncSetAttribute", &driver->func_set_attribute},
        {"cuFuncSetCacheConfig", &driver->func_set_cache_config},
        {"cuTensorMapEncodeTiled", &driver->tensor_map_encode_tiled},
        {"cuLaunchKernelEx", &driver->launch_kernel_ex},
        {"cuMemsetD8Async", &driver->memset_d8_async},
        {"cuMemsetD2D8Async", &driver->memset_d2d8_async},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return fail(GEMMGEN_NO_DRIVER, "libcuda.so.1 cannot be loaded: %s", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (symbol == NULL)
            return fail(GEMMGEN_NO_DRIVER, "libcuda.so.1 has no %s: install a newer driver", functions[i].name);
        memcpy(functions[i].place, &symbol, sizeof symbol);
    }
    return GEMMGEN_OK;
}

/* Check that the GPU of the current context can run the kernel. */
static Status check_device(gemmgen_kernel *kernel)
{
    const Facts *facts = kernel->facts;
    const Driver *driver = &kernel->driver;
    CUdevice device;
    int major = 0, minor = 0, sm_count = 0;
    CUresult result = driver->ctx_get_device(&device);
    if (result != CUDA_SUCCESS)
        return driver_failed(driver, "cuCtxGetDevice", result);
    result = driver->device_get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (result == CUDA_SUCCESS)
        result = driver->device_get_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (result == CUDA_SUCCESS)
        result = driver->device_get_attribute(&sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    if (result != CUDA_SUCCESS)
        return driver_failed(driver, "cuDeviceGetAttribute", result);
    if (major != facts->capability_major || minor != facts->capability_minor)
        return fail(GEMMGEN_WRONG_DEVICE, "this kernel needs compute capability %d.%d, found %d.%d",
                    facts->capability_major, facts->capability_minor, major, minor);
    kernel->sm_count = sm_count;
    result = driver->driver_get_version(&kernel->driver_version);
    return result == CUDA_SUCCESS ? GEMMGEN_OK : driver_failed(driver, "cuDriverGetVersion", result);
}

static Status load_function(gemmgen_kernel *kernel, const void *cubin)
{
    const Driver *driver = &kernel->driver;
    CUresult result = driver->module_load_data(&kernel->module, cubin);
    if (result != CUDA_SUCCESS)
        return driver_failed(driver, "cuModuleLoadData", result);
    result = driver->module_get_function(&kernel->function, kernel->module, "matmul_kernel");
    if (result != CUDA_SUCCESS)
        return driver_failed(driver, "cuModuleGetFunction", result);
    /* A kernel gets more than 48 KiB of shared memory only on request. */
    result = driver->func_set_cache_config(kernel->function, CU_FUNC_CACHE_PREFER_SHARED);
    if (result != CUDA_SUCCESS)
        return driver_failed(driver, "cuFuncSetCacheConfig", result);
    result = driver->func_set_attribute(kernel->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                        kernel->facts->smem_bytes);
    return result == CUDA_SUCCESS ? GEMMGEN_OK : driver_failed(driver, "cuFuncSetAttribute", result);
}

Status gemmgen_load(const Facts *facts, const char *path, gemmgen_kernel **loaded)
{
    if (loaded == NULL)
        return fail(GEMMGEN_BAD_ADDRESS, "kernel must be the address of a pointer, found NULL");
    *loaded = NULL;
    if (path == NULL)
        return fail(GEMMGEN_BAD_ADDRESS, "path must be the name of a file, found NULL");
    void *cubin = read_cubin(facts, path);
    if (cubin == NULL)
        return fail(GEMMGEN_WRONG_CUBIN, "%s is not the cubin that this launcher was made with", path);
    gemmgen_kernel *kernel = (gemmgen_kernel *)calloc(1, sizeof *kernel);
    Status status = GEMMGEN_OK;
    if (kernel == NULL)
        status = fail(GEMMGEN_NO_MEMORY, "the host has no memory for the kernel");
    else
        kernel->facts = facts;
    if (status == GEMMGEN_OK)
        status = find_driver(&kernel->driver);
    if (status == GEMMGEN_OK)
        status = check_device(kernel);
    if (status == GEMMGEN_OK)
        status = load_function(kernel, cubin);
    free(cubin);
    if (status == GEMMGEN_OK)
        *loaded = kernel;
    else
        gemmgen_unload(kernel);
    return status;
}

void gemmgen_unload(gemmgen_kernel *kernel)
{
    if (kernel && kernel->module)
        kernel->driver.module_unload(kernel->module);
    free(kernel);
}

/* --- Extents and the grid */

static int64_t divided_up(int64_t amount, int64_t by)
{
    return (amount + by - 1) / by;
}

static int64_t least(int64_t left, int64_t right)
{
    return left < right ? left : right;
}

/* Return an extent of one group, or of the whole tensor if it has no dimension for groups. */
static int64_t size_of_one(const gemmgen_extent *extent, const Shape *shape)
{
    const int64_t axes[] = {shape->m, shape->n, shape->k};
    return divided_up(extent->times * axes[extent->axis], extent->per);
}

static int64_t size_of(const gemmgen_extent *extent, const Shape *shape)
{
    return (extent->of_groups ? shape->groups : 1) * size_of_one(extent, shape);
}

static Status check_extent(const Facts *facts, const char *name, int64_t extent)
{
    if (extent < 0 || extent > facts->max_extent)
        return fail(GEMMGEN_BAD_EXTENT, "%s must be from 0 to %lld, found %lld", name,
                    (long long)facts->max_extent, (long long)extent);
    return GEMMGEN_OK;
}

static Status check_extents(const Facts *facts, const Shape *shape)
{
    char name[16] = "n";
    int64_t columns;
    if (facts->b_blocks > 1)
        snprintf(name, sizeof name, "%d x n", facts->b_blocks);
    if (__builtin_mul_overflow(shape->n, facts->b_blocks, &columns))
        columns = shape->n < 0 ? INT64_MIN : INT64_MAX;
    Status status = check_extent(facts, "m", shape->m);
    if (status == GEMMGEN_OK)
        status = check_extent(facts, name, columns);
    if (status == GEMMGEN_OK)
        status = check_extent(facts, "k", shape->k);
    if (status == GEMMGEN_OK && facts->is_single_tile &&
        (shape->m > facts->tile_m || shape->n > facts->tile_n || shape->k > facts->tile_k))
        return fail(GEMMGEN_BAD_EXTENT, "this kernel takes M, N and K up to %d, %d and %d, found %lld, %lld and %lld",
                    facts->tile_m, facts->tile_n, facts->tile_k, (long long)shape->m, (long long)shape->n,
                    (long long)shape->k);
    return status;
}

static Status check_groups(const Facts *facts, const Shape *shape)
{
    if (shape->groups < 1 || shape->groups > facts->most_groups)
        return fail(GEMMGEN_BAD_EXTENT, "groups must be from 1 to %lld, found %lld", (long long)facts->most_groups,
                    (long long)shape->groups);
    for (int i = 0; i < facts->argument_count; i++) {
        const Argument *argument = &facts->arguments[i];
        const int64_t rows = size_of(&argument->rows, shape);
        if (argument->rows.of_groups && rows > facts->max_extent)
            return fail(GEMMGEN_BAD_EXTENT, "%s must have up to %lld rows of all groups, found %lld", argument->name,
                        (long long)facts->max_extent, (long long)rows);
    }
    return GEMMGEN_OK;
}

static int64_t tiles_of(const Facts *facts, const Shape *shape)
{
    int64_t along_m = divided_up(shape->m, facts->tile_m);
    const int64_t along_n =
        facts->tiles_together * divided_up(shape->n, (int64_t)facts->tiles_together * facts->tile_n);
    if (facts->counts_rows_of_groups) /* each group has at most one tile that is not full, and none without rows */
        along_m = least(shape->m / facts->tile_m + shape->groups, shape->m);
    else if (facts->most_groups)
        along_m *= shape->groups;
    return along_m * along_n;
}

/* Return how many programs run. */
static int64_t programs_of(const Facts *facts, int64_t sm_count, const Shape *shape)
{
    if (facts->is_single_tile)
        return 1;
    int64_t programs = tiles_of(facts, shape) * facts->splits;
    if (!facts->is_persistent)
        return programs;
    programs = least(programs, sm_count / facts->cluster_ctas * facts->programs_per_sm);
    return facts->most_programs ? least(programs, facts->most_programs) : programs;
}

/* --- The workspace */

static int64_t counters_of(const Facts *facts, int64_t m, int64_t n)
{
    const Shape shape = {m, n, 0, 1};
    return tiles_of(facts, &shape) * facts->consumers;
}

/* Return the bytes from the start of a workspace to its sums. */
static size_t counter_bytes(int64_t counters)
{
    return (size_t)divided_up(counters * (int64_t)sizeof(int32_t), WORKSPACE_BYTES) * WORKSPACE_BYTES;
}

size_t gemmgen_workspace_bytes(const Facts *facts, int64_t m, int64_t n)
{
    const Shape shape = {m, n, 0, 1};
    if (check_extents(facts, &shape) != GEMMGEN_OK)
        return 0;
    const int64_t counters = counters_of(facts, m, n);
    return counter_bytes(counters) + (size_t)(counters * facts->sums_per_counter) * (size_t)facts->sum_bytes;
}

Status gemmgen_prepare_workspace(const gemmgen_kernel *kernel, int64_t m, int64_t n, CUdeviceptr address,
                                 size_t bytes, CUstream stream, gemmgen_workspace *workspace)
{
    if (kernel == NULL)
        return fail(GEMMGEN_BAD_ADDRESS, "kernel must be a loaded one, found NULL");
    if (workspace == NULL)
        return fail(GEMMGEN_BAD_ADDRESS, "workspace must be the address of a structure, found NULL");
    const Facts *facts = kernel->facts;
    const Shape shape = {m, n, 0, 1};
    const Status status = check_extents(facts, &shape);
    if (status != GEMMGEN_OK)
        return status;
    if (facts->workspace == 0)
        return fail(GEMMGEN_BAD_WORKSPACE, "this kernel takes no workspace");
    const size_t needed = gemmgen_workspace_bytes(facts, m, n);
    if (address == 0 || address % WORKSPACE_BYTES != 0)
        return fail(GEMMGEN_BAD_ADDRESS, "the workspace must start at a multiple of %d bytes", WORKSPACE_BYTES);
    if (bytes < needed)
        return fail(GEMMGEN_BAD_WORKSPACE, "a workspace for %lld x %lld takes %zu bytes, found %zu", (long long)m,
                    (long long)n, needed, bytes);
    const CUresult result = kernel->driver.memset_d8_async(address, 0, bytes, stream);
    if (result != CUDA_SUCCESS)
        return driver_failed(&kernel->driver, "cuMemsetD8Async", result);
    workspace->address = address;
    workspace->bytes = bytes;
    workspace->counters = counters_of(facts, m, n);
    return GEMMGEN_OK;
}

static Status check_workspace(const Facts *facts, const Shape *shape, const gemmgen_workspace *workspace)
{
    if (workspace->address == 0 || workspace->counters < counters_of(facts, shape->m, shape->n))
        return fail(GEMMGEN_BAD_WORKSPACE, "workspace must be for %lld x %lld, found %lld counters",
                    (long long)shape->m, (long long)shape->n, (long long)workspace->counters);
    return GEMMGEN_OK;
}

/* --- Descriptors of tensors */

/* A tensor as the kernel takes it: the descriptor, its extents and its strides, the contiguous dimension last. */
typedef struct {
    CUtensorMap map;
    int32_t extents[3];
    int64_t strides[3];
} Described;

static Status check_address(const char *name, CUdeviceptr address)
{
    if (address == 0)
        return fail(GEMMGEN_BAD_ADDRESS, "%s must have memory, found address 0", name);
    if (address % TMA_BYTES != 0)
        return fail(GEMMGEN_BAD_ADDRESS, "%s must start at a multiple of 16 bytes, found %d bytes past one", name,
                    (int)(address % TMA_BYTES));
    return GEMMGEN_OK;
}

/* Check the distance of the rows of a matrix; a single row gets a legal one. */
static Status check_rows(const Argument *argument, int64_t rows, int64_t columns, int64_t *row_stride)
{
    const int64_t unit = TMA_BYTES / argument->element_bytes;
    if (rows == 1)
        *row_stride = divided_up(columns, unit) * unit;
    if (*row_stride < columns)
        return fail(GEMMGEN_BAD_STRIDE, "%s must not overlap itself, found rows of %lld, %lld apart",
                    argument->name, (long long)columns, (long long)*row_stride);
    if (*row_stride % unit != 0)
        return fail(GEMMGEN_BAD_STRIDE, "%s must have rows a multiple of 16 bytes apart, found %lld elements",
                    argument->name, (long long)*row_stride);
    return GEMMGEN_OK;
}

static int rank_of(const Argument *argument)
{
    switch (argument->passing) {
    case GEMMGEN_VECTOR:
        return 1;
    case GEMMGEN_MATRIX:
        return 2;
    case GEMMGEN_BOX_OF_GROUP:
    case GEMMGEN_BOX_AT_ROW:
    case GEMMGEN_BOX_BEFORE_ROW:
        return 3;
    default:
        return 0; /* passed by an address */
    }
}

/* Make the descriptor of a tensor at an address, with the extents and strides of `described`. */
static Status encode(const gemmgen_kernel *kernel, const Argument *argument, CUdeviceptr address,
                     Described *described)
{
    cuuint64_t sizes[3], stride_bytes[3];
    cuuint32_t steps[3];
    int64_t span = 1; /* bytes from the first element to the last one */
    const int rank = rank_of(argument);
    for (int i = 0; i < rank; i++) { /* TMA counts from the contiguous dimension */
        const int64_t extent = described->extents[rank - 1 - i];
        const int64_t bytes = described->strides[rank - 1 - i] * argument->element_bytes;
        sizes[i] = (cuuint64_t)extent;
        steps[i] = 1;
        span += (extent - 1) * bytes;
        if (i > 0)
            stride_bytes[i - 1] = (cuuint64_t)bytes;
    }
    const CUresult result = kernel->driver.tensor_map_encode_tiled(
        &described->map, argument->type, (cuuint32_t)rank, (void *)(uintptr_t)address, sizes, stride_bytes,
        argument->box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, argument->swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return driver_failed(&kernel->driver, "cuTensorMapEncodeTiled", result);
    /* Drivers up to CUDA 13.1 set a bit that is wrong for tensors of less than 128 KiB; Triton and CUTLASS
     * clear it. */
    if (kernel->driver_version <= 13010 && span < 128 * 1024)
        described->map.opaque[1] &= ~(UINT64_C(1) << 21);
    return GEMMGEN_OK;
}

static Status describe_vector(const gemmgen_kernel *kernel, const Argument *argument, const Shape *shape,
                              CUdeviceptr address, Described *described)
{
    const Status status = check_address(argument->name, address);
    if (status != GEMMGEN_OK)
        return status;
    described->extents[0] = (int32_t)size_of(&argument->columns, shape);
    described->strides[0] = 1;
    return encode(kernel, argument, address, described);
}

/* Describe a matrix as it is, or as boxes of its rows, which may overlap. */
static Status describe_matrix(const gemmgen_kernel *kernel, const Argument *argument, const Shape *shape,
                              gemmgen_matrix matrix, Described *described)
{
    const int64_t rows = size_of(&argument->rows, shape), columns = size_of(&argument->columns, shape);
    Status status = check_address(argument->name, matrix.address);
    if (status == GEMMGEN_OK)
        status = check_rows(argument, rows, columns, &matrix.row_stride);
    if (status != GEMMGEN_OK)
        return status;
    int64_t boxes = 1, box_rows = rows, apart = 0; /* from the first row of a box to that of the next one */
    CUdeviceptr first = matrix.address;
    if (argument->passing == GEMMGEN_BOX_OF_GROUP) {
        boxes = shape->groups;
        box_rows = apart = size_of_one(&argument->rows, shape);
    } else if (argument->passing == GEMMGEN_BOX_AT_ROW) {
        boxes = rows;
        box_rows = argument->box_rows;
        apart = 1;
    } else if (argument->passing == GEMMGEN_BOX_BEFORE_ROW) {
        boxes = rows + 1;
        box_rows = argument->box_rows;
        apart = 1;
        /* The first box lies ahead of the matrix, where the kernel reads and writes nothing. */
        first -= (CUdeviceptr)(box_rows * matrix.row_stride * argument->element_bytes);
    }
    const int64_t extents[] = {boxes, box_rows, columns};
    const int64_t strides[] = {apart * matrix.row_stride, matrix.row_stride, 1};
    const int rank = rank_of(argument);
    for (int i = 0; i < rank; i++) {
        described->extents[i] = (int32_t)extents[3 - rank + i];
        described->strides[i] = strides[3 - rank + i];
    }
    return encode(kernel, argument, first, described);
}

/* --- Calls */

/* Return a member of the structure of arguments. */
static const void *member_of(const void *arguments, size_t member)
{
    return (const char *)arguments + member;
}

static Shape shape_of(const Facts *facts, const void *arguments)
{
    const int64_t *extents = (const int64_t *)arguments;
    const Shape shape = {extents[0], extents[1], extents[2], facts->most_groups ? extents[3] : 1};
    return shape;
}

/* Set D to zero: the product of an M x 0 and a 0 x N matrix. */
static Status clear(const gemmgen_kernel *kernel, const Shape *shape, const void *arguments, CUstream stream)
{
    const Argument *d = &kernel->facts->arguments[kernel->facts->d];
    gemmgen_matrix matrix = *(const gemmgen_matrix *)member_of(arguments, d->member);
    const int64_t rows = size_of(&d->rows, shape), columns = size_of(&d->columns, shape);
    Status status = check_address(d->name, matrix.address);
    if (status == GEMMGEN_OK)
        status = check_rows(d, rows, columns, &matrix.row_stride);
    if (status != GEMMGEN_OK)
        return status;
    const CUresult result = kernel->driver.memset_d2d8_async(
        matrix.address, (size_t)(matrix.row_stride * d->element_bytes), 0, (size_t)(columns * d->element_bytes),
        (size_t)rows, stream);
    return result == CUDA_SUCCESS ? GEMMGEN_OK : driver_failed(&kernel->driver, "cuMemsetD2D8Async", result);
}

static Status check_call(const Facts *facts, const Shape *shape)
{
    Status status = check_extents(facts, shape);
    if (status == GEMMGEN_OK && facts->most_groups)
        status = check_groups(facts, shape);
    return status;
}

/* Launch `programs` clusters on a stream. */
static Status launch(const gemmgen_kernel *kernel, int64_t programs, void **parameters, CUstream stream)
{
    const Facts *facts = kernel->facts;
    CUlaunchConfig config;
    CUlaunchAttribute attributes[3];
    unsigned count = 0;
    memset(&config, 0, sizeof config);
    memset(attributes, 0, sizeof attributes);
    if (facts->cluster_ctas > 1) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[count].value.clusterDim.x = (unsigned)facts->cluster_ctas;
        attributes[count].value.clusterDim.y = 1;
        attributes[count++].value.clusterDim.z = 1;
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
        attributes[count++].value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
    }
    if (facts->is_dependent) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count++].value.programmaticStreamSerializationAllowed = 1;
    }
    config.gridDimX = (unsigned)(programs * facts->cluster_ctas);
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = (unsigned)facts->threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = (unsigned)facts->smem_bytes;
    config.hStream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    const CUresult result = kernel->driver.launch_kernel_ex(&config, kernel->function, parameters, NULL);
    return result == CUDA_SUCCESS ? GEMMGEN_OK : driver_failed(&kernel->driver, "cuLaunchKernelEx", result);
}

Status gemmgen_matmul(const Facts *facts, const gemmgen_kernel *kernel, const void *arguments, CUstream stream)
{
    if (kernel == NULL)
        return fail(GEMMGEN_BAD_ADDRESS, "kernel must be a loaded one, found NULL");
    if (kernel->facts != facts)
        return fail(GEMMGEN_BAD_ADDRESS, "kernel must be the one of this function, found another one");
    if (arguments == NULL)
        return fail(GEMMGEN_BAD_ADDRESS, "arguments must be the address of a structure, found NULL");
    const Shape shape = shape_of(facts, arguments);
    Status status = check_call(facts, &shape);
    if (status != GEMMGEN_OK || shape.m == 0 || shape.n == 0)
        return status;
    if (shape.n % facts->column_unit != 0)
        return fail(GEMMGEN_BAD_EXTENT, "%s, found %lld columns", facts->column_rule, (long long)shape.n);
    if (shape.k == 0 && facts->k_rule)
        return fail(GEMMGEN_BAD_EXTENT, "k must be at least 1: %s", facts->k_rule);
    if (shape.k == 0)
        return clear(kernel, &shape, arguments, stream);
    gemmgen_workspace workspace = {0, 0, 0};
    if (facts->workspace) {
        workspace = *(const gemmgen_workspace *)member_of(arguments, facts->workspace);
        status = check_workspace(facts, &shape, &workspace);
        if (status != GEMMGEN_OK)
            return status;
    }
    const int64_t programs = programs_of(facts, kernel->sm_count, &shape);
    if (programs * facts->cluster_ctas > INT32_MAX)
        return fail(GEMMGEN_BAD_EXTENT, "a grid has %d CTAs at most, and this problem takes %lld", INT32_MAX,
                    (long long)(programs * facts->cluster_ctas));

    /* The driver copies parameters from their addresses, in the kernel's order, before it returns. */
    Described described[MOST_ARGUMENTS];
    CUdeviceptr pointers[MOST_ARGUMENTS], no_scratch = 0;
    void *parameters[MOST_PARAMETERS];
    int count = 0;
    for (int i = 0; i < facts->argument_count; i++) {
        const Argument *argument = &facts->arguments[i];
        const void *member = member_of(arguments, argument->member);
        const int rank = rank_of(argument);
        if (rank == 0) {
            pointers[i] = workspace.address;
            if (argument->passing == GEMMGEN_PARTIAL_SUMS)
                pointers[i] += counter_bytes(workspace.counters);
            if (argument->passing == GEMMGEN_POINTER) {
                pointers[i] = *(const CUdeviceptr *)member;
                if (pointers[i] == 0 || pointers[i] % (CUdeviceptr)argument->alignment != 0)
                    return fail(GEMMGEN_BAD_ADDRESS, "%s must be the address of %s", argument->name,
                                argument->pointee);
            }
            parameters[count++] = &pointers[i];
            continue;
        }
        status = rank == 1
                     ? describe_vector(kernel, argument, &shape, *(const CUdeviceptr *)member, &described[i])
                     : describe_matrix(kernel, argument, &shape, *(const gemmgen_matrix *)member, &described[i]);
        if (status != GEMMGEN_OK)
            return status;
        parameters[count++] = &described[i].map;
        for (int axis = 0; axis < rank; axis++)
            parameters[count++] = &described[i].extents[axis];
        for (int axis = 0; axis < rank; axis++)
            parameters[count++] = &described[i].strides[axis];
    }
    /* Triton's scratch memory, which no exported kernel uses. */
    parameters[count++] = &no_scratch;
    parameters[count++] = &no_scratch;
    return launch(kernel, programs, parameters, stream);
}
