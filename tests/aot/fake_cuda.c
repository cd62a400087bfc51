/* A CUDA driver that there is not: its memory is the host's, and it writes down what it is asked for.
 *
 * FAKE_CUDA_LOG is the file of the log, FAKE_CUDA_FAIL a function that fails, FAKE_CUDA_CAPABILITY the GPU's
 * compute capability (90). FAKE_CUDA_PARAMETERS has a letter for each tensor of the kernel: `m` a matrix, `b` a
 * matrix as boxes of rows, `v` a vector, `p` an address; of scales of blocks, `t` a matrix, `s` an address, and `q`
 * the address of the scales of D. With FAKE_CUDA_MULTIPLY a launch multiplies: bf16, both operands K-major, no
 * epilogue. Words of its value change that: `wrong` forgets the last column; with `gated` D is silu(gate) * up, of a
 * B with a block of N columns for each; with `scaled` A and B are e4m3 with scales, A's first, of blocks of 128 of
 * K, and of 128 columns of B if they come as an address; with `doubled` a scale of D is twice as large as it must be.
 * With an address `p`, it has the rows of D after the last one of each group.
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

static int multiplies(const char *word)
{
    return strstr(setting("FAKE_CUDA_MULTIPLY"), word) != NULL;
}

static float of_e4m3(uint8_t bits)
{
    const int exponent = bits >> 3 & 15;
    const float fraction = (float)(bits & 7) / 8;
    const float size = exponent ? ldexpf(1 + fraction, exponent - 7) : ldexpf(fraction, -6);
    return bits & 0x80 ? -size : size;
}

/* Return the nearest e4m3, of two the even one. */
static uint8_t to_e4m3(float number)
{
    uint8_t best = 0;
    for (int bits = 0; bits < 0x7F; bits++) {
        const float distance = fabsf(of_e4m3((uint8_t)bits) - fabsf(number));
        const float least = fabsf(of_e4m3(best) - fabsf(number));
        if (distance < least || (distance == least && bits % 2 == 0))
            best = (uint8_t)bits;
    }
    return number < 0 ? best | 0x80 : best;
}

