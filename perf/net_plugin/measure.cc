#include "perf/net_plugin/measure.h"

#include <algorithm>

#include <fmt/format.h>
#include <sys/resource.h>

namespace isthmus::net_plugin {
namespace {

constexpr double kGb = 1e9;

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

std::byte pattern_at(std::size_t index, std::size_t message) {
  return static_cast<std::byte>((index * 7 + index / 251 + message * 31) & 0xff);
}

}  // namespace

double cpu_seconds() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

double median_of(std::vector<double> values) {
  if (values.empty()) {
    return 0.0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void fill_pattern(std::byte* data, std::size_t bytes, std::size_t message) {
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = pattern_at(i, message);
  }
}

Status check_pattern(const std::byte* data, std::size_t bytes, std::size_t message,
                     const std::string& label) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (data[i] != pattern_at(i, message)) {
      return Error{.code = Code::kProtocol,
                   .message = fmt::format("{}: message {} of {} B: byte {} is {:#04x}, expected "
                                          "{:#04x}.",
                                          label, message, bytes, i, static_cast<int>(data[i]),
                                          static_cast<int>(pattern_at(i, message)))};
    }
  }
  return Status();
}

Result<Burst> share_stream(Channel& channel, const Case& one, double seconds, double cpu_s) {
  struct Figures {
    double seconds;
    double cpu_s;
  };

  const Result<Figures> theirs = channel.swap(Figures{seconds, cpu_s});
  if (!theirs.ok()) {
    return theirs.error();
  }
  // The receiver's clock counts: the sender gives none.
  const double time = std::max(seconds, theirs->seconds);
  const double bytes = static_cast<double>(one.bytes) * static_cast<double>(one.count);
  return Burst{.us = time * 1e6 / static_cast<double>(one.count),
               .gb_per_s = bytes / time / kGb,
               .cpu_s_per_gb = (cpu_s + theirs->cpu_s) / (bytes / kGb)};
}

}  // namespace isthmus::net_plugin
