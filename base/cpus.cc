#include "base/cpus.h"

#include <algorithm>
#include <bitset>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <sched.h>

#include "base/env.h"
#include "base/log.h"

namespace isthmus {
namespace {

// A mask as the kernel wants it: at least as large as its own.
class Mask {
 public:
  Mask() : set_(CPU_ALLOC(kCpusMax)) {
    if (set_ != nullptr) {
      CPU_ZERO_S(kBytes, set_.get());
    }
  }

  // errno, or 0.
  int read() const { return ::sched_getaffinity(0, kBytes, set_.get()) == 0 ? 0 : errno; }

  int apply() const { return ::sched_setaffinity(0, kBytes, set_.get()) == 0 ? 0 : errno; }

  void add(int cpu) { CPU_SET_S(static_cast<std::size_t>(cpu), kBytes, set_.get()); }

  std::vector<int> numbers() const {
    std::vector<int> out;
    for (int cpu = 0; cpu < kCpusMax; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), kBytes, set_.get()) != 0) {
        out.push_back(cpu);
      }
    }
    return out;
  }

 private:
  static constexpr std::size_t kBytes = CPU_ALLOC_SIZE(kCpusMax);

  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };

  std::unique_ptr<cpu_set_t, Free> set_;
};

Error malformed(std::string_view text) {
  return {.code = Code::kInvalidArgument,
          .message = fmt::format("'{}' is no list of processors; expected numbers below {} and "
                                 "ranges of them, as in 0-3,8",
                                 text, kCpusMax)};
}

std::optional<int> number(std::string_view text) {
  int value = -1;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value < 0 ||
      value >= kCpusMax) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

Result<std::vector<int>> parse_cpus(std::string_view text) {
  std::bitset<kCpusMax> chosen;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t dash = part.find('-');
    const std::optional<int> first = number(part.substr(0, dash));
    const std::optional<int> last =
        dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    if (!first || !last || *last < *first) {
      return malformed(text);
    }
    for (int cpu = *first; cpu <= *last; ++cpu) {
      chosen.set(static_cast<std::size_t>(cpu));
    }
    if (comma == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(comma + 1);
  }
  std::vector<int> out;
  for (int cpu = 0; cpu < kCpusMax; ++cpu) {
    if (chosen.test(static_cast<std::size_t>(cpu))) {
      out.push_back(cpu);
    }
  }
  return out;
}

std::string cpus_text(std::span<const int> cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : ",";
    text += last == i ? fmt::format("{}", cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[last]);
    i = last + 1;
  }
  return text.empty() ? "none" : text;
}

std::vector<int> own_cpus() {
  Mask mask;
  return mask.read() == 0 ? mask.numbers() : std::vector<int>();
}

Result<std::vector<int>> permitted_cpus() {
  int failure = 0;
  std::vector<int> cpus;
  std::thread([&] {
    Mask all;
    for (int cpu = 0; cpu < kCpusMax; ++cpu) {
      all.add(cpu);
    }
    failure = all.apply();
    failure = failure == 0 ? all.read() : failure;
    cpus = all.numbers();
  }).join();
  if (failure != 0) {
    return system_error(Code::kIo, failure, "cannot ask which processors are permitted");
  }
  return cpus;
}

Status check_own_cpus(std::string_view cpus) {
  if (cpus.empty()) {
    return {};
  }
  const Result<std::vector<int>> wanted = parse_cpus(cpus);
  if (!wanted.ok()) {
    return Error{.code = wanted.error().code,
                 .message = fmt::format("ISTHMUS_CPUS: {}", wanted.error().message)};
  }
  ISTHMUS_ASSIGN(const std::vector<int> permitted, permitted_cpus());
  std::vector<int> refused;
  std::set_difference(wanted->begin(), wanted->end(), permitted.begin(), permitted.end(),
                      std::back_inserter(refused));
  if (!refused.empty()) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("ISTHMUS_CPUS: processors {} are not permitted to this "
                                        "process; permitted are {}",
                                        cpus_text(refused), cpus_text(permitted))};
  }
  return {};
}

void enter_own_thread() {
  const std::string& cpus = env().CPUS;
  if (cpus.empty()) {
    return;
  }
  const Result<std::vector<int>> wanted = parse_cpus(cpus);
  if (!wanted.ok()) {
    return;  // said by whoever makes a world; a rendezvous server may start before
  }
  Mask mask;
  for (const int cpu : *wanted) {
    mask.add(cpu);
  }
  if (const int failure = mask.apply(); failure != 0) {
    log(LogLevel::kWarn, "threads", "a thread stays off ISTHMUS_CPUS {}: {}", cpus,
        std::strerror(failure));
  }
}

}  // namespace isthmus