static float of_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static uint16_t to_bf16(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static float number_at(const CUtensorMap *map, uint64_t row, uint64_t column)
{
    const unsigned char *place = (unsigned char *)(uintptr_t)map->opaque[ADDRESS] + row * map->opaque[STRIDE_BYTES];
    uint16_t half;
    if (multiplies("scaled"))
        return of_e4m3(place[column]);
    memcpy(&half, place + 2 * column, sizeof half);
    return of_bf16(half);
}

/* Scales of blocks: a matrix, or the address of rows of a multiple of four scales. */
typedef struct {
    const CUtensorMap *map;
    const float *first;
} Scales;

static float scale_at(Scales scales, uint64_t row, uint64_t column, uint64_t columns)
{
    if (scales.map)
        return ((const float *)(uintptr_t)scales.map->opaque[ADDRESS])[row * scales.map->opaque[STRIDE_BYTES] / 4 +
                                                                       column];
    return scales.first[row * ((columns + 3) / 4 * 4) + column];
}

typedef struct {
    const CUtensorMap *a, *b, *d;
    Scales of_a, of_b;
    const int32_t *ends;
    float *of_d;
} Passed;

/* Return the sum of the products of a row of A and a row of B, a column of a group's matrix. */
static float sum_of(const Passed *passed, uint64_t row, uint64_t group, uint64_t column, uint64_t of_b)
{
    const uint64_t k = passed->a->opaque[COLUMNS], blocks = (k + 127) / 128;
    float sum = 0;
    for (uint64_t i = 0; i < k; i++) {
        float product = number_at(passed->a, row, i) * number_at(passed->b, group * of_b + column, i);
        if (multiplies("scaled")) {
            product *= scale_at(passed->of_a, i / 128, row, passed->a->opaque[ROWS]);
            product *= passed->of_b.map
                           ? scale_at(passed->of_b, i / 128, column, of_b)
                           : scale_at(passed->of_b, group * ((of_b + 127) / 128) + column / 128, i / 128, blocks);
        }
        sum += product;
    }
    return sum;
}

/* Multiply the rows of each group with a B of its own; without `ends`, all rows are of one group. D may be boxes
 * of rows, of which box r ends with row r - 1. */
static void multiply(const Passed *passed)
{
    const CUtensorMap *d = passed->d;
    const int gated = multiplies("gated");
    const uint64_t columns = d->opaque[COLUMNS], of_b = (gated ? 2 : 1) * columns;
    const uint64_t groups = passed->ends ? passed->b->opaque[ROWS] / of_b : 1;
    const uint64_t rows = d->opaque[BOXES] ? d->opaque[BOXES] - 1 : d->opaque[ROWS];
    unsigned char *place = (unsigned char *)(uintptr_t)d->opaque[ADDRESS];
    float *sums = malloc(columns * sizeof *sums);
    if (d->opaque[BOXES])
        place += d->opaque[ROWS] * d->opaque[STRIDE_BYTES];
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t group = 0;
        while (passed->ends && group < groups && (int64_t)row >= passed->ends[group])
            group++;
        if (group == groups)
            continue;
        unsigned char *of_row = place + row * d->opaque[STRIDE_BYTES];
        for (uint64_t column = 0; column < columns; column++) {
            sums[column] = sum_of(passed, row, group, column, of_b);
            if (gated)
                sums[column] = sums[column] / (1 + expf(-sums[column])) *
                               sum_of(passed, row, group, columns + column, of_b);
            const uint16_t half = to_bf16(sums[column]);
            if (!passed->of_d && column + multiplies("wrong") < columns)
                memcpy(of_row + 2 * column, &half, sizeof half);
        }
        for (uint64_t column = 0; passed->of_d && column < columns; column++) {
            float largest = 0;
            for (uint64_t i = column / 128 * 128; i < column / 128 * 128 + 128; i++)
                largest = fmaxf(largest, fabsf(sums[i]));
            largest = fmaxf(largest, 0x1p-100f) * (multiplies("doubled") ? 2 : 1);
            passed->of_d[column / 128 * ((rows + 3) / 4 * 4) + row] = largest / 448;
            of_row[column] = to_e4m3(sums[column] * (448 / largest));
        }
    }
    free(sums);
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
    Passed passed = {0};
    int next = 0, count = 0, scaled = 0;
    const CUresult result = called(
        "cuLaunchKernelEx", " %d grid %ux%ux%u block %ux%ux%u smem %u on %p extra %d",
        (int)(uintptr_t)function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
        config->blockDimY, config->blockDimZ, config->sharedMemBytes, (void *)config->hStream, extra != NULL);
    for (unsigned i = 0; i < config->numAttrs; i++)
        log_attribute(&config->attrs[i]);
    for (const char *kind = kinds; *kind; kind++) {
        void **values = parameters + next;
        Scales *scales = scaled ? &passed.of_b : &passed.of_a;
        if (strchr("psq", *kind)) {
            const CUdeviceptr address = *(CUdeviceptr *)values[0];
            called(*kind == 'p' ? "  address" : "  scales", " %s", address ? "given" : "none");
            if (*kind == 'q')
                passed.of_d = (float *)(uintptr_t)address;
            else if (*kind == 's' && ++scaled)
                scales->first = (const float *)(uintptr_t)address;
            else if (address && strchr(kinds, 'b'))
                passed.ends = (const int32_t *)(uintptr_t)address;
            next += 1;
            continue;
        }
        if (*kind == 't' && ++scaled)
            scales->map = values[0];
        else
            maps[count++] = values[0];
        const int small = (((const CUtensorMap *)values[0])->opaque[BITS] >> 21 & 1) == 0;
        if (*kind == 'm' || *kind == 't') {
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
        passed.a = maps[0], passed.b = maps[1], passed.d = maps[2], multiply(&passed);
    return result;
}
