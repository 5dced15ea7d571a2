/* NVML of a made-up machine: the functions that dtrain asks for, with the signatures of nvml.h.
 *
 * FAKE_GPUS     how many GPUs there are (2)
 * FAKE_BUSY     MiB of memory that another process holds on each GPU (none)
 * FAKE_NVML     what nvmlInit_v2 returns (0)
 * FAKE_SM       the compute capability of each GPU (90 for 9.0)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int index; } Gpu;
static Gpu gpus[16] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}
static int count(void) { return number("FAKE_GPUS", 2); }
static int text(char *out, unsigned length, const char *words) {
    if (strlen(words) + 1 > length) return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
    strcpy(out, words);
    return 0;
}

int nvmlInit_v2(void) { return number("FAKE_NVML", 0); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned length) { return text(out, length, "580.65.06"); }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = (unsigned)count(); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **out) {
    if ((int)index >= count()) return 2; /* NVML_ERROR_INVALID_ARGUMENT */
    *out = &gpus[index];
    return 0;
}
int nvmlDeviceGetIndex(Gpu *gpu, unsigned *out) { *out = (unsigned)gpu->index; return 0; }
int nvmlDeviceGetName(Gpu *gpu, char *out, unsigned length) { (void)gpu; return text(out, length, "Made-up GPU"); }
int nvmlDeviceGetUUID(Gpu *gpu, char *out, unsigned length) {
    char words[64];
    sprintf(words, "GPU-%08d-aaaa-bbbb-cccc-000000000000", gpu->index + 10000000);
    return text(out, length, words);
}

int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) {
    (void)gpu;
    *major = number("FAKE_SM", 90) / 10;
    *minor = number("FAKE_SM", 90) % 10;
    return 0;
}

typedef struct { unsigned long long total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *out) {
    unsigned long long mib = 1ull << 20;
    (void)gpu;
    out->total = 81920 * mib;
    out->used = (512 + (unsigned long long)number("FAKE_BUSY", 0)) * mib;
    out->free = out->total - out->used;
    return 0;
}
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, Memory2 *out) {
    Memory memory;
    if (out->version != (sizeof(Memory2) | 2u << 24)) return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    nvmlDeviceGetMemoryInfo(gpu, &memory);
    out->total = memory.total;
    out->free = memory.free;
    out->used = memory.used;
    out->reserved = 0;
    return 0;
}
typedef struct { unsigned gpu, memory; } Utilisation;
int nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilisation *out) {
    out->gpu = 40 + (unsigned)gpu->index;
    out->memory = 7;
    return 0;
}
int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *out) {
    (void)sensor;
    *out = 50 + (unsigned)gpu->index;
    return 0;
}
int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *out) { (void)gpu; *out = 123456; return 0; }

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *length, Process *out) {
    (void)gpu;
    int busy = number("FAKE_BUSY", 0);
    if (!busy) { *length = 0; return 0; }
    if (*length < 1 || !out) { *length = 1; return 7; }
    *length = 1;
    out->pid = 4242;
    out->used = (unsigned long long)busy << 20;
    out->gpu_instance = out->compute_instance = 0xffffffffu;
    return 0;
}
/* Two neighbours see each other directly and have two links. */
int nvmlDeviceGetP2PStatus(Gpu *a, Gpu *b, int what, int *out) { (void)a; (void)b; (void)what; *out = 0; return 0; }
int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *out) {
    (void)gpu;
    if (link > 1) return 2;
    *out = 1;
    return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(Gpu *a, Gpu *b, int *out) { (void)a; (void)b; *out = 40; return 0; }
