#include "backends/nvml/nvml.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <memory>

namespace octet::nvml {
namespace {

// The few declarations of nvml.h that are used here, by its ABI.
using Return = int;  // 0 = success
using Device = void*;
constexpr Return kNoDriver = 9, kNoPermission = 4;
constexpr unsigned kNameBytes = 96;
struct Memory {
  unsigned long long total, free, used;
};

struct Closer {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, Closer>;

// A function of the library. Calling one that this driver lacks gives an error as any other.
template <typename... Args>
class Function {
 public:
  Function(const Library& library, const char* name)
      : call_(reinterpret_cast<Return (*)(Args...)>(dlsym(library.get(), name))) {}
  explicit operator bool() const { return call_ != nullptr; }
  Return operator()(Args... args) const { return call_ ? call_(args...) : kMissing; }

 private:
  static constexpr Return kMissing = 13;  // NVML_ERROR_FUNCTION_NOT_FOUND
  Return (*call_)(Args...);
};

struct Reason {
  unsigned long long bit;
  const char* name;
};
// Idle (1) is no reason to worry and is left out.
constexpr Reason kReasons[] = {{0x2, "application clocks"}, {0x4, "power cap"},
                               {0x8, "hardware slowdown"},  {0x10, "sync boost"},
                               {0x20, "temperature"},       {0x40, "hardware temperature limit"},
                               {0x80, "power brake"},       {0x100, "display clocks"}};

Library open_library(const std::string& name) {
  if (!name.empty()) return Library(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL));
  Library library(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL));
  if (!library) library.reset(dlopen("libnvidia-ml.so", RTLD_NOW | RTLD_LOCAL));
  return library;
}

// The value that `get` writes, as T; unset if it fails.
template <typename T, typename Raw, typename Get>
std::optional<T> value_of(Get get) {
  Raw raw{};
  if (get(&raw) != 0) return std::nullopt;
  return static_cast<T>(raw);
}

std::string text_of(const Library& library, const char* function, Device device) {
  std::array<char, kNameBytes> text{};
  const Function<Device, char*, unsigned> get(library, function);
  return get(device, text.data(), kNameBytes) == 0 ? std::string(text.data()) : std::string();
}

Gpu describe(const Library& library, Device device) {
  using Count = unsigned long long;
  const auto number = [&](const char* name, auto... args) {
    const Function<Device, decltype(args)..., unsigned*> get(library, name);
    return value_of<int, unsigned>([&](unsigned* out) { return get(device, args..., out); });
  };
  const auto watts = [&](const char* name) -> std::optional<double> {
    const std::optional<int> milliwatts = number(name);
    return milliwatts ? std::optional(*milliwatts / 1000.0) : std::nullopt;
  };
  const auto enabled = [&](const char* name) -> std::optional<bool> {
    const Function<Device, unsigned*, unsigned*> get(library, name);
    unsigned pending = 0;
    return value_of<bool, unsigned>([&](unsigned* out) { return get(device, out, &pending); });
  };
  const auto ecc_errors = [&](int kind, int counter) {
    const Function<Device, int, int, Count*> get(library, "nvmlDeviceGetTotalEccErrors");
    return value_of<int64_t, Count>([&](Count* out) { return get(device, kind, counter, out); });
  };
  Gpu gpu;
  gpu.name = text_of(library, "nvmlDeviceGetName", device);
  gpu.uuid = text_of(library, "nvmlDeviceGetUUID", device);
  Function<Device, int*, int*>(library, "nvmlDeviceGetCudaComputeCapability")(device, &gpu.major,
                                                                              &gpu.minor);
  Memory memory{};
  if (Function<Device, Memory*>(library, "nvmlDeviceGetMemoryInfo")(device, &memory) == 0) {
    gpu.memory_total = static_cast<int64_t>(memory.total);
    gpu.memory_used = static_cast<int64_t>(memory.used);
  }
  constexpr int sm = 1, mem = 2;
  gpu.sm_mhz = number("nvmlDeviceGetClockInfo", sm);
  gpu.sm_max_mhz = number("nvmlDeviceGetMaxClockInfo", sm);
  gpu.memory_mhz = number("nvmlDeviceGetClockInfo", mem);
  gpu.power_watts = watts("nvmlDeviceGetPowerUsage");
  gpu.power_limit_watts = watts("nvmlDeviceGetEnforcedPowerLimit");
  gpu.celsius = number("nvmlDeviceGetTemperature", 0);
  Count bits = 0;
  if (Function<Device, Count*>(library, "nvmlDeviceGetCurrentClocksThrottleReasons")(device,
                                                                                     &bits) == 0) {
    gpu.throttle_reasons.emplace();
    for (const auto& [bit, name] : kReasons) {
      if (bits & bit) gpu.throttle_reasons->emplace_back(name);
    }
  }
  gpu.ecc = enabled("nvmlDeviceGetEccMode");
  gpu.mig = enabled("nvmlDeviceGetMigMode");
  gpu.corrected = ecc_errors(0, 0);
  gpu.uncorrected = ecc_errors(1, 0);
  gpu.corrected_ever = ecc_errors(0, 1);
  gpu.uncorrected_ever = ecc_errors(1, 1);
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (Function<Device, unsigned*, unsigned*, unsigned*, unsigned*>(
          library, "nvmlDeviceGetRemappedRows")(device, &corrected, &uncorrected, &pending,
                                                &failed) == 0) {
    gpu.remapped_rows = {static_cast<int>(corrected), static_cast<int>(uncorrected), pending != 0,
                         failed != 0};
  }
  return gpu;
}

}  // namespace

