#include "topology/machine_key.h"

#include <charconv>
#include <fstream>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

namespace isthmus {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "2048K" as the kernel writes it.
std::size_t size_of(std::string_view text) {
  std::size_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  return failure != std::errc() ? 0 : value << (unit == "K" ? 10 : unit == "M" ? 20 : 0);
}

std::size_t cache_bytes(std::string_view level) {
  constexpr int kCachesMax = 8;
  for (int index = 0; index < kCachesMax; ++index) {
    const std::string cache = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    if (first_line(cache + "level") == level) {
      const std::string type = first_line(cache + "type");
      if (type == "Unified" || type == "Data") {
        return size_of(first_line(cache + "size"));
      }
    }
  }
  return 0;
}

// On Arm, where the kernel names no model, its part number.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name") || line.starts_with("CPU part")) {
      const std::size_t colon = line.find(": ");
      return colon == std::string::npos ? std::string() : line.substr(colon + 2);
    }
  }
  return {};
}

}  // namespace

MachineKey MachineKey::read() {
  MachineKey key;
  key.processor = processor_name();
  key.processors = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  key.l2_bytes = cache_bytes("2");
  key.l3_bytes = cache_bytes("3");
  return key;
}

std::string MachineKey::text() const {
  return fmt::format("{} x {}, L2 {} KiB, L3 {} KiB", processors,
                     processor.empty() ? "unknown processor" : processor, l2_bytes >> 10,
                     l3_bytes >> 10);
}

}  // namespace isthmus
