/* Stands in for libnvidia-ml.so.1: four GPUs; the n-th is 10 n percent busy and uses n + 1 of 16 GB. */

#include <string.h>

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} Memory;

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 4;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(unsigned long)(index + 1);
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    rates[0] = 10 * ((unsigned)(unsigned long)device - 1);
    rates[1] = 0;
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *memory) {
    memory->total = 16ULL << 30;
    memory->used = (unsigned long long)device << 30;
    memory->free = memory->total - memory->used;
    return 0;
}
