#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "perf/net_plugin/link.h"
#include "perf/net_plugin/measure.h"

namespace isthmus::net_plugin {
namespace {

class PluginSide final : public Side {
 public:
  PluginSide(Link link, Channel& channel, std::string label, const SideOptions& options)
      : link_(std::move(link)), channel_(channel), label_(std::move(label)), options_(options) {}

  Status prepare() {
    const std::size_t count = static_cast<std::size_t>(std::max(options_.depth, 2));
    slots_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      Result<Registered> memory = Registered::make(link_, options_.most_bytes);
      if (!memory.ok()) {
        return memory.error();
      }
      slots_.push_back(std::move(*memory));
    }
    return Status();
  }

  const std::string& label() const override { return label_; }

  Status verify(const Case& one) override {
    const std::size_t count = 2 * slots_.size() + 1;
    return options_.rank == 0 ? send_all(one.bytes, count, true)
                              : receive_all(one.bytes, count, true);
  }

  Result<Burst> burst(const Case& one) override {
    const Status met = channel_.meet();
    if (!met.ok()) {
      return met.error();
    }
    if (one.kind == Kind::kLatency) {
      return latency(one);
    }
    const double cpu = cpu_seconds();
    const std::int64_t begin = monotonic_ns();
    const Status status = options_.rank == 0 ? send_all(one.bytes, one.count, false)
                                             : receive_all(one.bytes, one.count, false);
    if (!status.ok()) {
      return status.error();
    }
    const double seconds = static_cast<double>(monotonic_ns() - begin) * 1e-9;
    return share_stream(channel_, one, options_.rank == 0 ? 0.0 : seconds, cpu_seconds() - cpu);
  }

 private:
  Result<void*> post(bool sends, std::size_t slot, std::size_t bytes) {
    Registered& memory = slots_[slot];
    return sends ? link_.send(memory.data(), bytes, memory.to_send())
                 : link_.recv(memory.data(), bytes, memory.to_recv());
  }

  Status arrived(int got, std::size_t bytes) const {
    if (got == static_cast<int>(bytes)) {
      return Status();
    }
    return Error{
        .code = Code::kProtocol,
        .message = fmt::format("{}: test says {} B of a message of {} B.", label_, got, bytes)};
  }

  // As NCCL's proxy: so many are posted as there are slots, and the oldest alone is looked at.
  template <typename Before, typename After>
  Status pass(bool sends, std::size_t bytes, std::size_t count, Before before, After after) {
    std::vector<void*> requests(slots_.size(), nullptr);
    std::size_t posted = 0;
    const Deadline deadline = Deadline::after_ms(Link::kMessageLimitMs);
    for (std::size_t ended = 0, looks = 0; ended < count; ++looks) {
      while (posted < count && posted - ended < slots_.size()) {
        const std::size_t slot = posted % slots_.size();
        before(slot, posted);
        const Result<void*> request = post(sends, slot, bytes);
        if (!request.ok()) {
          return request.error();
        }
        if (*request == nullptr) {
          break;  // later
        }
        requests[slot] = *request;
        ++posted;
      }
      int got = -1;
      const std::size_t slot = ended % slots_.size();
      if (posted > ended) {
        const Result<bool> over = link_.done(requests[slot], &got);
        if (!over.ok()) {
          return over.error();
        }
        if (*over) {
          const Status right = after(slot, ended, got);
          if (!right.ok()) {
            return right;
          }
          ++ended;
        }
      }
      if (looks % 65536 == 65535 && deadline.passed(monotonic_ns())) {
        return Error{.code = Code::kTimeout,
                     .message = fmt::format("{}: {} of {} messages ended within {} s.", label_,
                                            ended, count, Link::kMessageLimitMs / 1000)};
      }
    }
    return Status();
  }

  Status send_all(std::size_t bytes, std::size_t count, bool filled) {
    return pass(
        true, bytes, count,
        [&](std::size_t slot, std::size_t message) {
          if (filled) {
            fill_pattern(slots_[slot].data(), bytes, message);
          }
        },
        [](std::size_t, std::size_t, int) { return Status(); });
  }

  Status receive_all(std::size_t bytes, std::size_t count, bool compared) {
    return pass(
        false, bytes, count, [](std::size_t, std::size_t) {},
        [&](std::size_t slot, std::size_t message, int got) {
          const Status size = arrived(got, bytes);
          return size.ok() && compared ? check_pattern(slots_[slot].data(), bytes, message, label_)
                                       : size;
        });
  }

  // Waits for a request of one_way traffic; a receive's size must be right.
  Status ended(const Result<void*>& request, bool sends, std::size_t bytes) {
    if (!request.ok()) {
      return request.error();
    }
    const Result<int> got = link_.wait(*request);
    if (!got.ok()) {
      return got.error();
    }
    return sends ? Status() : arrived(*got, bytes);
  }

  // The next receive is posted before what it answers is sent, as NCCL does.
  Result<Burst> latency(const Case& one) {
    std::vector<double> us;
    us.reserve(one.count);
    const bool first = options_.rank == 0;
    Result<void*> coming = post(false, 1, one.bytes);
    for (std::size_t i = 0; i < one.count; ++i) {
      const std::int64_t begin = monotonic_ns();
      for (const bool sends : {first, !first}) {
        const Status status = sends ? ended(post(true, 0, one.bytes), true, one.bytes)
                                    : ended(coming, false, one.bytes);
        if (!status.ok()) {
          return status.error();
        }
        if (!sends && i + 1 < one.count) {
          coming = post(false, 1, one.bytes);
        }
      }
      us.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-3 / 2);
    }
    return Burst{.us = median_of(std::move(us))};
  }

  Link link_;
  Channel& channel_;
  std::string label_;
  SideOptions options_;
  std::vector<Registered> slots_;  // before link_ is closed they are given back
};

}  // namespace

Result<std::unique_ptr<Side>> plugin_side(NetPlugin& plugin, Channel& channel, std::string label,
                                          const SideOptions& options) {
  Result<Link> link = Link::with_peer(plugin, channel, options.device);
  if (!link.ok()) {
    return link.error();
  }
  auto side = std::make_unique<PluginSide>(std::move(*link), channel, std::move(label), options);
  const Status ready = side->prepare();
  if (!ready.ok()) {
    return ready.error();
  }
  return std::unique_ptr<Side>(std::move(side));
}

}  // namespace isthmus::net_plugin
