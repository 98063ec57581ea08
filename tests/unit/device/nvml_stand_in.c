// SPDX-License-Identifier: Apache-2.0
/* A fake NVML with three GPUs. The GPU at 0000:19:00.0 reports every sensor and is throttled, the
 * GPU at 0000:9B:00.0 is partitioned (MIG), the GPU at 0000:5E:00.0 reports none.
 * nvml_stand_in_users() returns the number of nvmlInit_v2() calls without a nvmlShutdown(). */
#include <string.h>

enum { ok = 0, uninitialized = 1, not_supported = 3, not_found = 6 };

typedef struct {
  unsigned gpu, memory;
} rates_t;

static int users = 0;
static int talkative = 1, silent = 0, partitioned = 2;

int nvml_stand_in_users(void) { return users; }

int nvmlInit_v2(void) {
  ++users;
  return ok;
}

int nvmlShutdown(void) {
  --users;
  return ok;
}

const char* nvmlErrorString(int error) {
  return error == not_found ? "Not Found" : "Unknown Error";
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** gpu) {
  if (users == 0) return uninitialized;
  *gpu = strcmp(bus_id, "0000:19:00.0") == 0   ? &talkative
         : strcmp(bus_id, "0000:9B:00.0") == 0 ? &partitioned
                                               : &silent;
  return *gpu != &silent || strcmp(bus_id, "0000:5E:00.0") == 0 ? ok : not_found;
}

int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  if (users == 0) return uninitialized;
  strncpy(text, "580.65.06", length);
  return ok;
}

static int say(void* gpu, unsigned* to, unsigned value) {
  if (*(int*)gpu == 0) return not_supported;
  *to = value;
  return ok;
}

int nvmlDeviceGetPowerUsage(void* gpu, unsigned* milliwatts) {
  return say(gpu, milliwatts, 412345);
}

int nvmlDeviceGetTemperature(void* gpu, int sensor, unsigned* celsius) {
  return say(gpu, celsius, sensor == 0 ? 61 : 0);
}

int nvmlDeviceGetClockInfo(void* gpu, int clock, unsigned* megahertz) {
  return say(gpu, megahertz, clock == 1 ? 1755 : 0);
}

int nvmlDeviceGetMaxClockInfo(void* gpu, int clock, unsigned* megahertz) {
  return say(gpu, megahertz, clock == 1 ? 1980 : 0);
}

int nvmlDeviceGetEnforcedPowerLimit(void* gpu, unsigned* milliwatts) {
  return say(gpu, milliwatts, 650500);
}

int nvmlDeviceGetUtilizationRates(void* gpu, rates_t* rates) {
  rates->memory = 35;
  return say(gpu, &rates->gpu, 97);
}

int nvmlDeviceGetTotalEnergyConsumption(void* gpu, unsigned long long* millijoules) {
  *millijoules = 1234500;
  return *(int*)gpu == 0 ? not_supported : ok;
}

int nvmlDeviceGetMigMode(void* gpu, unsigned* current, unsigned* pending) {
  *pending = 0;
  *current = *(int*)gpu == 2;
  return *(int*)gpu == 0 ? not_supported : ok;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* gpu, unsigned long long* reasons) {
  *reasons = *(int*)gpu == 2 ? 0x1 : 0x24; /* idle; power cap and temperature */
  return *(int*)gpu == 0 ? not_supported : ok;
}
