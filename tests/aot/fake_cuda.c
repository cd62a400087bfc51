/* A CUDA driver that there is not: its memory is the host's, and it writes down what it is asked for.
 *
 * FAKE_CUDA_LOG is the file of the log, FAKE_CUDA_FAIL a function that fails, FAKE_CUDA_CAPABILITY the GPU's
 * compute capability (90). FAKE_CUDA_PARAMETERS has a letter for each tensor of the kernel: `m` a matrix, `b` a
 * matrix as boxes of rows, `v` a vector, `p` an address. With FAKE_CUDA_MULTIPLY a launch multiplies: bf16, both
 * operands K-major, no epilogue; with the value `wrong` it forgets the last column, and with `gated` D is
 * silu(gate) * up, of a B with a block of N columns for each. With an address, it has the rows of D after the last
 * one of each group.
 */
#include <cuda.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

/* Write down a call; return what it is to return. */
__attribute__((format(printf, 2, 3))) static CUresult called(const char *name, const char *format, ...)
{
    FILE *log = fopen(setting("FAKE_CUDA_LOG"), "a");
    if (log) {
        va_list values;
        va_start(values, format);
        fprintf(log, "%s", name);
        vfprintf(log, format, values);
        fprintf(log, "\n");
        va_end(values);
        fclose(log);
    }
    return strcmp(setting("FAKE_CUDA_FAIL"), name) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuInit(unsigned flags)
{
    return called("cuInit", " %u", flags);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    snprintf(name, (size_t)bytes, "fake GPU %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)(uintptr_t)(device + 1);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return called("cuDevicePrimaryCtxRelease", " %d", device);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return called("cuCtxGetDevice", "%s", "");
}

CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return called("cuDriverGetVersion", "%s", "");
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
    *text = result == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : NULL;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    const int capability = *setting("FAKE_CUDA_CAPABILITY") ? atoi(setting("FAKE_CUDA_CAPABILITY")) : 90;
    const int answers[][2] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, capability / 10},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, capability % 10},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if ((int)attribute == answers[i][0])
            *value = answers[i][1];
    return called("cuDeviceGetAttribute", " %d of %d", (int)attribute, device);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = (CUmodule)(uintptr_t)16;
    return called("cuModuleLoadData", " ELF %d", memcmp(image, "\177ELF", 4) == 0);
}