std::vector<std::string> Gpu::problems() const {
  std::vector<std::string> found;
  if (uncorrected.value_or(0) > 0) {
    found.push_back(
        fmt::format("{} uncorrected ECC errors since the driver started: reset the GPU "
                    "(nvidia-smi --gpu-reset), and replace it if they come back",
                    *uncorrected));
  }
  if (remapped_rows && remapped_rows->failed) {
    found.emplace_back("a memory bank has no spare rows left: replace the GPU");
  }
  if (remapped_rows && remapped_rows->pending) {
    found.emplace_back("memory rows wait to be remapped: reset the GPU (nvidia-smi --gpu-reset)");
  }
  for (const std::string& reason : throttle_reasons.value_or(std::vector<std::string>())) {
    if (reason.starts_with("hardware") || reason == "power brake") {
      found.push_back("the clock is held down: " + reason);
    }
  }
  if (ecc && !*ecc) found.emplace_back("ECC is off: memory errors stay unseen");
  if (mig.value_or(false)) found.emplace_back("MIG is on: only a part of this GPU can be used");
  return found;
}

Report query(const std::string& name) {
  Report report;
  const Library library = open_library(name);
  if (!library) {
    report.problem = name.empty() ? "no NVIDIA driver: libnvidia-ml.so.1 is not on this machine"
                                  : fmt::format("cannot open {}: {}", name, dlerror());
    return report;
  }
  const Return status = Function<>(library, "nvmlInit_v2")();
  if (status != 0) {
    const auto words =
        reinterpret_cast<const char* (*)(Return)>(dlsym(library.get(), "nvmlErrorString"));
    report.problem =
        status == kNoDriver ? "the NVIDIA driver is installed but not loaded"
        : status == kNoPermission
            ? "no permission to use the NVIDIA driver (/dev/nvidiactl)"
            : fmt::format("NVML does not start: {}", words ? words(status) : "unknown error");
    return report;
  }
  std::array<char, kNameBytes> driver{};
  if (Function<char*, unsigned>(library, "nvmlSystemGetDriverVersion")(driver.data(), kNameBytes) ==
      0) {
    report.driver = driver.data();
  }
  Function<int*>(library, "nvmlSystemGetCudaDriverVersion_v2")(&report.cuda_version);
  unsigned count = 0;
  Function<unsigned*>(library, "nvmlDeviceGetCount_v2")(&count);
  const Function<unsigned, Device*> handle(library, "nvmlDeviceGetHandleByIndex_v2");
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    if (handle(i, &device) == 0) report.gpus.push_back(describe(library, device));
  }
  Function<>(library, "nvmlShutdown")();
  if (report.gpus.empty()) report.problem = "the NVIDIA driver finds no GPU";
  return report;
}

std::vector<std::string> recent_xids(size_t most) {
  std::vector<std::string> lines;
  const int log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (log < 0) return lines;
  std::array<char, 8192> record{};  // one read is one record; none is longer
  for (;;) {
    const ssize_t bytes = read(log, record.data(), record.size());
    if (bytes < 0 && errno == EPIPE) continue;  // overwritten meanwhile: the next one
    if (bytes <= 0) break;
    const std::string text(record.data(), static_cast<size_t>(bytes));
    const size_t at = text.find("NVRM: Xid");
    if (at == text.npos) continue;
    lines.push_back(text.substr(at, text.find('\n', at) - at));
    if (lines.size() > most) lines.erase(lines.begin());
  }
  close(log);
  return lines;
}

}  // namespace octet::nvml
