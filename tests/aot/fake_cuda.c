/* A CUDA driver that there is not: it logs its calls, and reads no tensor.
 *
 * FAKE_CUDA_LOG is the file of the log, FAKE_CUDA_FAIL a function that fails, FAKE_CUDA_CAPABILITY the GPU's
 * compute capability (90). FAKE_CUDA_PARAMETERS has a letter for each tensor of the kernel: `m` a matrix, `b` a
 * matrix as boxes of rows, `v` a vector, `p` an address. An address is logged as a number, so that a test sees
 * which tensor is passed where.
 */
#include <cuda.h>
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

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream)
{
    return called("cuMemsetD8Async", " %llu %d %zu on %p", address, value, count, (void *)stream);
}

CUresult cuMemsetD2D8Async(CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream stream)
{
    return called("cuMemsetD2D8Async", " %llu %zu %d %zu %zu on %p", address, pitch, value, width, height,
                  (void *)stream);
}

/* The bit that some drivers set wrongly is in this element of a tensor map. */
enum { BITS = 1 };

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill)
{
    memset(map, 0, sizeof *map);
    map->opaque[BITS] = UINT64_C(1) << 21;
    int plain = interleave == 0 && fill == 0;
    for (cuuint32_t i = 0; i < rank; i++)
        plain &= steps[i] == 1;
    char boxes[64] = "";
    if (rank > 2)
        snprintf(boxes, sizeof boxes, " boxes %d stride %d box %d", (int)extents[2], (int)strides[1], (int)box[2]);
    return called("cuTensorMapEncodeTiled",
                  " type %d at %llu extents %dx%d stride %d box %dx%d swizzle %d L2 %d plain %d%s", (int)type,
                  (unsigned long long)(uintptr_t)address, rank > 1 ? (int)extents[1] : 1, (int)extents[0],
                  rank > 1 ? (int)strides[0] : 0, rank > 1 ? (int)box[1] : 1, (int)box[0], (int)swizzle,
                  (int)promotion, plain, boxes);
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
    const CUresult result = called(
        "cuLaunchKernelEx", " %d grid %ux%ux%u block %ux%ux%u smem %u on %p extra %d",
        (int)(uintptr_t)function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
        config->blockDimY, config->blockDimZ, config->sharedMemBytes, (void *)config->hStream, extra != NULL);
    for (unsigned i = 0; i < config->numAttrs; i++)
        log_attribute(&config->attrs[i]);
    void **values = parameters;
    for (const char *kind = setting("FAKE_CUDA_PARAMETERS"); *kind; kind++) {
        if (*kind == 'p') {
            called("  address", " %llu", *(CUdeviceptr *)values[0]);
            values += 1;
            continue;
        }
        const int small = (((const CUtensorMap *)values[0])->opaque[BITS] >> 21 & 1) == 0;
        if (*kind == 'm') {
            called("  matrix", " %dx%d strides %lld %lld small %d", *(int32_t *)values[1], *(int32_t *)values[2],
                   (long long)*(int64_t *)values[3], (long long)*(int64_t *)values[4], small);
            values += 5;
        } else if (*kind == 'b') {
            const int32_t *extents[] = {values[1], values[2], values[3]};
            const int64_t *strides[] = {values[4], values[5], values[6]};
            called("  boxes", " %dx%dx%d strides %lld %lld %lld small %d", *extents[0], *extents[1], *extents[2],
                   (long long)*strides[0], (long long)*strides[1], (long long)*strides[2], small);
            values += 7;
        } else {
            called("  vector", " %d stride %lld small %d", *(int32_t *)values[1],
                   (long long)*(int64_t *)values[2], small);
            values += 3;
        }
    }
    return result;
}
