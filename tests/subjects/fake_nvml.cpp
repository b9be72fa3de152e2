// A libnvidia-ml with one GPU that has seen better days. It lacks some functions, as old drivers
// do.
#include <cstring>

extern "C" {

int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  std::strncpy(text, "999.1", bytes);
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13020;
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = device;
  return index == 0 ? 0 : 2;
}
int nvmlDeviceGetName(void*, char* text, unsigned bytes) {
  std::strncpy(text, "Fake H200", bytes);
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = 9;
  *minor = 0;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 100;
  memory[1] = 70;
  memory[2] = 30;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int kind, unsigned* mhz) {
  *mhz = kind == 1 ? 1410 : 3201;
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 650500;
  return 0;
}
int nvmlDeviceGetTemperature(void*, int, unsigned*) {
  return 3;  // not supported
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* bits) {
  *bits = 0x1 | 0x4 | 0x40;
  return 0;
}
int nvmlDeviceGetEccMode(void*, unsigned* current, unsigned* pending) {
  *current = *pending = 1;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void*, int kind, int counter, unsigned long long* count) {
  *count = kind == 1 && counter == 0 ? 2 : 5;
  return 0;
}
int nvmlDeviceGetRemappedRows(void*, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = 1;
  *uncorrected = 3;
  *pending = 1;
  *failed = 0;
  return 0;
}

}  // extern "C"