CUresult cuModuleUnload(CUmodule module)
{
    return called("cuModuleUnload", " %d", (int)(uintptr_t)module);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    *function = (CUfunction)(uintptr_t)32;
    return called("cuModuleGetFunction", " %d %s", (int)(uintptr_t)module, name);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    const int known = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    return called("cuFuncSetAttribute", " %d %s %d", (int)(uintptr_t)function, known ? "dynamic" : "?", value);
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    return called("cuFuncSetCacheConfig", " %d %d", (int)(uintptr_t)function, (int)config);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    *address = (CUdeviceptr)(uintptr_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    free((void *)(uintptr_t)address);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream)
{
    memset((void *)(uintptr_t)address, value, count);
    return called("cuMemsetD8Async", " %d %zu on %p", value, count, (void *)stream);
}

CUresult cuMemsetD2D8Async(CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream stream)
{
    for (size_t row = 0; row < height; row++)
        memset((char *)(uintptr_t)address + row * pitch, value, width);
    return called("cuMemsetD2D8Async", " %zu %d %zu %zu on %p", pitch, value, width, height, (void *)stream);
}

CUresult cuStreamSynchronize(CUstream stream)
{
    return stream ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

/* What a tensor map holds here: the address, a bit that some drivers set wrongly, extents and strides. */
enum { ADDRESS, BITS, COLUMNS, ROWS, STRIDE_BYTES, BOXES, BOX_BYTES };

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill)
{
    memset(map, 0, sizeof *map);
    map->opaque[ADDRESS] = (cuuint64_t)(uintptr_t)address;
    map->opaque[BITS] = UINT64_C(1) << 21;
    map->opaque[COLUMNS] = extents[0];
    map->opaque[ROWS] = rank > 1 ? extents[1] : 1;
    map->opaque[STRIDE_BYTES] = rank > 1 ? strides[0] : 0;
    map->opaque[BOXES] = rank > 2 ? extents[2] : 0;
    map->opaque[BOX_BYTES] = rank > 2 ? strides[1] : 0;
    int plain = interleave == 0 && fill == 0;
    for (cuuint32_t i = 0; i < rank; i++)
        plain &= steps[i] == 1;
    char boxes[64] = "";
    if (rank > 2)
        snprintf(boxes, sizeof boxes, " boxes %d stride %d box %d", (int)extents[2], (int)strides[1], (int)box[2]);
    return called("cuTensorMapEncodeTiled", " type %d extents %dx%d stride %d box %dx%d swizzle %d L2 %d plain %d%s",
                  (int)type, (int)map->opaque[ROWS], (int)extents[0], (int)map->opaque[STRIDE_BYTES],
                  rank > 1 ? (int)box[1] : 1, (int)box[0], (int)swizzle, (int)promotion, plain, boxes);
}

static float number_at(const CUtensorMap *map, uint64_t row, uint64_t column)
{
    const unsigned char *place = (void *)(uintptr_t)map->opaque[ADDRESS];
    uint16_t half;
    uint32_t bits;
    float number;
    memcpy(&half, place + row * map->opaque[STRIDE_BYTES] + 2 * column, sizeof half);
    bits = (uint32_t)half << 16;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* Multiply the rows of each group with a B of its own; without `ends`, all rows are of one group. D may be boxes
 * of rows, of which box r ends with row r - 1. */
static void multiply(const CUtensorMap *a, const CUtensorMap *b, const int32_t *ends, const CUtensorMap *d)
{
    const int forgotten = strcmp(setting("FAKE_CUDA_MULTIPLY"), "wrong") == 0;
    const int gated = strcmp(setting("FAKE_CUDA_MULTIPLY"), "gated") == 0;
    const uint64_t columns = d->opaque[COLUMNS], of_b = (gated ? 2 : 1) * columns;
    const uint64_t groups = ends ? b->opaque[ROWS] / of_b : 1;
    const uint64_t rows = d->opaque[BOXES] ? d->opaque[BOXES] - 1 : d->opaque[ROWS];
    char *place = (char *)(uintptr_t)d->opaque[ADDRESS];
    if (d->opaque[BOXES])
        place += d->opaque[ROWS] * d->opaque[STRIDE_BYTES];
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t group = 0;
        while (ends && group < groups && (int64_t)row >= ends[group])
            group++;
        if (group == groups)
            continue;
        for (uint64_t column = 0; column + forgotten < columns; column++) {
            float sum = 0, up = 0;
            uint32_t bits;
            for (uint64_t k = 0; k < a->opaque[COLUMNS]; k++) {
                sum += number_at(a, row, k) * number_at(b, group * of_b + column, k);
                if (gated)
                    up += number_at(a, row, k) * number_at(b, group * of_b + columns + column, k);
            }
            if (gated)
                sum = sum / (1 + expf(-sum)) * up;
            memcpy(&bits, &sum, sizeof bits);
            const uint16_t half = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
            memcpy(place + row * d->opaque[STRIDE_BYTES] + 2 * column, &half, sizeof half);
        }
    }
}

static void log_attribute(const CUlaunchAttribute *attribute)
{
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        called("  cluster", " %u %u %u", attribute->value.clusterDim.x, attribute->value.clusterDim.y,
               attribute->value.clusterDim.z);
    else if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
        called("  policy", " %d", (int)attribute->value.clusterSchedulingPolicyPreference);
    else if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        called("  dependent", " %d", attribute->value.programmaticStreamSerializationAllowed);
    else
        called("  attribute", " %d", (int)attribute->id);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    const char *kinds = setting("FAKE_CUDA_PARAMETERS");
    const CUtensorMap *maps[8] = {NULL};
    const int32_t *ends = NULL;
    int next = 0, count = 0;
    const CUresult result = called(
        "cuLaunchKernelEx", " %d grid %ux%ux%u block %ux%ux%u smem %u on %p extra %d",
        (int)(uintptr_t)function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
        config->blockDimY, config->blockDimZ, config->sharedMemBytes, (void *)config->hStream, extra != NULL);
    for (unsigned i = 0; i < config->numAttrs; i++)
        log_attribute(&config->attrs[i]);
    for (const char *kind = kinds; *kind; kind++) {
        void **values = parameters + next;
        if (*kind == 'p') {
            const CUdeviceptr address = *(CUdeviceptr *)values[0];
            called("  address", " %s", address ? "given" : "none");
            if (address && strchr(kinds, 'b'))
                ends = (const int32_t *)(uintptr_t)address;
            next += 1;
            continue;
        }
        maps[count++] = values[0];
        const int small = (((const CUtensorMap *)values[0])->opaque[BITS] >> 21 & 1) == 0;
        if (*kind == 'm') {
            called("  matrix", " %dx%d strides %lld %lld small %d", *(int32_t *)values[1], *(int32_t *)values[2],
                   (long long)*(int64_t *)values[3], (long long)*(int64_t *)values[4], small);
            next += 5;
        } else if (*kind == 'b') {
            const int32_t *extents[] = {values[1], values[2], values[3]};
            const int64_t *strides[] = {values[4], values[5], values[6]};
            called("  boxes", " %dx%dx%d strides %lld %lld %lld small %d", *extents[0], *extents[1], *extents[2],
                   (long long)*strides[0], (long long)*strides[1], (long long)*strides[2], small);
            next += 7;
        } else {
            called("  vector", " %d stride %lld small %d", *(int32_t *)values[1],
                   (long long)*(int64_t *)values[2], small);
            next += 3;
        }
    }
    if (result == CUDA_SUCCESS && *setting("FAKE_CUDA_MULTIPLY"))
        multiply(maps[0], maps[1], ends, maps[2]);
    return result;
}
